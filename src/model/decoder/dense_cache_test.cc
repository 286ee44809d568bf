#include "model/decoder/dense_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder/decoder.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::model {
namespace {

constexpr double kCacheTolerance = 2e-5;

class CacheTest : public testing::TestWithParam<at::Device> {
 protected:
  at::TensorOptions Options() const { return at::TensorOptions().dtype(at::kFloat).device(GetParam()); }

  // The logits of the tokens [begin, begin + count) of each sequence, one after another.
  static at::Tensor Read(const Decoder& decoder, DenseCache& cache, const at::Tensor& tokens_BT,
                         const std::vector<CachedPart>& parts) {
    std::vector<at::Tensor> tokens, positions;
    for (size_t b = 0; b < parts.size(); ++b) {
      EXPECT_TRUE(cache.Reserve(parts[b].sequence, parts[b].begin + parts[b].count));
      tokens.push_back(tokens_BT[static_cast<int64_t>(b)].narrow(0, parts[b].begin, parts[b].count));
      positions.push_back(at::arange(parts[b].begin, parts[b].begin + parts[b].count, tokens_BT.options()));
    }
    TokenBatch batch{at::cat(tokens).unsqueeze(0), at::cat(positions).unsqueeze(0)};
    batch.rope_length = tokens_BT.size(1);
    return decoder.Logits(decoder.Hidden(batch, cache.Begin(parts).get())).squeeze(0);
  }

  static double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
    return (a - b).abs().max().item<double>();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, CacheTest, testing::ValuesIn(TestDevices()), DeviceName);

TEST_P(CacheTest, SequencesReadInPiecesBesideOneAnotherGiveWhatAFullPassGives) {
  const std::vector<int64_t> first_pieces = {1, 5, 9, 2};
  constexpr int64_t kLength = 16;
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder decoder = TinyDecoder(config, 3, GetParam());
    const at::Tensor tokens = RandomTokens(4, kLength, config.vocab_size, 5, GetParam());
    const at::Tensor expected = FullLogits(decoder, tokens);
    DenseCache cache(config, Options());
    std::vector<CachedPart> parts;
    for (const int64_t count : first_pieces) parts.push_back({cache.Add(), 0, count});
    for (int64_t pass = 0; pass < 4; ++pass) {
      const at::Tensor logits = Read(decoder, cache, tokens, parts);
      int64_t begin = 0;
      for (size_t b = 0; b < parts.size(); ++b) {
        const CachedPart& part = parts[b];
        EXPECT_LE(LargestDifference(logits.narrow(0, begin, part.count),
                                    expected[static_cast<int64_t>(b)].narrow(0, part.begin, part.count)),
                  kCacheTolerance)
            << "pass " << pass << " of sequence " << b;
        begin += part.count;
      }
      // Then a token at a time, and longer pieces beside it.
      for (size_t b = 0; b < parts.size(); ++b) {
        parts[b].begin += parts[b].count;
        parts[b].count = b == 3 ? std::min<int64_t>(3, kLength - parts[b].begin) : 1;
      }
    }
  }
}

TEST_P(CacheTest, ACopyGoesOnAloneAndBeginsWhereItIsTold) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  const Decoder decoder = TinyDecoder(config, 7, GetParam());
  const at::Tensor tokens = RandomTokens(2, 8, config.vocab_size, 8, GetParam());
  DenseCache cache(config, Options());
  const int64_t original = cache.Add();
  Read(decoder, cache, tokens, {{original, 0, 6}});
  const auto copy = cache.Fork(original, 4);
  ASSERT_TRUE(copy.has_value());
  at::Tensor other = tokens.clone();
  other[0].slice(0, 4).copy_(tokens[1].slice(0, 4));
  const at::Tensor of_copy = Read(decoder, cache, other, {{*copy, 4, 4}});
  EXPECT_LE(LargestDifference(of_copy, FullLogits(decoder, other)[0].slice(0, 4)), kCacheTolerance);
  cache.Remove(*copy);
  EXPECT_LE(
      LargestDifference(Read(decoder, cache, tokens, {{original, 6, 2}}), FullLogits(decoder, tokens)[0].slice(0, 6)),
      kCacheTolerance);
}

TEST_P(CacheTest, HoldsNoMoreTokensThanItsBudget) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  DenseCache cache(config, Options(), /*batch_invariant=*/false, /*most_tokens=*/10);
  const int64_t a = cache.Add(), b = cache.Add();
  EXPECT_TRUE(cache.Reserve(a, 7));
  EXPECT_FALSE(cache.Reserve(b, 4));
  EXPECT_TRUE(cache.Reserve(b, 3));
  EXPECT_FALSE(cache.Reserve(a, 8));
  EXPECT_FALSE(cache.Fork(b, 1).has_value());
  EXPECT_EQ(cache.use().held_bytes, cache.use().budget_bytes);
  cache.Remove(b);
  EXPECT_TRUE(cache.Reserve(a, 10));
}

}  // namespace
}  // namespace tdock::model
