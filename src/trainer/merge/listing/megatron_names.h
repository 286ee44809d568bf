// How the weights of Megatron's decoder become those of the Hugging Face layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/files/config.h"
#include "trainer/merge/listing/listed_tensors.h"

namespace tdock::trainer {

// Rows of a tensor, along its first dimension.
struct RowRange {
  int64_t from = 0;  // in the tensor that is stored
  int64_t to = 0;    // in the weight
  int64_t rows = 0;
};

// A weight as it is found in one of the stored tensors: their rows in this order, all of them where there is no range.
struct MappedWeight {
  std::string name = {};
  std::vector<int64_t> shape = {};
  size_t tensor = 0;   // among the stored ones
  int64_t layer = -1;  // the place in the first dimension of a tensor that has all layers; -1: it has one
  std::vector<RowRange> rows = {};
};

// Of a model of this configuration: Llama, Mistral, Qwen2 or Qwen3. The fused projections are split: query, key and
// value by groups (for each key its queries, the key, the value), gate before up. Rows with which the vocabulary is
// padded are left out, and so is an output layer that is the embedding. InvalidArgument names tensors that are missing,
// not known or of another shape; Unimplemented an architecture.
absl::StatusOr<std::vector<MappedWeight>> MapMegatron(const std::vector<StoredTensor>& tensors,
                                                      const model::ModelConfig& config);

}  // namespace tdock::trainer
