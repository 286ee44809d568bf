// Stochastic rounding to bfloat16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tdock::trainer {

// `values`, float [N], finite: each becomes one of its two neighbours in bfloat16, the nearer one more likely, so that
// its mean is the number itself, and a number that bfloat16 has stays (Gupta et al. 2015, arXiv:1502.02551). Still
// float. Weights of bfloat16 that are updated by less than half the distance to their neighbours would otherwise never
// change. Equal seeds give equal results on the same kind of device, on any number of threads; thread-safe.
at::Tensor RoundedAtRandom(const at::Tensor& values, uint64_t seed);

}  // namespace tdock::trainer
