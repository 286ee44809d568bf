// The names that the Hugging Face layout gives to weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder.h"

namespace tdock::model {

class WeightNames {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  explicit WeightNames(const Decoder& decoder) : decoder_(decoder) {}

  // As Decoder::NamedWeights().
  Named All() const;
  // The linear layers inside of the layers, in their order.
  std::vector<Decoder::LinearPart> Linears() const;

 private:
  std::vector<Decoder::LinearPart> Linears(size_t layer) const;
  // The rows of a fused weight, transposed where the layout stores the inputs first.
  void Add(const Decoder::LinearPart& part, Named* named) const;
  void Add(const std::string& name, const Norm& norm, Named* named) const;
  void AddLayer(size_t index, Named* named) const;

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
