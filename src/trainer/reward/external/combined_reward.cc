#include "trainer/reward/external/combined_reward.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace tdock::reward {
namespace {

// The answers of one call, whose scores come from several threads.
class Combination {
 public:
  Combination(size_t answers, size_t sources, const ScoreSink& sink)
      : sources_(sources), sink_(sink), answers_(answers) {
    for (Open& answer : answers_) answer.parts.resize(sources);
  }

  // What source `s` adds to answer `i`, or why there is nothing.
  void Add(size_t i, size_t s, absl::StatusOr<AnswerScore> score) TDOCK_EXCLUDES(mu_) {
    absl::StatusOr<AnswerScore> whole = AnswerScore();
    {
      MutexLock lock(mu_);
      Open& answer = answers_[i];
      if (score.ok()) {
        answer.parts[s] = *std::move(score);
      } else if (answer.problem.ok()) {
        answer.problem = score.status();
      }
      if (++answer.given < sources_) return;
      if (answer.problem.ok()) {
        whole = Sum(answer.parts);
      } else {
        whole = answer.problem;
      }
      answer.parts.clear();
    }
    sink_(i, std::move(whole));
  }

  // A source has failed altogether. The first error counts.
  void Fail(const absl::Status& why) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (failed_.ok()) failed_ = why;
  }
  absl::Status failed() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return failed_;
  }

 private:
  struct Open {
    size_t given = 0;                // by how many sources
    std::vector<AnswerScore> parts;  // by source
    absl::Status problem;
  };

  // In the order of the sources, so that the sum does not depend on who was first.
  static AnswerScore Sum(std::vector<AnswerScore>& parts) {
    AnswerScore sum;
    double total = 0;
    for (AnswerScore& part : parts) {
      total += part.total;
      for (AnswerScore::Part& each : part.parts) sum.parts.push_back(std::move(each));
    }
    sum.total = static_cast<float>(total);
    return sum;
  }

  const size_t sources_;
  const ScoreSink& sink_;
  Mutex mu_;
  std::vector<Open> answers_ TDOCK_GUARDED_BY(mu_);
  absl::Status failed_ TDOCK_GUARDED_BY(mu_);
};

class CombinedReward final : public Reward {
 public:
  CombinedReward(std::unique_ptr<Reward> rules, std::vector<WeightedSource> sources, const ErrorPolicy& policy)
      : rules_(std::move(rules)), sources_(std::move(sources)), policy_(policy) {}

  absl::StatusOr<Scores> Score(std::span<const Answer> answers) override { return CheckedScore(*this, answers); }

  absl::Status ScoreEach(std::span<const Answer> answers, const StopCheck& check_stop, const ScoreSink& sink) override {
    const size_t rules = rules_ != nullptr ? 1 : 0;
    Combination combination(answers.size(), sources_.size() + rules, sink);
    const StopCheck stop = [&]() -> absl::Status {
      TDOCK_RETURN_IF_ERROR(combination.failed());
      return check_stop();
    };
    std::vector<std::thread> threads;
    for (size_t s = 0; s < sources_.size(); ++s) {
      threads.emplace_back([&, s] {
        const WeightedSource& source = sources_[s];
        const absl::Status status =
            source.source->Score(answers, stop, [&](size_t i, absl::StatusOr<SourceScore> score) {
              combination.Add(i, rules + s, Weighted(answers, i, source, std::move(score)));
            });
        if (!status.ok()) combination.Fail(status);
      });
    }
    if (rules_ != nullptr) {
      const absl::Status status = rules_->ScoreEach(
          answers, stop, [&](size_t i, absl::StatusOr<AnswerScore> score) { combination.Add(i, 0, std::move(score)); });
      if (!status.ok()) combination.Fail(status);
    }
    for (std::thread& thread : threads) thread.join();
    return combination.failed();
  }

 private:
  absl::StatusOr<AnswerScore> Weighted(std::span<const Answer> answers, size_t i, const WeightedSource& source,
                                       absl::StatusOr<SourceScore> score) const {
    const std::string& name = source.source->name();
    AnswerScore weighted;
    if (!score.ok()) {
      if (!policy_.scores) {
        return Annotate(score.status(), absl::StrCat("the reward ", name, " has no score for ", ShowAnswer(answers, i),
                                                     " (reward.on_error=score would go on)"));
      }
      weighted.total = static_cast<float>(source.weight * policy_.score);
      weighted.parts.push_back({.name = name, .score = policy_.score, .failed = true});
      return weighted;
    }
    std::optional<float> given = score->score;
    if (score->undecided) given = given.value_or(0.0F);
    if (given) weighted.total = static_cast<float>(source.weight * *given);
    weighted.parts.push_back({.name = name, .score = given, .undecided = score->undecided, .seconds = score->seconds});
    for (const auto& [part, value] : score->parts) {
      weighted.parts.push_back({.name = absl::StrCat(name, "/", part), .score = value});
    }
    return weighted;
  }

  const std::unique_ptr<Reward> rules_;
  const std::vector<WeightedSource> sources_;
  const ErrorPolicy policy_;
};

}  // namespace

std::unique_ptr<Reward> MakeCombinedReward(std::unique_ptr<Reward> rules, std::vector<WeightedSource> sources,
                                           const ErrorPolicy& policy) {
  return std::make_unique<CombinedReward>(std::move(rules), std::move(sources), policy);
}

}  // namespace tdock::reward
