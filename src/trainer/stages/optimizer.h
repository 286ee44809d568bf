// AdamW over a decoder's parameters, with gradient clipping.
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
  // Of what is rounded at random, which follows from it, the number of the step, the parameter, and where a part of it
  // begins: equal runs stay equal to the bit.
  uint64_t seed = 0;
};

// Parameters with a learning rate of their own.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  double lr_factor = 1.0;  // the learning rate of a step is multiplied by it
};

// What a step changes of a parameter: all of it, or some of its numbers.
struct ParameterPart {
  at::Tensor weights;      // the parameter, or a flat view of a part of it; a step takes its grad()
  size_t position = 0;     // of the parameter among all
  int64_t begin = 0;       // the place of the first number in the parameter
  int64_t total = 0;       // numbers of the parameter
  bool decays = true;      // whether weight decay applies
  double lr_factor = 1.0;  // as that of a ParameterGroup
  bool is_whole() const { return weights.numel() == total; }
};
// All parameters as a whole, in their order. Matrices decay.
std::vector<ParameterPart> WholeParts(const std::vector<ParameterGroup>& groups);

// Decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"). Moments are float32 at
// least. Weights of bfloat16 have no copy in float32, unless there is one on the CPU: a step is taken in float32, and
// the result is rounded at random (rounding.h), so that small steps count on average. Not thread-safe.
class AdamW final : public Stateful {
 public:
  // The parameters are those of a decoder; they are changed in place, and by nothing else where there is a copy of them
  // (AdamWOptions::offload). float32, float64 or bfloat16.
  AdamW(std::vector<ParameterPart> parts, const AdamWOptions& options);
  AdamW(const std::vector<ParameterGroup>& groups, const AdamWOptions& options) : AdamW(WholeParts(groups), options) {}
  AdamW(const std::vector<at::Tensor>& parameters, const AdamWOptions& options)
      : AdamW(std::vector<ParameterGroup>{{parameters}}, options) {}
  AdamW(const AdamW&) = delete;  // it points into its parts
  AdamW& operator=(const AdamW&) = delete;

  // Clips the accumulated gradients, takes one step with the given learning rate, and clears them. Gradients are those
  // of the loss times `loss_scale`. Returns the global norm before clipping, of those of the loss; if it is not finite,
  // nothing but the gradients has changed.
  double Step(double lr, double loss_scale = 1.0);

  // The two halves of a step, for ranks that have different parts: the sum of the squares of the parts' gradients, of
  // the loss; and the rest, with the square root of the sum over all ranks.
  double SquaredNorm(double loss_scale = 1.0) const;
  void StepWithNorm(double norm, double lr, double loss_scale = 1.0);
  void DropGradients();

  // By the position of a parameter among all, and its place there: what ranks have saved, any number of ranks can load.
  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

 private:
  // What a parameter is stepped with.
  struct Rates {
    double lr_factor, weight_decay;
  };

  // Parts that share rates, as the fused kernel takes them.
  struct Group {
    Rates rates;
    std::vector<const ParameterPart*> parts = {};
    std::vector<at::Tensor> weights = {}, first_moments = {}, second_moments = {}, step_counts = {};
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

  // A part that is stepped by itself, stretch after stretch: it or its moments are not stored as the kernel takes them.
  struct Alone {
    const ParameterPart* part;
    uint64_t draws;      // which random numbers are its own: how many before it are stepped like this
    at::Tensor weights;  // the part, or its copy on the CPU
    Rates rates;
    Moment first, second;
  };

  void AddAlone(const ParameterPart& part, uint64_t draws);
  void AddToGroup(const ParameterPart& part);
  MomentType MomentsOf(const ParameterPart& part) const;
  Rates RatesOf(const ParameterPart& part) const;
  Group& GroupOf(const Rates& rates);
  void StepAlone(Alone& alone, double lr, Rng rng);
  // Everything that changes with a step, but for the parameters: a number, or so many, for each of a part.
  struct Stored {
    std::string name;
    const ParameterPart* part;
    int64_t per = 1;  // numbers of the part for each that is stored
    at::Tensor tensor;

    int64_t begin() const { return part->begin / per; }
    int64_t total() const { return (part->total + per - 1) / per; }
  };
  std::vector<at::Tensor> Gradients() const;  // of parts that are not empty
  std::vector<Stored> Tensors() const;

  const AdamWOptions options_;
  const std::vector<ParameterPart> parts_;
  std::vector<Group> groups_;
  std::vector<Alone> alone_;
  int64_t steps_ = 0;
};

}  // namespace tdock::trainer
