#include "trainer/reward/reward.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {

absl::StatusOr<std::vector<float>> CheckedScore(Reward& reward, std::span<const Answer> answers) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<float> scores, reward.Score(answers));
  if (scores.size() != answers.size()) {
    return absl::InternalError(
        absl::StrCat("the reward gave ", scores.size(), " scores for ", answers.size(), " answers"));
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(scores[i])) continue;
    return absl::InternalError(absl::StrCat("the reward gave ", scores[i], " for sample ", i, ", prompt \"",
                                            EscapeForMessage(answers[i].prompt),
                                            "\"; a reward must be a finite number"));
  }
  return scores;
}

absl::StatusOr<std::vector<float>> ExactMatch::Score(std::span<const Answer> answers) {
  std::vector<float> scores;
  scores.reserve(answers.size());
  for (const Answer& answer : answers) {
    scores.push_back(answer.finished && answer.response == answer.truth ? 1.0F : 0.0F);
  }
  return scores;
}

}  // namespace tdock::reward
