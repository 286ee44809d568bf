// The Hugging Face names of weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "model/decoder/decoder.h"

namespace tdock::model {

class WeightNames {
 public:
  explicit WeightNames(const Decoder& decoder) : decoder_(decoder) {}

  // As Decoder::NamedWeights().
  NamedTensors All() const;
  // The linear layers inside of the layers, in their order.
  std::vector<Decoder::LinearPart> Linears() const;

 private:
  std::vector<Decoder::LinearPart> Linears(size_t layer) const;
  // The rows of a fused weight, transposed where the layout stores the inputs first.
  void Add(const Decoder::LinearPart& part, NamedTensors* named) const;
  void Add(const std::string& name, const Norm& norm, NamedTensors* named) const;
  void AddLayer(size_t index, NamedTensors* named) const;

  const Decoder& decoder_;
};

// What the names of all weights but the head begin with: "model.", "transformer.". Checkpoints of the model without a
// head may leave it out.
std::string WeightPrefix(Architecture architecture);

// Of linear weights of [in, out], instead of [out, in].
bool StoresInputsFirst(Architecture architecture);

// "lm_head.weight", "score.weight".
std::string HeadName(Head head);

// Tensors of old checkpoints that are no weights: masks and frequencies that follow from the configuration.
bool IsKnownBuffer(absl::string_view name);

}  // namespace tdock::model
