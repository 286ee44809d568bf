#include "trainer/stages/policy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "model/decoder/pass_watch.h"
#include "model/files/flops.h"
#include "model/tensor_torch/convert.h"

namespace tdock::trainer {

absl::StatusOr<std::vector<Sequence>> SequencesOf(const Rows& rows, std::span<const int64_t> order) {
  std::vector<Sequence> samples(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto row = static_cast<size_t>(order[i]);
    TDOCK_ASSIGN_OR_RETURN(samples[i].prompt, rows.Get<int32_t>(row, "prompt"));
    TDOCK_ASSIGN_OR_RETURN(samples[i].response, rows.Get<int32_t>(row, "responses"));
  }
  return samples;
}

absl::StatusOr<std::vector<Sequence>> SequencesOf(const Rows& rows) {
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  return SequencesOf(rows, order);
}

absl::StatusOr<at::Tensor> TokenColumn(const Rows& rows, std::span<const int64_t> order, absl::string_view name,
                                       std::span<const Sequence> samples) {
  TDOCK_ASSIGN_OR_RETURN(const Column in_row_order, rows.ToColumn(name));
  TDOCK_ASSIGN_OR_RETURN(const Column column, in_row_order.Select(order));
  if (column.type().kind == ColumnKind::kDense) {
    std::vector<int64_t> lengths;
    for (const Sequence& sample : samples) lengths.push_back(static_cast<int64_t>(sample.response.size()));
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, ValuesOf(column));
    return values.to(at::kFloat).repeat_interleave(at::tensor(lengths, at::kLong));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t length = column.Length(static_cast<int64_t>(i));
    if (length == static_cast<int64_t>(samples[i].response.size())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("column '", name, "' of row ", rows.ids()[static_cast<size_t>(order[i])], " has ", length,
                     " values for a response of ", samples[i].response.size(), " tokens"));
  }
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, ValuesOf(column));
  return values.to(at::kFloat);
}

namespace {

// Samples that go on in one micro-batch until one of these is reached.
struct MicroBatchLimits {
  int64_t samples = std::numeric_limits<int64_t>::max();
  int64_t tokens = std::numeric_limits<int64_t>::max();         // never exceeded, unless by one sample
  int64_t enough_tokens = std::numeric_limits<int64_t>::max();  // where the next micro-batch begins
};

int64_t TokensOf(const Sequence& sample) { return static_cast<int64_t>(sample.prompt.size() + sample.response.size()); }

MicroBatchLimits LimitsFor(std::span<const Sequence> samples, const ForwardOptions& options, const at::Device& device) {
  if (options.micro_batch_size > 0) return {.samples = options.micro_batch_size};
  const int64_t most = options.max_tokens > 0 ? options.max_tokens : device.is_cpu() ? 1024 : 16384;
  const int64_t total = TokensOf(samples);
  const auto needed = static_cast<uint64_t>((total + most - 1) / most);
  const auto count = static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(needed, 1)));
  return {.tokens = most, .enough_tokens = (total + count - 1) / count};
}

}  // namespace

int64_t TokensOf(std::span<const Sequence> samples) {
  return std::accumulate(samples.begin(), samples.end(), int64_t{0},
                         [](int64_t tokens, const Sequence& sample) { return tokens + TokensOf(sample); });
}

double ForwardFlops(const model::ModelConfig& config, std::span<const Sequence> samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0, [&](double flops, const Sequence& sample) {
    return flops + model::ForwardFlops(config, TokensOf(sample));
  });
}

std::vector<MicroBatch> CutMicroBatches(std::span<const Sequence> samples, const ForwardOptions& options,
                                        const at::Device& device) {
  const MicroBatchLimits limits = LimitsFor(samples, options, device);
  std::vector<MicroBatch> micro_batches;
  int64_t tokens = 0;  // of the micro-batch so far, prompts included
  const auto together = static_cast<size_t>(options.together);
  TORCH_CHECK(together >= 1 && samples.size() % together == 0, samples.size(), " samples are not whole sets of ",
              together);
  for (size_t i = 0; i < samples.size(); i += together) {
    int64_t more = 0, responses = 0;
    for (const Sequence& sample : samples.subspan(i, together)) {
      more += TokensOf(sample);
      responses += static_cast<int64_t>(sample.response.size());
    }
    if (micro_batches.empty() || std::cmp_greater(micro_batches.back().samples.size() + together, limits.samples) ||
        tokens >= limits.enough_tokens || tokens + more > limits.tokens) {
      const int64_t first = micro_batches.empty() ? 0 : micro_batches.back().first_token + micro_batches.back().tokens;
      micro_batches.push_back({samples.subspan(i, 0), static_cast<int64_t>(i), first, 0});
      tokens = 0;
    }
    MicroBatch& micro = micro_batches.back();
    micro.samples =
        samples.subspan(static_cast<size_t>(micro.samples.data() - samples.data()), micro.samples.size() + together);
    micro.tokens += responses;
    tokens += more;
  }
  return micro_batches;
}

namespace {

// Cuts the samples, scores the layout of each micro-batch on the workers, without gradients, and puts them together.
at::Tensor ScoreAll(const model::Decoder& decoder, std::span<const Sequence> samples, const ForwardOptions& options,
                    Scored scored, const std::function<at::Tensor(const Layout&)>& score) {
  const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, options, decoder.device());
  std::vector<at::Tensor> pieces(micro_batches.size());
  options.workers.Run(static_cast<int>(micro_batches.size()), [&](int piece) {
    at::NoGradGuard no_grad;
    const auto i = static_cast<size_t>(piece);
    pieces[i] = score(MakeLayout(micro_batches[i].samples, options.max_row_tokens, decoder.device(), scored,
                                 options.max_shared_row_tokens));
  });
  return at::cat(pieces);
}

}  // namespace

at::Tensor LogProbs(const model::Decoder& decoder, std::span<const Sequence> samples, const ForwardOptions& options) {
  return ScoreAll(decoder, samples, options, Scored::kLogProbs,
                  [&](const Layout& layout) { return ScoreResponses(decoder, layout, options.temperature).log_probs; });
}

at::Tensor Values(const model::Decoder& decoder, std::span<const Sequence> samples, const ForwardOptions& options,
                  Scored scored) {
  return ScoreAll(decoder, samples, options, scored,
                  [&](const Layout& layout) { return ScoreValues(decoder, layout); });
}

namespace {

// Of one of several passes.
class SummedPass final : public model::PassWatch {
 public:
  SummedPass(GradientSum& sum, size_t pass) : sum_(sum), pass_(pass) {}
  void TakeGradients(size_t unit, std::vector<at::Tensor> gradients) override {
    ++taken_;
    sum_.Add(unit, pass_, std::move(gradients));
  }
  size_t taken() const { return taken_; }  // units

 private:
  GradientSum& sum_;
  const size_t pass_;
  std::atomic<size_t> taken_ = 0;
};

}  // namespace

void Backward(const model::Decoder& decoder, Workers& workers, size_t micro_batches, const PassLoss& loss,
              const GradientSum::Done& done) {
  std::vector<size_t> units;
  for (size_t unit = 0; unit < decoder.units(); ++unit) {
    if (!decoder.TrainedOf(unit).empty()) units.push_back(unit);
  }
  GradientSum sum(units, micro_batches, done);
  const auto threads = static_cast<size_t>(workers.threads());
  // A thread's pieces come in ascending order, so the lowest of those in progress never waits.
  workers.Run(static_cast<int>(micro_batches), [&](int piece) {
    const auto pass = static_cast<size_t>(piece);
    if (!sum.Await(pass < threads ? 0 : pass - threads)) return;
    try {
      at::AutoGradMode with_gradients(true);
      SummedPass watch(sum, pass);
      const model::Decoder watched = decoder.Watched(watch);
      torch::autograd::backward({loss(watched, pass)});
      // Others would wait for them.
      TORCH_CHECK(watch.taken() == units.size(), "the loss has gradients for ", watch.taken(), " of ", units.size(),
                  " layers (the weights outside of them count as one)");
    } catch (...) {
      sum.Fail();
      throw;
    }
  });
}

void Backward(const model::Decoder& decoder, Workers& workers, size_t micro_batches, const PassLoss& loss) {
  Backward(decoder, workers, micro_batches, loss, [&](size_t unit, std::vector<at::Tensor> sums) {
    std::vector<at::Tensor> trained = decoder.TrainedOf(unit);
    for (size_t i = 0; i < trained.size(); ++i) trained[i].mutable_grad() = std::move(sums[i]);
  });
}

}  // namespace tdock::trainer
