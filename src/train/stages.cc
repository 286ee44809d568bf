#include "train/stages.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "algo/advantage.h"
#include "algo/loss.h"
#include "base/rng.h"
#include "base/status.h"
#include "tensor_torch/convert.h"

namespace tdock::train {
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
  RolloutStage(const Policy& policy, const generate::EngineOptions& engine, const generate::SamplingParams& sampling)
      : StageOf({.name = "rollout",
                 .reads = {"prompt"},
                 .writes = {"responses", "response_mask", "finished", "rollout_log_probs"},
                 .unit = Unit::kGroup}),
        policy_(policy),
        engine_(policy.decoder, engine),
        sampling_(sampling) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<generate::Prompt> prompts;
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(i, "prompt"));
      const bool same_group = i > 0 && rows.groups()[i] == rows.groups()[i - 1];
      if (same_group && std::equal(tokens.begin(), tokens.end(), prompts.back().tokens.begin(), prompts.back().tokens.end())) {
        ++prompts.back().samples;
      } else {
        prompts.push_back({{tokens.begin(), tokens.end()}, 1});
      }
      context.metrics.Mean("prompt_length/mean", static_cast<double>(tokens.size()));
    }
    generate::SamplingParams sampling = sampling_;
    sampling.seed = DeriveSeed(sampling_.seed, static_cast<uint64_t>(context.step));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<generate::Completion> completions, engine_.Generate(prompts, sampling));
    return Output(completions, context);
  }

 private:
  absl::StatusOr<StageOutput> Output(const std::vector<generate::Completion>& completions, StageContext& context) const {
    std::vector<std::vector<int32_t>> responses;
    std::vector<std::vector<uint8_t>> masks;
    std::vector<std::vector<float>> log_probs;
    std::vector<uint8_t> finished;
    std::vector<float> lengths;
    for (const generate::Completion& completion : completions) {
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
  const generate::Engine engine_;
  const generate::SamplingParams sampling_;
};

class RewardStage final : public StageOf {
 public:
  RewardStage(reward::Reward& reward, const text::Tokenizer& tokenizer)
      : StageOf({.name = "reward",
                 .reads = {"prompt_text", "truth", "responses", "finished"},
                 .writes = {"rewards"}}),
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
    at::NoGradGuard no_grad;
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Sequence> samples, SequencesOf(rows));
    std::vector<at::Tensor> pieces;
    ForEachMicroBatch(samples, forward_.micro_batch_size, [&](std::span<const Sequence> micro, int64_t) {
      const Layout layout = MakeLayout(micro, forward_.max_row_tokens, policy_.decoder.device());
      pieces.push_back(ResponseLogProbs(policy_.decoder, layout, forward_.temperature));
    });
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    TDOCK_RETURN_IF_ERROR(
        output.columns.Add(consumer().writes[0], RaggedColumn(at::cat(pieces), ResponseLengths(samples))));
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
  std::vector<Sequence> samples;
  at::Tensor mask, old_log_probs, ref_log_probs, advantages;  // [N]
  bool fresh = false;  // the old log-probabilities are those of the weights as they are now
};

absl::StatusOr<MiniBatch> ReadMiniBatch(const Rows& rows, const Policy& policy) {
  MiniBatch batch;
  TDOCK_ASSIGN_OR_RETURN(batch.samples, SequencesOf(rows));
  const auto read = [&](absl::string_view name, at::Tensor& target) -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, TokenColumn(rows, name, batch.samples));
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
        optimizer_(policy.decoder.parameters(), options.optimizer) {}

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(const MiniBatch batch, ReadMiniBatch(rows, policy_));
    const double token_count = batch.mask.sum().item<double>();
    if (token_count == 0) return absl::InvalidArgumentError("every token of the mini-batch is masked");
    ForEachMicroBatch(batch.samples, options_.forward.micro_batch_size,
                      [&](std::span<const Sequence> micro, int64_t first_token) {
                        Accumulate(batch, micro, first_token, token_count, context.metrics);
                      });
    const double lr = options_.lr * options_.schedule.Factor(context.step - 1);
    const double grad_norm = optimizer_.Step(lr);
    if (!std::isfinite(grad_norm)) {
      return absl::InternalError(absl::StrCat("the norm of the gradients is ", grad_norm,
                                              "; a lower actor.optim.lr or a larger actor.kl_loss_coef may keep it finite"));
    }
    ++policy_.version;
    context.metrics.Mean("actor/grad_norm", grad_norm);
    context.metrics.Mean("actor/lr", lr);
    context.metrics.Sum("actor/optimizer_steps", 1);
    return StageOutput();
  }

 private:
  // Adds the gradients of some samples of the mini-batch.
  void Accumulate(const MiniBatch& batch, std::span<const Sequence> micro, int64_t first_token, double token_count,
                  StepMetrics& metrics) {
    const int64_t tokens = ResponseTokens(micro);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, first_token, tokens); };
    const at::Tensor mask = part(batch.mask);
    const at::Tensor old_log_probs = part(batch.old_log_probs);

    at::Tensor entropy;
    const Layout layout = MakeLayout(micro, options_.forward.max_row_tokens, policy_.decoder.device());
    const at::Tensor log_probs = ResponseLogProbs(policy_.decoder, layout, options_.forward.temperature, &entropy);
    const algo::PolicyLoss policy_loss = algo::PpoClipLoss(log_probs, old_log_probs, part(batch.advantages),
                                                           options_.clip_ratio_low, options_.clip_ratio_high);
    const at::Tensor kl = algo::KlDivergence(log_probs, part(batch.ref_log_probs), options_.kl_loss_type);
    const auto mean = [&](const at::Tensor& values) { return algo::TokenMean(values, mask, token_count); };
    const at::Tensor pg_loss = mean(policy_loss.per_token);
    const at::Tensor kl_loss = mean(kl);
    (pg_loss + options_.kl_loss_coef * kl_loss).backward();

    at::NoGradGuard no_grad;
    // Each micro-batch adds its share of the mini-batch's mean; the step's figure is the mean over mini-batches.
    const double share = mask.sum().item<double>() / token_count;
    const auto note = [&](const char* name, const at::Tensor& part_of_mean) {
      metrics.Mean(name, part_of_mean.item<double>() / std::max(share, 1e-12), share);
    };
    note("actor/pg_loss", pg_loss);
    note("actor/kl_loss", kl_loss);
    note("actor/entropy", mean(entropy));
    note("actor/pg_clipfrac", mean(policy_loss.clipped.to(at::kFloat)));
    note("actor/ppo_kl", mean(old_log_probs - log_probs));
    if (batch.fresh) {
      const at::Tensor deviation = (policy_loss.ratio - 1).abs().masked_fill(mask == 0, 0.0).max();
      metrics.Max("actor/fresh_ratio_deviation", deviation.item<double>());
    }
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

std::unique_ptr<Stage> MakeRolloutStage(const Policy& policy, const generate::EngineOptions& engine,
                                        const generate::SamplingParams& sampling) {
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

}  // namespace tdock::train
