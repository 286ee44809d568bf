// A model with its tokenizer, from a folder in the Hugging Face layout.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"

namespace tdock::engine {

struct ModelFolder {
  std::unique_ptr<text::Tokenizer> tokenizer;  // has an eos_id()
  model::Decoder decoder;                      // its vocabulary is limited to the tokenizer's
  // The tokenizer's eos_id() first, then what config.json and generation_config.json name beside it.
  std::vector<int32_t> end_tokens;
  // A small model of the same tokens, see EngineOptions::draft.
  std::optional<model::Decoder> draft = std::nullopt;
};

// Errors of text::LoadTokenizer() and model::LoadCheckpoint(); InvalidArgument if the tokenizer has tokens that the
// model does not know, or no end-of-text token, or if the model has a value head that is not asked for. Throws
// c10::Error if memory is exhausted.
absl::StatusOr<ModelFolder> LoadModelFolder(Env& env, const std::string& folder, const at::Device& device,
                                            const model::LoadOptions& options = {});

// InvalidArgument names the first token that does not mean the same for a model and what is given to it.
absl::Status CheckSameTokens(const text::Tokenizer& of_model, const text::Tokenizer& given);

// InvalidArgument says why a model cannot guess for another one (EngineOptions::draft).
absl::Status CheckDraft(const model::Decoder& draft, const model::Decoder& decoder);

// Loads a model that guesses for the one in `model`, on its device. The errors of LoadModelFolder(),
// CheckSameTokens() and CheckDraft().
absl::Status LoadDraft(Env& env, const std::string& folder, const model::LoadOptions& options, ModelFolder& model);

}  // namespace tdock::engine
