#include "trainer/preflight/numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "trainer/preflight/testing/number_lines.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAre;

std::string NumbersFolder() {
  std::string path = testing::TempDir() + "/numbers_test_XXXXXX";
  return ::mkdtemp(path.data());
}

std::string WriteRun(const std::string& yaml) {
  const std::string path = NumbersFolder() + "/run.yaml";
  EXPECT_EQ(WriteFileAtomically(Env::Real(), path, yaml), absl::OkStatus());
  return path;
}

absl::StatusOr<std::unique_ptr<Recipe>> Loaded(const std::string& yaml,
                                               const std::vector<std::string>& overrides = {}) {
  return LoadRecipe(Env::Real(), WriteRun(yaml), overrides, {.lenient = true});
}

std::string DerivedFrom(Recipe& recipe, const std::string& name) {
  for (const DerivedNumber& derived : CheckNumbers(recipe).derived) {
    if (derived.name == name) return absl::StrCat(derived.value, ": ", derived.how);
  }
  return "none";
}

std::vector<std::string> Violated(Recipe& recipe) {
  std::vector<std::string> lines;
  for (const Violation& v : CheckNumbers(recipe).violations) {
    lines.push_back(absl::StrCat(v.keys, ": ", v.what, v.nearest.empty() ? "" : absl::StrCat(" [", v.nearest, "]")));
  }
  return lines;
}

// What verl and MindSpeed-RL write for the same run on 8 devices.
constexpr char kVerl[] = R"(recipe: grpo
data: {train_files: [a.parquet], train_batch_size: 1024, max_prompt_length: 16, max_response_length: 48}
actor_rollout_ref:
  model: {path: null}
  actor:
    ppo_mini_batch_size: 256
    ppo_micro_batch_size_per_gpu: 80
    use_dynamic_bsz: false
    strategy: fsdp
  rollout: {n: 5, tensor_model_parallel_size: 2, log_prob_micro_batch_size_per_gpu: 80, val_kwargs: {do_sample: false}}
trainer: {n_gpus_per_node: 8, nnodes: 1, total_training_steps: 100}
model.alphabet: abc
)";

constexpr char kMindSpeed[] = R"(recipe: grpo
megatron_training: {global_batch_size: 1024, seq_length: 64, train_iters: 100}
actor_config: {micro_batch_size: 80, tensor_model_parallel_size: null}
rl_config:
  n_samples_per_prompt: 5
  mini_batch_size: 256
  max_prompt_length: 16
  actor_resource: {num_npus: 8}
  adv_dispatch_size: 1280
  verifier_function: [acc, format]
  verifier_weight: [1.0, 0.5]
generate_config: {infer_tensor_parallel_size: 2, max_model_len: 64, sampling_config: {max_tokens: 48}}
model.alphabet: abc
)";

TEST(Numbers, OfVerlsExampleFollowFromItsFile) {
  const auto recipe = Loaded(kVerl);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), IsEmpty());
  EXPECT_EQ(DerivedFrom(**recipe, "devices"), "8: trainer.n_gpus_per_node, trainer.nnodes");
  EXPECT_EQ(DerivedFrom(**recipe, "rollout.data_parallel"), "4: 8 devices / (2 x 1 x 1)");
  EXPECT_EQ(DerivedFrom(**recipe, "real_train_batch_size"), "5120: 1024 prompts x 5");
  EXPECT_EQ(DerivedFrom(**recipe, "local_batch"), "640: 1024 prompts x 5 / 8 ranks");
  EXPECT_EQ(DerivedFrom(**recipe, "local_mini_batch"), "160: 256 prompts x 5 / 8 ranks");
  EXPECT_THAT(DerivedFrom(**recipe, "optimizer_steps"), Follows(4, {"1024", "256"}));
  EXPECT_EQ(DerivedFrom(**recipe, "accumulations"), "2: local mini-batch 160 / micro-batch 80");
  EXPECT_EQ(DerivedFrom(**recipe, "total_optimizer_steps"), "400: 100 steps x 4");
  EXPECT_EQ(DerivedFrom(**recipe, "max_model_len"), "64: 16 + 48");
  EXPECT_EQ(DerivedFrom(**recipe, "adv_dispatch_size"), "none");
}

TEST(Numbers, OfMindSpeedsFileFollowToo) {
  const auto recipe = Loaded(kMindSpeed);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), IsEmpty());
  EXPECT_EQ(DerivedFrom(**recipe, "devices"), "8: rl_config.actor_resource.num_npus");
  EXPECT_EQ(DerivedFrom(**recipe, "local_mini_batch"), "160: 256 prompts x 5 / 8 ranks");
  EXPECT_EQ(DerivedFrom(**recipe, "accumulations"), "2: local mini-batch 160 / micro-batch 80");
  EXPECT_THAT(DerivedFrom(**recipe, "actor_rollout_dispatch_size"), Follows(1280, {"4 ranks"}));
  EXPECT_THAT(DerivedFrom(**recipe, "actor_update_dispatch_size"), Follows(640, {"8 ranks"}));
  EXPECT_THAT(DerivedFrom(**recipe, "ref_dispatch_size"), Follows(640, {"8 ranks"}));
  EXPECT_THAT(DerivedFrom(**recipe, "reward_dispatch_size"), Follows(5120, {"batch"}));
  EXPECT_EQ(DerivedFrom(**recipe, "adv_dispatch_size"), "1280: rl_config.adv_dispatch_size");
  EXPECT_EQ(DerivedFrom(**recipe, "critic_value_dispatch_size"), "none");
  EXPECT_EQ(DerivedFrom(**recipe, "max_model_len"), "64: generate_config.max_model_len");
}

TEST(Numbers, OfMindSpeedsStagesAreThoseOfTheRun) {
  const auto recipe = Loaded(kMindSpeed, {"rl_config.actor_rollout_dispatch_size=640",
                                          "rl_config.ref_dispatch_size=320", "rl_config.partial_rollout_max_split=3"});
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), IsEmpty());
  EXPECT_EQ(DerivedFrom(**recipe, "actor_rollout_dispatch_size"), "640: trainer.dispatch_size.rollout");
  EXPECT_EQ(DerivedFrom(**recipe, "ref_dispatch_size"), "320: trainer.dispatch_size.ref");
  const RunConfig& config = (*recipe)->config();
  EXPECT_EQ(config.trainer.executor.dispatch_size("rollout"), 640);
  EXPECT_EQ(config.trainer.executor.dispatch_size("ref"), 320);
  EXPECT_EQ(config.async.partial_rollout_max_split, 3);
}

TEST(Numbers, OfACriticAndAModelOfRewardsAreThoseOfTheirDevices) {
  const auto recipe =
      Loaded(kMindSpeed, {"rl_config.critic_resource.num_npus=4", "rl_config.reward_resource.num_npus=6",
                          "reward_config.tensor_model_parallel_size=3", "critic_config.x=1"});
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), ElementsAre(Of("reward_config.tensor_model_parallel_size", {"4 attention heads"})));
  EXPECT_THAT(DerivedFrom(**recipe, "critic_update_dispatch_size"), Follows(1280, {"4 ranks"}));
  EXPECT_THAT(DerivedFrom(**recipe, "kl_dispatch_size"), Follows(5120, {"batch"}));
  EXPECT_THAT(DerivedFrom(**recipe, "reward_dispatch_size"), Follows(2560, {"2 ranks"}));
}

struct Case {
  const char* yaml;
  std::vector<std::string> overrides;
  const char* keys = "";  // of the violation
  std::vector<std::string> figures = {};
};

std::vector<Case> Cases() {
  return {
      {kVerl,
       {"trainer.n_gpus_per_node=7"},
       "trainer.n_gpus_per_node, trainer.nnodes, rollout.tensor_model_parallel_size",
       {"7 devices"}},
      {kVerl, {"rollout.tensor_model_parallel_size=8"}, "rollout.tensor_model_parallel_size", {"4 attention heads"}},
      {kVerl,
       {"actor.megatron.pipeline_model_parallel_size=8"},
       "actor.megatron.pipeline_model_parallel_size",
       {"4 layers"}},
      {kVerl, {"data.gen_batch_size=2048"}, "data.gen_batch_size, data.train_batch_size", {"2048 prompts"}},
      {kVerl,
       {"rollout.val_kwargs.do_sample=true"},
       "rollout.val_kwargs.temperature, rollout.val_kwargs.do_sample",
       {"above 0"}},
      {kVerl,
       {"rollout.max_model_len=60"},
       "rollout.max_model_len, data.max_prompt_length, data.max_response_length",
       {"60 tokens"}},
      {kVerl,
       {"rollout.context_length=60"},
       "rollout.context_length, data.max_prompt_length, data.max_response_length",
       {"60 tokens"}},
      {kVerl,
       {"data.max_response_length=49"},
       "data.max_prompt_length, data.max_response_length",
       {"65 tokens", "64 positions"}},
      {kVerl,
       {"actor.use_dynamic_bsz=true", "actor.ppo_max_token_len_per_gpu=63"},
       "actor.ppo_max_token_len_per_gpu, data.max_prompt_length, data.max_response_length",
       {"the actor", "63"}},
      {kVerl,
       {"ref.log_prob_use_dynamic_bsz=true", "actor.ppo_max_token_len_per_gpu=63"},
       "actor.ppo_max_token_len_per_gpu, data.max_prompt_length, data.max_response_length",
       {"the ref", "63"}},
      {kVerl,
       {"actor.ppo_micro_batch_size=640"},
       "actor.ppo_micro_batch_size_per_gpu, actor.ppo_micro_batch_size",
       {"two forms"}},
      {kVerl,
       {"rollout.log_prob_micro_batch_size=640"},
       "rollout.log_prob_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size",
       {"two forms"}},
      {kVerl,
       {"actor.megatron.override_transformer_config.num_moe_experts=6",
        "actor.megatron.override_transformer_config.moe_router_num_groups=4"},
       "actor.megatron.override_transformer_config.moe_router_num_groups, "
       "actor.megatron.override_transformer_config.num_moe_experts",
       {"6 experts", "4 groups"}},
      {kVerl, {"actor.clip_ratio_low=0.3"}, "actor.clip_ratio_low, actor.clip_ratio_high", {", 0.3,", ", 0.2"}},
      {kMindSpeed,
       {"rl_config.verifier_weight=[1.0]"},
       "rl_config.verifier_function, rl_config.verifier_weight",
       {"2 verifiers", "1 weights"}},
      {kMindSpeed,
       {"rl_config.ref_dispatch_size=300"},
       "trainer.dispatch_size.ref, data.train_batch_size, rollout.n",
       {"300 samples"}},
      {kMindSpeed,
       {"rl_config.actor_update_dispatch_size=20"},
       "rl_config.actor_update_dispatch_size, actor.ppo_mini_batch_size",
       {"20 at"}},
      {kMindSpeed,
       {"rl_config.adv_dispatch_size=512"},
       "rl_config.adv_dispatch_size, rollout.n",
       {"512 samples", "groups of 5"}},
      {kMindSpeed,
       {"rl_config.ref_forward_micro_batch_size=300"},
       "ref.log_prob_micro_batch_size_per_gpu, data.train_batch_size, rollout.n, rl_config.actor_resource.num_npus",
       {"micro-batches of 300"}},
      {kMindSpeed,
       {"generate_config.max_model_len=64", "megatron_training.seq_length=65"},
       "generate_config.max_model_len, megatron_training.seq_length",
       {"64 tokens", "65"}},
      {kVerl,
       {"actor.ppo_mini_batch_size=4", "actor.ppo_micro_batch_size_per_gpu=4"},
       "actor.ppo_mini_batch_size, rollout.n, trainer.n_gpus_per_node, trainer.nnodes",
       {"4 prompts"}},
      {kVerl,
       {"actor.ppo_micro_batch_size_per_gpu=64"},
       "actor.ppo_micro_batch_size_per_gpu, actor.ppo_mini_batch_size, rollout.n, trainer.n_gpus_per_node, "
       "trainer.nnodes",
       {"micro-batches of 64"}},
      {kVerl,
       {"trainer.n_gpus_per_node=3"},
       "data.train_batch_size, rollout.n, actor.ppo_micro_batch_size_per_gpu, trainer.n_gpus_per_node, trainer.nnodes",
       {"1024 prompts x 5"}},
      {kMindSpeed,
       {"rl_config.actor_resource.num_npus=3"},
       "data.train_batch_size, rl_config.actor_resource.num_npus",
       {"1024 prompts", "3 ranks", "the actor"}},
      {kMindSpeed,
       {"rl_config.ref_dispatch_size=1280"},
       "trainer.dispatch_size.ref, data.train_batch_size, rollout.n",
       {"1280 samples"}},
  };
}

TEST(Numbers, OfAnotherLayoutAreChecked) {
  for (const Case& c : Cases()) {
    const auto recipe = Loaded(c.yaml, c.overrides);
    ASSERT_TRUE(recipe.ok()) << c.overrides[0] << ": " << recipe.status();
    EXPECT_THAT(Violated(**recipe), Contains(Of(c.keys, c.figures))) << c.overrides[0];
  }
}

TEST(Numbers, OfASupervisedRunNeedNoMiniBatches) {
  const auto recipe = Loaded(
      "recipe: sft\nmodel.alphabet: ab\ndata: {train_batch_size: 32, micro_batch_size_per_gpu: 5, max_length: 64}\n");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), IsEmpty());
  EXPECT_EQ(DerivedFrom(**recipe, "real_train_batch_size"), "32: 32 samples");
  EXPECT_EQ(DerivedFrom(**recipe, "accumulations"), "7: local mini-batch 32 / micro-batch 5");
  EXPECT_EQ(DerivedFrom(**recipe, "max_new_tokens"), "none");
  const auto divided = Loaded(
      "recipe: sft\nmodel.alphabet: ab\ntrainer.n_gpus_per_node: 4\n"
      "data: {train_batch_size: 32, micro_batch_size_per_gpu: 5, max_length: 64}\n");
  ASSERT_TRUE(divided.ok()) << divided.status();
  EXPECT_THAT(Violated(**divided), ElementsAre(Mentions({"32 samples", "4 ranks"})));
}

TEST(Numbers, OfAModelAreThoseOfItsConfig) {
  const std::string folder = NumbersFolder();
  const char* const json =
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100, "hidden_size": 24,
          "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
          "max_position_embeddings": 48, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
          "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": false})";
  ASSERT_EQ(WriteFileAtomically(Env::Real(), folder + "/config.json", json), absl::OkStatus());
  const std::string yaml = absl::StrCat("recipe: grpo\nmodel.path: ", folder,
                                        "\ndata: {max_prompt_length: 16, max_response_length: 56}\n"
                                        "trainer.n_gpus_per_node: 4\nactor.megatron.tensor_model_parallel_size: 4\n");
  const auto recipe = Loaded(yaml);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), ElementsAre(Mentions({"6 attention heads", "4 parts"}), Mentions({"48 positions"})));
  const auto longer =
      Loaded(yaml, {"model.override_config.rope_scaling.type=yarn", "model.override_config.rope_scaling.factor=1.5",
                    "actor.megatron.tensor_model_parallel_size=2"});
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_THAT(Violated(**longer), IsEmpty());
  EXPECT_THAT(DerivedFrom(**longer, "positions"), Follows(72, {"rope scaling"}));
}

TEST(Numbers, HaveTheMiniBatchThatNoKeyGives) {
  const auto recipe = Loaded(
      "recipe: grpo\nmodel.alphabet: abc\ndata: {train_batch_size: 4, max_prompt_length: 16, max_response_length: "
      "48}\n");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_THAT(Violated(**recipe), IsEmpty());
  EXPECT_EQ(DerivedFrom(**recipe, "local_mini_batch"), "32: 4 prompts x 8");
}

// More than twenty mistakes of all kinds.
constexpr char kMistakes[] = R"(recipe: grpo
seed: -1
device: 7up
model:
  alphabet: abc
  hidden_sise: 96
  num_attention_heads: 5
  compute_dtype: float8
  override_config: {num_experts: 4}
data:
  train_files: {a: b}
  train_batch_size: 100
  max_prompt_length: sixteen
  val_share: 1.5
  train_weights: [1, 2]
  phase_shares: "${data.no_such_key}"
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: 32
    ppo_epochs: 0
    kl_loss_type: k9
    clip_ratio_low: 0.4
    clip_ratio_high: 0.3
  rollout:
    n: ${rollout.temperature}x
    top_p: 0.9
  ref: 3
reward:
  regex: {weight: 1.0, pattern: "("}
trainer:
  stop_when: accuracy above 0.3
  n_gpus_per_node: eight
  total_epochs: 1
  total_epochs: 2
algorithm.adv_estimator: gae
rollout.temperature: .nan
reward.math:
  weight: 1
data.micro_batch_size_per_gpu: 4
actor.kl_loss_coef: 0.1
)";

TEST(Numbers, TwentyMistakesAreInOneReport) {
  const std::string path = WriteRun(kMistakes);
  const std::vector<std::string> overrides = {"trainer.test_freq=-2", "data.format=xml"};
  const auto recipe = LoadRecipeWithNumbers(Env::Real(), path, overrides, {.lenient = false});
  ASSERT_FALSE(recipe.ok());
  const std::string message = absl::StrReplaceAll(recipe.status().message(), {{path, "run.yaml"}});
  const std::vector<std::string> lines = absl::StrSplit(message, '\n');
  const std::string actor = "actor_rollout_ref.actor.";
  const auto line = [](const std::string& start, std::vector<std::string> names = {}) {
    const testing::Matcher<std::string> contains = Mentions(std::move(names));
    return testing::Matcher<std::string>(testing::AllOf(StartsWith(start), contains));
  };
  EXPECT_THAT(lines,
              UnorderedElementsAre(
                  line("run.yaml:2: seed: \"-1\" given", {"integer ≥ 0"}), line("run.yaml:3: device = \"7up\": "),
                  line("run.yaml:6: model.hidden_sise: unknown key", {"model.hidden_size"}),
                  line("run.yaml:7: model.hidden_size = 96 (default), model.num_attention_heads = 5: "),
                  line("run.yaml:7: model.num_attention_heads = 5, model.num_key_value_heads = 4 (default): "),
                  line("run.yaml:8: model.compute_dtype: \"float8\" given", {"float32, bfloat16, float16 or float64"}),
                  line("run.yaml:9: model.override_config.num_experts: \"4\" given", {"remove it"}),
                  line("run.yaml:11: data.train_files: ", {"section", "list"}),
                  line("run.yaml:13: data.max_prompt_length: \"sixteen\" given", {"integer ≥ 1"}),
                  line("run.yaml:14: data.val_share: \"1.5\" given", {"number ≥ 0 and < 1"}),
                  line("run.yaml:16: data.phase_shares: ${data.no_such_key}: "),
                  line("run.yaml:19: " + actor + "ppo_mini_batch_size (actor.ppo_mini_batch_size here) = 32, " +
                           "data.train_batch_size = 100: ",
                       {"25 or 50"}),
                  line("run.yaml:20: " + actor + "ppo_epochs (actor.ppo_epochs here): \"0\" given", {"integer ≥ 1"}),
                  line("run.yaml:21: " + actor + "kl_loss_type (actor.kl_loss_type here): \"k9\" given", {"k1, abs"}),
                  line("run.yaml:22: " + actor + "clip_ratio_low (actor.clip_ratio_low here) = 0.4, " + actor +
                           "clip_ratio_high (actor.clip_ratio_high here) = 0.3: ",
                       {", 0.4,", ", 0.3"}),
                  line("run.yaml:25: actor_rollout_ref.rollout.n (rollout.n here): \".nanx\" (from ${rollout.temp"),
                  line("run.yaml:26: actor_rollout_ref.rollout.top_p: \"0.9\" given, expected 1"),
                  line("run.yaml:27: actor_rollout_ref.ref: \"3\" given", {"section"}),
                  line("run.yaml:29: reward.regex.pattern = \"(\": ", {"compile"}),
                  line("run.yaml:31: trainer.stop_when = \"accuracy above 0.3\": "),
                  line("run.yaml:32: trainer.n_gpus_per_node: ", {"--lenient"}),
                  line("run.yaml:32: trainer.n_gpus_per_node: \"eight\" given", {"integer ≥ 1"}),
                  line("run.yaml:34: trainer.total_epochs: ", {"line 33"}),
                  line("run.yaml:35: algorithm.adv_estimator: \"gae\" given", {"grpo, grpo_passk"}),
                  line("run.yaml:36: rollout.temperature: \".nan\" given", {"number > 0"}),
                  line("run.yaml:39: data.micro_batch_size_per_gpu: unknown key"),
                  line("command line: trainer.test_freq: \"-2\" given", {"integer ≥ -1"}),
                  line("command line: data.format: \"xml\" given", {"by_name, jsonl"})));
}

TEST(Numbers, HaveTheirLineWhereNothingElseIsWrong) {
  const std::string path = WriteRun(
      "recipe: grpo\nmodel.alphabet: abc\nmodel.max_position_embeddings: 64\ndata.train_batch_size: 4\n"
      "actor.ppo_mini_batch_size: 4\ndata.max_response_length: 48\ndata.max_prompt_length: 60\n");
  const auto recipe = LoadRecipeWithNumbers(Env::Real(), path, {});
  const std::string message = absl::StrReplaceAll(recipe.status().message(), {{path, "run.yaml"}});
  EXPECT_THAT(message, Of("run.yaml:7: data.max_prompt_length = 60, data.max_response_length = 48",
                          {"108 tokens", "64 positions"}));
  EXPECT_THAT(message, EndsWith("; nearest: data.max_response_length = 4 or less"));
}

TEST(Numbers, OfDevicesAreInTheReportOfOtherMistakes) {
  const std::string path = WriteRun(kVerl);
  const std::vector<std::string> overrides = {"trainer.n_gpus_per_node=7", "actor.optim.lr=fast", "rollout.n=5"};
  const auto recipe = LoadRecipeWithNumbers(Env::Real(), path, overrides, {.lenient = true});
  const std::vector<std::string> lines = absl::StrSplit(recipe.status().message(), '\n');
  EXPECT_THAT(
      lines,
      ElementsAre(
          Of("command line: actor.optim.lr", {"\"fast\"", "number > 0"}),
          Of("command line: trainer.n_gpus_per_node = 7, trainer.nnodes = 1, "
             "actor_rollout_ref.rollout.tensor_model_parallel_size (rollout.tensor_model_parallel_size here) = 2",
             {"7 devices", "2 x 1 x 1 = 2 devices", "nearest: 6 or 8 devices"}),
          Mentions({"5120 samples", "7 ranks", "micro-batches of 80", "nearest: data.train_batch_size = 1792"}),
          testing::AllOf(Mentions({"1280 samples"}), EndsWith("7 ranks"))));
}

TEST(Numbers, TheDocumentationShowsMessagesAsTheyAre) {
  std::string messages;
  for (const Case& c : Cases()) {
    const auto recipe = Loaded(c.yaml, c.overrides);
    if (recipe.ok()) absl::StrAppend(&messages, absl::StrJoin(Violated(**recipe), "\n"), "\n");
  }
  // Of keys that are refused here, or beside a check of the recipe's own.
  const Case refused[] = {
      {kVerl, {"actor.ppo_mini_batch_size=384", "actor.ppo_micro_batch_size_per_gpu=128"}},
      {kVerl, {"reward_model.overlong_buffer.enable=true", "reward_model.overlong_buffer.len=48"}},
      {kVerl,
       {"algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2",
        "data.gen_batch_size=500"}},
      {kMindSpeed, {"rl_config.partial_rollout_max_split=2", "rl_config.guarantee_order=true"}},
  };
  for (const Case& c : refused) {
    const auto recipe = LoadRecipeWithNumbers(Env::Real(), WriteRun(c.yaml), c.overrides, {.lenient = true});
    absl::StrAppend(&messages, recipe.status().message(), "\n");
  }
  const std::string page = *Env::Real().ReadFile("docs/configuration.md");
  const std::string section = page.substr(page.find("## Checks before a run"));
  int shown = 0;
  for (const absl::string_view line : absl::StrSplit(section.substr(0, section.find("\n## Keys")), '\n')) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | `");
    if (cells.size() != 2) continue;
    const std::string example = cells[1].substr(0, cells[1].find('`'));
    EXPECT_THAT(messages, HasSubstr(example));
    ++shown;
  }
  EXPECT_EQ(shown, 24);
}

}  // namespace
}  // namespace tdock::trainer
