#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "model/decoder/weights.h"
#include "model/files/testing/files.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using testing::HasSubstr;

// The numbers of DeepSpeed-Chat, whose `right` and `left` are the transposed factors.
TEST(Lora, OfALinearLayerIsTheSumOfBothProducts) {
  const at::Tensor weight = at::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, at::kDouble).view({2, 3});
  const Adapter adapter = {.path = "layer",
                           .begin = 0,
                           .a = at::tensor({0.1, 0.2, 0.3}, at::kDouble).view({1, 3}),
                           .b = at::tensor({1.0, -2.0}, at::kDouble).view({2, 1}),
                           .scale = LoraConfig{.rank = 1, .alpha = 1.0}.scale()};
  const Linear adapted{weight, {}, {adapter}};
  const Linear merged{weight + adapter.scale * adapter.b.mm(adapter.a), {}};
  EXPECT_TRUE(at::allclose(merged.weight, at::tensor({1.1, 2.2, 3.3, 3.8, 4.6, 5.4}, at::kDouble).view({2, 3})));
  const at::Tensor expected = at::tensor({6.6, 13.8}, at::kDouble);
  EXPECT_TRUE(at::allclose(adapted(at::ones({3}, at::kDouble)), expected));
  EXPECT_TRUE(at::allclose(merged(at::ones({3}, at::kDouble)), expected));
}

TEST(Lora, ScalesByTheRankOrItsRoot) {
  EXPECT_DOUBLE_EQ((LoraConfig{.rank = 16, .alpha = 8.0}.scale()), 0.5);
  EXPECT_DOUBLE_EQ((LoraConfig{.rank = 16, .alpha = 8.0, .rank_stabilised = true}.scale()), 2.0);
}

class LoraTest : public testing::TestWithParam<at::Device> {
 protected:
  static constexpr uint64_t kSeed = 5;

  // A decoder with adapters that change something.
  Decoder Adapted(const ModelConfig& config, const LoraConfig& lora) const {
    Decoder decoder = TinyDecoder(config, 1, GetParam());
    const absl::Status status = decoder.AddAdapters(lora, kSeed);
    EXPECT_TRUE(status.ok()) << status;
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
    for (const auto& [name, factor] : decoder.NamedAdapters()) {
      factor.copy_(at::normal(0.0, 0.3, factor.sizes(), generator, at::kFloat));
    }
    return decoder;
  }
  at::Tensor Tokens(const ModelConfig& config) const { return RandomTokens(2, 7, config.vocab_size, 3, GetParam()); }

  Env& env_ = Env::Real();
  const TestFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Devices, LoraTest, testing::ValuesIn(TestDevices()), DeviceName);

TEST_P(LoraTest, ChangesNothingAtFirst) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = TinyDecoder(config, 1, GetParam());
    const at::Tensor before = FullLogits(decoder, Tokens(config));
    ASSERT_TRUE(decoder.AddAdapters({}, kSeed).ok());
    EXPECT_TRUE(at::equal(FullLogits(decoder, Tokens(config)), before));
    const double inputs = 1.0 / std::sqrt(20.0);
    const at::Tensor a = decoder.NamedAdapters().front().second;
    EXPECT_LE(a.abs().max().item<double>(), inputs);
    EXPECT_GT(a.abs().max().item<double>(), 0.9 * inputs);
  }
}

TEST_P(LoraTest, IsDrawnFromItsSeed) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  const auto first = [&](uint64_t seed) {
    Decoder decoder = TinyDecoder(config, 1, GetParam());
    EXPECT_TRUE(decoder.AddAdapters({}, seed).ok());
    return decoder.NamedAdapters().front().second;
  };
  EXPECT_TRUE(at::equal(first(1), first(1)));
  EXPECT_FALSE(at::equal(first(1), first(2)));
}

TEST_P(LoraTest, TrainsNothingButTheAdapters) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = Adapted(config, {.rank = 2});
    decoder.SetTrainable(true);
    const auto adapters = decoder.NamedAdapters();
    EXPECT_EQ(decoder.trainable().size(), adapters.size());
    for (const auto& [name, weight] : decoder.NamedWeights()) EXPECT_FALSE(weight.requires_grad()) << name;
    const auto gradients =
        torch::autograd::grad({FullLogits(decoder, Tokens(config)).square().sum()}, decoder.trainable());
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_GT(gradients[i].abs().sum().item<double>(), 0) << adapters[i].first;
    }
    decoder.SetTrainable(false);
    EXPECT_TRUE(decoder.trainable().empty());
  }
}

TEST(TrainableParameters, AreEachOfOneKind) {
  const auto size = [](const Decoder& decoder, ParameterKind kind) { return decoder.trainable(kind).size(); };
  const auto body = ParameterKind::kBody, adapter = ParameterKind::kAdapter, head = ParameterKind::kHead;
  for (ModelConfig config : TinyConfigs()) {
    Decoder decoder = TinyDecoder(config, 1, at::kCPU);
    decoder.SetTrainable(true);
    EXPECT_EQ(size(decoder, head), config.has_own_head() ? 1u : 0u);
    EXPECT_EQ(size(decoder, body) + size(decoder, head), decoder.parameters().size());
    EXPECT_EQ(size(decoder, adapter), 0u);

    config.head = Head::kValue;
    Decoder critic = TinyDecoder(config, 1, at::kCPU);
    ASSERT_TRUE(critic.AddAdapters({.rank = 2}, 5).ok());
    critic.SetTrainable(true);
    EXPECT_EQ(size(critic, body), 0u);
    EXPECT_EQ(size(critic, adapter), critic.NamedAdapters().size());
    ASSERT_EQ(size(critic, head), 1u);
    EXPECT_EQ(critic.trainable(head).front().size(0), 1);
  }
}

TEST_P(LoraTest, MergedGivesTheSameLogitsAndLeavesTheOriginalBitForBit) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder decoder = Adapted(config, {.rank = 3, .alpha = 2.0});
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : decoder.parameters()) before.push_back(parameter.clone());
    const at::Tensor logits = FullLogits(decoder, Tokens(config));
    const Decoder merged = decoder.Merged();
    EXPECT_FALSE(merged.lora().has_value());
    EXPECT_TRUE(at::allclose(FullLogits(merged, Tokens(config)), logits, 1e-4, 1e-4)) << Name(config.architecture);
    EXPECT_FALSE(at::allclose(FullLogits(TinyDecoder(config, 1, GetParam()), Tokens(config)), logits, 1e-2, 1e-2));
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(decoder.parameters()[i], before[i]));
    EXPECT_TRUE(at::equal(FullLogits(decoder, Tokens(config)), logits));
    EXPECT_TRUE(at::equal(FullLogits(decoder.Clone(), Tokens(config)), logits));
  }
}

TEST_P(LoraTest, MergesHalfPrecisionWithOneRounding) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/false);
  Decoder decoder = Decoder::Random(config, 1, GetParam(), at::kBFloat16);
  ASSERT_TRUE(decoder.AddAdapters({.rank = 4, .targets = {"down_proj"}, .layers = {1}}, kSeed).ok());
  const auto adapters = decoder.NamedAdapters();
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0].first, "model.layers.1.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(adapters[0].second.scalar_type(), at::kFloat);
  adapters[1].second.fill_(0.01);
  const Decoder merged = decoder.Merged();
  const auto before = decoder.NamedWeights(), after = merged.NamedWeights();
  for (size_t i = 0; i < before.size(); ++i) {
    at::Tensor expected = before[i].second;
    if (before[i].first == "model.layers.1.mlp.down_proj.weight") {
      expected = (expected.to(at::kFloat) + 2.0 * adapters[1].second.mm(adapters[0].second)).to(at::kBFloat16);
    }
    EXPECT_TRUE(at::equal(after[i].second, expected)) << before[i].first;
  }
}

TEST_P(LoraTest, IsReadBackFromItsFilesBitForBit) {
  for (ModelConfig config : TinyConfigs()) {
    for (const Head head : {Head::kTokens, Head::kValue}) {
      config.head = head;
      const Decoder decoder = Adapted(config, {.rank = 3, .alpha = 5.0, .layers = {1}});
      ASSERT_TRUE(SaveAdapters(env_, folder_.Path("a"), decoder, "base").ok());
      // PEFT takes no list of layers beside "all-linear".
      const auto saved = nlohmann::json::parse(*env_.ReadFile(folder_.Path("a") + "/adapter_config.json"));
      EXPECT_TRUE(saved.at("target_modules").is_array()) << saved;
      Decoder other = TinyDecoder(config, 1, GetParam());
      if (head == Head::kValue) other.parameters().back().zero_();
      const absl::Status status = LoadAdapters(env_, folder_.Path("a"), &other);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(other.lora()->layers, decoder.lora()->layers);
      EXPECT_EQ(other.lora()->scale(), decoder.lora()->scale());
      EXPECT_EQ(other.lora()->saves("score"), head == Head::kValue);
      const TokenBatch batch{Tokens(config), PositionsFromZero(2, 7, GetParam()), {}};
      const auto outputs = [&](const Decoder& of) {
        const at::Tensor hidden = of.Hidden(batch);
        return head == Head::kValue ? of.Values(hidden) : of.Logits(hidden);
      };
      EXPECT_TRUE(at::equal(outputs(other), outputs(decoder)));
    }
  }
}

TEST_P(LoraTest, IsReadBackInPlaceAndItsSnapshotSharesOnlyWhatDoesNotChange) {
  for (const Head head : {Head::kTokens, Head::kValue}) {
    ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/false);
    config.head = head;
    Decoder decoder = Adapted(config, {.rank = 3, .alpha = 5.0});
    decoder.SetTrainable(true);
    const Decoder snapshot = decoder.Snapshot();
    ASSERT_EQ(snapshot.parameters().size(), decoder.parameters().size());
    ASSERT_TRUE(SaveAdapters(env_, folder_.Path("a"), decoder, "base").ok());
    const std::vector<at::Tensor> trained = decoder.trainable();
    {
      at::NoGradGuard no_grad;
      for (at::Tensor tensor : trained) tensor.add_(1);
    }
    size_t shared = 0;
    for (size_t i = 0; i < decoder.parameters().size(); ++i) {
      const at::Tensor &now = decoder.parameters()[i], &then = snapshot.parameters()[i];
      EXPECT_FALSE(then.requires_grad());
      EXPECT_EQ(now.is_alias_of(then), !now.requires_grad());
      EXPECT_EQ(at::equal(now, then), !now.requires_grad());
      shared += now.is_alias_of(then);
    }
    EXPECT_GT(shared, 0u);
    ASSERT_TRUE(ReloadAdapters(env_, folder_.Path("a"), &decoder).ok());
    const bool head_saved = decoder.lora()->saves("score");
    for (size_t i = 0; i < decoder.parameters().size(); ++i) {
      const bool is_head = head == Head::kValue && i + 1 == decoder.parameters().size();
      EXPECT_EQ(at::equal(decoder.parameters()[i], snapshot.parameters()[i]), !is_head || head_saved) << i;
    }
  }
  Decoder plain = TinyDecoder(TinyConfig(Architecture::kLlama, true), 1, GetParam());
  EXPECT_EQ(ReloadAdapters(env_, folder_.Path("a"), &plain).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(LoraTest, ModulesAreTrainedWholeBesideItAndReadBack) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/false);
  Decoder decoder = Adapted(config, {.rank = 2, .targets = {"q_proj"}, .saved = {"norm", "lm_head", "embed_tokens"}});
  decoder.SetTrainable(true);
  EXPECT_EQ(decoder.trainable(ParameterKind::kAdapter).size(), 2u * 2);
  EXPECT_EQ(decoder.trainable(ParameterKind::kHead).size(), 1u);
  EXPECT_EQ(decoder.trainable(ParameterKind::kBody).size(), 2u + 2 * 2) << "the embedding and all norms";
  const Decoder snapshot = decoder.Snapshot();
  {
    at::NoGradGuard no_grad;
    for (at::Tensor tensor : decoder.trainable()) tensor.add_(0.25);
  }
  const at::Tensor tokens = Tokens(config), expected = FullLogits(decoder, tokens);
  EXPECT_FALSE(at::equal(FullLogits(snapshot, tokens), expected));
  for (size_t i = 0; i < decoder.parameters().size(); ++i) {
    const at::Tensor& now = decoder.parameters()[i];
    EXPECT_EQ(now.is_alias_of(snapshot.parameters()[i]), !now.requires_grad()) << i;
  }
  ASSERT_EQ(SaveAdapters(env_, folder_.Path("a"), decoder, "base"), absl::OkStatus());
  Decoder other = TinyDecoder(config, 1, GetParam());
  ASSERT_EQ(LoadAdapters(env_, folder_.Path("a"), &other), absl::OkStatus());
  EXPECT_EQ(other.lora()->saved, decoder.lora()->saved);
  EXPECT_TRUE(at::equal(FullLogits(other, tokens), expected));
  const auto trained = decoder.NamedWeights(), merged = other.Merged().NamedWeights();
  EXPECT_TRUE(at::equal(merged.back().second, trained.back().second)) << trained.back().first;
}

class LoraFaults : public testing::Test {
 protected:
  LoraFaults() : decoder_(TinyDecoder(TinyConfig(Architecture::kLlama, /*tied_head=*/false), 1, at::kCPU)) {
    Decoder adapted = decoder_.Clone();
    EXPECT_TRUE(adapted.AddAdapters({.targets = {"q_proj", "v_proj"}}, 1).ok());
    EXPECT_TRUE(SaveAdapters(env_, folder_.path(), adapted, "base").ok());
  }
  std::string ComplaintWith(const char* key, const nlohmann::json& value) {
    const std::string path = folder_.Path("adapter_config.json");
    const std::string before = *env_.ReadFile(path);
    nlohmann::json config = nlohmann::json::parse(before);
    config[key] = value;
    EXPECT_TRUE(WriteFileAtomically(env_, path, config.dump()).ok());
    const absl::Status status = LoadAdapters(env_, folder_.path(), &decoder_);
    EXPECT_TRUE(WriteFileAtomically(env_, path, before).ok());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << ": " << status;
    EXPECT_FALSE(decoder_.lora().has_value());
    return std::string(status.message());
  }

  Env& env_ = Env::Real();
  const TestFolder folder_;
  Decoder decoder_;
};

TEST_F(LoraFaults, AreNamed) {
  EXPECT_THAT(ComplaintWith("r", 0), Mentions({"rank", "65536", "not 0"}));
  EXPECT_THAT(ComplaintWith("r", "8"), Mentions({"key 'r'", "an integer"}));
  EXPECT_THAT(ComplaintWith("r", 4), Mentions({"wrong shapes", "base_model.model.model.layers.0.self_attn."}));
  EXPECT_THAT(ComplaintWith("target_modules", {"query"}), Mentions({"layer 'query'", "down_proj, gate_proj, k_proj"}));
  EXPECT_THAT(ComplaintWith("target_modules", {"q_proj", "k_proj"}), HasSubstr("missing weights: "));
  EXPECT_THAT(ComplaintWith("target_modules", {"q_proj"}), HasSubstr("unexpected weights: "));
  EXPECT_THAT(ComplaintWith("target_modules", nullptr), Mentions({"key 'target_modules'", "missing"}));
  EXPECT_THAT(ComplaintWith("layers_to_transform", {2}), Mentions({"layer 2 ", "model has 2,"}));
  EXPECT_THAT(ComplaintWith("layers_to_transform", {-1}), Mentions({"layer", "at least 0", "not -1"}));
}

TEST_F(LoraFaults, InModulesThatAreTrainedWholeAreNamed) {
  EXPECT_THAT(ComplaintWith("modules_to_save", {"norm"}), HasSubstr("missing weights: "));
  EXPECT_THAT(ComplaintWith("modules_to_save", {"q_proj"}),
              Mentions({"adapter_config.json: ", "'q_proj'", "embed_tokens, input_layernorm, lm_head, norm"}));
  EXPECT_THAT(ComplaintWith("modules_to_save", {"normal"}), Mentions({"'normal'", "embed_tokens, input_layernorm"}));
  const Decoder tied = TinyDecoder(TinyConfig(Architecture::kLlama, /*tied_head=*/true), 1, at::kCPU);
  for (const char* parted : {"embed_tokens", "lm_head"}) {
    EXPECT_THAT(tied.CheckSaved({.saved = {parted}}),
                Fails(absl::StatusCode::kInvalidArgument, {absl::StrCat("'", parted, "'"), "PEFT"}));
  }
  EXPECT_EQ(tied.CheckSaved({.saved = {"norm"}}), absl::OkStatus());
}

TEST_F(LoraFaults, OfAdaptersWithAValueHeadForAModelWithoutOneAreNamed) {
  EXPECT_THAT(ComplaintWith("modules_to_save", {"score"}), Mentions({"adapter_config.json: ", "value head"}));
  // Adapters of a model of tokens may go into a critic, whose head is then its own.
  ModelConfig config = decoder_.config();
  config.head = Head::kValue;
  Decoder critic = TinyDecoder(config, 1, at::kCPU);
  const absl::Status status = LoadAdapters(env_, folder_.path(), &critic);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(LoraFaults, OfNumbersThatAreNotFiniteAreNamedAndLeaveTheModelAsItIs) {
  Decoder adapted = decoder_.Clone();
  ASSERT_TRUE(adapted.AddAdapters({.targets = {"q_proj", "v_proj"}}, 1).ok());
  const auto [name, factor] = adapted.NamedAdapters()[1];
  {
    const at::NoGradGuard no_grad;
    factor[2][1] = std::numeric_limits<float>::infinity();
  }
  ASSERT_TRUE(SaveAdapters(env_, folder_.path(), adapted, "base").ok());
  const auto named =
      Fails(absl::StatusCode::kInvalidArgument, {folder_.Path("adapter_model.safetensors"), name, "inf", "[2, 1]"});
  EXPECT_THAT(LoadAdapters(env_, folder_.path(), &decoder_), named);
  EXPECT_FALSE(decoder_.lora().has_value());
  EXPECT_THAT(ReloadAdapters(env_, folder_.path(), &adapted), named);
}

TEST_F(LoraFaults, OfCallsInTheWrongOrderAreNamed) {
  EXPECT_EQ(SaveAdapters(env_, folder_.path(), decoder_, "base").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(LoadAdapters(env_, folder_.path(), &decoder_).ok());
  EXPECT_EQ(decoder_.AddAdapters({}, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SaveCheckpoint(env_, folder_.Path("b"), decoder_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(SaveCheckpoint(env_, folder_.Path("b"), decoder_.Merged()).ok());
}

}  // namespace
}  // namespace tdock::model
