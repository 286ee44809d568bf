#include "trainer/stages/log_probs.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/log_probs.h"

namespace tdock::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType ScoreType(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Calls body(begin, rows) for blocks of rows, which stay in the cache of a CPU.
template <class Body>
void ForBlocks(const at::Tensor& logits_NV, Body&& body) {
  const int64_t numbers = int64_t{1} << (logits_NV.is_cuda() ? 26 : 18);
  const int64_t most = std::max<int64_t>(numbers / std::max<int64_t>(logits_NV.size(1), 1), 1);
  for (int64_t begin = 0; begin < logits_NV.size(0); begin += most) {
    body(begin, std::min(most, logits_NV.size(0) - begin));
  }
}

// A block of logits / temperature - sums, of which exp is the probability.
at::Tensor BlockOf(const at::Tensor& logits_NV, int64_t begin, int64_t rows, double temperature) {
  const at::Tensor block = logits_NV.narrow(0, begin, rows).to(ScoreType(logits_NV));
  return temperature == 1 ? block : block / temperature;
}

kernels::TokenScores Score(const at::Tensor& logits_NV, const at::Tensor& targets_N, double temperature) {
  const auto options = logits_NV.options().dtype(ScoreType(logits_NV));
  at::Tensor log_probs_N = at::empty({logits_NV.size(0)}, options), sums_N = at::empty_like(log_probs_N);
  ForBlocks(logits_NV, [&](int64_t begin, int64_t rows) {
    const at::Tensor block = BlockOf(logits_NV, begin, rows, temperature);
    // at::logsumexp has no kernel for tensors without data, on which memory is estimated.
    const at::Tensor largest = block.amax(-1, /*keepdim=*/true);
    const at::Tensor sum = (largest + (block - largest).exp_().sum(-1, /*keepdim=*/true).log()).squeeze(1);
    const at::Tensor targets = targets_N.narrow(0, begin, rows).unsqueeze(1);
    log_probs_N.narrow(0, begin, rows).copy_(block.gather(1, targets).squeeze(1) - sum);
    sums_N.narrow(0, begin, rows).copy_(sum);
  });
  return {log_probs_N, sums_N};
}

at::Tensor EntropyOf(const at::Tensor& logits_NV, const at::Tensor& sums_N, double temperature) {
  at::Tensor entropy_N = at::empty_like(sums_N);
  ForBlocks(logits_NV, [&](int64_t begin, int64_t rows) {
    const at::Tensor block = BlockOf(logits_NV, begin, rows, temperature) - sums_N.narrow(0, begin, rows).unsqueeze(1);
    entropy_N.narrow(0, begin, rows).copy_(-(block.exp() * block).sum(-1));
  });
  return entropy_N;
}

// Returns log-probabilities and entropies.
struct LogProbsFunction final : torch::autograd::Function<LogProbsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits_NV, const at::Tensor& targets_N,
                               double temperature, bool with_entropy) {
    const bool by_kernels = kernels::TakesLogits(logits_NV);
    const kernels::TokenScores scores = by_kernels ? kernels::TokenLogProbs(logits_NV, targets_N, temperature)
                                                   : Score(logits_NV, targets_N, temperature);
    const at::Tensor &log_probs_N = scores.log_probs, sums_N = scores.sums;
    at::Tensor entropy_N;
    if (with_entropy) {
      entropy_N =
          by_kernels ? kernels::Entropies(logits_NV, sums_N, temperature) : EntropyOf(logits_NV, sums_N, temperature);
    }
    context->set_materialize_grads(false);  // an entropy that is not trained on costs nothing
    context->save_for_backward({logits_NV, targets_N, sums_N, entropy_N});
    context->saved_data["temperature"] = temperature;
    return with_entropy ? variable_list{log_probs_N, entropy_N} : variable_list{log_probs_N};
  }

  // With p the probabilities: of a log-probability (1 at the target − p) / temperature, of an entropy
  // −p·(log p + entropy) / temperature.
  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits_NV = saved[0], targets_N = saved[1], sums_N = saved[2], entropy_N = saved[3];
    const double temperature = context->saved_data["temperature"].toDouble();
    const bool of_entropy = outgoing.size() > 1 && outgoing[1].defined();
    if (kernels::TakesLogits(logits_NV)) {
      const kernels::ScoreGradients gradients = {outgoing[0], of_entropy ? outgoing[1] : at::Tensor()};
      return {kernels::LogitGradient(logits_NV, targets_N, sums_N, entropy_N, gradients, temperature), at::Tensor(),
              at::Tensor(), at::Tensor()};
    }
    const at::Tensor scaled_N = outgoing[0].defined() ? outgoing[0] / temperature : at::zeros_like(sums_N);
    at::Tensor gradient_NV = at::empty_like(logits_NV);
    ForBlocks(logits_NV, [&](int64_t begin, int64_t rows) {
      const auto part = [&](const at::Tensor& all_N) { return all_N.narrow(0, begin, rows).unsqueeze(1); };
      at::Tensor block = BlockOf(logits_NV, begin, rows, temperature) - part(sums_N);
      if (of_entropy) {
        const at::Tensor factors = (block + part(entropy_N)) * part(outgoing[1] / temperature) + part(scaled_N);
        block.exp_().mul_(factors).neg_();
      } else {
        block.exp_().mul_(-part(scaled_N));
      }
      gradient_NV.narrow(0, begin, rows).copy_(block.scatter_add_(1, part(targets_N), part(scaled_N)));
    });
    return {gradient_NV, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

ResponseFigures ScoreTokens(const at::Tensor& logits, const at::Tensor& targets, double temperature, Entropy entropy) {
  TORCH_CHECK(logits.dim() == 2 && targets.dim() == 1 && targets.size(0) == logits.size(0), "targets of ",
              targets.sizes(), " do not fit logits of ", logits.sizes());
  TORCH_CHECK(temperature > 0, "a temperature must be positive, not ", temperature);
  const variable_list results = LogProbsFunction::apply(logits, targets, temperature, entropy != Entropy::kNone);
  if (entropy == Entropy::kNone) return {results[0]};
  return {results[0], entropy == Entropy::kWithGradients ? results[1] : results[1].detach()};
}

}  // namespace tdock::trainer
