#include "trainer/reward/reward.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {

std::string ShowAnswer(std::span<const Answer> answers, size_t index) {
  return absl::StrCat("sample ", index, ", prompt ", Quoted(answers[index].prompt));
}

absl::StatusOr<Scores> CheckedScore(Reward& reward, std::span<const Answer> answers) {
  TDOCK_ASSIGN_OR_RETURN(Scores scores, reward.Score(answers));
  if (scores.totals.size() != answers.size()) {
    return absl::InternalError(
        absl::StrCat("the reward gave ", scores.totals.size(), " scores for ", answers.size(), " answers"));
  }
  for (const Scores::Part& part : scores.parts) {
    if (part.scores.size() == answers.size()) continue;
    return absl::InternalError(
        absl::StrCat("the rule ", part.rule, " gave ", part.scores.size(), " scores for ", answers.size(), " answers"));
  }
  for (size_t i = 0; i < scores.totals.size(); ++i) {
    if (std::isfinite(scores.totals[i])) continue;
    return absl::InternalError(absl::StrCat("the reward gave ", scores.totals[i], " for ", ShowAnswer(answers, i),
                                            "; a reward must be a finite number"));
  }
  return scores;
}

absl::StatusOr<Scores> ExactMatch::Score(std::span<const Answer> answers) {
  Scores scores;
  scores.totals.reserve(answers.size());
  for (const Answer& answer : answers) {
    scores.totals.push_back(answer.finished && answer.response == answer.truth ? 1.0F : 0.0F);
  }
  scores.parts.push_back({.rule = "exact", .scores = scores.totals});
  return scores;
}

}  // namespace tdock::reward
