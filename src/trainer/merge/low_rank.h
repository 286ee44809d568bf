// Low-rank adapters, merged into the weights that they adapt.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

// The factors of an adapted weight, [rank, inputs] and [outputs, rank], and what their product is multiplied by.
struct LowRank {
  at::Tensor a = {}, b = {};
  double scale = 1;
  bool inputs_first = false;  // the weight is stored as [inputs, outputs]
};

// Reads a weight, adds the product, and rounds once, with the arithmetic of Decoder::Merged().
absl::Status ReadAdapted(const std::function<absl::Status(const at::Tensor& into)>& read, const LowRank& adapter,
                         const at::Tensor& into);

// Of weights as `peft` names them in a model whose adapters are not merged (base_model.model.PATH.base_layer.weight,
// base_model.model.PATH.lora_A.default.weight): those of the model, each with its adapter. InvalidArgument names a
// factor that does not fit, Unimplemented anything else of an adapter.
absl::Status MergeNamedAdapters(double alpha, WeightSource& source);

// Whether there are any.
bool HasNamedAdapters(const WeightSource& source);

}  // namespace tdock::trainer
