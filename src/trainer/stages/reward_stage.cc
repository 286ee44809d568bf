#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// Scores that come within this time of the first are put together.
constexpr std::chrono::milliseconds kBurst(250);
constexpr absl::Duration kBetweenRenewals = absl::Minutes(1);

using ScoredRows = std::map<size_t, reward::AnswerScore>;  // by the index of the row

// Scores on their way from the threads of a reward to that of the stage.
class ScoreQueue {
 public:
  void Add(size_t i, absl::StatusOr<reward::AnswerScore> score) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (score.ok()) {
      scored_[i] = *std::move(score);
    } else if (problem_.ok()) {
      problem_ = score.status();
    }
    changed_.NotifyAll();
  }
  void Finish(const absl::Status& status) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    finished_ = true;
    if (problem_.ok()) problem_ = status;
    changed_.NotifyAll();
  }
  // The first answer without a score, or what ended the call.
  absl::Status problem() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return problem_;
  }

  struct Burst {
    ScoredRows scored;
    bool last = false;
  };
  // What has come by `kBurst` after the call, or as soon as all have.
  Burst Take() TDOCK_EXCLUDES(mu_) {
    const auto until = std::chrono::steady_clock::now() + kBurst;
    MutexLock lock(mu_);
    while (!finished_ && std::chrono::steady_clock::now() < until) changed_.WaitUntil(mu_, until);
    return {.scored = std::exchange(scored_, {}), .last = finished_};
  }

 private:
  Mutex mu_;
  CondVar changed_;
  ScoredRows scored_ TDOCK_GUARDED_BY(mu_);
  bool finished_ TDOCK_GUARDED_BY(mu_) = false;
  absl::Status problem_ TDOCK_GUARDED_BY(mu_);
};

void LogParts(const reward::AnswerScore& answer, StepMetrics& metrics) {
  for (const reward::AnswerScore::Part& part : answer.parts) {
    const std::string prefix = absl::StrCat("reward/", part.name);
    if (part.seconds || part.failed) metrics.Mean(prefix + "/failed", part.failed ? 1 : 0);
    if (part.seconds) metrics.Mean(prefix + "/seconds", *part.seconds);
    if (!part.score) continue;  // it is not for this sample
    metrics.Spread(prefix, *part.score);
    metrics.Mean(prefix + "/undecided", part.undecided ? 1 : 0);
  }
}

void LogBound(const reward::AnswerScore& answer, StepMetrics& metrics) {
  if (answer.left_out || answer.bound == reward::Bound::kUnknown) return;
  metrics.Mean("critic/score/at_max", answer.bound == reward::Bound::kGreatest ? 1 : 0);
  metrics.Mean("critic/score/at_min", answer.bound == reward::Bound::kLeast ? 1 : 0);
}

class RewardStage final : public Stage {
 public:
  RewardStage(reward::Reward& reward, std::vector<std::string> more) : reward_(reward), more_(std::move(more)) {
    consumer_ = {
        .name = "reward", .reads = {kPromptText, kTruth, kSource, kResponseText, kFinished}, .writes = {kRewards}};
    consumer_.reads.insert(consumer_.reads.end(), more_.begin(), more_.end());
  }

  const ConsumerOptions& consumer() const override { return consumer_; }

  Together together() const override { return Together::kNothing; }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<reward::Answer> answers;
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(answers.emplace_back(), AnswerOf(rows, i));
    }
    ScoreQueue queue;
    const StopCheck stop = [&]() -> absl::Status {
      TDOCK_RETURN_IF_ERROR(queue.problem());
      return context.check_stop();
    };
    std::thread scorer([&] {
      queue.Finish(Guarded([&] {
        return reward_.ScoreEach(answers, stop, [&](size_t i, auto score) { queue.Add(i, std::move(score)); });
      }));
    });
    absl::StatusOr<ScoredRows> last = Guarded([&] { return PublishAll(queue, context); });
    if (!last.ok()) queue.Finish(last.status());
    scorer.join();
    TDOCK_RETURN_IF_ERROR(last.status());
    TDOCK_RETURN_IF_ERROR(queue.problem());
    StageOutput output;
    TDOCK_ASSIGN_OR_RETURN(output.dropped, LeftOut(rows, *last));
    const std::set<GroupId> groups(rows.groups().begin(), rows.groups().end());
    if (context.whole_step && output.dropped.size() == groups.size()) {
      return absl::FailedPreconditionError(absl::StrCat("each of the ", groups.size(),
                                                        " prompts has a sample without a "
                                                        "score (reward.on_error=drop), so that none is left"));
    }
    if (!last->empty()) {
      TDOCK_ASSIGN_OR_RETURN(output.columns, Columns(*last, context.metrics));
    }
    return output;
  }

  absl::Status Report(const Rows& written, StepMetrics& metrics) const override {
    std::vector<float> totals;
    for (size_t i = 0; i < written.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const auto reward, written.Get<float>(i, kRewards));
      totals.push_back(reward[0]);
    }
    metrics.Distribution("critic/score", totals);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<reward::Answer> AnswerOf(const Rows& rows, size_t i) const {
    TDOCK_ASSIGN_OR_RETURN(reward::Answer answer, QuestionOfRow(rows, i, more_));
    TDOCK_ASSIGN_OR_RETURN(const auto finished, rows.Get<uint8_t>(i, kFinished));
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view text, rows.Text(i, kResponseText));
    answer.response = std::string(text);
    answer.finished = finished[0] != 0;
    return answer;
  }

  // The prompt groups that the stage does not go on with.
  static absl::StatusOr<std::vector<GroupId>> LeftOut(const Rows& rows, const ScoredRows& scored) {
    std::set<GroupId> groups;
    for (const auto& [i, score] : scored) {
      if (!score.left_out) continue;
      if (rows.groups()[i] == kNoGroup) {
        return absl::FailedPreconditionError(
            absl::StrCat("row ", rows.ids()[i], " has no score, and no prompt group that could be left out"));
      }
      groups.insert(rows.groups()[i]);
    }
    return std::vector<GroupId>(groups.begin(), groups.end());
  }

  // Puts the scores as they come, until all have; the last ones are returned, if all is well, with the samples that are
  // left out, and else put.
  absl::StatusOr<ScoredRows> PublishAll(ScoreQueue& queue, StageContext& context) const {
    absl::Time renewed = absl::Now();
    ScoredRows left_out;
    for (;;) {
      ScoreQueue::Burst burst = queue.Take();
      for (auto next = burst.scored.begin(); next != burst.scored.end();) {
        const auto scored = next++;
        if (scored->second.left_out) left_out.insert(burst.scored.extract(scored));
      }
      if (burst.last && queue.problem().ok()) {
        burst.scored.merge(left_out);
        return std::move(burst.scored);
      }
      if (!burst.scored.empty() && context.publish != nullptr) {
        std::vector<size_t> indexes;
        for (const auto& [i, score] : burst.scored) indexes.push_back(i);
        TDOCK_ASSIGN_OR_RETURN(Batch columns, Columns(burst.scored, context.metrics));
        TDOCK_RETURN_IF_ERROR(context.publish(indexes, std::move(columns), kNoWeightsVersion));
      }
      if (burst.last) return ScoredRows();
      if (context.renew != nullptr && absl::Now() >= renewed + kBetweenRenewals) {
        TDOCK_RETURN_IF_ERROR(context.renew());
        renewed = absl::Now();
      }
    }
  }

  // What the stage writes for these rows, of which those that are left out are not put; also reports them.
  static absl::StatusOr<Batch> Columns(const ScoredRows& scored, StepMetrics& metrics) {
    std::vector<float> totals, given;
    for (const auto& [i, score] : scored) {
      totals.push_back(score.left_out ? 0 : score.total);
      if (!score.left_out) given.push_back(score.total);
      LogParts(score, metrics);
      LogBound(score, metrics);
    }
    if (!given.empty()) metrics.Distribution("critic/score", given);
    Batch columns;
    TDOCK_RETURN_IF_ERROR(columns.Add(kRewards, Column::FromValues(totals)));
    return columns;
  }

  reward::Reward& reward_;
  const std::vector<std::string> more_;
  ConsumerOptions consumer_;
};

}  // namespace

absl::StatusOr<reward::Answer> QuestionOfRow(const Rows& rows, size_t row, const std::vector<std::string>& more) {
  TDOCK_ASSIGN_OR_RETURN(const absl::string_view prompt, rows.Text(row, kPromptText));
  TDOCK_ASSIGN_OR_RETURN(const absl::string_view truth, rows.Text(row, kTruth));
  TDOCK_ASSIGN_OR_RETURN(const absl::string_view source, rows.Text(row, kSource));
  reward::Answer answer{
      .prompt = std::string(prompt), .response = {}, .truth = std::string(truth), .source = std::string(source)};
  for (const std::string& name : more) {
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view text, rows.Text(row, name));
    if (name == kMessages) {
      answer.messages = std::string(text);
    } else {
      answer.columns.emplace_back(name, text);
    }
  }
  return answer;
}

std::unique_ptr<Stage> MakeRewardStage(reward::Reward& reward, const std::vector<std::string>& more) {
  return std::make_unique<RewardStage>(reward, more);
}

}  // namespace tdock::trainer
