#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/headeronly/version.h>

#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/subjects.h"
#include "bench/torch/update_run.h"
#include "model/decoder/device.h"
#include "model/tensor_torch/convert.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/optimizer.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/update_stage.h"

namespace tdock::bench {
namespace {

// The actor update of the example's step: 1,024 samples in mini-batches of 256.
class ActorUpdate {
 public:
  ActorUpdate(Arithmetic arithmetic, const Settings& settings)
      : policy_{std::move(arithmetic.decoder)},
        problems_(std::move(arithmetic.problems)),
        prompts_(settings.quick ? 32 : 128),
        workers_(ShareSamples(settings.threads, kMiniBatch)) {
    policy_.decoder.SetTrainable(true);
  }

  absl::Status SetUp(Clock& clock) {
    const trainer::ForwardOptions forward = {.workers = *workers_};
    // A small learning rate: every run sees about the same weights.
    std::unique_ptr<trainer::Stage> stage = trainer::MakeUpdateStage(
        policy_, trainer::MakeActorObjective({.loss = {.kl_coef = 0.02}}),
        {.forward = forward, .optimizer = {}, .lr = 1e-7, .schedule = {}, .mini_batch_size = kMiniBatch});
    TDOCK_ASSIGN_OR_RETURN(UpdateRun::Samples samples, MakeSamples(forward));
    TDOCK_ASSIGN_OR_RETURN(run_, UpdateRun::Create(clock, std::move(stage), Columns(), std::move(samples)));
    return absl::OkStatus();
  }

  absl::StatusOr<double> TokensPerSecond() { return run_->TokensPerSecond(); }

 private:
  static constexpr int64_t kSamples = 8;  // of each prompt
  static constexpr int64_t kMiniBatch = 256;

  static std::vector<ColumnSpec> Columns() {
    using namespace trainer;
    return ColumnsNamed({kPrompt, kResponses, kResponseMask, kRolloutLogProbs, kOldLogProbs, kRefLogProb, kAdvantages});
  }

  // What the stages before would have written, had every response been right.
  absl::StatusOr<UpdateRun::Samples> MakeSamples(const trainer::ForwardOptions& forward) const {
    UpdateRun::Samples made{.batch = {}, .groups = {}, .group_size = kSamples};
    std::vector<std::vector<int32_t>> prompts, responses;
    std::vector<std::vector<uint8_t>> masks;
    std::vector<std::vector<float>> advantages;
    std::vector<trainer::Sequence> samples;
    std::vector<int64_t> lengths;
    for (size_t p = 0; p < prompts_; ++p) {
      for (int64_t s = 0; s < kSamples; ++s) {
        const Problem& problem = problems_[p];
        prompts.push_back(problem.prompt);
        responses.push_back(problem.answer);
        masks.emplace_back(problem.answer.size(), uint8_t{1});
        advantages.emplace_back(problem.answer.size(), s % 2 == 0 ? 1.0f : -1.0f);
        samples.push_back({problem.prompt, problem.answer});
        lengths.push_back(static_cast<int64_t>(problem.answer.size()));
        made.groups.push_back(made.groups.size() / kSamples);
        made.tokens += static_cast<int64_t>(problem.prompt.size() + problem.answer.size());
      }
    }
    TDOCK_RETURN_IF_ERROR(made.batch.Add(trainer::kPrompt, Column::FromRows(prompts)));
    TDOCK_RETURN_IF_ERROR(made.batch.Add(trainer::kResponses, Column::FromRows(responses)));
    TDOCK_RETURN_IF_ERROR(made.batch.Add(trainer::kResponseMask, Column::FromRows(masks)));
    TDOCK_RETURN_IF_ERROR(made.batch.Add(trainer::kAdvantages, Column::FromRows(advantages)));
    const at::Tensor log_probs = trainer::LogProbs(policy_.decoder, samples, forward);
    for (const char* column : {trainer::kRolloutLogProbs, trainer::kOldLogProbs, trainer::kRefLogProb}) {
      TDOCK_RETURN_IF_ERROR(made.batch.Add(column, RaggedColumn(log_probs, lengths)));
    }
    return made;
  }

  trainer::Policy policy_;
  const std::vector<Problem> problems_;
  const size_t prompts_;
  const std::unique_ptr<Workers> workers_;
  std::unique_ptr<UpdateRun> run_;
};

// Supervised steps of a Llama of 95 million parameters on random tokens: forward, backward, clipping and AdamW.
class LlamaStep {
 public:
  // `compute` is the dtype of activations and products; weights are float32.
  LlamaStep(const at::Device& device, at::ScalarType compute, bool batch_invariant, const Settings& settings)
      : clock_(settings.clock),
        decoder_(MakeLlama95m(device)),
        workers_(ShareSamples(settings.threads, kRows)),
        length_(settings.quick ? 16 : 256) {
    decoder_.SetTrainable(true);
    decoder_.SetComputeType(compute);
    decoder_.SetBatchInvariant(batch_invariant);
    optimizer_ = std::make_unique<trainer::AdamW>(decoder_.trainable(), trainer::AdamWOptions());
    // The first token is a prompt; of the others all but the last are fed, and all are predicted.
    for (int64_t row = 0; row < kRows; ++row) {
      texts_.push_back(RandomTokens(decoder_, length_ + 1, static_cast<uint64_t>(row)));
    }
    for (const std::vector<int32_t>& text : texts_) {
      samples_.push_back({std::span(text).first(1), std::span(text).subspan(1)});
    }
  }

  absl::StatusOr<double> TokensPerSecond() {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] { return Step(); }));
    return static_cast<double>(kRows * length_) / seconds;
  }

  // With the share of what matrix multiply in the same dtype would get through.
  absl::StatusOr<Figure> TokensPerSecondAndShare() {
    TDOCK_ASSIGN_OR_RETURN(const double tokens, TokensPerSecond());
    TDOCK_ASSIGN_OR_RETURN(const double most, MatmulTokensPerSecond());
    return Figure(tokens, {{"matmul_share", tokens / most}});
  }

  // The tokens that matrix multiply would get through, if a step were nothing else.
  absl::StatusOr<double> MatmulTokensPerSecond() {
    constexpr int64_t kSize = 2048;
    constexpr int kProducts = 4;  // of each thread
    const auto options = at::TensorOptions(decoder_.device()).dtype(decoder_.compute_type());
    const at::Tensor a = at::ones({kSize, kSize}, options);
    const model::Linear b{
        .weight = at::ones({kSize, kSize}, options), .bias = {}, .arithmetic = model::Arithmetic::kLibtorch};
    std::vector<at::Tensor> products;
    for (int thread = 0; thread < workers_->threads(); ++thread) products.push_back(at::zeros({1}, options));
    model::AwaitDevice(products.back().device());
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] {
                             workers_->Run(workers_->threads(), [&](int thread) {
                               at::NoGradGuard no_grad;
                               for (int i = 0; i < kProducts; ++i) {
                                 products[static_cast<size_t>(thread)] = b(a);
                               }
                             });
                             model::AwaitDevice(products.back().device());
                             return absl::OkStatus();
                           }));
    const double flops = 2.0 * std::pow(kSize, 3) * kProducts * static_cast<double>(products.size());
    return flops / seconds / FlopsPerToken();
  }

 private:
  static constexpr int64_t kRows = 8;

  absl::Status Step() {
    const trainer::ForwardOptions forward = {.workers = *workers_, .max_row_tokens = length_};
    const std::vector<trainer::MicroBatch> micro_batches =
        trainer::CutMicroBatches(samples_, forward, decoder_.device());
    trainer::Backward(decoder_, *workers_, micro_batches.size(), [&](const model::Decoder& pass, size_t i) {
      const trainer::Layout layout =
          trainer::MakeLayout(micro_batches[i].samples, forward.max_row_tokens, decoder_.device());
      return -trainer::ScoreResponses(pass, layout, forward.temperature).log_probs.sum() /
             static_cast<double>(kRows * length_);
    });
    const double norm = optimizer_->Step(1e-6);
    model::AwaitDevice(decoder_.parameters().front().device());
    if (std::isfinite(norm)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the norm of the gradients is ", norm));
  }

  // 6 for each weight that a token is multiplied with, forward and backward, and the scores and mixtures of causal
  // attention, 6·layers·length·hidden.
  double FlopsPerToken() const {
    const model::ModelConfig& config = decoder_.config();
    const int64_t weights = decoder_.parameter_count() - config.vocab_size * config.hidden_size;
    return 6.0 * static_cast<double>(weights) +
           6.0 * static_cast<double>(config.num_layers * length_ * config.hidden_size);
  }

  Clock& clock_;
  model::Decoder decoder_;
  const std::unique_ptr<Workers> workers_;
  const int64_t length_;
  std::unique_ptr<trainer::AdamW> optimizer_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<trainer::Sequence> samples_;
};

absl::StatusOr<Prepared> PrepareActorUpdate(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  TDOCK_ASSIGN_OR_RETURN(Arithmetic arithmetic, MakeArithmetic(device));
  const auto update = std::make_shared<ActorUpdate>(std::move(arithmetic), settings);
  TDOCK_RETURN_IF_ERROR(update->SetUp(settings.clock));
  return Prepared{.run = [update] { return trainer::Guarded([&] { return update->TokensPerSecond(); }); }};
}

// Mixed precision beside float32.
absl::StatusOr<Prepared> PrepareMixedLlama(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  const auto mixed = std::make_shared<LlamaStep>(device, at::kBFloat16, true, settings);
  const auto full = std::make_shared<LlamaStep>(device, at::kFloat, true, settings);
  return Prepared{.run = [mixed] { return trainer::Guarded([&] { return mixed->TokensPerSecondAndShare(); }); },
                  .reference = [full] { return trainer::Guarded([&] { return full->TokensPerSecond(); }); }};
}

absl::StatusOr<Prepared> PrepareFullLlama(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  const auto step = std::make_shared<LlamaStep>(device, at::kFloat, true, settings);
  return Prepared{.run = [step] { return trainer::Guarded([&] { return step->TokensPerSecond(); }); },
                  .reference = [step] { return trainer::Guarded([&] { return step->MatmulTokensPerSecond(); }); }};
}

// The reference multiplies by libtorch.
absl::StatusOr<Prepared> PrepareInvariantLlama(const Settings& settings) {
  if (settings.device != "cpu") return absl::InvalidArgumentError("batch-invariant mode is for the CPU");
  const auto invariant = std::make_shared<LlamaStep>(at::kCPU, at::kFloat, true, settings);
  const auto fast = std::make_shared<LlamaStep>(at::kCPU, at::kFloat, false, settings);
  return Prepared{.run = [invariant] { return trainer::Guarded([&] { return invariant->TokensPerSecond(); }); },
                  .reference = [fast] { return trainer::Guarded([&] { return fast->TokensPerSecond(); }); }};
}

}  // namespace

std::vector<Benchmark> TrainStepBenchmarks() {
  const auto guarded = [](auto prepare) {
    return [prepare](const Settings& settings) { return trainer::Guarded([&] { return prepare(settings); }); };
  };
  return {{.name = "train_step/arithmetic",
           .unit = "tokens/s",
           .better = Better::kHigher,
           .prepare = guarded(PrepareActorUpdate)},
          {.name = "train_step/dtype=float32",
           .unit = "tokens/s",
           .better = Better::kHigher,
           .of = "matmul",
           .prepare = guarded(PrepareFullLlama)},
          {.name = "train_step/dtype=bfloat16",
           .unit = "tokens/s",
           .better = Better::kHigher,
           .of = "float32",
           .prepare = guarded(PrepareMixedLlama)},
          {.name = "train_step/invariant",
           .unit = "tokens/s",
           .better = Better::kHigher,
           .of = "libtorch's products",
           .prepare = guarded(PrepareInvariantLlama)}};
}

std::string LibtorchVersion() { return TORCH_VERSION; }

}  // namespace tdock::bench
