#include "trainer/recipes/recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/config/spec.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::_;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string Refused(const std::string& recipe, const std::string& yaml,
                    const std::vector<std::string>& overrides = {}) {
  const auto made = MakeRecipe(recipe);
  config::Spec spec;
  (*made)->Bind(spec);
  return std::string(config::Load(spec, yaml, "run.yaml", overrides).message());
}

// The rows of KeyReference(): key, recipes, type, default, meaning.
std::vector<std::vector<std::string>> KeyReferenceRows() {
  const std::string reference = KeyReference();
  std::vector<std::vector<std::string>> rows;
  for (absl::string_view line : absl::StrSplit(reference, '\n')) {
    if (!absl::ConsumePrefix(&line, "| `") || !absl::ConsumeSuffix(&line, " |")) continue;
    std::vector<std::string> cells = absl::StrSplit(line, " | ");
    cells.front().insert(0, 1, '`');
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::vector<std::vector<std::string>> KeyReferenceRowsOf(const std::string& key) {
  std::vector<std::vector<std::string>> rows = KeyReferenceRows();
  std::erase_if(rows, [&](const std::vector<std::string>& row) { return row.front() != key; });
  return rows;
}

TEST(KeyReference, HasOneRowForAKeyThatAllRecipesShare) {
  EXPECT_THAT(KeyReferenceRowsOf("`seed`"), ElementsAre(ElementsAre("`seed`", "all", "integer ≥ 0", "`1`", _)));
}

TEST(KeyReference, HasARowForEachSetOfRecipesWhereADefaultDiffers) {
  EXPECT_THAT(
      KeyReferenceRowsOf("`data.train_batch_size`"),
      ElementsAre(ElementsAre(_, "sft, rm, dpo", _, "`32`", _), ElementsAre(_, "ppo, grpo, dapo", _, "`128`", _)));
  EXPECT_THAT(KeyReferenceRowsOf("`actor.clip_ratio_high`"),
              ElementsAre(ElementsAre(_, "ppo, grpo", _, "`0.2`", _), ElementsAre(_, "dapo", _, "`0.28`", _)));
}

TEST(KeyReference, HasEachKeyOfEachRecipeOnce) {
  const std::vector<std::vector<std::string>> rows = KeyReferenceRows();
  for (const RecipeEntry& entry : Recipes()) {
    const std::unique_ptr<Recipe> recipe = entry.make();
    config::Spec spec;
    recipe->Bind(spec);
    for (const config::KeyRow& key : config::KeyRows(spec)) {
      const auto is_of_recipe = [&](const std::vector<std::string>& row) {
        const std::vector<std::string> recipes = absl::StrSplit(row.at(1), ", ");
        return row.front() == key.key &&
               (row.at(1) == "all" || std::find(recipes.begin(), recipes.end(), entry.name) != recipes.end());
      };
      const auto row = std::find_if(rows.begin(), rows.end(), is_of_recipe);
      ASSERT_NE(row, rows.end()) << key.key << " of " << entry.name;
      EXPECT_THAT(*row, ElementsAre(key.key, _, key.type, key.default_value, key.meaning)) << entry.name;
      EXPECT_EQ(std::count_if(rows.begin(), rows.end(), is_of_recipe), 1) << key.key << " of " << entry.name;
    }
  }
}

TEST(KeyReference, HasEachSectionOnce) {
  std::vector<std::string> sections = absl::StrSplit(KeyReference(), '\n');
  std::erase_if(sections, [](const std::string& line) { return !absl::StartsWith(line, "### "); });
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), sections.size());
  EXPECT_THAT(sections, testing::IsSupersetOf({"### run", "### model", "### data", "### trainer", "### critic"}));
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
  EXPECT_THAT(MakeRecipe("gpro").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"gpro\"", "sft, rm, dpo, ppo, grpo, dapo"}));
}

std::string NotLoaded(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const std::string path = NewFolder() + "/run.yaml";
  EXPECT_EQ(WriteFileAtomically(Env::Real(), path, yaml), absl::OkStatus());
  const std::string message(LoadRecipe(Env::Real(), path, overrides).status().message());
  return absl::StrReplaceAll(message, {{path, "run.yaml"}});
}

TEST(Recipes, WithoutANameReportTheRestAsForTheOneThatFitsBest) {
  const std::string one = NotLoaded("model.alphabet: ab\nrollout.n: 4\n");
  EXPECT_THAT(one, Mentions({"run.yaml: \"recipe\"", "\"recipe: sft\""}));
  EXPECT_THAT(one, Not(HasSubstr("\n")));
  EXPECT_THAT(NotLoaded("model.alphabet: ab\nrollout.n: four\n"),
              Mentions({"run.yaml: \"recipe\"", "\"recipe: sft\"", " grpo:\nrun.yaml:2: rollout.n: \"four\" given",
                        "integer ≥ 1 and ≤ 1048576"}));
  EXPECT_THAT(NotLoaded("recipe: gpro\nmodel.alphabet: ab\nrollout.n: 0\n"),
              Mentions({"\"gpro\"", "sft, rm, dpo, ppo, grpo, dapo\n", " grpo:\nrun.yaml:3: rollout.n: \"0\" given",
                        "integer ≥ 1 and ≤ 1048576"}));
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
                                      "data: {train_batch_size: 100}\n"
                                      "actor: {ppo_mini_batch_size: 32, ppo_micro_batch_size_per_gpu: 7}\n"
                                      "model: {num_attention_heads: 5}\n");
  EXPECT_THAT(message, Mentions({"actor.ppo_mini_batch_size = ", "data.train_batch_size = 100", "25 or 50",
                                 "actor.ppo_micro_batch_size_per_gpu = 7", "256 samples", "4 or 8",
                                 "model.hidden_size = ", "model.num_attention_heads = 5", "90 or 100",
                                 "model.num_key_value_heads = ", "1 or 5"}));
}

TEST(Recipes, HaveNoReferenceModelUntilAKlIsAskedFor) {
  const std::map<std::string, int64_t> copies = {{"grpo", 0}, {"dapo", 0}, {"ppo", 1}};
  for (const auto& [name, expected] : copies) {
    const auto recipe = MakeRecipe(name);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    EXPECT_EQ((*recipe)->shape().frozen_copies, expected) << name;
  }
}

TEST(Recipes, HaveAMiniBatchForAnyBatchWhereNoneIsGiven) {
  const auto samples = [](const char* name, std::vector<std::string> overrides) {
    const auto recipe = MakeRecipe(name);
    config::Spec spec;
    (*recipe)->Bind(spec);
    overrides.insert(overrides.end(), {"rollout.n=2", "model.alphabet=ab"});
    EXPECT_EQ(config::Load(spec, "", "run.yaml", overrides), absl::OkStatus());
    return (*recipe)->shape().mini_batch_size;
  };
  const std::map<int64_t, int64_t> prompts = {{1, 1},   {10, 10}, {16, 16},  {37, 37},
                                              {48, 24}, {64, 32}, {100, 25}, {128, 32}};
  for (const auto& [batch, mini] : prompts) {
    EXPECT_EQ(samples("grpo", {absl::StrCat("data.train_batch_size=", batch)}), 2 * mini) << batch;
  }
  EXPECT_EQ(samples("ppo", {"data.train_batch_size=64", "algorithm.generation_batches=4", "critic.model.path=model"}),
            2 * 16);
}

TEST(Recipes, BatchesThatNoMachineHoldsAreRefused) {
  for (const char* key : {"data.train_batch_size", "actor.ppo_mini_batch_size", "rollout.n", "rollout.max_num_seqs",
                          "data.max_response_length"}) {
    EXPECT_THAT(Refused("grpo", "", {std::string(key) + "=1000000000000"}),
                HasSubstr(std::string("command line: ") + key + ": "));
  }
  EXPECT_THAT(Refused("grpo", "", {"data.train_batch_size=1048576", "rollout.n=1048576"}),
              Mentions({"data.train_batch_size = 1048576, rollout.n = 1048576", "1099511627776", "most 1048576"}));
}

}  // namespace
}  // namespace tdock::trainer
