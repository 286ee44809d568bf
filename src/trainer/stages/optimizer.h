// AdamW over a decoder's parameters, with a learning-rate schedule and gradient clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/base/rng.h"
#include "trainer/stages/block_bytes.h"

namespace tdock::trainer {

enum class LrDecay { kConstant, kLinear, kCosine };

// The learning rate at a step, relative to its peak.
//
// Warm-up: (step + 1) / warmup_steps, so that the first step already has an effect. Then, over the remaining steps,
// from 1 down to `floor`: linearly, along half a cosine, or constant.
struct LrSchedule {
  LrDecay decay = LrDecay::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double floor = 0.0;

  double Factor(int64_t step) const;
};

enum class MomentType { kFloat32, kInt8 };

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // of matrices; norm weights and biases have none
  double clip_grad = 1.0;      // the global norm that gradients are clipped to; 0: no clipping
  // How both moments are stored. In eight bits (BlockBytes) they take a quarter of the memory, and a step takes longer;
  // those of parameters of fewer than 4,096 numbers, such as norms and biases, stay in float32. Second moments are
  // rounded at random, by the number of the step and the parameter: equal runs stay equal to the bit.
  MomentType moments = MomentType::kFloat32;
};

// Parameters with a learning rate of their own.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  double lr_factor = 1.0;  // the learning rate of a step is multiplied by it
};

// Decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"). Not thread-safe.
class AdamW {
 public:
  // The parameters are those of a decoder; they are changed in place.
  AdamW(const std::vector<ParameterGroup>& groups, const AdamWOptions& options);
  AdamW(const std::vector<at::Tensor>& parameters, const AdamWOptions& options)
      : AdamW(std::vector<ParameterGroup>{{parameters}}, options) {}

  // Clips the accumulated gradients, takes one step with the given learning rate, and clears them. Gradients are those
  // of the loss times `loss_scale`. Returns the global norm before clipping, of those of the loss; if it is not finite,
  // nothing but the gradients has changed.
  double Step(double lr, double loss_scale = 1.0);

 private:
  // What a parameter is stepped with.
  struct Rates {
    double lr_factor, weight_decay;
  };

  // Parameters that share rates, as the fused kernel takes them.
  struct Group {
    Rates rates;
    std::vector<at::Tensor> parameters = {}, first_moments = {}, second_moments = {}, step_counts = {};
  };

  struct ByteMoments {
    at::Tensor parameter;
    Rates rates;
    BlockBytes first, second;
  };

  void Add(const at::Tensor& parameter, Group& group);
  void StepInBytes(ByteMoments& moments, double lr, Rng rng);

  const AdamWOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<Group> groups_;
  std::vector<ByteMoments> in_bytes_;
  int64_t steps_ = 0;
};

}  // namespace tdock::trainer
