#include "trainer/stages/layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "model/decoder/testing/devices.h"

namespace tdock::trainer {
namespace {

model::Decoder TinyDecoder(const at::Device& device) {
  model::ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_positions = 32;
  return model::Decoder::Random(config, 1, device);
}

// Owns what Sequence only views.
struct Samples {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<Sequence> views() const {
    std::vector<Sequence> result;
    for (size_t i = 0; i < prompts.size(); ++i) result.push_back({prompts[i], responses[i]});
    return result;
  }
};

Samples RandomSamples(Rng& rng, int count) {
  Samples samples;
  std::vector<std::vector<int32_t>> pool;
  for (int i = 0; i < 3; ++i) {
    auto& prompt = pool.emplace_back();
    for (uint64_t n = 1 + rng.Below(5); n > 0; --n) prompt.push_back(static_cast<int32_t>(rng.Below(11)));
  }
  for (int i = 0; i < count; ++i) {
    samples.prompts.push_back(pool[rng.Below(pool.size())]);
    auto& response = samples.responses.emplace_back();
    for (uint64_t n = 1 + rng.Below(6); n > 0; --n) response.push_back(static_cast<int32_t>(rng.Below(11)));
  }
  return samples;
}

// The plain twin: one full pass over each sample alone.
at::Tensor LogProbsOneByOne(const model::Decoder& decoder, const std::vector<Sequence>& samples, double temperature) {
  std::vector<at::Tensor> pieces;
  for (const Sequence& sample : samples) {
    std::vector<int64_t> tokens(sample.prompt.begin(), sample.prompt.end());
    tokens.insert(tokens.end(), sample.response.begin(), sample.response.end());
    const auto length = static_cast<int64_t>(tokens.size());
    const at::Tensor hidden = decoder.Hidden({at::tensor(tokens).unsqueeze(0).to(decoder.device()),
                                              at::arange(length).unsqueeze(0).to(decoder.device()),
                                              {}});
    const at::Tensor log_probs = at::log_softmax(decoder.Logits(hidden[0]) / temperature, -1);
    for (int64_t i = static_cast<int64_t>(sample.prompt.size()); i < length; ++i) {
      pieces.push_back(log_probs[i - 1][tokens[static_cast<size_t>(i)]]);
    }
  }
  return at::stack(pieces);
}

TEST(Layout, IsWhatItsHeaderDraws) {
  const std::vector<int32_t> p567 = {5, 6, 7}, p8 = {8}, abc = {1, 2, 3}, de = {4, 5}, f = {9}, gh = {10, 2};
  // The samples of one prompt need not be neighbours.
  const std::vector<Sequence> samples = {{p567, abc}, {p567, de}, {p8, gh}, {p567, f}};
  const Layout layout = MakeLayout(samples, 8, at::kCPU);
  EXPECT_TRUE(at::equal(layout.batch.tokens, at::tensor({5, 6, 7, 1, 2, 4, 8, 10}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(layout.batch.positions, at::tensor({0, 1, 2, 3, 4, 3, 0, 1}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(layout.places, at::tensor({2, 3, 4, 2, 5, 6, 7, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(layout.targets, at::tensor({1, 2, 3, 4, 5, 10, 2, 9}, at::kLong)));
  const at::Tensor visible = at::tensor({1, 0, 0, 0, 0, 0, 0, 0,  //
                                         1, 1, 0, 0, 0, 0, 0, 0,  //
                                         1, 1, 1, 0, 0, 0, 0, 0,  //
                                         1, 1, 1, 1, 0, 0, 0, 0,  //
                                         1, 1, 1, 1, 1, 0, 0, 0,  //
                                         1, 1, 1, 0, 0, 1, 0, 0,  //
                                         0, 0, 0, 0, 0, 0, 1, 0,  //
                                         0, 0, 0, 0, 0, 0, 1, 1},
                                        at::kLong)
                                 .view({8, 8});
  EXPECT_TRUE(at::equal(layout.batch.visible[0][0].to(at::kLong), visible));
}

TEST(Layout, RowsOfOnePromptMayBeLonger) {
  const std::vector<int32_t> prompt = {5, 6, 7}, other = {8, 9}, response = {1, 2, 3};
  const std::vector<Sequence> samples(4, {prompt, response});
  const auto rows = [](const std::vector<Sequence>& given, int64_t most, int64_t most_shared) {
    return MakeLayout(given, most, at::kCPU, Scored::kLogProbs, most_shared).batch.tokens;
  };
  EXPECT_TRUE(at::equal(rows(samples, 5, 0), at::tensor({5, 6, 7, 1, 2}, at::kLong).expand({4, 5})));
  EXPECT_TRUE(at::equal(rows(samples, 5, 11), at::tensor({5, 6, 7, 1, 2, 1, 2, 1, 2, 1, 2}, at::kLong).unsqueeze(0)));
  // The last response finds no room, and begins a row, which has none for another prompt.
  EXPECT_TRUE(
      at::equal(rows(samples, 5, 10).squeeze(), at::tensor({5, 6, 7, 1, 2, 1, 2, 1, 2, 5, 6, 7, 1, 2}, at::kLong)));
  const std::vector<Sequence> two = {{prompt, response}, {other, response}, {prompt, response}};
  EXPECT_TRUE(at::equal(rows(two, 8, 9).squeeze(), at::tensor({5, 6, 7, 1, 2, 1, 2, 8, 9, 1, 2}, at::kLong)));
}

class LayoutTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, LayoutTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(LayoutTest, GivesTheLogProbabilitiesOfSeparatePasses) {
  const model::Decoder decoder = TinyDecoder(GetParam());
  Rng rng(3);
  for (int round = 0; round < 20; ++round) {
    const Samples samples = RandomSamples(rng, 1 + static_cast<int>(rng.Below(9)));
    const at::Tensor expected = LogProbsOneByOne(decoder, samples.views(), 0.7);
    for (int64_t max_row_tokens : {1, 8, 64}) {
      const Layout layout = MakeLayout(samples.views(), max_row_tokens, GetParam());
      const auto [actual, entropy] = ScoreResponses(decoder, layout, 0.7, Entropy::kWithoutGradients);
      EXPECT_TRUE(at::allclose(actual, expected, 1e-5, 1e-5)) << "round " << round << ", rows of " << max_row_tokens;
      EXPECT_EQ(entropy.sizes(), actual.sizes());
      EXPECT_GT(entropy.min().item<double>(), 0.0);
      EXPECT_LT(entropy.max().item<double>(), std::log(11.0) + 1e-5);
    }
  }
}

TEST_P(LayoutTest, GivesTheGradientsOfSeparatePasses) {
  model::Decoder decoder = TinyDecoder(GetParam());
  decoder.SetTrainable(true);
  Rng rng(4);
  const Samples samples = RandomSamples(rng, 8);
  const auto gradients = [&](const std::function<at::Tensor()>& log_probs) {
    (log_probs() * at::arange(1, 1 + log_probs().numel(), at::kFloat).to(GetParam())).sum().backward();
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : decoder.parameters()) {
      result.push_back(parameter.grad().clone());
      at::Tensor(parameter).mutable_grad() = at::Tensor();
    }
    return result;
  };
  const auto expected = gradients([&] { return LogProbsOneByOne(decoder, samples.views(), 1.0); });
  for (int64_t max_row_tokens : {1, 64}) {
    const auto actual = gradients([&] {
      return ScoreResponses(decoder, MakeLayout(samples.views(), max_row_tokens, GetParam()), 1.0).log_probs;
    });
    for (size_t i = 0; i < expected.size(); ++i) {
      // Gradients are sums of many numbers that nearly cancel: float32 is exact to a share of the largest.
      const double largest = expected[i].abs().max().item<double>();
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-6 * largest)) << "parameter " << i;
    }
  }
}

// The lengths of its rows, padding included.
std::vector<int64_t> RowLengths(const model::TokenBatch& batch) {
  if (!batch.lengths.empty()) return batch.lengths;
  return std::vector<int64_t>(static_cast<size_t>(batch.tokens.size(0)), batch.tokens.size(1));
}

TEST(Layout, RowsRespectTheirLimitUnlessOneSampleExceedsIt) {
  Rng rng(5);
  const Samples samples = RandomSamples(rng, 30);
  for (const int64_t length : RowLengths(MakeLayout(samples.views(), 16, at::kCPU).batch)) EXPECT_LE(length, 16);
  EXPECT_EQ(RowLengths(MakeLayout(samples.views(), 1, at::kCPU).batch).size(), 30u);
}

TEST(Layout, PadsRowsOfAboutTheSameLengthAndConcatenatesOthers) {
  const std::vector<int32_t> prompt = {1, 2}, other = {3, 4}, three = {5, 6, 7}, nine(9, 8);
  const model::TokenBatch padded =
      MakeLayout(std::vector<Sequence>{{prompt, three}, {other, three}}, 4, at::kCPU).batch;
  EXPECT_EQ(padded.tokens.sizes(), at::IntArrayRef({2, 4}));
  EXPECT_FALSE(padded.visible.defined()) << "rows of one sample each need no mask";
  const std::vector<Sequence> mixed = {{prompt, nine}, {other, three}, {other, three}};
  const model::TokenBatch concatenated = MakeLayout(mixed, 6, at::kCPU).batch;
  EXPECT_EQ(concatenated.lengths, (std::vector<int64_t>{10, 6}));
  EXPECT_FALSE(concatenated.visible_in_parts[0].defined());
  EXPECT_EQ(concatenated.visible_in_parts[1].sizes(), at::IntArrayRef({1, 1, 6, 6})) << "two answers to one prompt";
  EXPECT_EQ(concatenated.tokens.sizes(), at::IntArrayRef({1, 16})) << "nothing but tokens of samples";
}

}  // namespace
}  // namespace tdock::trainer
