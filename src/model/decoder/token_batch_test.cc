// Shapes: B rows, T tokens of a row.
#include "model/decoder/token_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

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
      const at::Tensor padded = decoder.Logits(decoder.Hidden(PaddedRows(tokens, present)));
      const at::Tensor packed = decoder.Logits(decoder.Hidden(PackRows(tokens, present)));
      const auto difference = [&](const at::Tensor& rows) {
        const at::Tensor own = rows.flatten(0, 1).index_select(0, present.flatten().nonzero().squeeze(1));
        return (own - alone).abs().max().item<double>();
      };
      EXPECT_LT(difference(padded), 1e-5) << Name(config.architecture);
      EXPECT_LT(difference(UnpackRows(packed, present)), 1e-5) << Name(config.architecture);
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
  for (const at::Tensor& hidden :
       {decoder.Hidden(PaddedRows(tokens, present)), UnpackRows(decoder.Hidden(PackRows(tokens, present)), present)}) {
    const at::Tensor own = decoder.Logits(hidden)[0].index_select(0, present[0].nonzero().squeeze(1));
    EXPECT_LT((own - alone.narrow(0, 0, 5)).abs().max().item<double>(), 1e-5);
  }
}

TEST_P(PaddingTest, ASequenceOfAPackSeesNothingOfTheOthers) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder decoder = TinyDecoder(config, 1, GetParam());
    const at::Tensor present = Present(/*padding_behind=*/true, GetParam());
    at::Tensor tokens = RandomTokens(5, kWidth, config.vocab_size, 2, GetParam());
    const at::Tensor before = UnpackRows(decoder.Hidden(PackRows(tokens, present)), present);
    tokens[0].fill_(3);
    const at::Tensor after = UnpackRows(decoder.Hidden(PackRows(tokens, present)), present);
    EXPECT_FALSE(at::equal(before[0], after[0]));
    EXPECT_TRUE(at::equal(before.narrow(0, 1, 4), after.narrow(0, 1, 4))) << Name(config.architecture);
  }
}

TEST(UnpackRows, PutsZerosAtPadding) {
  const at::Tensor present = Present(/*padding_behind=*/false, at::kCPU);
  const at::Tensor values = at::arange(1, 24).unsqueeze(0);
  const at::Tensor rows = UnpackRows(values, present);
  EXPECT_TRUE(at::equal(rows != 0, present));
  EXPECT_TRUE(at::equal(rows.masked_select(present), values[0]));
  EXPECT_THROW(UnpackRows(values.narrow(1, 0, 22), present), c10::Error);
}

TEST(PackRows, RefusesAMaskThatIsNone) {
  const at::Tensor tokens = at::zeros({2, 3}, at::kLong);
  for (const at::Tensor& mask : {at::ones({2, 3}), at::ones({3, 2}, at::kBool)}) {
    EXPECT_THROW(PackRows(tokens, mask), c10::Error);
    EXPECT_THROW(PaddedRows(tokens, mask), c10::Error);
  }
}

TEST(Decoder, RefusesLengthsBesideAMaskOrACache) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  const Decoder decoder = TinyDecoder(config, 1, at::kCPU);
  TokenBatch batch = PackRows(at::zeros({1, 4}, at::kLong), at::ones({1, 4}, at::kBool));
  KvCache cache(config, 1, 4, at::kFloat);
  EXPECT_THROW(decoder.Hidden(batch, &cache), c10::Error);
  batch.visible = at::ones({1, 1, 4, 4}, at::kBool);
  EXPECT_THROW(decoder.Hidden(batch), c10::Error);
}

}  // namespace
}  // namespace tdock::model
