#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "model/files/flops.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// Of the lease, while the answers are generated and scored.
constexpr std::chrono::minutes kBetweenBaselineRenewals(1);

class BaselineStage final : public Stage {
 public:
  BaselineStage(const Policy& policy, const text::Tokenizer& tokenizer, std::unique_ptr<AnswerEngine> engine,
                ScoreGreedy score, BaselineOptions options)
      : policy_(policy),
        tokenizer_(tokenizer),
        engine_(std::move(engine)),
        score_(std::move(score)),
        options_(std::move(options)) {
    consumer_.reads.insert(consumer_.reads.end(), options_.more.begin(), options_.more.end());
  }

  const ConsumerOptions& consumer() const override { return consumer_; }
  bool uses_policy() const override { return true; }
  Together together() const override { return TogetherIn(policy_.decoder); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(Questions questions, Ask(rows));
    TDOCK_RETURN_IF_ERROR(AnswerAll(questions, context));
    TDOCK_ASSIGN_OR_RETURN(std::vector<float> rewards, score_(questions.answers, context));
    if (rewards.size() != questions.answers.size()) {
      return absl::InternalError(absl::StrCat(rewards.size(), " rewards for the ", questions.answers.size(),
                                              " answers that were to be scored"));
    }
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    double flops = 0;
    for (size_t q = 0; q < rewards.size(); ++q) {
      const GreedyAnswer& answer = questions.answers[q];
      flops += model::ForwardFlops(policy_.decoder.config(), std::ssize(answer.prompt) + std::ssize(answer.response));
      if (std::isnan(rewards[q])) {
        output.dropped.push_back(rows.groups()[questions.first_row[q]]);
        rewards[q] = 0;
        continue;
      }
      rewards[q] = static_cast<float>(Compared(rewards[q], answer));
      context.metrics.Mean("reward_baseline/mean", rewards[q]);
    }
    context.metrics.Sum("perf/flops/baseline", flops);
    std::vector<float> of_rows;
    for (const size_t q : questions.of_row) of_rows.push_back(rewards[q]);
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kRewardBaselines, Column::FromValues(of_rows)));
    return output;
  }

 private:
  // The different prompts of the groups.
  struct Questions {
    std::vector<engine::Request> requests;
    std::vector<GreedyAnswer> answers;
    std::vector<size_t> first_row;  // of each question
    std::vector<size_t> of_row;     // the question of each row
  };

  absl::StatusOr<Questions> Ask(const Rows& rows) const {
    Questions questions;
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(i, kPrompt));
      const bool again = i > 0 && rows.groups()[i] == rows.groups()[i - 1] &&
                         std::ranges::equal(tokens, questions.answers.back().prompt);
      if (!again) {
        const absl::StatusOr<int64_t> room = options_.limits.MaxNewTokens(
            options_.max_new_tokens, static_cast<int64_t>(tokens.size()), policy_.decoder.config().context_length());
        if (!room.ok()) return Annotate(room.status(), absl::StrCat("row ", rows.ids()[i]));
        GreedyAnswer& answer = questions.answers.emplace_back();
        answer.prompt.assign(tokens.begin(), tokens.end());
        TDOCK_ASSIGN_OR_RETURN(answer.text, QuestionOfRow(rows, i, options_.more));
        engine::Request& request = questions.requests.emplace_back();
        request.prompt = {.tokens = answer.prompt, .samples = 1, .identity = questions.first_row.size()};
        request.sampling = {.temperature = 0, .max_new_tokens = *room};
        questions.first_row.push_back(i);
      }
      questions.of_row.push_back(questions.answers.size() - 1);
    }
    return questions;
  }

  absl::Status AnswerAll(Questions& questions, StageContext& context) {
    TDOCK_RETURN_IF_ERROR(
        engine_->Serve(Unowned(policy_.decoder), policy_.version, /*in_flight=*/false, context.check_stop));
    absl::Time renewed = absl::Now();
    const auto after_step = [&](std::span<engine::Answer> ended) -> absl::Status {
      for (engine::Answer& ending : ended) {
        if (!ending.status.ok()) return Annotate(ending.status, absl::StrCat("prompt ", ending.request));
        GreedyAnswer& answer = questions.answers[ending.request];
        answer.response = std::move(ending.completion.tokens);
        answer.text.finished = ending.completion.finished;
        TDOCK_ASSIGN_OR_RETURN(answer.text.response, ResponseText(tokenizer_, answer.response, answer.text.finished));
      }
      TDOCK_RETURN_IF_ERROR(context.check_stop());
      if (context.renew != nullptr && absl::Now() >= renewed + absl::FromChrono(kBetweenBaselineRenewals)) {
        TDOCK_RETURN_IF_ERROR(context.renew());
        renewed = absl::Now();
      }
      return absl::OkStatus();
    };
    const absl::Status answered = engine_->AnswerAll(std::move(questions.requests), after_step);
    engine_->Report(context.metrics);
    return answered;
  }

  double Compared(double score, const GreedyAnswer& answer) const {
    const double clamped = std::clamp(score, -options_.score_clip, options_.score_clip);
    if (!options_.overlong.has_value()) return clamped;
    return clamped + algo::OverlongPenalty(std::ssize(answer.response), *options_.overlong);
  }

  ConsumerOptions consumer_ = {.name = "baseline",
                               .reads = {kPrompt, kPromptText, kTruth, kSource},
                               .writes = {kRewardBaselines},
                               .unit = Unit::kGroup};
  const Policy& policy_;
  const text::Tokenizer& tokenizer_;
  const std::unique_ptr<AnswerEngine> engine_;
  const ScoreGreedy score_;
  const BaselineOptions options_;
};

}  // namespace

ScoreGreedy ScoredBy(reward::Reward& reward) {
  return
      [&reward](const std::vector<GreedyAnswer>& answers, StageContext& context) -> absl::StatusOr<std::vector<float>> {
        std::vector<reward::Answer> texts;
        for (const GreedyAnswer& answer : answers) texts.push_back(answer.text);
        // In a thread of its own, while this one keeps the lease.
        auto scoring = std::async(std::launch::async, [&] { return CheckedScore(reward, texts, context.check_stop); });
        while (scoring.wait_for(kBetweenBaselineRenewals) != std::future_status::ready) {
          if (context.renew != nullptr) TDOCK_RETURN_IF_ERROR(context.renew());
        }
        TDOCK_ASSIGN_OR_RETURN(reward::Scores scores, scoring.get());
        return std::move(scores.totals);
      };
}

std::unique_ptr<Stage> MakeBaselineStage(const Policy& policy, const text::Tokenizer& tokenizer,
                                         std::unique_ptr<AnswerEngine> engine, const ScoreGreedy& score,
                                         const BaselineOptions& options) {
  return std::make_unique<BaselineStage>(policy, tokenizer, std::move(engine), score, options);
}

}  // namespace tdock::trainer
