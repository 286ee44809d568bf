#include "generate/model_folder.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tdock::generate {

absl::StatusOr<ModelFolder> LoadModelFolder(Env& env, const std::string& folder, const at::Device& device,
                                            const model::LoadOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(auto tokenizer, text::LoadTokenizer(env, folder));
  if (!tokenizer->eos_id()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     ": the tokenizer's files name no token that ends a text; set \"eos_token\" in "
                     "tokenizer_config.json"));
  }
  TDOCK_ASSIGN_OR_RETURN(model::Decoder decoder, model::LoadCheckpoint(env, folder, device, options));
  if (decoder.config().vocab_size < tokenizer->vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": the tokenizer has ", tokenizer->vocab_size(),
                                                   " tokens, the model only ", decoder.config().vocab_size));
  }
  decoder.LimitVocabulary(tokenizer->vocab_size());
  return ModelFolder{std::move(tokenizer), std::move(decoder)};
}

}  // namespace tdock::generate
