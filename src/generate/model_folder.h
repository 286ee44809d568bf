// A model with its tokenizer, from a folder in the Hugging Face layout.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "model/checkpoint.h"
#include "model/decoder.h"
#include "text/tokenizer.h"

namespace tdock::generate {

struct ModelFolder {
  std::unique_ptr<text::Tokenizer> tokenizer;  // has an eos_id()
  model::Decoder decoder;                      // its vocabulary is limited to the tokenizer's
};

// Errors of text::LoadTokenizer() and model::LoadCheckpoint(); InvalidArgument where the tokenizer has tokens that the
// model does not know, or none that ends a text. Throws c10::Error where memory runs out.
absl::StatusOr<ModelFolder> LoadModelFolder(Env& env, const std::string& folder, const at::Device& device,
                                            const model::LoadOptions& options = {});

}  // namespace tdock::generate
