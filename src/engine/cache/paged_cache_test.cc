#include "engine/cache/paged_cache.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "model/decoder/decoder.h"
#include "model/decoder/dense_cache.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::engine {
namespace {

using model::CachedPart;
using model::Decoder;
using model::KvCache;
using model::ModelConfig;

// Sequences that grow in pieces, side by side, in any cache.
class Grower {
 public:
  Grower(const Decoder& decoder, KvCache& cache) : decoder_(decoder), cache_(cache) {}

  struct Growth {
    int64_t sequence;
    int64_t begin;
    std::vector<int32_t> tokens;
  };
  // The logits of all tokens of the pass, [T, V].
  at::Tensor Pass(const std::vector<Growth>& growths) {
    std::vector<CachedPart> parts;
    std::vector<int64_t> tokens, positions;
    for (const Growth& growth : growths) {
      const auto count = static_cast<int64_t>(growth.tokens.size());
      EXPECT_TRUE(cache_.Reserve(growth.sequence, growth.begin + count));
      parts.push_back({growth.sequence, growth.begin, count});
      for (int64_t i = 0; i < count; ++i) {
        tokens.push_back(growth.tokens[static_cast<size_t>(i)]);
        positions.push_back(growth.begin + i);
      }
    }
    const auto row = [&](const std::vector<int64_t>& values) {
      return at::tensor(values, at::kLong).unsqueeze(0).to(decoder_.device());
    };
    model::TokenBatch batch{row(tokens), row(positions)};
    batch.rope_length = decoder_.config().context_length();
    return decoder_.Logits(decoder_.Hidden(batch, cache_.Begin(std::move(parts)).get())).squeeze(0);
  }

 private:
  const Decoder& decoder_;
  KvCache& cache_;
};

struct Kind {
  at::Device device;
  at::ScalarType dtype;
  bool batch_invariant;
  std::string name;
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{at::kCPU, at::kFloat, false, "Float32"},
                             {at::kCPU, at::kDouble, false, "Float64"},
                             {at::kCPU, at::kBFloat16, false, "Bfloat16"},
                             {at::kCPU, at::kFloat, true, "Float32Exact"},
                             {at::kCPU, at::kBFloat16, true, "Bfloat16Exact"}};
  for (const at::Device& device : model::TestDevices()) {
    if (!device.is_cpu()) kinds.push_back({device, at::kFloat, false, "OnDevice"});
  }
  return kinds;
}

class PagedCacheTest : public testing::TestWithParam<Kind> {
 protected:
  Decoder Make(const ModelConfig& config) const {
    Decoder decoder = model::TinyDecoder(config, 5, GetParam().device);
    const at::NoGradGuard no_grad;
    if (GetParam().dtype != at::kFloat) {
      Decoder other = Decoder::Uninitialised(config, GetParam().device, GetParam().dtype);
      for (size_t i = 0; i < decoder.parameters().size(); ++i) other.parameters()[i].copy_(decoder.parameters()[i]);
      decoder = std::move(other);
    }
    if (GetParam().batch_invariant) decoder.SetBatchInvariant(true);
    return decoder;
  }
  double tolerance() const {
    if (GetParam().batch_invariant) return 0;
    return GetParam().dtype == at::kBFloat16 ? 0.6 : 2e-5;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, PagedCacheTest, testing::ValuesIn(Kinds()),
                         [](const auto& kind) { return kind.param.name; });

// Random passes of random sequences, some of them copies of others, some sharing what others published: the logits are
// those of the dense cache, which shares nothing.
TEST_P(PagedCacheTest, GivesWhatTheDenseCacheGivesWhateverIsShared) {
  const at::NoGradGuard no_grad;
  for (const ModelConfig& config : model::TinyConfigs()) {
    const Decoder decoder = Make(config);
    const auto options = at::TensorOptions(GetParam().device).dtype(GetParam().dtype);
    PagedCache paged(config, options, 40);
    model::DenseCache dense(config, options, GetParam().batch_invariant);
    Grower in_pages(decoder, paged), alone(decoder, dense);
    Rng rng(9);
    struct Pair {
      int64_t paged, dense;
      std::vector<int32_t> tokens;
    };
    std::vector<Pair> pairs;
    const auto random_tokens = [&](size_t count) {
      std::vector<int32_t> tokens(count);
      for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(config.vocab_size)));
      return tokens;
    };
    const std::vector<int32_t> common = random_tokens(20);
    int64_t shared = 0;
    for (int round = 0; round < 12; ++round) {
      std::vector<Grower::Growth> growths, dense_growths;
      if (pairs.size() < 5) {
        Pair pair{paged.Add(), dense.Add(), {}};
        std::vector<int32_t> tokens = common;
        tokens.resize(1 + rng.Below(20));
        const std::vector<int32_t> more = random_tokens(1 + rng.Below(10));
        tokens.insert(tokens.end(), more.begin(), more.end());
        const int64_t there = paged.Share(pair.paged, std::span(tokens).first(tokens.size() - 1));
        shared += there;
        growths.push_back({pair.paged, there, {tokens.begin() + there, tokens.end()}});
        dense_growths.push_back({pair.dense, 0, tokens});
        pair.tokens = tokens;
        pairs.push_back(pair);
      }
      for (Pair& pair : std::span(pairs).first(growths.empty() ? pairs.size() : pairs.size() - 1)) {
        if (pair.tokens.size() > 38 || rng.Below(4) == 0) continue;
        const std::vector<int32_t> more = random_tokens(rng.Below(3) == 0 ? 9 : 1);
        const auto begin = static_cast<int64_t>(pair.tokens.size());
        growths.push_back({pair.paged, begin, more});
        dense_growths.push_back({pair.dense, begin, more});
        pair.tokens.insert(pair.tokens.end(), more.begin(), more.end());
      }
      if (growths.empty()) continue;
      const at::Tensor given = in_pages.Pass(growths), expected = alone.Pass(dense_growths);
      int64_t at_given = 0, at_expected = 0;
      for (size_t i = 0; i < growths.size(); ++i) {
        const auto count = static_cast<int64_t>(growths[i].tokens.size());
        const auto all = static_cast<int64_t>(dense_growths[i].tokens.size());
        const double difference =
            (given.narrow(0, at_given, count) - expected.narrow(0, at_expected + all - count, count))
                .abs()
                .max()
                .item<double>();
        EXPECT_LE(difference, tolerance()) << "round " << round << " sequence " << i;
        at_given += count;
        at_expected += all;
      }
      for (const Pair& pair : pairs) paged.Publish(pair.paged, pair.tokens);
      const size_t chosen = rng.Below(pairs.size());
      if (rng.Below(2) == 0) {
        const auto length = static_cast<int64_t>(1 + rng.Below(pairs[chosen].tokens.size()));
        const auto copy = paged.Fork(pairs[chosen].paged, length);
        const auto dense_copy = dense.Fork(pairs[chosen].dense, length);
        ASSERT_TRUE(copy && dense_copy);
        pairs.push_back({*copy, *dense_copy, {pairs[chosen].tokens.begin(), pairs[chosen].tokens.begin() + length}});
      } else if (pairs.size() > 2) {
        paged.Remove(pairs[chosen].paged);
        dense.Remove(pairs[chosen].dense);
        pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(chosen));
      }
      ASSERT_EQ(paged.table().Unreachable(), 0);
    }
    EXPECT_GT(shared, 0);
  }
}

TEST(PagedCache, CountsWhatItHolds) {
  const ModelConfig config = model::TinyConfig(model::Architecture::kLlama, true);
  PagedCache cache(config, at::kFloat, 4);
  const int64_t page = PagedCache::PageBytes(config, at::kFloat);
  EXPECT_EQ(page, config.num_layers * 2 * config.num_kv_heads * 16 * config.head_dim * 4);
  const int64_t a = cache.Add();
  ASSERT_TRUE(cache.Reserve(a, 17));
  EXPECT_EQ(cache.use().budget_bytes, 4 * page);
  EXPECT_EQ(cache.use().held_bytes, 2 * page);
  cache.Publish(a, std::vector<int32_t>(16, 1));
  cache.Remove(a);
  EXPECT_EQ(cache.use().held_bytes, page);
  EXPECT_EQ(cache.use().kept_bytes, page);
}

}  // namespace
}  // namespace tdock::engine
