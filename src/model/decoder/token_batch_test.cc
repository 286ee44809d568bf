// Shapes: B rows, T tokens of a row.
#include "model/decoder/token_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/decoder/dense_cache.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "model/tensor_torch/convert.h"
#include "tdock/padding.h"

namespace tdock::model {
namespace {

using PaddingTest = testing::TestWithParam<at::Device>;
INSTANTIATE_TEST_SUITE_P(Devices, PaddingTest, testing::ValuesIn(TestDevices()), DeviceName);

constexpr int64_t kWidth = 12;
const std::vector<int64_t> kLengths = {12, 1, 7, 0, 3};

// bool [B, T], with the padding behind or in front.
at::Tensor Present(bool padding_behind, const at::Device& device) {
  const at::Tensor lengths = at::tensor(kLengths, at::kLong).unsqueeze(1);
  const at::Tensor places = at::arange(kWidth);
  return (padding_behind ? places < lengths : places >= kWidth - lengths).to(device);
}

// The tokens that are present, row by row.
Column Sequences(const at::Tensor& tokens, const at::Tensor& present) {
  const at::Tensor lengths = present.sum(1).to(at::kCPU);
  return *RaggedColumn(tokens.masked_select(present),
                       {lengths.const_data_ptr<int64_t>(), static_cast<size_t>(lengths.numel())});
}
TokenBatch Packed(const at::Tensor& tokens, const at::Tensor& present) {
  return *PackedBatch(Sequences(tokens, present), tokens.device());
}

// What each sequence gives by itself.
std::vector<at::Tensor> Alone(const Decoder& decoder, const at::Tensor& tokens, const at::Tensor& present) {
  std::vector<at::Tensor> logits;
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const at::Tensor own = tokens[row].masked_select(present[row]).unsqueeze(0);
    if (own.numel() > 0) logits.push_back(FullLogits(decoder, own)[0]);
  }
  return logits;
}

TEST_P(PaddingTest, ChangesNoLogitsWhereverItIs) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder decoder = TinyDecoder(config, 1, GetParam());
    const at::Tensor tokens = RandomTokens(5, kWidth, config.vocab_size, 2, GetParam());
    for (const bool behind : {true, false}) {
      const at::Tensor present = Present(behind, GetParam());
      const at::Tensor alone = at::cat(Alone(decoder, tokens, present));
      const at::Tensor padded = decoder.Logits(decoder.Hidden(PaddedBatch(tokens, present)));
      const at::Tensor packed = decoder.Logits(decoder.Hidden(Packed(tokens, present)))[0];
      const at::Tensor own = padded.flatten(0, 1).index_select(0, present.flatten().nonzero().squeeze(1));
      EXPECT_LT((own - alone).abs().max().item<double>(), 1e-5) << Name(config.architecture);
      EXPECT_LT((packed - alone).abs().max().item<double>(), 1e-5) << Name(config.architecture);
    }
  }
}

TEST_P(PaddingTest, InTheMiddleIsLeftOut) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  const Decoder decoder = TinyDecoder(config, 1, GetParam());
  const at::Tensor tokens = RandomTokens(2, 8, config.vocab_size, 3, GetParam());
  at::Tensor present = at::ones({2, 8}, at::kBool).to(GetParam());
  present[0].narrow(0, 2, 3).fill_(false);
  const at::Tensor alone = at::cat(Alone(decoder, tokens, present));
  const at::Tensor padded = decoder.Logits(decoder.Hidden(PaddedBatch(tokens, present)));
  const at::Tensor own = padded[0].index_select(0, present[0].nonzero().squeeze(1));
  EXPECT_LT((own - alone.narrow(0, 0, 5)).abs().max().item<double>(), 1e-5);
  const at::Tensor packed = decoder.Logits(decoder.Hidden(Packed(tokens, present)))[0];
  EXPECT_LT((packed - alone).abs().max().item<double>(), 1e-5);
}

TEST_P(PaddingTest, ASequenceOfAPackSeesNothingOfTheOthers) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder decoder = TinyDecoder(config, 1, GetParam());
    const at::Tensor present = Present(/*padding_behind=*/true, GetParam());
    at::Tensor tokens = RandomTokens(5, kWidth, config.vocab_size, 2, GetParam());
    const at::Tensor before = decoder.Hidden(Packed(tokens, present))[0];
    tokens[0].fill_(3);
    const at::Tensor after = decoder.Hidden(Packed(tokens, present))[0];
    const auto first = [](const at::Tensor& all) { return all.narrow(0, 0, kLengths[0]); };
    const auto others = [](const at::Tensor& all) { return all.narrow(0, kLengths[0], all.size(0) - kLengths[0]); };
    EXPECT_FALSE(at::equal(first(before), first(after)));
    EXPECT_TRUE(at::equal(others(before), others(after))) << Name(config.architecture);
  }
}

TEST(PackedBatch, PutsSequencesOneBehindTheOther) {
  for (const Column& rows : {Column::FromRows<int64_t>({{5, 6, 7}, {}, {8}, {9, 10}}),
                             Column::FromRows<int32_t>({{5, 6, 7}, {}, {8}, {9, 10}})}) {
    const TokenBatch batch = *PackedBatch(rows, at::kCPU);
    EXPECT_TRUE(at::equal(batch.tokens, at::tensor({5, 6, 7, 8, 9, 10}, at::kLong).unsqueeze(0)));
    EXPECT_TRUE(at::equal(batch.positions, at::tensor({0, 1, 2, 0, 0, 1}, at::kLong).unsqueeze(0)));
    EXPECT_EQ(batch.lengths, (std::vector<int64_t>{3, 1, 2}));
    EXPECT_FALSE(batch.visible.defined());
  }
}

TEST(PackedBatch, RefusesWhatIsNotRowsOfTokens) {
  for (const Column& rows : {Column::FromRows<float>({{1}}), *Column::FromValues<int64_t>({1, 2}, {2})}) {
    EXPECT_EQ(PackedBatch(rows, at::kCPU).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PackedBatch, WhatAPassGivesIsPaddedAgain) {
  for (const bool behind : {true, false}) {
    const at::Tensor present = Present(behind, at::kCPU);
    const at::Tensor values = at::arange(1, 24);
    const Column rows = *PadRows(*RaggedColumn(values, kLengths), {.side = behind ? PadSide::kRight : PadSide::kLeft});
    const at::Tensor padded = *ValuesOf(rows);
    EXPECT_TRUE(at::equal(padded != 0, present));
    EXPECT_TRUE(at::equal(padded.masked_select(present), values));
  }
  EXPECT_FALSE(RaggedColumn(at::arange(1, 23), kLengths).ok());
}

TEST(PaddedBatch, PaddingSeesItselfOnly) {
  const at::Tensor present = at::tensor({1, 0, 1, 0}, at::kLong).to(at::kBool).unsqueeze(0);
  const TokenBatch batch = PaddedBatch(at::zeros({1, 4}, at::kLong), present);
  const at::Tensor visible = at::tensor({1, 0, 0, 0,  //
                                         0, 1, 0, 0,  //
                                         1, 0, 1, 0,  //
                                         0, 0, 0, 1},
                                        at::kLong);
  EXPECT_TRUE(at::equal(batch.visible.to(at::kLong), visible.view({1, 1, 4, 4})));
  EXPECT_TRUE(at::equal(batch.positions, at::tensor({0, 0, 1, 1}, at::kLong).unsqueeze(0)));
}

TEST(PaddedBatch, RefusesAMaskThatIsNone) {
  const at::Tensor tokens = at::zeros({2, 3}, at::kLong);
  for (const at::Tensor& mask : {at::ones({2, 3}), at::ones({3, 2}, at::kBool)}) {
    EXPECT_THROW(PaddedBatch(tokens, mask), c10::Error);
  }
}

TEST(Decoder, RefusesLengthsBesideAMaskOrACache) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  const Decoder decoder = TinyDecoder(config, 1, at::kCPU);
  TokenBatch batch = *PackedBatch(Column::FromRows<int64_t>({{0, 0, 0, 0}}), at::kCPU);
  DenseCache cache(config, at::kFloat);
  const int64_t sequence = cache.Add();
  ASSERT_TRUE(cache.Reserve(sequence, 4));
  EXPECT_THROW(decoder.Hidden(batch, cache.Begin({{sequence, 0, 4}}).get()), c10::Error);
  batch.visible = at::ones({1, 1, 4, 4}, at::kBool);
  EXPECT_THROW(decoder.Hidden(batch), c10::Error);
}

}  // namespace
}  // namespace tdock::model
