#include "trainer/stages/policy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
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

std::vector<MicroBatch> CutMicroBatches(std::span<const Sequence> samples, const ForwardOptions& options) {
  const size_t threads = static_cast<size_t>(options.workers.threads());
  const size_t size = options.micro_batch_size > 0 ? static_cast<size_t>(options.micro_batch_size)
                                                   : std::max<size_t>((samples.size() + threads - 1) / threads, 1);
  std::vector<MicroBatch> micro_batches;
  int64_t first_token = 0;
  for (size_t begin = 0; begin < samples.size(); begin += size) {
    MicroBatch micro{samples.subspan(begin, std::min(size, samples.size() - begin)), first_token, 0};
    for (const Sequence& sample : micro.samples) micro.tokens += static_cast<int64_t>(sample.response.size());
    first_token += micro.tokens;
    micro_batches.push_back(micro);
  }
  return micro_batches;
}

at::Tensor LogProbs(const model::Decoder& decoder, std::span<const Sequence> samples, const ForwardOptions& options) {
  const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, options);
  std::vector<at::Tensor> pieces(micro_batches.size());
  options.workers.Run(static_cast<int>(micro_batches.size()), [&](int piece) {
    at::NoGradGuard no_grad;
    const auto i = static_cast<size_t>(piece);
    const Layout layout = MakeLayout(micro_batches[i].samples, options.max_row_tokens, decoder.device());
    pieces[i] = ResponseLogProbs(decoder, layout, options.temperature);
  });
  return at::cat(pieces);
}

void Backward(const model::Decoder& decoder, Workers& workers, size_t micro_batches,
              const std::function<at::Tensor(size_t)>& loss) {
  const std::vector<at::Tensor> parameters = decoder.trainable();
  const size_t threads = static_cast<size_t>(workers.threads());
  // Each thread sums the gradients of its own micro-batches, so that the result does not depend on timing.
  std::vector<std::vector<at::Tensor>> sums(threads);
  const auto add = [](std::vector<at::Tensor>& sum, std::vector<at::Tensor> more) {
    if (sum.empty()) {
      sum = std::move(more);
    } else if (!more.empty()) {
      at::_foreach_add_(sum, more);
    }
  };
  workers.Run(static_cast<int>(micro_batches), [&](int piece) {
    std::vector<at::Tensor> gradients;
    {
      at::AutoGradMode with_gradients(true);
      gradients = torch::autograd::grad({loss(static_cast<size_t>(piece))}, parameters);
    }
    at::NoGradGuard no_grad;
    add(sums[static_cast<size_t>(piece) % threads], std::move(gradients));
  });
  at::NoGradGuard no_grad;
  for (size_t thread = 1; thread < threads; ++thread) add(sums[0], std::move(sums[thread]));
  for (size_t i = 0; i < sums[0].size(); ++i) at::Tensor(parameters[i]).mutable_grad() = sums[0][i];
}

}  // namespace tdock::trainer
