// Tensors for tests of kernels.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <cstring>

namespace tdock::kernels {

inline at::Tensor Normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return at::normal(0.0, 1.0, shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat).to(type);
}

inline bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

inline double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

}  // namespace tdock::kernels
