#include "trainer/recipes/warmup.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "text/shuffled_indexes.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/layout.h"
#include "trainer/stages/optimizer.h"

namespace tdock::trainer {
namespace {

// The purpose of a seed derived from the run's.
constexpr uint64_t kOrderSeed = 0x5f7;

// One step on some problems; adds loss and gradient norm to the metrics.
absl::Status TrainOn(const std::vector<EncodedProblem>& problems, const std::vector<int64_t>& chosen,
                     const ForwardOptions& forward, double lr, const model::Decoder& decoder, AdamW& optimizer,
                     Metrics& metrics) {
  std::vector<Sequence> samples;
  for (int64_t index : chosen) {
    const EncodedProblem& problem = problems[static_cast<size_t>(index)];
    samples.push_back({problem.prompt, problem.answer});
  }
  const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, forward);
  const auto token_count = static_cast<double>(micro_batches.back().first_token + micro_batches.back().tokens);
  std::vector<double> losses(micro_batches.size());
  Backward(decoder, forward.workers, micro_batches.size(), [&](size_t i) {
    const Layout layout = MakeLayout(micro_batches[i].samples, forward.max_row_tokens, decoder.device());
    const at::Tensor loss = -ResponseLogProbs(decoder, layout, forward.temperature).sum() / token_count;
    losses[i] = loss.item<double>();
    return loss;
  });
  metrics["sft/loss"] = std::accumulate(losses.begin(), losses.end(), 0.0);
  metrics["sft/grad_norm"] = optimizer.Step(lr);
  metrics["sft/lr"] = lr;
  if (std::isfinite(metrics["sft/grad_norm"])) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the loss is ", metrics["sft/loss"], " and the norm of the gradients ",
                                          metrics["sft/grad_norm"], "; a lower warmup.optim.lr may keep them finite"));
}

}  // namespace

absl::StatusOr<int64_t> RunWarmup(const GrpoConfig& config, const text::Tokenizer& tokenizer, const ProblemSet& train,
                                  const ProblemSet& validation, const model::Decoder& decoder,
                                  const engine::EngineOptions& engine_options, const ForwardOptions& forward,
                                  RunDirectory& run, const RunContext& context) {
  const auto& options = config.warmup;
  const engine::Engine engine(decoder, engine_options);
  AdamW optimizer(decoder.trainable(), options.optim.adamw());
  const LrSchedule schedule = options.optim.schedule(options.max_steps);
  text::ShuffledIndexes order(static_cast<int64_t>(train.encoded.size()),
                              DeriveSeed(static_cast<uint64_t>(config.seed), kOrderSeed));

  context.progress.Begin("warm-up", options.max_steps);
  for (int64_t step = 0;; ++step) {
    TDOCK_RETURN_IF_ERROR(Annotate(context.CheckStop(), absl::StrCat("warm-up, before step ", step)));
    const bool last = step == options.max_steps;
    Metrics metrics;
    const absl::Status status = Guarded([&]() -> absl::Status {
      if (step > 0) {
        const absl::Time begun = context.clock.Now();
        TDOCK_RETURN_IF_ERROR(TrainOn(train.encoded, order.Next(options.batch_size), forward,
                                      options.optim.lr * schedule.Factor(step - 1), decoder, optimizer, metrics));
        metrics["timing_s/step"] = absl::ToDoubleSeconds(context.clock.Now() - begun);
      }
      if (last || step % options.test_freq == 0) {
        TDOCK_ASSIGN_OR_RETURN(const Evaluation evaluation,
                               Evaluate(engine, tokenizer, validation.problems, validation.encoded,
                                        config.data.max_response_length, /*samples_kept=*/0));
        metrics["sft/val_accuracy"] = evaluation.accuracy;
      }
      return run.LogMetrics("warmup", step, metrics);
    });
    TDOCK_RETURN_IF_ERROR(Annotate(status, absl::StrCat("warm-up, step ", step)));
    Progress::Figures figures;
    if (metrics.contains("sft/loss")) figures.emplace_back("loss", metrics["sft/loss"]);
    if (metrics.contains("sft/val_accuracy")) figures.emplace_back("accuracy", metrics["sft/val_accuracy"]);
    context.progress.Update(step, figures);
    const bool reached = metrics.contains("sft/val_accuracy") && metrics["sft/val_accuracy"] >= options.target_accuracy;
    if (!last && !reached) continue;
    context.progress.End(reached ? "reached the target" : "used up its steps");
    return step;
  }
}

}  // namespace tdock::trainer
