#include "trainer/reward/external/combined_reward.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/workers.h"

namespace tdock::reward {
namespace {

constexpr int kMostToldOfACall = 10;

// The answers of one call, whose scores come from several threads.
class Combination {
 public:
  Combination(size_t answers, size_t sources, const ErrorPolicy& policy, const ScoreSink& sink)
      : sources_(sources), policy_(policy), sink_(sink), answers_(answers) {
    for (Open& answer : answers_) answer.parts.resize(sources);
  }
  ~Combination() {
    if (untold_ > 0) policy_.log(absl::StrCat("reward: ", untold_, " more samples of these have no score"));
  }
  Combination(const Combination&) = delete;
  Combination& operator=(const Combination&) = delete;

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
        whole->left_out = answer.left_out;
      } else {
        whole = answer.problem;
      }
      answer.parts.clear();
    }
    sink_(i, std::move(whole));
  }

  // There is no score of answer `i` from source `s`, and the run goes on: it counts as `instead`.
  void AddFailed(size_t i, size_t s, const absl::Status& why, AnswerScore instead) TDOCK_EXCLUDES(mu_) {
    bool told = false;
    {
      MutexLock lock(mu_);
      told = told_ < kMostToldOfACall;
      ++(told ? told_ : untold_);
      if (instead.left_out) answers_[i].left_out = true;
    }
    if (told) policy_.log(absl::StrCat(why.message(), instead.left_out ? "; its prompt is left out" : ""));
    Add(i, s, std::move(instead));
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
    bool left_out = false;
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
  const ErrorPolicy& policy_;
  const ScoreSink& sink_;
  Mutex mu_;
  std::vector<Open> answers_ TDOCK_GUARDED_BY(mu_);
  int told_ TDOCK_GUARDED_BY(mu_) = 0, untold_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::Status failed_ TDOCK_GUARDED_BY(mu_);
};

class CombinedReward final : public Reward {
 public:
  CombinedReward(std::unique_ptr<Reward> rules, std::vector<WeightedSource> sources, const ErrorPolicy& policy)
      : rules_(std::move(rules)), sources_(std::move(sources)), policy_(policy) {}

  absl::StatusOr<Scores> Score(std::span<const Answer> answers) override { return CheckedScore(*this, answers); }

  absl::Status ScoreEach(std::span<const Answer> answers, const StopCheck& check_stop, const ScoreSink& sink) override {
    const size_t rules = rules_ != nullptr ? 1 : 0;
    Combination combination(answers.size(), sources_.size() + rules, policy_, sink);
    const StopCheck stop = [&]() -> absl::Status {
      TDOCK_RETURN_IF_ERROR(combination.failed());
      return check_stop();
    };
    const auto score = [&](size_t s) -> absl::Status {
      if (s < rules) {
        return rules_->ScoreEach(answers, stop,
                                 [&](size_t i, auto of_rules) { combination.Add(i, 0, std::move(of_rules)); });
      }
      const WeightedSource& source = sources_[s - rules];
      return source.source->Score(answers, stop, [&](size_t i, absl::StatusOr<SourceScore> given) {
        if (given.ok()) return combination.Add(i, s, Weighted(source, *std::move(given)));
        AddFailed(answers, i, s, source, given.status(), combination);
      });
    };
    const auto threads = static_cast<int>(sources_.size() + rules);
    Workers(threads).Run(threads, [&](int s) {
      try {
        const absl::Status status = score(static_cast<size_t>(s));
        if (!status.ok()) combination.Fail(status);
      } catch (...) {
        combination.Fail(absl::AbortedError("another source of scores has failed"));
        throw;
      }
    });
    return combination.failed();
  }

 private:
  static AnswerScore Weighted(const WeightedSource& source, SourceScore score) {
    const std::string& name = source.source->name();
    AnswerScore weighted;
    std::optional<float> given = score.score;
    if (score.undecided) given = given.value_or(0.0F);
    if (given) weighted.total = static_cast<float>(source.weight * *given);
    weighted.parts.push_back({.name = name,
                              .score = given,
                              .undecided = score.undecided,
                              .seconds = score.seconds,
                              .message = std::move(score.message)});
    for (const auto& [part, value] : score.parts) {
      weighted.parts.push_back({.name = absl::StrCat(name, "/", part), .score = value});
    }
    return weighted;
  }

  void AddFailed(std::span<const Answer> answers, size_t i, size_t s, const WeightedSource& source,
                 const absl::Status& status, Combination& combination) const {
    const std::string& name = source.source->name();
    const absl::Status why =
        Annotate(status, absl::StrCat("the reward ", name, " has no score for ", ShowAnswer(answers, i)));
    AnswerScore instead;
    AnswerScore::Part& part = instead.parts.emplace_back(AnswerScore::Part{.name = name, .failed = true});
    switch (policy_.on_error) {
      case OnError::kStop:
        return combination.Add(
            i, s, absl::Status(why.code(), absl::StrCat(why.message(), " (reward.on_error says what becomes of it)")));
      case OnError::kScore:
        instead.total = static_cast<float>(source.weight * policy_.score);
        part.score = policy_.score;
        break;
      case OnError::kDrop:
        instead.left_out = true;
        break;
    }
    part.message = std::string(status.message());
    combination.AddFailed(i, s, why, std::move(instead));
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
