#include "model/files/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

std::string LoraComplaint(const char* key, const nlohmann::json& value, absl::StatusCode code) {
  nlohmann::json config = nlohmann::json::parse(LoraConfigJson({.targets = {"q_proj"}}, {.base_model = "base"}));
  config[key] = value;
  const absl::Status status = ParseLoraConfig(config.dump()).status();
  EXPECT_EQ(status.code(), code) << key << ": " << status;
  return std::string(status.message());
}

TEST(AdapterConfig, OfVariantsThatAreNotReadAreNamed) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_THAT(LoraComplaint("use_dora", true, unimplemented), Mentions({"'use_dora'"}));
  EXPECT_THAT(LoraComplaint("peft_type", "LOHA", unimplemented), Mentions({"peft_type 'LOHA'", "LORA"}));
  // They take the adapters out of the base weights, or give them to some tokens only.
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga"}) {
    EXPECT_THAT(LoraComplaint("init_lora_weights", init, unimplemented),
                Mentions({"init_lora_weights", "'" + std::string(init) + "'"}));
  }
  EXPECT_EQ(LoraComplaint("init_lora_weights", "gaussian", absl::StatusCode::kOk), "");
  EXPECT_THAT(LoraComplaint("alora_invocation_tokens", {3, 4}, unimplemented), Mentions({"'alora_invocation_tokens'"}));
  EXPECT_THAT(LoraComplaint("some_new_config", {{"a", 1}}, unimplemented), Mentions({"'some_new_config'"}));
  EXPECT_EQ(LoraComplaint("some_new_config", nullptr, absl::StatusCode::kOk), "");
  EXPECT_THAT(LoraComplaint("bias", "all", unimplemented), Mentions({"'bias'", "none"}));
  EXPECT_THAT(LoraComplaint("rank_pattern", {{"q_proj", 4}}, unimplemented), Mentions({"'rank_pattern'"}));
  EXPECT_THAT(LoraComplaint("target_modules", ".*_proj", unimplemented), Mentions({"'target_modules'", "pattern"}));
}

TEST(AdapterConfig, NamesTheModulesThatAreTrainedWhole) {
  const auto read = ParseLoraConfig(
      R"({"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head", "classifier"]})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->saved, testing::ElementsAre("norm", "lm_head"));
  EXPECT_TRUE(read->saves("model.norm"));
  EXPECT_TRUE(read->saves("model.layers.0.input_layernorm")) << "PEFT compares ends";
  EXPECT_FALSE(read->saves("model.embed_tokens"));
  const auto again = ParseLoraConfig(LoraConfigJson(*read, {.base_model = "base"}));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *read);
  EXPECT_THAT(LoraComplaint("modules_to_save", "norm", absl::StatusCode::kInvalidArgument),
              Mentions({"'modules_to_save'", "list"}));
  EXPECT_THAT(LoraComplaint("modules_to_save", {1}, absl::StatusCode::kInvalidArgument),
              Mentions({"'modules_to_save'", "names"}));
}

TEST(AdapterConfig, HasADropoutBelowOne) {
  const auto read = ParseLoraConfig(LoraConfigJson({.targets = {"q_proj"}, .dropout = 0.1}, {.base_model = "base"}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->dropout, 0.1);
  for (const double wrong : {1.0, -0.1}) {
    EXPECT_THAT(LoraComplaint("lora_dropout", wrong, absl::StatusCode::kInvalidArgument),
                Mentions({"dropout", "at least 0", "than 1", absl::StrCat("not ", wrong)}));
  }
}

}  // namespace
}  // namespace tdock::model
