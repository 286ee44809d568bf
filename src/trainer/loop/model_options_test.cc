#include "trainer/loop/model_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"

namespace tdock::trainer {
namespace {

absl::StatusOr<ModelOptions> Read(const std::vector<std::string>& overrides) {
  ModelOptions options;
  config::Spec spec;
  BindModelOptions(spec, "model.", options);
  const absl::Status loaded = config::Load(spec, "", "run.yaml", overrides);
  if (!loaded.ok()) return loaded;
  return options;
}

TEST(ModelOptions, LeaveAModelAsItIsByDefault) {
  const auto options = Read({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rope_scaling.json(), "");
  model::Decoder decoder = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, true), 1, at::kCPU);
  const at::Tensor tokens = model::RandomTokens(1, 5, 29, 1, at::kCPU);
  const at::Tensor before = model::FullLogits(decoder, tokens);
  ASSERT_TRUE(options->Apply(1, decoder).ok());
  EXPECT_TRUE(at::equal(model::FullLogits(decoder, tokens), before));
  EXPECT_FALSE(decoder.lora().has_value());
}

TEST(ModelOptions, OfARopeScalingAreThoseOfConfigJson) {
  const auto options =
      Read({"model.override_config.rope_scaling.type=yarn", "model.override_config.rope_scaling.factor=1.5",
            "model.override_config.rope_scaling.original_max_position_embeddings=32"});
  ASSERT_TRUE(options.ok()) << options.status();
  model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, true);
  ASSERT_TRUE(model::OverrideRope(options->rope_scaling.json(), &config).ok());
  EXPECT_EQ(config.rope.type, model::RopeType::kYarn);
  EXPECT_EQ(config.rope.factor, 1.5);
  EXPECT_EQ(config.rope.original_max_positions, 32);
}

TEST(ModelOptions, OfYarnReachTheRope) {
  const std::string rope = "model.override_config.rope_scaling.";
  const auto options = Read({rope + "rope_type=yarn", rope + "factor=4", rope + "attention_factor=1.5",
                             rope + "beta_fast=16", rope + "beta_slow=2"});
  ASSERT_TRUE(options.ok()) << options.status();
  model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, true);
  ASSERT_TRUE(model::OverrideRope(options->rope_scaling.json(), &config).ok());
  EXPECT_EQ(config.rope.attention_factor, 1.5);
  EXPECT_EQ(config.rope.beta_fast, 16);
  EXPECT_EQ(config.rope.beta_slow, 2);
}

TEST(ModelOptions, OfARopeScalingNeedAFactor) {
  for (const char* type : {"linear", "dynamic", "llama3", "yarn"}) {
    EXPECT_THAT(Read({absl::StrCat("model.override_config.rope_scaling.type=", type)}).status(),
                Fails(absl::StatusCode::kInvalidArgument,
                      {absl::StrCat("rope_scaling.type = ", type), "rope_scaling.factor", "at least 1"}));
  }
  EXPECT_TRUE(Read({"model.override_config.rope_scaling.type=default"}).ok());
}

TEST(ModelOptions, NameTheModulesThatAreTrainedWholeBesideAdapters) {
  const auto options = Read({"model.lora_rank=4", "model.modules_to_save=[norm, lm_head]"});
  ASSERT_TRUE(options.ok()) << options.status();
  const model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false);
  model::Decoder decoder = model::TinyDecoder(config, 1, at::kCPU);
  ASSERT_EQ(options->Apply(1, decoder), absl::OkStatus());
  decoder.SetTrainable(true);
  EXPECT_EQ(decoder.trainable(model::ParameterKind::kHead).size(), 1u);
  model::Decoder tied = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, true), 1, at::kCPU);
  EXPECT_THAT(options->Apply(1, tied).message(), Mentions({"model.modules_to_save: ", "'lm_head'"}));
  EXPECT_THAT(Read({"model.modules_to_save=norm"}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"model.modules_to_save: ", "model.lora_rank = 0"}));
}

TEST(ModelOptions, AddTheAdaptersThatAreAskedFor) {
  const auto options = Read({"model.lora_rank=4", "model.target_modules=q_proj, v_proj", "model.recompute=layers",
                             "model.compute_dtype=bfloat16"});
  ASSERT_TRUE(options.ok()) << options.status();
  model::Decoder decoder = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, true), 1, at::kCPU);
  ASSERT_TRUE(options->Apply(1, decoder).ok());
  EXPECT_EQ(decoder.compute_type(), at::kBFloat16);
  EXPECT_EQ(decoder.NamedAdapters().size(), 2u * 2 * 2);
  model::Decoder gpt2 = model::TinyDecoder(model::TinyLearnedConfig(model::Architecture::kGpt2), 1, at::kCPU);
  EXPECT_THAT(options->Apply(1, gpt2).message(), Mentions({"model.target_modules: ", "'q_proj'"}));
}

TEST(ModelOptions, SetBatchInvariantModeWhereItExists) {
  const auto is_invariant = [](std::vector<std::string> overrides) {
    const auto options = Read(overrides);
    EXPECT_TRUE(options.ok()) << options.status();
    model::Decoder decoder = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, true), 1, at::kCPU);
    EXPECT_TRUE(options->Apply(1, decoder).ok());
    return decoder.batch_invariant();
  };
  EXPECT_TRUE(is_invariant({}));
  EXPECT_TRUE(is_invariant({"model.compute_dtype=bfloat16"}));
  EXPECT_FALSE(is_invariant({"model.compute_dtype=float16"}));
  EXPECT_FALSE(is_invariant({"model.batch_invariant=false"}));
}

TEST(ModelOptions, OfWeightsInBfloat16AreForComputingInIt) {
  for (const char* compute : {"float32", "float16", "float64"}) {
    EXPECT_THAT(Read({"model.param_dtype=bfloat16", absl::StrCat("model.compute_dtype=", compute)}).status(),
                Fails(absl::StatusCode::kInvalidArgument,
                      {"model.param_dtype = bfloat16", absl::StrCat("model.compute_dtype = ", compute)}));
  }
  const auto options = Read({"model.param_dtype=bfloat16", "model.compute_dtype=bfloat16"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->weight_dtype(), at::kBFloat16);
}

TEST(ModelOptions, ThatMeanNothingTogetherAreRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Read({"model.override_config.rope_scaling.factor=2"}).status(),
              Fails(kInvalid, {"model.override_config.rope_scaling.factor: "}));
  EXPECT_THAT(Read({"model.override_config.rope_scaling.type=linear", "model.override_config.rope_scaling.factor=2",
                    "model.override_config.rope_scaling.low_freq_factor=2"})
                  .status(),
              Fails(kInvalid, {"model.override_config.rope_scaling.low_freq_factor: "}));
  EXPECT_THAT(Read({"model.lora_alpha=2"}).status(), Fails(kInvalid, {"model.lora_alpha: ", "model.lora_rank = 0"}));
}

}  // namespace
}  // namespace tdock::trainer
