// verl's own default files, its keys that are carried over to others, and the reasons for which keys of other systems
// are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/loaded_recipe.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kTransformerConfig[] = "actor.megatron.override_transformer_config.";

std::string VerlsDefaults() { return *Env::Real().ReadFile("tests/data/verl_ppo.yaml"); }
std::string MegatronsDefaults() { return *Env::Real().ReadFile("tests/data/verl_megatron.yaml"); }

TEST(VerlsDefaults, LoadLenientlyWithAtMostFortyNotes) {
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{"trainer.device=cpu"},
        std::vector<std::string>{"trainer.device=cpu", "algorithm.adv_estimator=grpo", "rollout.n=4"}}) {
    const std::string recipe = overrides.size() == 1 ? "ppo" : "grpo";
    const LoadedRecipe loaded = LoadAs(recipe, VerlsDefaults(), overrides, /*lenient=*/true);
    EXPECT_THAT(loaded.violations(), IsEmpty()) << recipe;
    EXPECT_LE(loaded.notes.size(), 40u) << absl::StrJoin(loaded.notes, "\n");
    EXPECT_FALSE(absl::c_any_of(loaded.notes, [](const std::string& note) {
      return absl::StrContains(note, "unknown") || absl::StartsWith(note, "and ");
    })) << absl::StrJoin(loaded.notes, "\n");
  }
}

TEST(VerlsDefaults, WithMegatronLoadLeniently) {
  const LoadedRecipe loaded =
      LoadAs("ppo", MegatronsDefaults(), {"critic.model.path=critic", "model.path=policy"}, true);
  EXPECT_THAT(loaded.violations(), IsEmpty());
  EXPECT_LE(loaded.notes.size(), 10u) << absl::StrJoin(loaded.notes, "\n");
}

TEST(VerlsDefaults, GiveTheSameValuesAsThere) {
  const LoadedRecipe ppo = LoadAs("ppo", VerlsDefaults(), {"trainer.device=cpu"}, true);
  EXPECT_EQ(ppo.Value("actor.kl_loss_coef"), "0.0") << "use_kl_loss: false";
  EXPECT_EQ(ppo.Value("critic.ppo_epochs"), "1");
  EXPECT_EQ(ppo.Value("model.recompute"), "layers");
  EXPECT_EQ(ppo.Value("critic.model.recompute"), "layers");
  EXPECT_EQ(ppo.Value("actor.ppo_max_token_len_per_gpu"), "16384");
  EXPECT_EQ(ppo.Value("ref.log_prob_max_token_len_per_gpu"), "16384");
  EXPECT_EQ(ppo.Value("critic.ppo_max_token_len_per_gpu"), "32768");
  EXPECT_EQ(ppo.Value("data.columns.source"), "\"\"") << "found in the records";
  EXPECT_EQ(ppo.Value("algorithm.use_kl_in_reward"), "false");
  EXPECT_EQ(ppo.Value("algorithm.norm_adv"), "true") << "verl whitens the advantages of GAE";
  EXPECT_EQ(ppo.Value("algorithm.clip_score"), "0.0");
  EXPECT_EQ(ppo.Value("rollout.min_response_tokens"), "0");
}

TEST(VerlsDefaults, DoNotApplyToAFileOfOurs) {
  const LoadedRecipe ours = LoadAs("ppo", "rollout: {n: 2}", {"actor_rollout_ref.rollout.temperature=0.5"});
  EXPECT_EQ(ours.Value("algorithm.norm_adv"), "false");
  EXPECT_EQ(ours.Value("algorithm.clip_score"), "5.0");
  const LoadedRecipe said = LoadAs("ppo", "actor_rollout_ref: {rollout: {n: 2}}\nalgorithm.norm_adv: false\n");
  EXPECT_EQ(said.Value("algorithm.norm_adv"), "false");
  EXPECT_EQ(said.Value("algorithm.clip_score"), "0.0");
}

TEST(VerlsKeys, ForTheKlInTheLossAreOneHere) {
  const auto coefficient = [](const std::string& yaml) { return LoadAs("dapo", yaml).Value("actor.kl_loss_coef"); };
  EXPECT_EQ(coefficient("actor: {use_kl_loss: false, kl_loss_coef: 0.01}"), "0.0");
  EXPECT_EQ(coefficient("actor: {use_kl_loss: true, kl_loss_coef: 0.01}"), "0.01");
  EXPECT_EQ(coefficient("actor: {use_kl_loss: true}"), "0.001") << "verl's default";
  EXPECT_THAT(
      LoadAs("dapo", "actor: {use_kl_loss: perhaps}").status,
      Fails(absl::StatusCode::kInvalidArgument, {"actor.use_kl_loss (actor.kl_loss_coef here)", "\"perhaps\""}));
}

TEST(VerlsKeys, ForRecomputationAreOneHere) {
  const auto recompute = [](const std::vector<std::string>& overrides) {
    return LoadAs("ppo", "", overrides, /*lenient=*/true).Value("model.recompute");
  };
  const std::string granularity = absl::StrCat(kTransformerConfig, "recompute_granularity=");
  const std::string modules = absl::StrCat(kTransformerConfig, "recompute_modules=");
  EXPECT_EQ(recompute({"model.enable_gradient_checkpointing=True"}), "layers");
  EXPECT_EQ(recompute({"model.enable_gradient_checkpointing=False"}), "nothing");
  EXPECT_EQ(recompute({granularity + "full"}), "layers");
  EXPECT_EQ(recompute({granularity + "selective"}), "attention_core");
  EXPECT_EQ(recompute({granularity + "selective", modules + "core_attn"}), "attention_core");
  EXPECT_EQ(recompute({granularity + "selective", modules + "mlp"}), "mlp");
  EXPECT_EQ(recompute({granularity + "selective", "model.enable_gradient_checkpointing=True"}), "attention_core");
  EXPECT_EQ(recompute({modules + "mlp"}), "nothing") << "the granularity is not given";
  EXPECT_EQ(recompute({"actor_config.recompute_granularity=full"}), "layers");
  EXPECT_EQ(LoadAs("grpo",
                   "actor_rollout_ref: {actor: {megatron: {override_transformer_config: {recompute_granularity: "
                   "selective, recompute_modules: [core_attn, mlp]}}}}",
                   {}, true)
                .Value("model.recompute"),
            "attention_core_and_mlp");
  EXPECT_THAT(LoadAs("grpo", "model.path: m", {granularity + "selective", modules + "layernorm"}, true).violations(),
              ElementsAre(Mentions({"model.recompute here", "\"layernorm\"", "attention_core"})));
}

TEST(VerlsKeys, ForPassesThatAreCutByTokensReplaceTheNumberOfSamples) {
  const LoadedRecipe loaded = LoadAs(
      "grpo", "actor: {use_dynamic_bsz: true, ppo_micro_batch_size_per_gpu: 4, ppo_max_token_len_per_gpu: 4096}");
  EXPECT_THAT(loaded.status.message(), testing::Not(testing::HasSubstr("actor.")));
  EXPECT_EQ(loaded.Value("actor.ppo_micro_batch_size_per_gpu"), "0");
  EXPECT_EQ(loaded.recipe->shape().pass.max_tokens, 4096);
  EXPECT_EQ(LoadAs("grpo", "ref.log_prob_max_token_len_per_gpu: 99").recipe->shape().scoring.max_tokens, 99);
  for (const char* recipe : {"sft", "rm", "dpo"}) {
    EXPECT_EQ(LoadAs(recipe, "data.max_token_len_per_gpu: 99").recipe->shape().pass.max_tokens, 99) << recipe;
  }
  const LoadedRecipe samples = LoadAs("sft", "data: {micro_batch_size_per_gpu: 4, max_token_len_per_gpu: 4096}");
  EXPECT_THAT(samples.status.message(), Mentions({"data.max_token_len_per_gpu: ", "data.micro_batch_size_per_gpu"}));
}

TEST(VerlsKeys, ForARewardFunctionAreOneHere) {
  const LoadedRecipe loaded = LoadAs("grpo", "custom_reward_function: {path: my.py, name: score}");
  EXPECT_EQ(loaded.Value("reward.function"), "[my.py:score]");
  EXPECT_EQ(LoadAs("grpo", "reward.custom_reward_function.path: my.py").Value("reward.function"),
            "[my.py:compute_score]");
}

TEST(VerlsKeys, ForDtypesAreKnown) {
  for (const char* key : {"model.compute_dtype", "model.param_dtype", "model.save_dtype", "critic.model.save_dtype"}) {
    EXPECT_EQ(LoadAs("ppo", "", {absl::StrCat(key, "=bf16")}).Value(key), "bfloat16") << key;
  }
  EXPECT_EQ(LoadAs("sft", "model.compute_dtype: fp16").Value("model.compute_dtype"), "float16");
}

// The words of a text that look like keys.
std::vector<std::string> KeysIn(absl::string_view text) {
  std::vector<std::string> keys;
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ,;:`"))) {
    const bool is_key = absl::c_all_of(
        word, [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '.'; });
    if (is_key && absl::StrContains(word, '.')) keys.emplace_back(word);
  }
  return keys;
}

TEST(Reasons, NameKeysThatTheRecipeHas) {
  for (const RecipeEntry& entry : Recipes()) {
    const LoadedRecipe loaded = LoadAs(entry.name, "");
    size_t named = 0;
    for (const config::Spec::Meaningless& meaningless : loaded.spec.meaningless()) {
      for (const std::string& key : KeysIn(meaningless.why)) {
        EXPECT_TRUE(loaded.spec.Find(key) != nullptr || loaded.spec.HasSection(key))
            << entry.name << ": " << meaningless.name << ": " << key;
        ++named;
      }
    }
    EXPECT_GT(named, 200u) << entry.name;
  }
}

TEST(Reasons, AreGivenOncePerKey) {
  for (const RecipeEntry& entry : Recipes()) {
    const LoadedRecipe loaded = LoadAs(entry.name, "");
    std::vector<std::string> names;
    for (const config::Spec::Meaningless& meaningless : loaded.spec.meaningless()) names.push_back(meaningless.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    EXPECT_EQ(twice, names.end()) << entry.name << ": " << *twice;
  }
}

}  // namespace
}  // namespace tdock::trainer
