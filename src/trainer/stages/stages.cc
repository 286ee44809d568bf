#include "trainer/stages/stages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "model/files/flops.h"
#include "model/tensor_torch/convert.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

class StageOf : public Stage {
 public:
  explicit StageOf(ConsumerOptions consumer) : consumer_(std::move(consumer)) {}
  const ConsumerOptions& consumer() const final { return consumer_; }

 private:
  const ConsumerOptions consumer_;
};

std::vector<int64_t> ResponseLengths(std::span<const Sequence> samples) {
  std::vector<int64_t> lengths;
  for (const Sequence& sample : samples) lengths.push_back(static_cast<int64_t>(sample.response.size()));
  return lengths;
}

class RolloutStage final : public StageOf {
 public:
  RolloutStage(const Policy& policy, const text::Tokenizer& tokenizer, const engine::EngineOptions& engine,
               const engine::SamplingParams& sampling)
      : StageOf({.name = "rollout",
                 .reads = {kPrompt},
                 .writes = {kResponses, kResponseMask, kResponseText, kFinished, kRolloutLogProbs},
                 .unit = Unit::kGroup}),
        policy_(policy),
        tokenizer_(tokenizer),
        engine_(policy.decoder, engine),
        sampling_(sampling) {}

  bool uses_policy() const override { return true; }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<engine::Prompt> prompts;
    uint64_t number = 0;  // in the group
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(i, kPrompt));
      const bool same_group = i > 0 && rows.groups()[i] == rows.groups()[i - 1];
      number = same_group ? number + 1 : 0;
      if (same_group &&
          std::equal(tokens.begin(), tokens.end(), prompts.back().tokens.begin(), prompts.back().tokens.end())) {
        ++prompts.back().samples;
      } else {
        const uint64_t group = DeriveSeed(rows.groups()[i], rows.epoch(i));
        prompts.push_back(
            {.tokens = {tokens.begin(), tokens.end()}, .samples = 1, .identity = DeriveSeed(group, number)});
      }
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions, engine_.Generate(prompts, sampling_));
    ReportWork(prompts, completions, context.metrics);
    return Output(completions, context);
  }

 private:
  // Each prompt passes through the model once.
  void ReportWork(const std::vector<engine::Prompt>& prompts, const std::vector<engine::Completion>& completions,
                  StepMetrics& metrics) const {
    const model::ModelConfig& config = policy_.decoder.config();
    double flops = 0;
    int64_t generated = 0;
    size_t next = 0;
    for (const engine::Prompt& prompt : prompts) {
      const auto length = static_cast<int64_t>(prompt.tokens.size());
      const double once = model::ForwardFlops(config, length);
      flops += once;
      for (int64_t i = 0; i < prompt.samples; ++i) {
        const auto more = static_cast<int64_t>(completions[next++].tokens.size());
        flops += model::ForwardFlops(config, length + more) - once;
        generated += more;
      }
    }
    metrics.Sum("perf/flops/rollout", flops);
    metrics.Sum("perf/num_generated_tokens", static_cast<double>(generated));
  }

  absl::StatusOr<StageOutput> Output(const std::vector<engine::Completion>& completions, StageContext& context) const {
    std::vector<std::vector<int32_t>> responses;
    std::vector<std::vector<uint8_t>> masks;
    std::vector<std::string> texts;
    std::vector<std::vector<float>> log_probs;
    std::vector<uint8_t> finished;
    std::vector<float> lengths;
    for (const engine::Completion& completion : completions) {
      responses.push_back(completion.tokens);
      masks.emplace_back(completion.tokens.size(), uint8_t{1});
      TDOCK_ASSIGN_OR_RETURN(texts.emplace_back(), ResponseText(tokenizer_, completion.tokens, completion.finished));
      log_probs.push_back(completion.log_probs);
      finished.push_back(completion.finished ? 1 : 0);
      lengths.push_back(static_cast<float>(completion.tokens.size()));
      const bool clipped = std::cmp_equal(completion.tokens.size(), sampling_.max_new_tokens);
      context.metrics.Mean("response_length/clip_ratio", clipped ? 1.0 : 0.0);
      context.metrics.Mean("response_length/finished", completion.finished ? 1.0 : 0.0);
    }
    context.metrics.Distribution("response_length", lengths);
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kResponses, Column::FromRows(responses)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kResponseMask, Column::FromRows(masks)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kResponseText, Column::FromStrings(texts)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kFinished, Column::FromValues(finished)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kRolloutLogProbs, Column::FromRows(log_probs)));
    return output;
  }

  const Policy& policy_;
  const text::Tokenizer& tokenizer_;
  engine::Engine engine_;
  const engine::SamplingParams sampling_;
};

class LogProbStage final : public StageOf {
 public:
  LogProbStage(const std::string& name, const std::string& column, const Policy& policy, const ForwardOptions& forward)
      : StageOf({.name = name, .reads = {kPrompt, kResponses}, .writes = {column}, .unit = Unit::kGroup}),
        policy_(policy),
        forward_(forward) {}

  // A reference model stays as it was loaded.
  bool uses_policy() const override { return !policy_.decoder.trainable().empty(); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Sequence> samples, SequencesOf(rows));
    context.metrics.Sum(absl::StrCat("perf/flops/", consumer().name), ForwardFlops(policy_.decoder.config(), samples));
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    TDOCK_RETURN_IF_ERROR(output.columns.Add(
        consumer().writes[0], RaggedColumn(LogProbs(policy_.decoder, samples, forward_), ResponseLengths(samples))));
    return output;
  }

 private:
  const Policy& policy_;
  const ForwardOptions forward_;
};

}  // namespace

std::unique_ptr<Stage> MakeRolloutStage(const Policy& policy, const text::Tokenizer& tokenizer,
                                        const engine::EngineOptions& engine, const engine::SamplingParams& sampling) {
  return std::make_unique<RolloutStage>(policy, tokenizer, engine, sampling);
}

std::unique_ptr<Stage> MakeLogProbStage(const std::string& name, const std::string& column, const Policy& policy,
                                        const ForwardOptions& forward) {
  return std::make_unique<LogProbStage>(name, column, policy, forward);
}

absl::StatusOr<std::string> ResponseText(const text::Tokenizer& tokenizer, std::span<const int32_t> response,
                                         bool finished) {
  if (finished && !response.empty()) response = response.first(response.size() - 1);
  return tokenizer.Decode(response, text::SpecialTokens::kKeep);
}

}  // namespace tdock::trainer
