#include "trainer/stages/agent_output.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

// The completion that begins with the first of `tokens` behind `before`: of several, the one that goes furthest. Null:
// none does.
const engine::Completion* CompletionBehind(std::span<const int32_t> before, std::span<const int32_t> tokens,
                                           const std::map<int64_t, AgentGeneration>& generations) {
  const engine::Completion* best = nullptr;
  size_t longest = 0;
  for (const auto& [number, generation] : generations) {
    if (!std::equal(before.begin(), before.end(), generation.prompt.begin(), generation.prompt.end())) continue;
    const std::vector<int32_t>& said = generation.completion.tokens;
    const auto same = static_cast<size_t>(std::mismatch(tokens.begin(), tokens.end(), said.begin(), said.end()).first -
                                          tokens.begin());
    if (same <= longest) continue;
    longest = same;
    best = &generation.completion;
  }
  return best;
}

absl::Status Check(const environment::AgentOutput& output) {
  if (output.prompt_ids.empty() || output.response_ids.empty()) {
    return absl::InvalidArgumentError("its output has no prompt_ids or no response_ids");
  }
  if (output.response_mask.size() != output.response_ids.size()) {
    return absl::InvalidArgumentError(absl::StrCat("its output has ", output.response_ids.size(),
                                                   " response_ids and a response_mask of ",
                                                   output.response_mask.size()));
  }
  return absl::OkStatus();
}

// The weights that made the first `tokens` tokens.
std::vector<engine::WeightsSpan> FirstOf(const std::vector<engine::WeightsSpan>& weights, int64_t tokens) {
  std::vector<engine::WeightsSpan> first;
  for (const engine::WeightsSpan& span : weights) {
    if (tokens == 0) break;
    first.push_back({.version = span.version, .tokens = std::min(span.tokens, tokens)});
    tokens -= first.back().tokens;
  }
  return first;
}

}  // namespace

absl::StatusOr<AgentTokens> TokensOf(const environment::AgentOutput& output,
                                     const std::map<int64_t, AgentGeneration>& generations,
                                     const text::Tokenizer& tokenizer) {
  TDOCK_RETURN_IF_ERROR(Check(output));
  std::vector<int32_t> all = output.prompt_ids;
  all.insert(all.end(), output.response_ids.begin(), output.response_ids.end());
  const std::span<const int32_t> tokens(all);
  const size_t prompt = output.prompt_ids.size();
  const auto by_model = [&](size_t i) { return output.response_mask[i] != 0; };
  AgentTokens found;
  for (size_t begin = 0, end = 0; begin < output.response_ids.size(); begin = end) {
    while (end < output.response_ids.size() && by_model(end) == by_model(begin)) ++end;
    TranscriptTurn turn{.by_model = by_model(begin)};
    if (turn.by_model) {
      const auto* const completion =
          CompletionBehind(tokens.first(prompt + begin), tokens.subspan(prompt + begin, end - begin), generations);
      if (completion == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the mask says that the model has said token ", begin,
                         " of its response, and no completion for what stands before it begins with that token"));
      }
      const auto same = std::mismatch(completion->tokens.begin(), completion->tokens.end(),
                                      output.response_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                      output.response_ids.begin() + static_cast<std::ptrdiff_t>(end));
      end = begin + static_cast<size_t>(same.first - completion->tokens.begin());
      turn.log_probs.assign(completion->log_probs.begin(),
                            completion->log_probs.begin() + static_cast<std::ptrdiff_t>(end - begin));
      turn.weights = FirstOf(completion->weights, static_cast<int64_t>(end - begin));
      found.finished = completion->finished && end - begin == completion->tokens.size();
      found.log_probs.insert(found.log_probs.end(), turn.log_probs.begin(), turn.log_probs.end());
    } else {
      found.log_probs.resize(end, 0);
      found.finished = false;
    }
    turn.ids.assign(output.response_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                    output.response_ids.begin() + static_cast<std::ptrdiff_t>(end));
    TDOCK_ASSIGN_OR_RETURN(turn.text, tokenizer.Decode(turn.ids, text::SpecialTokens::kKeep));
    found.turns.push_back(std::move(turn));
  }
  return found;
}

}  // namespace tdock::trainer
