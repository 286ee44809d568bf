#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/subjects.h"
#include "model/decoder/device.h"
#include "trainer/algo/preference.h"
#include "trainer/loop/recipe.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/policy.h"

namespace tdock::bench {
namespace {

// The DPO loss of pairs of answers and the gradients of all weights. What the reference model says of the answers is
// known, as when it was computed before the training.
class DpoGradients {
 public:
  // `compute` is the dtype of activations and products; weights are float32.
  DpoGradients(const at::Device& device, at::ScalarType compute, const Settings& settings)
      : clock_(settings.clock), decoder_(MakeLlama95m(device)), workers_(ShareSamples(settings.threads, kPairs)) {
    decoder_.SetTrainable(true);
    decoder_.SetComputeType(compute);
    const int64_t divisor = settings.quick ? 8 : 1;
    const std::vector<int64_t> answers = MixedLengths(2 * kPairs, 32 / divisor, 256 / divisor);
    for (size_t i = 0; i < answers.size(); ++i) {
      problems_.push_back(RandomProblem(decoder_, 128 / divisor, answers[i], /*prompt_seed=*/i / 2, i));
      tokens_ += 128 / divisor + answers[i];
    }
    // The chosen answer of a pair, then the rejected one.
    for (const Problem& problem : problems_) samples_.push_back({problem.prompt, problem.answer});
    const auto reference = [&] { return at::full({kPairs}, -100.0, at::TensorOptions(device)); };
    ref_chosen_ = reference();
    ref_rejected_ = reference();
  }

  // Tokens of prompts and answers in a second.
  absl::StatusOr<Figure> TokensPerSecond() {
    return trainer::Guarded([&]() -> absl::StatusOr<Figure> {
      TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] { return Compute(); }));
      return static_cast<double>(tokens_) / seconds;
    });
  }

 private:
  static constexpr int64_t kPairs = 8;

  absl::Status Compute() {
    const trainer::ForwardOptions forward = {.workers = *workers_,
                                             .max_row_tokens = trainer::MaxRowTokens(decoder_.config())};
    const std::vector<Pairs> parts = CutPairs(forward);
    trainer::Backward(decoder_, *workers_, parts.size(),
                      [&](const model::Decoder& pass, size_t i) { return Loss(pass, parts[i], forward); });
    model::AwaitDevice(decoder_.parameters().front().grad().device());
    for (const at::Tensor& parameter : decoder_.parameters()) at::Tensor(parameter).mutable_grad() = at::Tensor();
    return absl::OkStatus();
  }

  // Pairs that pass through the model together.
  struct Pairs {
    int64_t begin, count;
  };

  // As many pairs in each part as two micro-batches of a step of the recipes would have.
  std::vector<Pairs> CutPairs(const trainer::ForwardOptions& forward) const {
    const auto parts = static_cast<int64_t>(CutMicroBatches(samples_, forward, decoder_.device()).size());
    std::vector<Pairs> pairs;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t begin = kPairs * i / parts, end = kPairs * (i + 1) / parts;
      if (end > begin) pairs.push_back({begin, end - begin});
    }
    return pairs;
  }

  at::Tensor Loss(const model::Decoder& pass, const Pairs& pairs, const trainer::ForwardOptions& forward) const {
    const auto samples =
        std::span(samples_).subspan(static_cast<size_t>(2 * pairs.begin), static_cast<size_t>(2 * pairs.count));
    const trainer::Layout layout = trainer::MakeLayout(samples, forward.max_row_tokens, decoder_.device());
    const at::Tensor log_probs = trainer::ScoreResponses(pass, layout, forward.temperature).log_probs;
    std::vector<int64_t> lengths;
    for (const trainer::Sequence& sample : samples) lengths.push_back(static_cast<int64_t>(sample.response.size()));
    const algo::Tokens tokens = algo::MakeTokens(at::ones_like(log_probs), lengths);
    const at::Tensor sums_P2 = algo::SumBySequence(log_probs, tokens).view({pairs.count, 2});
    const algo::DpoLoss loss =
        algo::ComputeDpoLoss({.chosen = sums_P2.select(1, 0),
                              .rejected = sums_P2.select(1, 1),
                              .ref_chosen = ref_chosen_.narrow(0, pairs.begin, pairs.count),
                              .ref_rejected = ref_rejected_.narrow(0, pairs.begin, pairs.count)});
    return algo::PairMean(loss.per_pair, kPairs);
  }

  Clock& clock_;
  model::Decoder decoder_;
  const std::unique_ptr<Workers> workers_;
  std::vector<Problem> problems_;
  std::vector<trainer::Sequence> samples_;
  int64_t tokens_ = 0;
  at::Tensor ref_chosen_, ref_rejected_;  // [pairs]
};

absl::StatusOr<Prepared> PrepareDpo(at::ScalarType compute, const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  const auto gradients = std::make_shared<DpoGradients>(device, compute, settings);
  return Prepared{.run = [gradients] { return gradients->TokensPerSecond(); }};
}

}  // namespace

std::vector<Benchmark> DpoBenchmarks() {
  std::vector<Benchmark> benchmarks;
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    benchmarks.push_back({.name = absl::StrCat("dpo_loss/dtype=", compute == at::kFloat ? "float32" : "bfloat16"),
                          .unit = "tokens/s",
                          .better = Better::kHigher,
                          .prepare = [compute](const Settings& settings) {
                            return trainer::Guarded([&] { return PrepareDpo(compute, settings); });
                          }});
  }
  return benchmarks;
}

}  // namespace tdock::bench
