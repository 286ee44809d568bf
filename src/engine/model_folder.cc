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

absl::Status CheckSameTokens(const text::Tokenizer& of_model, const text::Tokenizer& given) {
  if (of_model.vocab_size() != given.vocab_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its tokenizer has ", given.vocab_size(), " tokens, and the model's ", of_model.vocab_size()));
  }
  for (int32_t id = 0; id < of_model.vocab_size(); ++id) {
    if (of_model.IdToToken(id) == given.IdToToken(id)) continue;
    return absl::InvalidArgumentError(absl::StrCat("its tokenizer has another token ", id, " than the model's"));
  }
  return absl::OkStatus();
}

absl::Status CheckDraft(const model::Decoder& draft, const model::Decoder& decoder) {
  const model::ModelConfig& config = draft.config();
  if (draft.used_tokens() != decoder.used_tokens() || config.vocab_size < decoder.config().vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the draft knows ", config.vocab_size, " tokens and chooses among ",
                                                   draft.used_tokens(), ", the model ", decoder.config().vocab_size,
                                                   " and ", decoder.used_tokens(), "; a draft needs the model's"));
  }
  if (config.head != model::Head::kTokens) {
    return absl::InvalidArgumentError("the draft has a value head; a draft needs a token head");
  }
  if (config.rope.type == model::RopeType::kDynamic) {
    return absl::InvalidArgumentError(
        "the draft's positions depend on the length of an answer (rope_scaling dynamic), which such a guess cannot "
        "have");
  }
  if (draft.device() != decoder.device()) {
    return absl::InvalidArgumentError(absl::StrCat("the draft is on ", draft.device().str(), ", the model on ",
                                                   decoder.device().str(), "; they must be on one device"));
  }
  return absl::OkStatus();
}

absl::Status LoadDraft(Env& env, const std::string& folder, const model::LoadOptions& options, ModelFolder& model) {
  TDOCK_ASSIGN_OR_RETURN(ModelFolder draft, LoadModelFolder(env, folder, model.decoder.device(), options));
  const absl::Status same = CheckSameTokens(*model.tokenizer, *draft.tokenizer);
  if (!same.ok()) return Annotate(same, folder);
  if (absl::Status fits = CheckDraft(draft.decoder, model.decoder); !fits.ok()) return Annotate(fits, folder);
  model.draft = std::move(draft.decoder);
  return absl::OkStatus();
}

}  // namespace tdock::engine
