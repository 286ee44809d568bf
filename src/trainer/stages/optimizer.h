// AdamW over a decoder's parameters, with a learning-rate schedule and gradient clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "trainer/checkpoint/state.h"
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
  // rounded at random.
  MomentType moments = MomentType::kFloat32;
  // Moments, and a copy of the parameters in float32 at least, are in the memory of the CPU, wherever the parameters
  // are, and steps are taken there: gradients go there a part at a time, and the copy's weights come back. Weights of
  // bfloat16 are then the nearest to those of the copy.
  bool offload = false;
  // Of what is rounded at random, which follows from it, the number of the step and the parameter: equal runs stay
  // equal to the bit.
  uint64_t seed = 0;
};

// Parameters with a learning rate of their own.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  double lr_factor = 1.0;  // the learning rate of a step is multiplied by it
};

// Decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"). Moments are float32 at
// least. Weights of bfloat16 have no copy in float32, unless there is one on the CPU: a step is taken in float32, and
// the result is rounded at random (rounding.h), so that small steps count on average. Not thread-safe.
class AdamW final : public Stateful {
 public:
  // The parameters are those of a decoder; they are changed in place, and by nothing else where there is a copy of them
  // (AdamWOptions::offload). float32, float64 or bfloat16.
  AdamW(const std::vector<ParameterGroup>& groups, const AdamWOptions& options);
  AdamW(const std::vector<at::Tensor>& parameters, const AdamWOptions& options)
      : AdamW(std::vector<ParameterGroup>{{parameters}}, options) {}

  // Clips the accumulated gradients, takes one step with the given learning rate, and clears them. Gradients are those
  // of the loss times `loss_scale`. Returns the global norm before clipping, of those of the loss; if it is not finite,
  // nothing but the gradients has changed.
  double Step(double lr, double loss_scale = 1.0);

  // By the position of a parameter among those given.
  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

 private:
  // What a parameter is stepped with.
  struct Rates {
    double lr_factor, weight_decay;
  };

  // Parameters that share rates, as the fused kernel takes them.
  struct Group {
    Rates rates;
    std::vector<size_t> positions = {};  // among all parameters
    std::vector<at::Tensor> parameters = {}, first_moments = {}, second_moments = {}, step_counts = {};
  };

  // A moment of a parameter, flat, as it is stored.
  class Moment {
   public:
    Moment(const at::Tensor& weights, MomentType type, BlockBytes::Range range);

    // The numbers from `begin`, [size], of dtype `type`: to be changed, and then stored.
    at::Tensor Load(int64_t begin, int64_t size, at::ScalarType type) const;
    void Store(int64_t begin, const at::Tensor& values, Rng& rng);

    // Everything that is stored, by name.
    std::vector<std::pair<const char*, at::Tensor>> Tensors() const;

   private:
    BlockBytes::Range range_;
    std::optional<BlockBytes> bytes_;
    at::Tensor wide_;  // where there are no bytes
  };

  // A parameter that is stepped by itself, part after part: it or its moments are not stored as the kernel takes them.
  struct Alone {
    size_t position;  // among all parameters
    at::Tensor parameter;
    at::Tensor weights;  // the parameter, or its copy on the CPU
    Rates rates;
    Moment first, second;
  };

  void Add(const at::Tensor& parameter, Group& group);
  void StepAlone(Alone& alone, double lr, Rng rng);
  // Everything that changes with a step, by name, but for the parameters.
  std::vector<std::pair<std::string, at::Tensor>> Tensors() const;

  const AdamWOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<Group> groups_;
  std::vector<Alone> alone_;
  int64_t steps_ = 0;
};

}  // namespace tdock::trainer
