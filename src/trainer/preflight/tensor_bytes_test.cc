#include "trainer/preflight/tensor_bytes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace tdock::trainer {
namespace {

constexpr auto kMeta = at::kMeta;

TEST(TensorBytes, CountsTensorsWithoutDataWhileTheyLive) {
  const TensorBytes bytes(/*fused=*/true);
  {
    const at::Tensor a = at::empty({10, 100}, kMeta);
    EXPECT_EQ(bytes.live(), 4000);
    const at::Tensor view = a.narrow(0, 0, 5);
    EXPECT_EQ(bytes.live(), 4000);
    EXPECT_EQ((a * 2).nbytes(), 4000u);
    EXPECT_EQ(bytes.peak(), 8000);
  }
  EXPECT_EQ(bytes.live(), 0);
  EXPECT_EQ(bytes.peak(), 8000);
  EXPECT_EQ(bytes.peak_in_heap(), 8000);
}

TEST(TensorBytes, CountsWhatIsKeptForTheGradients) {
  const TensorBytes bytes(/*fused=*/true);
  const at::Tensor weight = at::empty({100, 50}, kMeta).requires_grad_();
  const at::Tensor x = at::empty({10, 50}, kMeta);
  const int64_t before = bytes.live();
  const at::Tensor y = at::silu(at::linear(x, weight));
  EXPECT_EQ(bytes.live() - before, 2 * 10 * 100 * 4);  // the product, which silu's gradient needs, and y
  const auto gradients = torch::autograd::grad({y.sum()}, {weight});
  EXPECT_EQ(gradients[0].sizes(), weight.sizes());
}

TEST(TensorBytes, AttentionHoldsAllPairsOfTokensOnlyWhereItIsNotFused) {
  constexpr int64_t kTokens = 512, kPairs = kTokens * kTokens * 4;
  for (const bool fused : {true, false}) {
    const TensorBytes bytes(fused);
    const at::Tensor q = at::empty({1, 2, kTokens, 8}, kMeta).requires_grad_();
    const at::Tensor y = at::scaled_dot_product_attention(q, q, q);
    EXPECT_EQ(y.sizes(), q.sizes());
    EXPECT_EQ(bytes.peak() >= kPairs, !fused) << bytes.peak();
    EXPECT_EQ(torch::autograd::grad({y.sum()}, {q})[0].sizes(), q.sizes());
  }
}

TEST(TensorBytes, LeavesNothingBehind) {
  { const TensorBytes bytes(/*fused=*/true); }
  const at::Tensor a = at::empty({10}, kMeta);
  const TensorBytes bytes(/*fused=*/true);
  EXPECT_EQ(bytes.live(), 0);
}

}  // namespace
}  // namespace tdock::trainer
