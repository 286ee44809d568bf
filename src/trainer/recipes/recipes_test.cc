#include "trainer/recipes/recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/config/spec.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string Refused(const std::string& recipe, const std::string& yaml,
                    const std::vector<std::string>& overrides = {}) {
  const auto made = MakeRecipe(recipe);
  config::Spec spec;
  (*made)->Bind(spec);
  return std::string(config::Load(spec, yaml, "run.yaml", overrides).message());
}

TEST(Recipes, TheDocumentationListsEveryKey) {
  const std::string page = *Env::Real().ReadFile("docs/configuration.md");
  for (const RecipeEntry& entry : Recipes()) {
    const std::unique_ptr<Recipe> recipe = entry.make();
    config::Spec spec;
    recipe->Bind(spec);
    EXPECT_TRUE(absl::StrContains(page, config::Reference(spec)))
        << "write what `tdock train --keys " << entry.name << "` prints into it";
  }
}

TEST(Recipes, DefaultsLoadBack) {
  for (const RecipeEntry& entry : Recipes()) {
    const std::unique_ptr<Recipe> recipe = entry.make();
    config::Spec spec;
    recipe->Bind(spec);
    std::vector<std::string> overrides = {"model.alphabet=ab"};
    if (spec.HasSection("critic")) overrides.emplace_back("critic.model.path=model");
    const absl::Status loaded = config::Load(spec, config::Dump(spec), "defaults", overrides);
    EXPECT_TRUE(loaded.ok()) << loaded;
  }
}

TEST(Recipes, TheExamplesLoad) {
  for (const char* name : {"sft", "grpo"}) {
    for (const char* folder : {"examples/arithmetic/", "examples/own-model/"}) {
      const auto recipe = LoadRecipe(Env::Real(), std::string(folder) + name + ".yaml", {});
      ASSERT_TRUE(recipe.ok()) << recipe.status();
      EXPECT_EQ((*recipe)->config().recipe, name);
    }
    // The guide shows the examples for a model of one's own, but for their first line.
    const std::string example = *Env::Real().ReadFile(std::string("examples/own-model/") + name + ".yaml");
    EXPECT_THAT(*Env::Real().ReadFile("docs/training.md"), HasSubstr(example.substr(example.find('\n') + 1)));
  }
}

TEST(Recipes, TheExampleWithAStageInPythonLoads) {
  const auto recipe = LoadRecipe(Env::Real(), "examples/external-reward/grpo.yaml", {});
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ((*recipe)->config().trainer.dock.external_stages, std::vector<std::string>{"reward"});
}

TEST(Recipes, AnUnknownOneNamesThoseThatThereAre) {
  EXPECT_EQ(MakeRecipe("gpro").status().message(),
            "there is no recipe \"gpro\"; there are sft, rm, dpo, ppo, grpo, dapo");
}

std::string NotLoaded(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const std::string path = NewFolder() + "/run.yaml";
  EXPECT_EQ(WriteFileAtomically(Env::Real(), path, yaml), absl::OkStatus());
  const std::string message(LoadRecipe(Env::Real(), path, overrides).status().message());
  return absl::StrReplaceAll(message, {{path, "run.yaml"}});
}

TEST(Recipes, WithoutANameReportTheRestAsForTheOneThatFitsBest) {
  const std::string missing =
      "run.yaml: \"recipe\" is missing; write \"recipe: sft\", or another one's name, at its top";
  EXPECT_EQ(NotLoaded("model.alphabet: ab\nrollout.n: 4\n"), missing);
  EXPECT_EQ(NotLoaded("model.alphabet: ab\nrollout.n: four\n"),
            missing + "\nas for grpo:\nrun.yaml:2: rollout.n: \"four\" given, expected integer ≥ 1 and ≤ 1048576");
  EXPECT_EQ(NotLoaded("recipe: gpro\nmodel.alphabet: ab\nrollout.n: 0\n"),
            "there is no recipe \"gpro\"; there are sft, rm, dpo, ppo, grpo, dapo\nas for grpo:\n"
            "run.yaml:3: rollout.n: \"0\" given, expected integer ≥ 1 and ≤ 1048576");
}

TEST(Recipes, OfAFileThatIsNotYamlReportTheOverridesToo) {
  const std::string message = NotLoaded("recipe: grpo\nrollout: {n: 4\n", {"model.alphabet=ab", "rollout.n=four"});
  EXPECT_THAT(message, HasSubstr("run.yaml:3:1: "));
  EXPECT_THAT(message, HasSubstr("command line: rollout.n: \"four\" given"));
  EXPECT_THAT(message, Not(HasSubstr("is missing")));
}

TEST(Recipes, KeepWhatAFileSaysAboutDevices) {
  const std::string path = NewFolder() + "/run.yaml";
  const std::string yaml =
      "recipe: grpo\nmodel.alphabet: ab\ntrainer: {n_gpus_per_node: 8, nnodes: 2}\n"
      "actor_rollout_ref: {actor: {megatron: {tensor_model_parallel_size: 4}}, rollout: {max_model_len: null}}\n";
  ASSERT_EQ(WriteFileAtomically(Env::Real(), path, yaml), absl::OkStatus());
  const auto recipe = LoadRecipe(Env::Real(), path, {}, {.lenient = true});
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const ForeignValues& foreign = (*recipe)->config().foreign;
  EXPECT_EQ(foreign.integers.at("trainer.n_gpus_per_node"), 8);
  EXPECT_EQ(foreign.integers.at("trainer.nnodes"), 2);
  EXPECT_EQ(foreign.integers.at("actor.megatron.tensor_model_parallel_size"), 4);
  EXPECT_EQ(foreign.integers.at("rollout.max_model_len"), 0);
  EXPECT_FALSE(LoadRecipe(Env::Real(), path, {}).ok()) << "they mean nothing here";
}

TEST(Recipes, ReportEveryContradictionAtOnce) {
  const std::string message = Refused("grpo",
                                      "data: {train_batch_size: 100}\nactor: {ppo_micro_batch_size_per_gpu: 7}\n"
                                      "model: {num_attention_heads: 5}\n");
  EXPECT_THAT(message, HasSubstr("the mini-batch must divide the batch; the nearest that does is 25 or 50"));
  EXPECT_THAT(
      message,
      HasSubstr("the micro-batch must divide the 256 samples of a mini-batch; the nearest that does is 4 or 8"));
  EXPECT_THAT(message, HasSubstr("the heads must divide the width into even parts"));
  EXPECT_THAT(message, HasSubstr("the width could be 90 or 100"));
  EXPECT_THAT(message, HasSubstr("must be a multiple of the key and value heads, which could be 1 or 5"));
}

TEST(Recipes, BatchesThatNoMachineHoldsAreRefused) {
  for (const char* key : {"data.train_batch_size", "actor.ppo_mini_batch_size", "rollout.n", "rollout.max_num_seqs",
                          "data.max_response_length"}) {
    EXPECT_THAT(Refused("grpo", "", {std::string(key) + "=1000000000000"}),
                HasSubstr(std::string("command line: ") + key + ": "));
  }
  EXPECT_THAT(Refused("grpo", "", {"data.train_batch_size=1048576", "rollout.n=1048576"}),
              HasSubstr("a step has 1099511627776 samples; at most 1048576 are possible"));
}

}  // namespace
}  // namespace tdock::trainer
