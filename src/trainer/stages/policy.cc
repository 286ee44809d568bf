#include "trainer/stages/policy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
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
  int64_t total = 0;
  for (const Sequence& sample : samples) total += TokensOf(sample);
  const auto needed = static_cast<uint64_t>((total + most - 1) / most);
  const auto count = static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(needed, 1)));
  return {.tokens = most, .enough_tokens = (total + count - 1) / count};
}

}  // namespace

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

// Adds up tensors of several threads in the order of their numbers, from 0.
class OrderedSum {
 public:
  // Waits until all lower numbers were added.
  void Add(size_t number, std::vector<at::Tensor> more) TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      while (next_ != number && !failed_) changed_.Wait(mu_);
      if (failed_) return;
    }
    // Nobody else's turn, so without the lock. In half precision a large sum would lose what is added to it.
    if (sum_.empty()) {
      for (at::Tensor& tensor : more) {
        sum_.push_back(tensor.to(at::promoteTypes(tensor.scalar_type(), at::kFloat)));
        tensor.reset();
      }
    } else {
      at::_foreach_add_(sum_, more);
    }
    MutexLock lock(mu_);
    ++next_;
    changed_.NotifyAll();
  }
  // Ends all waits: one number will not come.
  void Fail() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    failed_ = true;
    changed_.NotifyAll();
  }
  const std::vector<at::Tensor>& sum() const { return sum_; }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t next_ TDOCK_GUARDED_BY(mu_) = 0;
  bool failed_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<at::Tensor> sum_;  // of the thread whose turn it is
};

}  // namespace

void Backward(const model::Decoder& decoder, Workers& workers, size_t micro_batches,
              const std::function<at::Tensor(size_t)>& loss) {
  const std::vector<at::Tensor> parameters = decoder.trainable();
  OrderedSum sum;
  // A thread's pieces come in ascending order, so the lowest of those in progress never waits.
  workers.Run(static_cast<int>(micro_batches), [&](int piece) {
    try {
      std::vector<at::Tensor> gradients;
      {
        at::AutoGradMode with_gradients(true);
        gradients = torch::autograd::grad({loss(static_cast<size_t>(piece))}, parameters);
      }
      at::NoGradGuard no_grad;
      sum.Add(static_cast<size_t>(piece), std::move(gradients));
    } catch (...) {
      sum.Fail();
      throw;
    }
  });
  for (size_t i = 0; i < sum.sum().size(); ++i) at::Tensor(parameters[i]).mutable_grad() = sum.sum()[i];
}

}  // namespace tdock::trainer
