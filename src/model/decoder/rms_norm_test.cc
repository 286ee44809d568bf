#include "model/decoder/rms_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace tdock::model {
namespace {

TEST(RmsNorm, AndItsGradientsAreTheFormulasOfFloat64) {
  for (const int64_t size : {1, 15, 16, 67}) {
    at::manual_seed(size);
    // Every second column of a wider tensor: not contiguous.
    const at::Tensor wide = at::randn({3, 4, 2 * size}, at::kDouble).slice(2, 0, 2 * size, 2).requires_grad_();
    const at::Tensor weight = at::randn({size}, at::kDouble).requires_grad_();
    const at::Tensor outgoing = at::randn({3, 4, size}, at::kDouble);
    const at::Tensor expected = wide * weight / (wide.square().mean(-1, true) + 1e-3).sqrt();
    const auto wanted = torch::autograd::grad({expected}, {wide, weight}, {outgoing});
    for (const auto& [dtype, near] : {std::pair(at::kFloat, 1e-5), {at::kBFloat16, 4e-2}}) {
      const at::Tensor x = wide.detach().to(dtype).requires_grad_();
      const at::Tensor w = weight.detach().to(at::kFloat).requires_grad_();
      const at::Tensor y = RmsNorm(x, w, 1e-3);
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected, near, near)) << size << ", " << c10::toString(dtype);
      const auto gradients = torch::autograd::grad({y}, {x, w}, {outgoing.to(dtype)});
      EXPECT_TRUE(at::allclose(gradients[0].to(at::kDouble), wanted[0], near, near))
          << size << ", " << c10::toString(dtype);
      EXPECT_TRUE(at::allclose(gradients[1].to(at::kDouble), wanted[1], near, near))
          << size << ", " << c10::toString(dtype);
    }
  }
}

TEST(RmsNorm, OfNoRowsHasNone) {
  const at::Tensor x = at::zeros({0, 8}).requires_grad_();
  const at::Tensor w = at::ones({8}).requires_grad_();
  const auto gradients = torch::autograd::grad({RmsNorm(x, w, 1e-6).sum()}, {x, w});
  EXPECT_EQ(gradients[0].sizes(), at::IntArrayRef({0, 8}));
  EXPECT_TRUE(at::equal(gradients[1], at::zeros({8})));
}

TEST(RmsNorm, SaysWhatItDoesNotTake) {
  EXPECT_FALSE(HasRmsNormKernel(at::zeros({2, 8}, at::kDouble)));
  EXPECT_THROW(RmsNorm(at::zeros({2, 8}, at::kDouble), at::ones({8}), 1e-6), c10::Error);
  EXPECT_THROW(RmsNorm(at::zeros({2, 8}), at::ones({7}), 1e-6), c10::Error);
}

}  // namespace
}  // namespace tdock::model
