// Weights of a model, wherever they are stored, read one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/files/safetensors.h"

namespace tdock::trainer {

// Not thread-safe.
struct WeightSource {
  std::string what = {};  // for people: "the checkpoint runs/a/checkpoints/step-000004"
  // Under their Hugging Face names, as they are stored, sorted by NameBefore().
  std::vector<model::NamedInfo> weights = {};
  // Copies weight `index` into a tensor of its shape on the CPU, converted to the dtype of that. Beside `into`, no more
  // than a piece of the weight is in memory, or of one that is adapted or transposed, a few copies of it.
  std::function<absl::Status(size_t index, const at::Tensor& into)> read = nullptr;
  std::vector<std::string> files = {};  // that the weights are read from
  std::string config_folder = {};       // with config.json, and perhaps generation_config.json
  std::string tokenizer_folder = {};    // with the tokenizer's files
};

// By name, with numbers in the order of their values: layers.2 before layers.10.
bool NameBefore(const std::string& one, const std::string& other);

// The index of the weight of this name, or weights.size().
size_t IndexOf(const WeightSource& source, const std::string& name);

// Decides from config.json whether the head of tokens is the embedding: then it is left out where both are there. Where
// it is not, it must be there. InvalidArgument names the number in which a head differs that should be the embedding,
// or a head that is missing.
absl::Status ApplyTying(Env& env, WeightSource& source);

}  // namespace tdock::trainer
