// Answers as JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/base/json_text.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tdock::cli {

// Adds text, finish_reason, ids, log_probs, and top_log_probs if the completion has them. The errors of TextOf().
absl::Status AddAnswer(const engine::Completion& completion, const text::Tokenizer& tokenizer,
                       nlohmann::ordered_json& json);

// Sums over the tokens of records that are counted.
struct ScoreTotals {
  int64_t records = 0;
  int64_t tokens = 0;
  double log_prob = 0;

  // {"records", "scored_tokens", "sum_log_prob", "perplexity"}; the latter is null without tokens.
  nlohmann::ordered_json ToJson() const;
  // Adds a record as AddScores() has written it. DataLoss names what it lacks.
  absl::Status Add(const nlohmann::ordered_json& record);
};

// Adds ids, loss_mask, log_probs, ranks, and top_log_probs if there are any, each with one element for each token and
// null for the first; and scored_tokens, sum_log_prob and mean_log_prob of those that are counted, at least one.
void AddScores(std::span<const int32_t> ids, std::span<const uint8_t> counted,
               std::span<const engine::PromptToken> scores, const text::Tokenizer& tokenizer,
               nlohmann::ordered_json& json);

// One line, without its end. What is not UTF-8 becomes U+FFFD.
std::string LineOf(const nlohmann::ordered_json& json);

}  // namespace tdock::cli
