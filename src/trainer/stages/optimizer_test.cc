#include "trainer/stages/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/decoder/testing/devices.h"

namespace tdock::trainer {
namespace {

// One parameter followed by hand, in float64, from the formula of the paper.
struct Reference {
  double x, m = 0, v = 0;
  int step = 0;
  void Step(double g, double lr, double beta1, double beta2, double eps, double decay) {
    ++step;
    x -= lr * decay * x;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    x -= lr * (m / (1 - std::pow(beta1, step))) / (std::sqrt(v / (1 - std::pow(beta2, step))) + eps);
  }
};

class AdamWTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, AdamWTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(AdamWTest, FollowsTheFormulaAndDecaysMatricesOnly) {
  const auto options = at::TensorOptions().device(GetParam());
  const at::Tensor matrix = at::full({1, 1}, 2.0, options).set_requires_grad(true);
  const at::Tensor vector = at::full({1}, 2.0, options).set_requires_grad(true);
  AdamW optimizer({matrix, vector}, {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .clip_grad = 0});
  Reference with_decay{2.0}, without{2.0};
  for (int i = 0; i < 20; ++i) {
    const double gradient = std::sin(i) * 3;
    const double lr = 0.1 / (1 + i);
    at::Tensor(matrix).mutable_grad() = at::full({1, 1}, gradient, options);
    at::Tensor(vector).mutable_grad() = at::full({1}, gradient, options);
    EXPECT_NEAR(optimizer.Step(lr), std::abs(gradient) * std::sqrt(2.0), 1e-5);
    with_decay.Step(gradient, lr, 0.9, 0.99, 1e-8, 0.1);
    without.Step(gradient, lr, 0.9, 0.99, 1e-8, 0.0);
    EXPECT_NEAR(matrix.item<double>(), with_decay.x, 1e-5) << "step " << i;
    EXPECT_NEAR(vector.item<double>(), without.x, 1e-5) << "step " << i;
    EXPECT_FALSE(matrix.grad().defined());
  }
}

TEST(AdamW, ClipsTheNormOfAllGradientsTogether) {
  // With eps this large a step is proportional to its gradient, so the clipping shows in it.
  const AdamWOptions options{.beta1 = 0, .beta2 = 0, .eps = 1e6, .weight_decay = 0, .clip_grad = 1.0};
  const at::Tensor a = at::zeros({1}).set_requires_grad(true), b = at::zeros({1}).set_requires_grad(true);
  AdamW optimizer({a, b}, options);
  at::Tensor(a).mutable_grad() = at::full({1}, 30.0);
  at::Tensor(b).mutable_grad() = at::full({1}, 40.0);
  EXPECT_NEAR(optimizer.Step(1e6), 50.0, 1e-4);
  EXPECT_NEAR(a.item<double>(), -0.6, 1e-4);
  EXPECT_NEAR(b.item<double>(), -0.8, 1e-4);
}

TEST(AdamW, AGradientThatIsNotFiniteChangesNoParameter) {
  const at::Tensor x = at::ones({2}).set_requires_grad(true);
  AdamW optimizer({x}, {});
  at::Tensor(x).mutable_grad() = at::tensor({1.0f, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(std::isnan(optimizer.Step(0.1)));
  EXPECT_TRUE(at::equal(x.detach(), at::ones({2})));
  EXPECT_FALSE(x.grad().defined());
}

TEST(LrSchedule, RisesThenFallsToItsFloor) {
  const LrSchedule linear{LrDecay::kLinear, 20, 200, 0.1};
  EXPECT_DOUBLE_EQ(linear.Factor(0), 0.05);
  EXPECT_DOUBLE_EQ(linear.Factor(19), 1.0);
  EXPECT_DOUBLE_EQ(linear.Factor(20), 1.0);
  EXPECT_DOUBLE_EQ(linear.Factor(110), 0.55);
  EXPECT_DOUBLE_EQ(linear.Factor(200), 0.1);
  EXPECT_DOUBLE_EQ(linear.Factor(1000), 0.1);
  // Published values of the cosine schedule with 100 warm-up steps of 1000, counted there from one step earlier.
  const LrSchedule cosine{LrDecay::kCosine, 100, 1000, 0.0};
  EXPECT_NEAR(cosine.Factor(49), 0.5, 1e-12);
  EXPECT_NEAR(cosine.Factor(99), 1.0, 1e-12);
  EXPECT_NEAR(cosine.Factor(325), 0.853553, 1e-6);
  EXPECT_NEAR(cosine.Factor(550), 0.5, 1e-12);
  EXPECT_NEAR(cosine.Factor(1000), 0.0, 1e-12);
  EXPECT_DOUBLE_EQ(LrSchedule{}.Factor(5), 1.0);
}

}  // namespace
}  // namespace tdock::trainer
