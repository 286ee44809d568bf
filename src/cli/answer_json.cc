#include "cli/answer_json.h"

#include <cmath>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

Json JsonOfTop(const std::vector<engine::TokenLogProb>& top, const text::Tokenizer& tokenizer) {
  Json tops = Json::array();
  for (const engine::TokenLogProb& one : top) {
    tops.push_back(
        {{"id", one.token}, {"token", tokenizer.IdToToken(one.token).value_or("")}, {"log_prob", one.log_prob}});
  }
  return tops;
}

}  // namespace

absl::Status AddAnswer(const engine::Completion& completion, const text::Tokenizer& tokenizer, Json& json) {
  TDOCK_ASSIGN_OR_RETURN(json["text"], engine::TextOf(completion, tokenizer));
  json["finish_reason"] = engine::NameOf(completion.finish_reason);
  json["ids"] = completion.tokens;
  json["log_probs"] = completion.log_probs;
  for (const std::vector<engine::TokenLogProb>& position : completion.top) {
    json["top_log_probs"].push_back(JsonOfTop(position, tokenizer));
  }
  return absl::OkStatus();
}

Json ScoreTotals::ToJson() const {
  Json json = {{"records", records}, {"scored_tokens", tokens}, {"sum_log_prob", log_prob}, {"perplexity", nullptr}};
  if (tokens > 0) json["perplexity"] = std::exp(-log_prob / static_cast<double>(tokens));
  return json;
}

absl::Status ScoreTotals::Add(const Json& record) {
  const auto count = record.find("scored_tokens"), sum = record.find("sum_log_prob");
  if (count == record.end() || !count->is_number_integer() || sum == record.end() || !sum->is_number()) {
    return absl::DataLossError("it has no scored_tokens and sum_log_prob, which are numbers");
  }
  ++records;
  tokens += count->get<int64_t>();
  log_prob += sum->get<double>();
  return absl::OkStatus();
}

void AddScores(std::span<const int32_t> ids, std::span<const uint8_t> counted,
               std::span<const engine::PromptToken> scores, const text::Tokenizer& tokenizer, Json& json) {
  json["ids"] = ids;
  json["loss_mask"] = counted;
  Json log_probs = Json::array({nullptr}), ranks = log_probs, tops = log_probs;
  int64_t tokens = 0;
  double sum = 0;
  bool has_top = false;
  for (size_t i = 0; i < scores.size(); ++i) {
    const engine::PromptToken& score = scores[i];
    log_probs.push_back(score.log_prob);
    ranks.push_back(score.rank);
    tops.push_back(JsonOfTop(score.top, tokenizer));
    has_top = has_top || !score.top.empty();
    if (counted[i + 1] == 0) continue;
    ++tokens;
    sum += static_cast<double>(score.log_prob);
  }
  json["log_probs"] = std::move(log_probs);
  json["ranks"] = std::move(ranks);
  if (has_top) json["top_log_probs"] = std::move(tops);
  json["scored_tokens"] = tokens;
  json["sum_log_prob"] = sum;
  json["mean_log_prob"] = sum / static_cast<double>(tokens);
}

std::string LineOf(const Json& json) { return JsonText(json); }

}  // namespace tdock::cli
