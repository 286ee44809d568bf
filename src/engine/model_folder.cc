#include "engine/model_folder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::engine {
namespace {

absl::StatusOr<std::vector<int32_t>> EndTokens(Env& env, const std::string& folder, const text::Tokenizer& tokenizer,
                                               const model::ModelConfig& config) {
  std::vector<int64_t> named = model::EosTokenIds(config);
  const std::string path = JoinPath(folder, "generation_config.json");
  if (env.Exists(path)) {
    TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
    const absl::StatusOr<std::vector<int64_t>> more = model::ParseGenerationEnds(json);
    if (!more.ok()) return Annotate(more.status(), path);
    named.insert(named.end(), more->begin(), more->end());
  }
  std::vector<int32_t> ends = {tokenizer.eos_id().value()};
  for (const int64_t id : named) {
    const bool known = id >= 0 && id < tokenizer.vocab_size();  // another one is never sampled
    if (known && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(static_cast<int32_t>(id));
  }
  return ends;
}

}  // namespace

absl::StatusOr<ModelFolder> LoadModelFolder(Env& env, const std::string& folder, const at::Device& device,
                                            const model::LoadOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(auto tokenizer, text::LoadTokenizer(env, folder));
  if (!tokenizer->eos_id()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     ": the tokenizer's files name no end-of-text token; set \"eos_token\" in "
                     "tokenizer_config.json"));
  }
  TDOCK_ASSIGN_OR_RETURN(model::Decoder decoder, model::LoadCheckpoint(env, folder, device, options));
  if (decoder.config().vocab_size < tokenizer->vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": the tokenizer has ", tokenizer->vocab_size(),
                                                   " tokens, but the model only ", decoder.config().vocab_size));
  }
  if (decoder.config().head == model::Head::kValue && !options.value_head) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     ": the model has a value head, so it cannot generate; give a model with a token head "
                     "(…ForCausalLM, or GPT2LMHeadModel)"));
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<int32_t> end_tokens, EndTokens(env, folder, *tokenizer, decoder.config()));
  decoder.LimitVocabulary(tokenizer->vocab_size());
  return ModelFolder{std::move(tokenizer), std::move(decoder), std::move(end_tokens)};
}

}  // namespace tdock::engine
