// Shapes: B rows, T tokens of a row, V vocabulary.
#include "model/decoder/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/decoder/dense_cache.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::model {
namespace {

constexpr double kTolerance = 1e-5;

double Difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

std::map<std::string, at::Tensor> ByName(const Decoder& decoder) {
  const auto named = decoder.NamedWeights();
  return {named.begin(), named.end()};
}

class DecoderTest : public testing::TestWithParam<at::Device> {
 protected:
  at::Tensor Longs(const std::vector<int64_t>& values) const { return at::tensor(values, at::kLong).to(GetParam()); }
  at::TensorOptions Options() const { return at::TensorOptions().dtype(at::kFloat).device(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, DecoderTest, testing::ValuesIn(TestDevices()), DeviceName);

TEST_P(DecoderTest, OfALimitedVocabularyGivesTheLogitsOfItsFirstTokensAndSavesAll) {
  for (const bool tied_head : {false, true}) {
    const ModelConfig config = TinyConfig(Architecture::kLlama, tied_head);
    Decoder decoder = TinyDecoder(config, 4, GetParam());
    const at::Tensor tokens = RandomTokens(2, 7, 20, 6, GetParam());
    const at::Tensor all = FullLogits(decoder, tokens);
    decoder.LimitVocabulary(20);
    EXPECT_LE(Difference(FullLogits(decoder, tokens), all.narrow(-1, 0, 20)), kTolerance);
    EXPECT_LE(Difference(FullLogits(decoder.Clone(), tokens), all.narrow(-1, 0, 20)), kTolerance);
    EXPECT_EQ(decoder.NamedWeights().front().second.size(0), config.vocab_size);
    EXPECT_THROW(decoder.LimitVocabulary(config.vocab_size + 1), c10::Error);
    EXPECT_THROW(decoder.LimitVocabulary(0), c10::Error);
  }
}

TEST_P(DecoderTest, OfAMaskShowsEachTokenWhatASeparatePassWould) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder decoder = TinyDecoder(config, 9, GetParam());
    // A prompt of 3 tokens, two answers of 4 and 2 behind it that do not see each other, and padding that sees itself.
    const at::Tensor prompt = RandomTokens(1, 3, config.vocab_size, 1, GetParam());
    const at::Tensor first = RandomTokens(1, 4, config.vocab_size, 2, GetParam());
    const at::Tensor second = RandomTokens(1, 2, config.vocab_size, 3, GetParam());
    const at::Tensor tokens = at::cat({prompt, first, second, Longs({0}).unsqueeze(0)}, 1);
    const at::Tensor positions = Longs({0, 1, 2, 3, 4, 5, 6, 3, 4, 0}).unsqueeze(0);
    at::Tensor visible = at::ones({10, 10}, at::kBool).tril();
    visible.slice(0, 7, 9).slice(1, 3, 7).fill_(false);
    visible[9].slice(0, 0, 9).fill_(false);
    const at::Tensor logits =
        decoder.Logits(decoder.Hidden({tokens, positions, visible.to(GetParam()).view({1, 1, 10, 10})}))[0];

    const at::Tensor alone_first = FullLogits(decoder, at::cat({prompt, first}, 1))[0];
    const at::Tensor alone_second = FullLogits(decoder, at::cat({prompt, second}, 1))[0];
    EXPECT_LE(Difference(logits.narrow(0, 0, 7), alone_first), kTolerance);
    EXPECT_LE(Difference(logits.narrow(0, 7, 2), alone_second.narrow(0, 3, 2)), kTolerance);
    EXPECT_TRUE(at::isfinite(logits).all().item<bool>());
  }
}

TEST_P(DecoderTest, SeesNothingOfLaterTokens) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/false);
  const Decoder decoder = TinyDecoder(config, 10, GetParam());
  const at::Tensor tokens = RandomTokens(1, 8, config.vocab_size, 4, GetParam());
  at::Tensor changed = tokens.clone();
  changed[0][5] = (tokens[0][5] + 1) % config.vocab_size;
  const at::Tensor before = FullLogits(decoder, tokens);
  const at::Tensor after = FullLogits(decoder, changed);
  EXPECT_LE(Difference(before.narrow(1, 0, 5), after.narrow(1, 0, 5)), 1e-6);
  for (int64_t t = 5; t < 8; ++t) EXPECT_GT(Difference(before.select(1, t), after.select(1, t)), 1e-2) << t;
}

// The rotary embedding turns queries and keys so that their product depends on the distance alone.
TEST_P(DecoderTest, DependsOnDistancesNotOnPositions) {
  const ModelConfig config = TinyConfig(Architecture::kQwen2, /*tied_head=*/true);
  const Decoder decoder = TinyDecoder(config, 11, GetParam());
  const at::Tensor tokens = RandomTokens(1, 8, config.vocab_size, 4, GetParam());
  const at::Tensor positions = PositionsFromZero(1, 8, GetParam());
  const at::Tensor here = decoder.Hidden({tokens, positions, {}});
  EXPECT_LE(Difference(here, decoder.Hidden({tokens, positions + 40, {}})), 1e-4);
  EXPECT_GT(Difference(here, decoder.Hidden({tokens, positions * 2, {}})), 1e-2);
}

TEST_P(DecoderTest, GroupsQueriesOverSharedKeysAndValues) {
  const ModelConfig grouped_config = TinyConfig(Architecture::kQwen2, /*tied_head=*/true);
  ModelConfig full_config = grouped_config;
  full_config.num_kv_heads = full_config.num_heads;
  const Decoder grouped = TinyDecoder(grouped_config, 12, GetParam());
  const Decoder full = Decoder::Random(full_config, 1, GetParam());
  const auto from = ByName(grouped);
  const int64_t repeats = grouped_config.num_heads / grouped_config.num_kv_heads;
  for (const auto& [name, weight] : full.NamedWeights()) {
    at::Tensor source = from.at(name);
    if (source.sizes() != weight.sizes()) {
      // A key or value head serves the `repeats` query heads of its group, which are neighbours.
      source = source.unflatten(0, {grouped_config.num_kv_heads, grouped_config.head_dim})
                   .repeat_interleave(repeats, 0)
                   .flatten(0, 1);
    }
    weight.copy_(source);
  }
  const at::Tensor tokens = RandomTokens(2, 9, grouped_config.vocab_size, 4, GetParam());
  EXPECT_LE(Difference(FullLogits(grouped, tokens), FullLogits(full, tokens)), kTolerance);
}

TEST_P(DecoderTest, UsesTheEmbeddingAsATiedHead) {
  const Decoder tied = TinyDecoder(TinyConfig(Architecture::kLlama, /*tied_head=*/true), 13, GetParam());
  const Decoder untied = Decoder::Random(TinyConfig(Architecture::kLlama, /*tied_head=*/false), 1, GetParam());
  const auto from = ByName(tied);
  EXPECT_FALSE(from.contains("lm_head.weight"));
  for (const auto& [name, weight] : untied.NamedWeights()) {
    weight.copy_(from.at(name == "lm_head.weight" ? "model.embed_tokens.weight" : name));
  }
  const at::Tensor tokens = RandomTokens(2, 9, 29, 4, GetParam());
  EXPECT_LE(Difference(FullLogits(tied, tokens), FullLogits(untied, tokens)), 1e-6);
  EXPECT_EQ(untied.parameter_count() - tied.parameter_count(), 29 * 20);
}

TEST_P(DecoderTest, OfOneSeedIsTheSameOnEveryDevice) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder here = Decoder::Random(config, 42, GetParam());
    const Decoder on_cpu = Decoder::Random(config, 42, at::kCPU);
    const Decoder other = Decoder::Random(config, 43, GetParam());
    for (size_t i = 0; i < here.parameters().size(); ++i) {
      EXPECT_EQ(here.parameters()[i].device(), GetParam());
      EXPECT_TRUE(at::equal(here.parameters()[i].cpu(), on_cpu.parameters()[i]));
      if (here.parameters()[i].dim() == 2) {
        EXPECT_FALSE(at::equal(here.parameters()[i], other.parameters()[i]));
      }
    }
  }
}

TEST_P(DecoderTest, ClonesShareNothingAndTakeNoGradients) {
  const ModelConfig config = TinyConfig(Architecture::kQwen2, /*tied_head=*/false);
  Decoder decoder = TinyDecoder(config, 14, GetParam());
  decoder.SetTrainable(true);
  const Decoder clone = decoder.Clone();
  const at::Tensor tokens = RandomTokens(1, 6, config.vocab_size, 4, GetParam());
  const at::Tensor before = FullLogits(clone, tokens);
  EXPECT_FALSE(before.requires_grad());
  EXPECT_TRUE(at::equal(before, FullLogits(decoder, tokens).detach()));
  EXPECT_EQ(clone.config(), config);
  for (size_t i = 0; i < clone.parameters().size(); ++i) {
    EXPECT_TRUE(decoder.parameters()[i].requires_grad());
    at::NoGradGuard no_grad;
    decoder.parameters()[i].zero_();
  }
  EXPECT_TRUE(at::equal(before, FullLogits(clone, tokens)));
}

// Compares the gradients along a random direction of each parameter with central differences.
TEST_P(DecoderTest, HasTheGradientsOfItsLogitsInFloat64) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = TinyDecoder(config, 15, GetParam());
    for (at::Tensor parameter : decoder.parameters()) parameter.set_data(parameter.to(at::kDouble));
    decoder.SetComputeType(at::kDouble);
    decoder.SetTrainable(true);
    const at::Tensor tokens = RandomTokens(2, 5, config.vocab_size, 4, GetParam());
    const at::Tensor weights =
        at::randn({2, 5, config.vocab_size}, at::make_generator<at::CPUGeneratorImpl>(6), at::kDouble);
    const auto loss = [&] { return (FullLogits(decoder, tokens) * weights.to(GetParam())).sum(); };
    const auto gradients = torch::autograd::grad({loss()}, decoder.parameters());
    at::NoGradGuard no_grad;
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& parameter = decoder.parameters()[i];
      const at::Tensor direction = at::randn(parameter.sizes(), generator, at::kDouble).to(GetParam());
      const double step = 1e-6;
      parameter.add_(direction, step);
      const double above = loss().item<double>();
      parameter.sub_(direction, 2 * step);
      const double below = loss().item<double>();
      parameter.add_(direction, step);
      const double expected = (above - below) / (2 * step);
      EXPECT_NEAR((gradients[i] * direction).sum().item<double>(), expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << "parameter " << i;
    }
  }
}

TEST_P(DecoderTest, GivesNoGradientsThroughACache) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  Decoder decoder = TinyDecoder(config, 16, GetParam());
  decoder.SetTrainable(true);
  const at::Tensor tokens = RandomTokens(1, 3, config.vocab_size, 4, GetParam());
  const TokenBatch batch{tokens, PositionsFromZero(1, 3, GetParam()), {}};
  DenseCache cache(config, Options());
  const int64_t sequence = cache.Add();
  ASSERT_TRUE(cache.Reserve(sequence, 3));
  EXPECT_FALSE(decoder.Hidden(batch, cache.Begin({{sequence, 0, 3}}).get()).requires_grad());
  EXPECT_TRUE(decoder.Hidden(batch).requires_grad());
  decoder.SetTrainable(false);
  EXPECT_FALSE(decoder.Hidden(batch).requires_grad());
}

TEST(Decoder, DrawsItsWeightsWithTheStatedDeviations) {
  ModelConfig config = TinyConfig(Architecture::kQwen2, /*tied_head=*/false);
  config.vocab_size = 500;
  config.hidden_size = 200;
  config.intermediate_size = 300;
  config.num_heads = 10;
  config.num_kv_heads = 5;
  config.head_dim = 12;
  config.num_layers = 3;
  const Decoder decoder = Decoder::Random(config, 1, at::kCPU);
  const double hidden = 1 / std::sqrt(200.0);
  const std::map<std::string, double> expected = {
      {"embed_tokens.weight", 0.02},
      {"q_proj.weight", hidden},
      {"k_proj.weight", hidden},
      {"v_proj.weight", hidden},
      {"o_proj.weight", 1 / std::sqrt(120.0 * 2 * 3)},
      {"gate_proj.weight", hidden},
      {"up_proj.weight", hidden},
      {"down_proj.weight", 1 / std::sqrt(300.0 * 2 * 3)},
      {"lm_head.weight", hidden},
  };
  for (const auto& [name, weight] : decoder.NamedWeights()) {
    const size_t last_dot = name.rfind('.');
    const std::string kind = name.substr(name.rfind('.', last_dot - 1) + 1);
    if (kind.ends_with("bias")) {
      EXPECT_EQ(weight.count_nonzero().item<int64_t>(), 0) << name;
    } else if (weight.dim() == 1) {
      EXPECT_TRUE(at::equal(weight, at::ones_like(weight))) << name;
    } else {
      // Six standard errors of a deviation, and of a mean.
      const double n = static_cast<double>(weight.numel());
      const double deviation = expected.at(kind);
      EXPECT_NEAR(weight.std().item<double>(), deviation, 6 * deviation / std::sqrt(2 * n)) << name;
      EXPECT_NEAR(weight.mean().item<double>(), 0.0, 6 * deviation / std::sqrt(n)) << name;
    }
  }
}

TEST(Decoder, NamesItsWeightsAsHuggingFaceDoes) {
  ModelConfig config = TinyConfig(Architecture::kQwen2, /*tied_head=*/false);
  config.num_layers = 1;
  using Shape = std::vector<int64_t>;
  const std::vector<std::pair<std::string, Shape>> expected = {
      {"model.embed_tokens.weight", {29, 20}},
      {"model.layers.0.input_layernorm.weight", {20}},
      {"model.layers.0.self_attn.q_proj.weight", {24, 20}},
      {"model.layers.0.self_attn.q_proj.bias", {24}},
      {"model.layers.0.self_attn.k_proj.weight", {8, 20}},
      {"model.layers.0.self_attn.k_proj.bias", {8}},
      {"model.layers.0.self_attn.v_proj.weight", {8, 20}},
      {"model.layers.0.self_attn.v_proj.bias", {8}},
      {"model.layers.0.self_attn.o_proj.weight", {20, 24}},
      {"model.layers.0.mlp.gate_proj.weight", {28, 20}},
      {"model.layers.0.mlp.up_proj.weight", {28, 20}},
      {"model.layers.0.mlp.down_proj.weight", {20, 28}},
      {"model.layers.0.post_attention_layernorm.weight", {20}},
      {"model.norm.weight", {20}},
      {"lm_head.weight", {29, 20}},
  };
  EXPECT_EQ(Decoder::WeightShapes(config), expected);
  std::vector<std::pair<std::string, Shape>> given;
  for (const auto& [name, weight] : Decoder::Random(config, 1, at::kCPU).NamedWeights()) {
    given.emplace_back(name, weight.sizes().vec());
  }
  EXPECT_EQ(given, expected);
}

TEST(Decoder, NamesViewsThatCoverEveryParameterOnce) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = Decoder::Random(config, 1, at::kCPU);
    decoder.SetTrainable(true);
    for (const at::Tensor& parameter : decoder.parameters()) parameter.detach().zero_();
    int64_t count = 0;
    for (const auto& [name, weight] : decoder.NamedWeights()) {
      weight.detach().add_(1);
      count += weight.numel();
    }
    for (const at::Tensor& parameter : decoder.parameters()) {
      EXPECT_TRUE(at::equal(parameter.detach(), at::ones_like(parameter.detach())));
    }
    EXPECT_EQ(count, decoder.parameter_count());
  }
}

TEST(Decoder, RefusesTokensAndPositionsThatItDoesNotHave) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  const Decoder decoder = TinyDecoder(config, 1, at::kCPU);
  const at::Tensor one = at::ones({1, 1}, at::kLong);
  EXPECT_THROW(decoder.Hidden({one * config.vocab_size, one, {}}), c10::Error);
  EXPECT_THROW(decoder.Hidden({one, one * config.max_positions, {}}), c10::Error);
  DenseCache cache(config, at::kFloat);
  const int64_t sequence = cache.Add();
  ASSERT_TRUE(cache.Reserve(sequence, 2));
  EXPECT_THROW(cache.Begin({{sequence, 1, 1}}), c10::Error);  // the one before is not there
  EXPECT_THROW(cache.Begin({{sequence, 0, 3}}), c10::Error);
  const at::Tensor two = at::ones({2, 1}, at::kLong);
  EXPECT_THROW(decoder.Hidden({two, two, {}}, cache.Begin({{sequence, 0, 2}}).get()), c10::Error);  // two rows
  EXPECT_THROW(decoder.Hidden({one, one, {}}, cache.Begin({{sequence, 0, 2}}).get()), c10::Error);  // one token
}

}  // namespace
}  // namespace tdock::model
