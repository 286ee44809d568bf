#include "kernels/log_probs.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

// Calls body(logits of the row, its log Σ exp, row).
template <class Body>
void ForRows(const at::Tensor& logits, double temperature, Body&& body) {
  CheckKernelTensor(logits, "logits");
  TORCH_CHECK(logits.dim() == 2 && temperature > 0,
              "log-probabilities are of logits [N, V] at a positive temperature, ", "not of ", logits.sizes(), " at ",
              temperature);
  const at::Tensor rows = logits.contiguous();
  const int64_t size = rows.size(1);
  WithTypeOf(rows, [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, rows.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* const of_row = rows.const_data_ptr<T>() + row * size;
        body(of_row, BestLoops().of<T>().log_sum(of_row, static_cast<float>(temperature), size), row);
      }
    });
  });
}

template <class T>
float LogProb(T logit, double temperature, float sum) {
  return static_cast<float>(logit) / static_cast<float>(temperature) - sum;
}

}  // namespace

TokenScores TokenLogProbs(const at::Tensor& logits, const at::Tensor& targets, double temperature) {
  TORCH_CHECK(logits.dim() == 2 && targets.is_cpu() && targets.scalar_type() == at::kLong && targets.dim() == 1 &&
                  targets.size(0) == logits.size(0),
              "targets of ", targets.scalar_type(), " ", targets.sizes(), " do not fit logits of ", logits.sizes());
  const at::Tensor tokens = targets.contiguous();
  TokenScores scores{at::empty(targets.sizes(), at::kFloat), at::empty(targets.sizes(), at::kFloat)};
  ForRows(logits, temperature, [&](const auto* of_row, float sum, int64_t row) {
    const int64_t token = tokens.const_data_ptr<int64_t>()[row];
    TORCH_CHECK_INDEX(token >= 0 && token < logits.size(1), "token ", token, " is outside of the vocabulary of ",
                      logits.size(1));
    scores.log_probs.mutable_data_ptr<float>()[row] = LogProb(of_row[token], temperature, sum);
    scores.sums.mutable_data_ptr<float>()[row] = sum;
  });
  return scores;
}

at::Tensor LogSoftmax(const at::Tensor& logits, double temperature) {
  at::Tensor log_probs = at::empty(logits.sizes(), at::kFloat);
  ForRows(logits, temperature, [&](const auto* of_row, float sum, int64_t row) {
    float* const to = log_probs.mutable_data_ptr<float>() + row * logits.size(1);
    for (int64_t v = 0; v < logits.size(1); ++v) to[v] = LogProb(of_row[v], temperature, sum);
  });
  return log_probs;
}

}  // namespace tdock::kernels
