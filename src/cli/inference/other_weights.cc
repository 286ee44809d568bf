#include "cli/inference/other_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

nlohmann::json SettingsOf(const model::ModelConfig& config) {
  nlohmann::json settings = ReadJson(model::ModelConfigJson(config));
  for (const char* const key : {"torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id"}) settings.erase(key);
  return settings;
}

}  // namespace

absl::Status CheckSameSettings(const model::ModelConfig& served, const model::ModelConfig& given) {
  const nlohmann::json before = SettingsOf(served), after = SettingsOf(given);
  nlohmann::json keys = before;
  keys.update(after);
  for (const auto& [key, value] : keys.items()) {
    const nlohmann::json old = before.value(key, nlohmann::json()), now = after.value(key, nlohmann::json());
    if (old == now) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "its config.json has ", EscapeUnprintable(JsonText(now), 80), " for \"", EscapeForMessage(key),
        "\", and the model that is served ", EscapeUnprintable(JsonText(old), 80), "; only weights can be changed"));
  }
  return absl::OkStatus();
}

OtherWeights::OtherWeights(const engine::ModelFolder& served)
    : tokenizer_(*served.tokenizer),
      config_(served.decoder.config()),
      device_(served.decoder.device()),
      dtype_(served.decoder.dtype()),
      used_tokens_(served.decoder.used_tokens()),
      has_adapters_(!served.decoder.NamedAdapters().empty()) {
  for (const auto& [name, weight] : served.decoder.NamedWeights()) shapes_.emplace_back(name, weight.sizes().vec());
}

absl::Status OtherWeights::Check(const engine::ModelFolder& given) const {
  TDOCK_RETURN_IF_ERROR(engine::CheckSameTokens(tokenizer_, *given.tokenizer));
  TDOCK_RETURN_IF_ERROR(CheckSameSettings(config_, given.decoder.config()));
  const model::NamedTensors after = given.decoder.NamedWeights();
  for (size_t i = 0; i < std::min(shapes_.size(), after.size()); ++i) {
    if (shapes_[i].first == after[i].first && after[i].second.sizes() == shapes_[i].second) continue;
    return absl::InvalidArgumentError(absl::StrCat("its weight '", after[i].first, "' has another name or shape than '",
                                                   shapes_[i].first, "' of the model that is served"));
  }
  if (shapes_.size() != after.size() || has_adapters_) {
    return absl::InvalidArgumentError("it has not the weights that the model that is served has, one for one");
  }
  return absl::OkStatus();
}

absl::StatusOr<model::Decoder> OtherWeights::Load(const std::string& folder) const {
  return trainer::Guarded([&]() -> absl::StatusOr<model::Decoder> {
    TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder given,
                           engine::LoadModelFolder(Env::Real(), folder, device_, {.dtype = dtype_}));
    TDOCK_RETURN_IF_ERROR(Check(given));
    return std::move(given.decoder);
  });
}

absl::StatusOr<model::Decoder> OtherWeights::Blank() const {
  if (has_adapters_) {
    return absl::InvalidArgumentError(
        "the model is served with adapters beside its weights (--unmerged), which cannot be changed");
  }
  return trainer::Guarded([&]() -> absl::StatusOr<model::Decoder> {
    model::Decoder decoder = model::Decoder::Uninitialised(config_, device_, dtype_);
    decoder.LimitVocabulary(used_tokens_);
    return decoder;
  });
}

}  // namespace tdock::cli
