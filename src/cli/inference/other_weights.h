// Weights that take the place of those that are served.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model_folder.h"
#include "model/decoder/decoder.h"
#include "model/files/config.h"

namespace tdock::cli {

// What the weights of another folder must agree with. Keeps no weights itself. Immutable, and so thread-safe.
class OtherWeights {
 public:
  // The tokenizer of `served` must outlive it.
  explicit OtherWeights(const engine::ModelFolder& served);

  // The errors of LoadModelFolder(); InvalidArgument names the first token, setting or weight that differs from those
  // of the model that is served; ResourceExhausted if memory is.
  absl::StatusOr<model::Decoder> Load(const std::string& folder) const;
  // A decoder like the one that is served, with weights that are still to be written. InvalidArgument if there are
  // adapters beside those; ResourceExhausted if memory is.
  absl::StatusOr<model::Decoder> Blank() const;

 private:
  absl::Status Check(const engine::ModelFolder& given) const;

  const text::Tokenizer& tokenizer_;
  const model::ModelConfig config_;
  const at::Device device_;
  const at::ScalarType dtype_;
  const int64_t used_tokens_;
  const bool has_adapters_;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes_;  // of the weights, by name
};

// InvalidArgument names the first setting of config.json that gives the same weights other answers: all but the ids of
// special tokens and the dtype of the files.
absl::Status CheckSameSettings(const model::ModelConfig& served, const model::ModelConfig& given);

}  // namespace tdock::cli
