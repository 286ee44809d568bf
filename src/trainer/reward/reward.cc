#include "trainer/reward/reward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {

std::string ShowAnswer(std::span<const Answer> answers, size_t index) {
  return absl::StrCat("sample ", index, ", prompt ", Quoted(answers[index].prompt));
}

namespace {

absl::Status CheckCounts(const Scores& scores, size_t answers) {
  if (scores.totals.size() != answers) {
    return absl::InternalError(
        absl::StrCat("the reward gave ", scores.totals.size(), " scores for ", answers, " answers"));
  }
  for (const Scores::Part& part : scores.parts) {
    if (part.scores.size() == answers) continue;
    return absl::InternalError(
        absl::StrCat("the rule ", part.rule, " gave ", part.scores.size(), " scores for ", answers, " answers"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AnswerScore> Finite(std::span<const Answer> answers, size_t i, AnswerScore score) {
  if (score.left_out || std::isfinite(score.total)) return score;
  return absl::InternalError(absl::StrCat("the reward gave ", score.total, " for ", ShowAnswer(answers, i),
                                          "; a reward must be a finite number"));
}

// The scores of a batch as they come.
class Gathering {
 public:
  explicit Gathering(size_t answers) : each_(answers), given_(answers) {}

  void Add(std::span<const Answer> answers, size_t i, absl::StatusOr<AnswerScore> score) TDOCK_EXCLUDES(mu_) {
    if (score.ok()) score = Finite(answers, i, *std::move(score));
    MutexLock lock(mu_);
    if (!score.ok()) {
      // Of several the first in the batch, whenever it came.
      if (problem_.ok() || i < problem_at_) {
        problem_ = score.status();
        problem_at_ = i;
      }
      return;
    }
    each_[i] = *std::move(score);
    given_[i] = true;
  }
  absl::Status problem() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return problem_;
  }
  absl::StatusOr<Scores> Take() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto given = std::count(given_.begin(), given_.end(), true);
    if (std::cmp_equal(given, each_.size())) return Gathered(each_);
    return absl::InternalError(absl::StrCat("the reward gave ", given, " scores for ", each_.size(), " answers"));
  }

 private:
  Mutex mu_;
  std::vector<AnswerScore> each_ TDOCK_GUARDED_BY(mu_);
  std::vector<bool> given_ TDOCK_GUARDED_BY(mu_);
  absl::Status problem_ TDOCK_GUARDED_BY(mu_);
  size_t problem_at_ TDOCK_GUARDED_BY(mu_) = 0;
};

}  // namespace

absl::Status Reward::ScoreEach(std::span<const Answer> answers, const StopCheck& check_stop, const ScoreSink& sink) {
  TDOCK_RETURN_IF_ERROR(check_stop());
  TDOCK_ASSIGN_OR_RETURN(const Scores scores, Score(answers));
  TDOCK_RETURN_IF_ERROR(CheckCounts(scores, answers.size()));
  std::vector<AnswerScore> each(answers.size());
  for (size_t i = 0; i < answers.size(); ++i) each[i].total = scores.totals[i];
  for (const Scores::Part& part : scores.parts) {
    int64_t undecided = part.undecided;  // which ones they are, a batch does not say
    for (size_t i = 0; i < answers.size(); ++i) {
      if (std::isnan(part.scores[i])) continue;
      each[i].parts.push_back({.name = part.rule, .score = part.scores[i], .undecided = undecided-- > 0});
    }
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    sink(i, Finite(answers, i, std::move(each[i])));
  }
  return absl::OkStatus();
}

Scores Gathered(std::span<const AnswerScore> each) {
  Scores scores;
  absl::flat_hash_map<std::string, size_t> places;  // in scores.parts, by the rule
  for (size_t i = 0; i < each.size(); ++i) {
    scores.totals.push_back(each[i].left_out ? std::numeric_limits<float>::quiet_NaN() : each[i].total);
    for (const AnswerScore::Part& given : each[i].parts) {
      if (!given.message.empty()) {
        scores.messages.resize(each.size());
        std::string& message = scores.messages[i];
        absl::StrAppend(&message, message.empty() ? "" : "; ", given.name, ": ", given.message);
      }
      const auto [place, is_new] = places.try_emplace(given.name, scores.parts.size());
      if (is_new) {
        scores.parts.push_back(
            {.rule = given.name, .scores = std::vector(each.size(), std::numeric_limits<float>::quiet_NaN())});
      }
      Scores::Part& part = scores.parts[place->second];
      if (given.score) part.scores[i] = *given.score;
      if (given.undecided) ++part.undecided;
    }
  }
  return scores;
}

absl::StatusOr<Scores> CheckedScore(Reward& reward, std::span<const Answer> answers, const StopCheck& check_stop) {
  Gathering gathering(answers.size());
  const absl::Status status = reward.ScoreEach(
      answers,
      [&] {
        TDOCK_RETURN_IF_ERROR(gathering.problem());
        return check_stop();
      },
      [&](size_t i, absl::StatusOr<AnswerScore> score) { gathering.Add(answers, i, std::move(score)); });
  TDOCK_RETURN_IF_ERROR(gathering.problem());
  TDOCK_RETURN_IF_ERROR(status);
  return gathering.Take();
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
