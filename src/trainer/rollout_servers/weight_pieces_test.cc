#include "trainer/rollout_servers/weight_pieces.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "model/decoder/testing/models.h"

namespace tdock::trainer {
namespace {

std::string AllOf(WeightPieces& pieces, size_t most) {
  std::string all;
  for (;;) {
    const absl::string_view piece = pieces.Next(most);
    if (piece.empty()) return all;
    EXPECT_LE(piece.size(), most);
    absl::StrAppend(&all, piece);
  }
}

std::string BytesOf(const model::NamedTensors& weights) {
  std::string all;
  for (const auto& [name, weight] : weights) {
    const at::Tensor values = weight.detach().contiguous();
    all.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return all;
}

TEST(WeightPieces, AreTheBytesOfTheModelsFiles) {
  for (const model::ModelConfig& config : model::TinyConfigs()) {
    const model::Decoder decoder = model::TinyDecoder(config, 3, at::kCPU);
    const std::string expected = BytesOf(decoder.NamedWeights());
    for (const size_t most : {size_t{7}, size_t{1000}, size_t{1} << 20}) {
      WeightPieces pieces(decoder);
      EXPECT_EQ(AllOf(pieces, most), expected) << most;
      EXPECT_EQ(pieces.Checksum(), Checksum(std::as_bytes(std::span(expected))));
    }
    WeightPieces pieces(decoder);
    const auto infos = pieces.Infos();
    ASSERT_TRUE(infos.ok());
    ASSERT_EQ(infos->size(), decoder.NamedWeights().size());
    EXPECT_EQ(infos->front().name, decoder.NamedWeights().front().first);
    EXPECT_EQ(infos->front().info.dtype, DType::kF32);
  }
}

TEST(WeightPieces, HaveAdaptersFoldedIn) {
  for (const model::ModelConfig& config : model::TinyConfigs()) {
    model::Decoder decoder = model::TinyDecoder(config, 3, at::kCPU);
    ASSERT_TRUE(decoder.AddAdapters({.rank = 3, .alpha = 5}, 4).ok());
    {
      const at::NoGradGuard no_grad;
      for (const auto& [name, factor] : decoder.NamedAdapters()) at::Tensor(factor).add_(0.25);
    }
    WeightPieces pieces(decoder);
    const std::string all = AllOf(pieces, 100);
    const std::string expected = BytesOf(decoder.Merged().NamedWeights());
    ASSERT_EQ(all.size(), expected.size());
    const auto as_tensor = [](const std::string& bytes) {
      at::Tensor values = at::empty({static_cast<int64_t>(bytes.size() / 4)}, at::kFloat);
      std::memcpy(values.mutable_data_ptr(), bytes.data(), bytes.size());
      return values;
    };
    EXPECT_TRUE(at::allclose(as_tensor(all), as_tensor(expected), 1e-5, 1e-5));
    EXPECT_NE(all, BytesOf(decoder.NamedWeights()));
  }
}

}  // namespace
}  // namespace tdock::trainer
