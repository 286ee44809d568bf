#include "trainer/stages/stages.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "model/tensor_torch/convert.h"
#include "trainer/algo/advantage.h"
#include "trainer/algo/loss.h"

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
  RolloutStage(const Policy& policy, const engine::EngineOptions& engine, const engine::SamplingParams& sampling)
      : StageOf({.name = "rollout",
                 .reads = {"prompt"},
                 .writes = {"responses", "response_mask", "finished", "rollout_log_probs"},
                 .unit = Unit::kGroup}),
        policy_(policy),
        engine_(policy.decoder, engine),
        sampling_(sampling) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<engine::Prompt> prompts;
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(i, "prompt"));
      const bool same_group = i > 0 && rows.groups()[i] == rows.groups()[i - 1];
      if (same_group &&
          std::equal(tokens.begin(), tokens.end(), prompts.back().tokens.begin(), prompts.back().tokens.end())) {
        ++prompts.back().samples;
      } else {
        prompts.push_back({{tokens.begin(), tokens.end()}, 1});
      }
      context.metrics.Mean("prompt_length/mean", static_cast<double>(tokens.size()));
    }
    engine::SamplingParams sampling = sampling_;
    sampling.seed = DeriveSeed(sampling_.seed, static_cast<uint64_t>(context.step));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions, engine_.Generate(prompts, sampling));
    return Output(completions, context);
  }

 private:
  absl::StatusOr<StageOutput> Output(const std::vector<engine::Completion>& completions, StageContext& context) const {
    std::vector<std::vector<int32_t>> responses;
    std::vector<std::vector<uint8_t>> masks;
    std::vector<std::vector<float>> log_probs;
    std::vector<uint8_t> finished;
    std::vector<float> lengths;
    for (const engine::Completion& completion : completions) {
      responses.push_back(completion.tokens);
      masks.emplace_back(completion.tokens.size(), uint8_t{1});
      log_probs.push_back(completion.log_probs);
      finished.push_back(completion.finished ? 1 : 0);
      lengths.push_back(static_cast<float>(completion.tokens.size()));
      context.metrics.Mean("response_length/finished", completion.finished ? 1.0 : 0.0);
    }
    context.metrics.Distribution("response_length", lengths);
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    TDOCK_RETURN_IF_ERROR(output.columns.Add("responses", Column::FromRows(responses)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add("response_mask", Column::FromRows(masks)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add("finished", Column::FromValues(finished)));
    TDOCK_RETURN_IF_ERROR(output.columns.Add("rollout_log_probs", Column::FromRows(log_probs)));
    return output;
  }

  const Policy& policy_;
  const engine::Engine engine_;
  const engine::SamplingParams sampling_;
};

class RewardStage final : public StageOf {
 public:
  RewardStage(reward::Reward& reward, const text::Tokenizer& tokenizer)
      : StageOf({.name = "reward", .reads = {"prompt_text", "truth", "responses", "finished"}, .writes = {"rewards"}}),
        reward_(reward),
        tokenizer_(tokenizer) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<reward::Answer> answers(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view prompt, rows.Text(i, "prompt_text"));
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view truth, rows.Text(i, "truth"));
      TDOCK_ASSIGN_OR_RETURN(const auto finished, rows.Get<uint8_t>(i, "finished"));
      TDOCK_ASSIGN_OR_RETURN(const auto response, rows.Get<int32_t>(i, "responses"));
      TDOCK_ASSIGN_OR_RETURN(std::string text, ResponseText(tokenizer_, response, finished[0] != 0));
      answers[i] = {std::string(prompt), std::move(text), finished[0] != 0, std::string(truth)};
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<float> scores, reward::CheckedScore(reward_, answers));
    context.metrics.Distribution("critic/score", scores);
    StageOutput output;
    TDOCK_RETURN_IF_ERROR(output.columns.Add("rewards", Column::FromValues(scores)));
    return output;
  }

 private:
  reward::Reward& reward_;
  const text::Tokenizer& tokenizer_;
};

class LogProbStage final : public StageOf {
 public:
  LogProbStage(const std::string& name, const std::string& column, const Policy& policy, const ForwardOptions& forward)
      : StageOf({.name = name, .reads = {"prompt", "responses"}, .writes = {column}, .unit = Unit::kGroup}),
        policy_(policy),
        forward_(forward) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext&) override {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Sequence> samples, SequencesOf(rows));
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    TDOCK_RETURN_IF_ERROR(output.columns.Add(
        consumer().writes[0], RaggedColumn(LogProbs(policy_.decoder, samples, forward_), ResponseLengths(samples))));
    return output;
  }

 private:
  const Policy& policy_;
  const ForwardOptions forward_;
};

class GrpoAdvantageStage final : public StageOf {
 public:
  GrpoAdvantageStage()
      : StageOf({.name = "advantage",
                 .reads = {"rewards", "response_mask"},
                 .writes = {"advantages"},
                 .unit = Unit::kGroup}) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(const Column rewards, rows.ToColumn("rewards"));
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor scores, ValuesOf(rewards));
    const std::vector<int64_t> groups(rows.groups().begin(), rows.groups().end());
    const at::Tensor per_sample = algo::GrpoAdvantages(scores, at::tensor(groups));

    std::vector<std::vector<float>> per_token(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const auto mask, rows.Get<uint8_t>(i, "response_mask"));
      for (uint8_t is_own : mask) per_token[i].push_back(is_own ? per_sample.const_data_ptr<float>()[i] : 0.0f);
    }
    context.metrics.Distribution("critic/advantages", {per_sample.const_data_ptr<float>(), rows.size()});
    StageOutput output;
    TDOCK_RETURN_IF_ERROR(output.columns.Add("advantages", Column::FromRows(per_token)));
    return output;
  }
};

// The columns of a mini-batch, as flat vectors over its response tokens, on the policy's device.
struct MiniBatch {
  std::vector<Sequence> samples;                              // those of one prompt next to each other
  at::Tensor mask, old_log_probs, ref_log_probs, advantages;  // [N]
  bool fresh = false;  // the old log-probabilities are those of the weights as they are now
};

absl::StatusOr<MiniBatch> ReadMiniBatch(const Rows& rows, const Policy& policy) {
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rows.groups()[static_cast<size_t>(a)] < rows.groups()[static_cast<size_t>(b)];
  });
  MiniBatch batch;
  TDOCK_ASSIGN_OR_RETURN(batch.samples, SequencesOf(rows, order));
  const auto read = [&](absl::string_view name, at::Tensor& target) -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, TokenColumn(rows, order, name, batch.samples));
    target = values.to(policy.decoder.device());
    return absl::OkStatus();
  };
  TDOCK_RETURN_IF_ERROR(read("response_mask", batch.mask));
  TDOCK_RETURN_IF_ERROR(read("old_log_probs", batch.old_log_probs));
  TDOCK_RETURN_IF_ERROR(read("ref_log_prob", batch.ref_log_probs));
  TDOCK_RETURN_IF_ERROR(read("advantages", batch.advantages));
  batch.fresh = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(const int64_t version, rows.WeightsVersion(i, "old_log_probs"));
    batch.fresh = batch.fresh && version == policy.version;
  }
  return batch;
}

class ActorStage final : public StageOf {
 public:
  ActorStage(Policy& policy, const ActorOptions& options)
      : StageOf({.name = "actor",
                 .reads = {"prompt", "responses", "response_mask", "old_log_probs", "ref_log_prob", "advantages"},
                 .sampler = Sampler::kUniform,
                 .seed = options.seed}),
        policy_(policy),
        options_(options),
        optimizer_(policy.decoder.trainable(), options.optimizer) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(const MiniBatch batch, ReadMiniBatch(rows, policy_));
    const double token_count = batch.mask.sum().item<double>();
    if (token_count == 0) return absl::InvalidArgumentError("every token of the mini-batch is masked");
    const std::vector<MicroBatch> micro_batches = CutMicroBatches(batch.samples, options_.forward);
    std::vector<Figures> figures(micro_batches.size());
    Backward(policy_.decoder, options_.forward.workers, micro_batches.size(),
             [&](size_t i) { return Loss(batch, micro_batches[i], token_count, figures[i]); });
    for (const Figures& f : figures) Note(f, context.metrics);
    const double lr = options_.lr * options_.schedule.Factor(context.step - 1);
    const double grad_norm = optimizer_.Step(lr);
    if (!std::isfinite(grad_norm)) {
      return absl::InternalError(
          absl::StrCat("the norm of the gradients is ", grad_norm,
                       "; a lower actor.optim.lr or a larger actor.kl_loss_coef may keep it finite"));
    }
    ++policy_.version;
    context.metrics.Mean("actor/grad_norm", grad_norm);
    context.metrics.Mean("actor/lr", lr);
    context.metrics.Sum("actor/optimizer_steps", 1);
    return StageOutput();
  }

 private:
  // What one micro-batch adds to the figures of the step.
  struct Figures {
    double tokens = 0;                                                      // unmasked
    double pg_loss = 0, kl_loss = 0, entropy = 0, clipped = 0, ppo_kl = 0;  // sums over tokens
    double fresh_ratio_deviation = -1;
  };

  // The micro-batch's part of the mini-batch's loss.
  at::Tensor Loss(const MiniBatch& batch, const MicroBatch& micro, double token_count, Figures& figures) const {
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, micro.first_token, micro.tokens); };
    const at::Tensor mask = part(batch.mask);
    const at::Tensor old_log_probs = part(batch.old_log_probs);

    at::Tensor entropy;
    const Layout layout = MakeLayout(micro.samples, options_.forward.max_row_tokens, policy_.decoder.device());
    const at::Tensor log_probs = ResponseLogProbs(policy_.decoder, layout, options_.forward.temperature, &entropy);
    const algo::ActorLoss result = algo::ComputeActorLoss(log_probs, old_log_probs, part(batch.ref_log_probs),
                                                          part(batch.advantages), mask, token_count,
                                                          {.clip_low = options_.clip_ratio_low,
                                                           .clip_high = options_.clip_ratio_high,
                                                           .kl_coef = options_.kl_loss_coef,
                                                           .kl_type = options_.kl_loss_type});

    at::NoGradGuard no_grad;
    const auto sum = [&](const at::Tensor& values) { return algo::TokenMean(values, mask, 1.0).item<double>(); };
    figures = {.tokens = mask.sum().item<double>(),
               .pg_loss = sum(result.policy.per_token),
               .kl_loss = sum(result.kl),
               .entropy = sum(entropy),
               .clipped = sum(result.policy.clipped.to(at::kFloat)),
               .ppo_kl = sum(old_log_probs - log_probs)};
    if (batch.fresh) {
      figures.fresh_ratio_deviation = (result.policy.ratio - 1).abs().max().item<double>();
    }
    return result.loss;
  }

  static void Note(const Figures& figures, StepMetrics& metrics) {
    if (figures.tokens == 0) return;
    const auto mean = [&](const char* name, double sum) { metrics.Mean(name, sum / figures.tokens, figures.tokens); };
    mean("actor/pg_loss", figures.pg_loss);
    mean("actor/kl_loss", figures.kl_loss);
    mean("actor/entropy", figures.entropy);
    mean("actor/pg_clipfrac", figures.clipped);
    mean("actor/ppo_kl", figures.ppo_kl);
    if (figures.fresh_ratio_deviation >= 0) metrics.Max("actor/fresh_ratio_deviation", figures.fresh_ratio_deviation);
  }

  Policy& policy_;
  const ActorOptions options_;
  AdamW optimizer_;
};

}  // namespace

std::vector<ColumnSpec> GrpoColumns() {
  return {{"prompt", ColumnType::Ragged(DType::kI32)},
          {"prompt_text", ColumnType::Bytes()},
          {"truth", ColumnType::Bytes()},
          {"responses", ColumnType::Ragged(DType::kI32)},
          {"response_mask", ColumnType::Ragged(DType::kU8)},
          {"finished", ColumnType::Dense(DType::kU8)},
          {"rollout_log_probs", ColumnType::Ragged(DType::kF32)},
          {"rewards", ColumnType::Dense(DType::kF32)},
          {"ref_log_prob", ColumnType::Ragged(DType::kF32)},
          {"old_log_probs", ColumnType::Ragged(DType::kF32)},
          {"advantages", ColumnType::Ragged(DType::kF32)}};
}

std::unique_ptr<Stage> MakeRolloutStage(const Policy& policy, const engine::EngineOptions& engine,
                                        const engine::SamplingParams& sampling) {
  return std::make_unique<RolloutStage>(policy, engine, sampling);
}

std::unique_ptr<Stage> MakeRewardStage(reward::Reward& reward, const text::Tokenizer& tokenizer) {
  return std::make_unique<RewardStage>(reward, tokenizer);
}

std::unique_ptr<Stage> MakeLogProbStage(const std::string& name, const std::string& column, const Policy& policy,
                                        const ForwardOptions& forward) {
  return std::make_unique<LogProbStage>(name, column, policy, forward);
}

std::unique_ptr<Stage> MakeGrpoAdvantageStage() { return std::make_unique<GrpoAdvantageStage>(); }

std::unique_ptr<Stage> MakeActorStage(Policy& policy, const ActorOptions& options) {
  return std::make_unique<ActorStage>(policy, options);
}

absl::StatusOr<std::string> ResponseText(const text::Tokenizer& tokenizer, std::span<const int32_t> response,
                                         bool finished) {
  if (finished && !response.empty()) response = response.first(response.size() - 1);
  return tokenizer.Decode(response, text::SpecialTokens::kKeep);
}

}  // namespace tdock::trainer
