// What answers of servers go with, and what not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/config/spec.h"
#include "kernels/limits.h"
#include "model/decoder/testing/models.h"
#include "trainer/loop/rollout_servers_section.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {
namespace {

constexpr char kTwo[] = "rollout.servers=[http://a:8000, https://b:8000/v1]";

// What is said of a configuration with these overrides; empty: nothing is wrong.
std::string Said(std::vector<std::string> overrides, const std::string& name = "grpo") {
  const auto recipe = MakeRecipe(name);
  config::Spec spec;
  (*recipe)->Bind(spec);
  overrides.emplace_back("model.path=model");
  if (spec.HasSection("critic")) overrides.emplace_back("critic.model.path=model");
  return std::string(config::Load(spec, "", "run.yaml", overrides).message());
}

TEST(RolloutServersKeys, RecipesThatAnswerPromptsHaveThem) {
  for (const char* name : {"ppo", "grpo", "dapo"}) {
    EXPECT_EQ(Said({kTwo}, name), "") << name;
    EXPECT_EQ(
        Said({kTwo, "rollout.server_weights=folder", "rollout.server_weights_path=/update_weights_from_disk"}, name),
        "");
  }
  EXPECT_THAT(Said({kTwo}, "sft"), Mentions({"rollout.servers"}));
}

TEST(RolloutServersKeys, AllThatDoesNotGoWithServersIsSaidTogether) {
  EXPECT_THAT(Said({kTwo, "algorithm.rollout_correction.bypass_mode=true", "rollout.quantization=int8",
                    "algorithm.adv_estimator=remax", "trainer.external_stages=[rollout]", "trainer.serve=unix"}),
              Mentions({"algorithm.rollout_correction.bypass_mode = ", "rollout.quantization = int8",
                        "algorithm.adv_estimator = remax", "trainer.external_stages = "}));
  EXPECT_THAT(Said({"rollout.servers=[a:8000, http://b:8000]"}), Mentions({"'a:8000'", "http://HOST:PORT"}));
}

TEST(RolloutServersKeys, WeightsThatNeverChangeNeedACorrection) {
  EXPECT_THAT(Said({kTwo, "rollout.server_weights=none"}),
              Mentions({"rollout.server_weights = none", "algorithm.rollout_correction.rollout_is = none"}));
  EXPECT_EQ(Said({kTwo, "rollout.server_weights=none", "algorithm.rollout_correction.rollout_is=token"}), "");
  EXPECT_THAT(Said({kTwo, "rollout.server_weights=none", "algorithm.rollout_correction.rollout_is=token",
                    "async_training.steps_ahead=1", "async_training.max_version_lag=4"}),
              Mentions({"rollout.server_weights = none", "async_training.max_version_lag = 4"}));
}

TEST(RolloutServersKeys, KeysThatMeanNothingAreRefused) {
  EXPECT_THAT(Said({"rollout.server_connections=8"}), Mentions({"rollout.server_connections: ", "rollout.servers"}));
  EXPECT_THAT(Said({kTwo, "rollout.server_weights_path=/x"}), Mentions({"rollout.server_weights_path: "}));
  EXPECT_THAT(Said({kTwo, "rollout.server_weights=folder", "rollout.server_weights_path=x"}),
              Mentions({"rollout.server_weights_path", "begins with /"}));
}

TEST(ServerOptions, WantServersThatComputeAsThePolicyDoes) {
  model::Decoder policy = model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, false), 1, at::kCPU);
  RolloutServersSection section;
  section.model = "name";
  const auto wanted = [&] { return ServerOptions(section, "run", "model", policy, {1}).wanted; };
  EXPECT_EQ(wanted().model, "name");
  EXPECT_EQ(wanted().dtype, "float32");
  EXPECT_EQ(wanted().kernels, kernels::Instructions());
  policy.SetComputeType(at::kBFloat16);
  EXPECT_EQ(wanted().dtype, "bfloat16");
  policy.SetBatchInvariant(false);  // its own answers may have any bits
  EXPECT_EQ(wanted().kernels, "");
}

}  // namespace
}  // namespace tdock::trainer
