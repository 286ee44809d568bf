#include "cli/answer_json.h"

#include <vector>

#include "core/base/status.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

absl::Status AddAnswer(const engine::Completion& completion, const text::Tokenizer& tokenizer, Json& json) {
  TDOCK_ASSIGN_OR_RETURN(json["text"], engine::TextOf(completion, tokenizer));
  json["finish_reason"] = engine::NameOf(completion.finish_reason);
  json["ids"] = completion.tokens;
  json["log_probs"] = completion.log_probs;
  for (const std::vector<engine::TokenLogProb>& position : completion.top) {
    Json& tops = json["top_log_probs"].emplace_back(Json::array());
    for (const engine::TokenLogProb& top : position) {
      tops.push_back(
          {{"id", top.token}, {"token", tokenizer.IdToToken(top.token).value_or("")}, {"log_prob", top.log_prob}});
    }
  }
  return absl::OkStatus();
}

std::string LineOf(const Json& json) { return JsonText(json); }

}  // namespace tdock::cli
