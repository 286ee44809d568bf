#include "trainer/algo/kl.h"

#include <ATen/ATen.h>

namespace tdock::algo {

at::Tensor KlDivergence(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlEstimator estimator) {
  TORCH_CHECK(log_probs.sizes() == ref_log_probs.sizes(), "log-probabilities of ", log_probs.sizes(),
              " cannot be compared with a reference of ", ref_log_probs.sizes());
  const at::Tensor x = ref_log_probs - log_probs;
  switch (estimator) {
    case KlEstimator::kK1:
      return -x;
    case KlEstimator::kAbs:
      return x.abs();
    case KlEstimator::kK2:
      return x.square() / 2;
    case KlEstimator::kK3:
      return x.expm1() - x;
  }
  TORCH_CHECK(false, "unknown estimator");
}

}  // namespace tdock::algo
