#include "trainer/stages/weight_average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::trainer {
namespace {

class WeightAverageTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, WeightAverageTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(WeightAverageTest, FollowsTheWeightsAndChangesPlacesWithThem) {
  model::Decoder decoder = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, true), 1, GetParam());
  decoder.SetTrainable(true);
  const at::Tensor weight = decoder.trainable().front();
  const at::Tensor begin = weight.detach().clone();
  WeightAverage average(WholeParts({{decoder.trainable()}}), 0.75);
  at::NoGradGuard no_grad;
  weight.detach().add_(1);
  average.Update();
  weight.detach().add_(1);
  average.Update();
  const at::Tensor end = weight.detach().clone();
  average.Swap();
  // 0.75 · (0.75 · 0 + 0.25 · 1) + 0.25 · 2 above the beginning
  EXPECT_TRUE(at::allclose(weight.detach(), begin + 0.6875, 1e-5, 1e-6));
  average.Swap();
  EXPECT_TRUE(at::equal(weight.detach(), end));
}

TEST_P(WeightAverageTest, AveragesAdaptersOnlyWhereOnlyTheyAreTrained) {
  model::Decoder decoder = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, true), 1, GetParam());
  ASSERT_EQ(decoder.AddAdapters({.rank = 2, .alpha = 4.0}, 1), absl::OkStatus());
  decoder.SetTrainable(true);
  WeightAverage average(WholeParts({{decoder.trainable()}}), 0.5);
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : decoder.parameters()) {
    before.push_back(parameter.detach().clone());
    parameter.detach().add_(1);
  }
  average.Update();
  average.Swap();
  std::set<const void*> trained;
  for (const at::Tensor& parameter : decoder.trainable()) trained.insert(parameter.unsafeGetTensorImpl());
  ASSERT_LT(trained.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    const at::Tensor& parameter = decoder.parameters()[i];
    const double change = trained.contains(parameter.unsafeGetTensorImpl()) ? 0.5 : 1.0;
    EXPECT_TRUE(at::allclose(parameter.detach(), before[i] + change, 1e-5, 1e-6)) << "parameter " << i;
  }
}

}  // namespace
}  // namespace tdock::trainer
