// Model directories in the Hugging Face layout: config.json, generation_config.json, the weights, and the tokenizer's
// files, which this module only copies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"

namespace tdock::model {

struct LoadOptions {
  // Dtype that the weights are converted to; nullopt: FastType() of the files' dtype.
  std::optional<at::ScalarType> dtype = at::kFloat;
  // A decoder with a value head, even from a checkpoint with a token head, which is then ignored, and the value head is
  // drawn from `seed` as in Decoder::Random().
  bool value_head = false;
  uint64_t seed = 0;
  // Replaces config.json's rope scaling unless it is empty: see OverrideRope().
  std::string rope_scaling = {};
};

// Strict: every weight of the configuration must exist with its shape, and no other may; the error lists the missing,
// the unexpected and the wrongly shaped names. Also reads checkpoints in several files with an index, and those of the
// model without its prefix. A head that config.json calls tied is the embedding; if the files contain one nevertheless,
// it must be equal. Besides the decoder, at most one weight is in memory at a time. NotFound names a missing file,
// Unimplemented what the decoder does not support. Throws c10::Error if memory is exhausted.
absl::StatusOr<Decoder> LoadCheckpoint(Env& env, const std::string& folder, const at::Device& device,
                                       const LoadOptions& options = {});

// Reads the weights of a checkpoint into a decoder of the same configuration that is there already, in place: whatever
// refers to its parameters sees them. As strict as LoadCheckpoint(). After an error some weights may be replaced.
absl::Status ReloadWeights(Env& env, const std::string& folder, Decoder* decoder);

struct SaveOptions {
  std::optional<at::ScalarType> dtype = std::nullopt;  // of the files; by default that of the weights
  uint64_t max_file_bytes = uint64_t{5} << 30;         // beyond it, the weights are split into files with an index
  // A model directory whose tokenizer files, chat templates included, and generation_config.json are copied; empty:
  // none.
  std::string tokenizer_from = {};
};

// Writes the files into `folder`, which is created if it is missing. An existing checkpoint is replaced: its
// config.json is removed first and written last, so that a folder never opens with weights of two models. Adapters are
// not saved: see Decoder::Merged() and adapter_files.h. FailedPrecondition if there are any.
absl::Status SaveCheckpoint(Env& env, const std::string& folder, const Decoder& decoder,
                            const SaveOptions& options = {});

// Writes all of that but the weights.
absl::Status SaveConfig(Env& env, const std::string& folder, const Decoder& decoder, const SaveOptions& options = {});

// The names of the files that a tokenizer and its chat template may have.
std::vector<std::string> TokenizerFileNames();

// Copies the tokenizer's files and the chat templates that `from` has, byte for byte, and removes those of another
// tokenizer from `to`.
absl::Status CopyTokenizerFiles(Env& env, const std::string& from, const std::string& to);

}  // namespace tdock::model
