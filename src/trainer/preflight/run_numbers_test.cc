#include "trainer/preflight/run_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "trainer/preflight/testing/number_lines.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// verl's example: 1024 prompts, n = 5, 8 devices, mini-batches of 256 prompts, micro-batches of 80 samples.
RunNumbers VerlExample() {
  RunNumbers numbers;
  numbers.prompts = {1024, "data.train_batch_size"};
  numbers.samples_per_prompt = {5, "rollout.n"};
  numbers.prompt_length = {512, "data.max_prompt_length"};
  numbers.response_length = {1024, "data.max_response_length"};
  numbers.longest = {1536, "data.max_prompt_length, data.max_response_length"};
  RoleNumbers actor;
  actor.devices = {8, "trainer.n_gpus_per_node, trainer.nnodes"};
  actor.mini_batch = {256, "actor.ppo_mini_batch_size"};
  actor.micro_batch = {80, "actor.ppo_micro_batch_size_per_gpu"};
  numbers.roles = {actor};
  return numbers;
}

// The same run as MindSpeed-RL has it.
RunNumbers MindSpeedExample() {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].devices.key = "rl_config.actor_resource.num_npus";
  numbers.whole_groups = true;
  return numbers;
}

std::string Derived(const RunNumbers& numbers, const std::string& name) {
  for (const DerivedNumber& derived : CheckRunNumbers(numbers).derived) {
    if (derived.name == name) return absl::StrCat(derived.value, ": ", derived.how);
  }
  return "none";
}

// "KEYS: WHAT [NEAREST]".
std::vector<std::string> Violations(const RunNumbers& numbers) {
  std::vector<std::string> lines;
  for (const Violation& v : CheckRunNumbers(numbers).violations) {
    lines.push_back(absl::StrCat(v.keys, ": ", v.what, v.nearest.empty() ? "" : absl::StrCat(" [", v.nearest, "]")));
  }
  return lines;
}

TEST(RunNumbers, OfVerlsExampleFollow) {
  const RunNumbers numbers = VerlExample();
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_EQ(Derived(numbers, "devices"), "8: trainer.n_gpus_per_node, trainer.nnodes");
  EXPECT_EQ(Derived(numbers, "model_parallel"), "1: tensor 1 x pipeline 1");
  EXPECT_EQ(Derived(numbers, "data_parallel"), "8: 8 devices / (1 x 1 x 1)");
  EXPECT_EQ(Derived(numbers, "real_train_batch_size"), "5120: 1024 prompts x 5");
  EXPECT_THAT(Derived(numbers, "minimal_bsz"), Follows(640, {"8 ranks", "micro-batch 80"}));
  EXPECT_EQ(Derived(numbers, "local_batch"), "640: 1024 prompts x 5 / 8 ranks");
  EXPECT_EQ(Derived(numbers, "local_mini_batch"), "160: 256 prompts x 5 / 8 ranks");
  EXPECT_THAT(Derived(numbers, "optimizer_steps"), Follows(4, {"1024", "256"}));
  EXPECT_EQ(Derived(numbers, "accumulations"), "2: local mini-batch 160 / micro-batch 80");
  EXPECT_EQ(Derived(numbers, "max_model_len"), "1536: 512 + 1024");
  EXPECT_THAT(Derived(numbers, "max_new_tokens"), Follows(1024, {"min(1024, 1536 - 512)"}));
}

TEST(RunNumbers, OfADividedModelCountItsCopies) {
  RunNumbers numbers = VerlExample();
  RoleNumbers& actor = numbers.roles[0];
  actor.devices.value = 16;
  actor.tensor = {2, "actor.megatron.tensor_model_parallel_size"};
  actor.pipeline = {2, "actor.megatron.pipeline_model_parallel_size"};
  actor.context = {2, "actor.megatron.context_parallel_size"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_EQ(Derived(numbers, "model_parallel"), "4: tensor 2 x pipeline 2");
  EXPECT_EQ(Derived(numbers, "data_parallel"), "2: 16 devices / (2 x 2 x 2)");
  EXPECT_THAT(Derived(numbers, "minimal_bsz"), Follows(160, {"2 ranks", "micro-batch 80"}));
  EXPECT_EQ(Derived(numbers, "local_mini_batch"), "640: 256 prompts x 5 / 2 ranks");
}

TEST(RunNumbers, OfARunInOneProcessNeedNoDevices) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].devices = {.value = 1};
  EXPECT_EQ(Derived(numbers, "devices"), "none");
  EXPECT_EQ(Derived(numbers, "minimal_bsz"), "none");
  EXPECT_EQ(Derived(numbers, "local_mini_batch"), "1280: 256 prompts x 5");
  EXPECT_EQ(Derived(numbers, "local_batch"), "none");
  EXPECT_EQ(Derived(numbers, "accumulations"), "16: local mini-batch 1280 / micro-batch 80");
}

TEST(RunNumbers, DevicesHoldWholeCopies) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].tensor = {4, "actor.megatron.tensor_model_parallel_size"};
  numbers.roles[0].context = {3, "actor.megatron.context_parallel_size"};
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("trainer.n_gpus_per_node, trainer.nnodes, actor.megatron.tensor_model_parallel_size, "
                             "actor.megatron.context_parallel_size",
                             {"8 devices", "4 x 1 x 3 = 12"}, "12 devices")));
  EXPECT_EQ(Derived(numbers, "data_parallel"), "none");
}

TEST(RunNumbers, TensorParallelDividesTheHeads) {
  RunNumbers numbers = VerlExample();
  numbers.heads = 12;
  numbers.roles[0].tensor = {4, "actor.megatron.tensor_model_parallel_size"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.heads = 14;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("actor.megatron.tensor_model_parallel_size", {"14 attention heads", "4 parts"},
                             "actor.megatron.tensor_model_parallel_size = 2")));
}

TEST(RunNumbers, PipelineParallelDividesTheLayers) {
  RunNumbers numbers = VerlExample();
  numbers.layers = 28;
  numbers.roles[0].pipeline = {4, "actor.megatron.pipeline_model_parallel_size"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.roles[0].pipeline.value = 8;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("actor.megatron.pipeline_model_parallel_size", {"28 layers", "8 stages"},
                             "actor.megatron.pipeline_model_parallel_size = 4")));
}

TEST(RunNumbers, MiniBatchesDivideABatch) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].mini_batch.value = 512;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.roles[0].mini_batch.value = 384;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("actor.ppo_mini_batch_size, data.train_batch_size",
                                                  {"384", "1024 prompts"}, "actor.ppo_mini_batch_size = 256 or 512")));
  numbers.roles[0].mini_batch.value = 2048;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("actor.ppo_mini_batch_size, data.train_batch_size",
                                                  {"2048 prompts", "1024"}, "actor.ppo_mini_batch_size = 1024")));
}

TEST(RunNumbers, RanksShareMiniBatchesEvenly) {
  RunNumbers numbers = VerlExample();
  numbers.prompts.value = 1000;
  numbers.roles[0].micro_batch.value = 0;
  numbers.roles[0].mini_batch.value = 200;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.roles[0].mini_batch.value = 250;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("actor.ppo_mini_batch_size, rollout.n, trainer.n_gpus_per_node, trainer.nnodes",
                             {"250 prompts x 5 = 1250", "8 ranks"}, "actor.ppo_mini_batch_size = 200 or 1000")));
}

TEST(RunNumbers, MicroBatchesDivideARanksMiniBatch) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].micro_batch.value = 40;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.roles[0].micro_batch.value = 64;  // divides the 640 rows of a rank
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("actor.ppo_micro_batch_size_per_gpu, actor.ppo_mini_batch_size, rollout.n, "
                             "trainer.n_gpus_per_node, trainer.nnodes",
                             {"micro-batches of 64", "160 samples"}, "actor.ppo_micro_batch_size_per_gpu = 40 or 80")));
}

TEST(RunNumbers, ABatchIsAMultipleOfItsLeastSize) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].mini_batch.value = 0;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.prompts.value = 1000;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("data.train_batch_size, rollout.n, actor.ppo_micro_batch_size_per_gpu, "
                             "trainer.n_gpus_per_node, trainer.nnodes",
                             {"1000 prompts x 5 = 5000", "8 ranks", "micro-batches of 80"},
                             "data.train_batch_size = 896 or 1024")));
}

TEST(RunNumbers, ABatchThatNoKeyTakesIsNotSuggested) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].devices.value = 1009;
  numbers.roles[0].micro_batch.value = 1013;
  for (const Violation& violation : CheckRunNumbers(numbers).violations) {
    EXPECT_THAT(violation.nearest, testing::Not(testing::HasSubstr("data.train_batch_size"))) << violation.nearest;
  }
  EXPECT_FALSE(CheckRunNumbers(numbers).violations.empty());
}

TEST(RunNumbers, MicroBatchesAreGivenInOneForm) {
  RunNumbers numbers = VerlExample();
  numbers.roles[0].all_micro = {640, "actor.ppo_micro_batch_size"};
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("actor.ppo_micro_batch_size_per_gpu, actor.ppo_micro_batch_size", {"two forms"})));
  numbers.roles[0].micro_batch.value = 0;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_EQ(Derived(numbers, "accumulations"), "2: local mini-batch 160 / micro-batch 80");
  numbers.roles[0].all_micro.value = 644;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("actor.ppo_micro_batch_size, trainer.n_gpus_per_node, trainer.nnodes",
                             {"644 samples", "8 ranks"}, "actor.ppo_micro_batch_size = 640 or 648")));
}

TEST(RunNumbers, MicroBatchesDoNotActWherePassesAreCutByTokens) {
  RunNumbers numbers = VerlExample();
  RoleNumbers& actor = numbers.roles[0];
  actor.micro_batch.value = 7;
  actor.dynamic = true;
  actor.max_tokens = {16384, "actor.ppo_max_token_len_per_gpu"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_THAT(Derived(numbers, "max_tokens"), Follows(16384, {"16384 tokens", "parallel 1"}));
  EXPECT_EQ(Derived(numbers, "accumulations"), "none");
}

TEST(RunNumbers, APassTakesTheLongestSequence) {
  RunNumbers numbers = VerlExample();
  RoleNumbers& actor = numbers.roles[0];
  actor.dynamic = true;
  actor.context = {2, "actor.ulysses_sequence_parallel_size"};
  actor.max_tokens = {768, "actor.ppo_max_token_len_per_gpu"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_THAT(Derived(numbers, "max_tokens"), Follows(1536, {"768 tokens", "parallel 2"}));
  actor.max_tokens.value = 767;
  EXPECT_THAT(
      Violations(numbers),
      ElementsAre(Of("actor.ppo_max_token_len_per_gpu, actor.ulysses_sequence_parallel_size, "
                     "data.max_prompt_length, data.max_response_length",
                     {"the actor", "767 x 2 = 1534", "1536"}, "actor.ppo_max_token_len_per_gpu = 768 or more")));
}

TEST(RunNumbers, AnEngineTakesTheLongestSequence) {
  RunNumbers numbers = VerlExample();
  numbers.max_model_len = {1536, "rollout.max_model_len"};
  numbers.context_length = {1536, "rollout.context_length"};
  numbers.sequence_length = {1536, "megatron_training.seq_length"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.max_model_len.value = 1500;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("rollout.max_model_len, data.max_prompt_length, data.max_response_length",
                             {"1500 tokens", "512 + 1024 = 1536"}, "rollout.max_model_len = 1536 or more"),
                          Of("rollout.max_model_len, megatron_training.seq_length", {"1500 tokens", "1536"},
                             "rollout.max_model_len = 1536 or more")));
  EXPECT_THAT(Derived(numbers, "max_new_tokens"), Follows(988, {"min(1024, 1500 - 512)"}));
  numbers.leaves_last_position = true;
  EXPECT_THAT(Derived(numbers, "max_new_tokens"),
              Follows(987, {"min(1024, 1500 - 512 - 1", "rollout.leave_last_position"}));
  numbers.max_model_len = {};
  numbers.context_length.value = 1024;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("rollout.context_length, data.max_prompt_length, data.max_response_length",
                             {"1024 tokens", "512 + 1024 = 1536"}, "rollout.context_length = 1536 or more")));
}

TEST(RunNumbers, AModelHasPositionsForTheLongestSequence) {
  RunNumbers numbers = VerlExample();
  numbers.context_length = {49152, "rollout.context_length"};
  numbers.positions = 49152;  // 32768 x 1.5
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.positions = 32768;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("rollout.context_length", {"49152 tokens", "32768 positions"},
                                                  "rollout.context_length = 32768 or less")));
  numbers.positions = 1024;
  numbers.context_length = {};
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("data.max_prompt_length, data.max_response_length", {"1536 tokens", "1024 positions"},
                             "data.max_response_length = 512 or less")));
  numbers.positions = 512;
  EXPECT_THAT(Violations(numbers), ElementsAre(testing::EndsWith("[data.max_prompt_length + data.max_response_length = "
                                                                 "512 or less]")));
  numbers.response_length.value = 128;
  EXPECT_THAT(Violations(numbers), ElementsAre(testing::EndsWith("[data.max_prompt_length = 384 or less]")));
  numbers.prompt_length = {};
  numbers.longest.key = "data.max_length";
  EXPECT_THAT(Violations(numbers), ElementsAre(testing::EndsWith("[data.max_length = 512 or less]")));
}

TEST(RunNumbers, AsManyPromptsAreAnsweredAsTrainedOn) {
  RunNumbers numbers = VerlExample();
  numbers.generated_prompts = {1024, "data.gen_batch_size"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.generated_prompts.value = 3072;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("data.gen_batch_size, data.train_batch_size",
                                                  {"3072 prompts", "1024"}, "data.gen_batch_size = 1024")));
}

TEST(RunNumbers, RoundsOfPromptsMustBeAbleToGiveABatch) {
  RunNumbers numbers = VerlExample();
  numbers.filters_groups = true;
  numbers.generated_prompts = {3072, "data.gen_batch_size"};
  numbers.most_rounds = {2, "algorithm.filter_groups.max_num_gen_batches"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_EQ(Derived(numbers, "generated_batch"), "15360: 3072 prompts x 5");
  EXPECT_THAT(Derived(numbers, "least_rounds"), Follows(1, {"1024 prompts / 3072"}));
  EXPECT_THAT(Derived(numbers, "most_rounds"), Follows(2, {"16.7 %"}));
  numbers.generated_prompts.value = 500;
  EXPECT_THAT(
      Violations(numbers),
      ElementsAre(Of("algorithm.filter_groups.max_num_gen_batches, data.gen_batch_size, data.train_batch_size",
                     {"2 rounds", "1000 prompts", "1024"}, "algorithm.filter_groups.max_num_gen_batches = 3 or more")));
  numbers.most_rounds = {};
  EXPECT_THAT(Violations(numbers), IsEmpty());
}

TEST(RunNumbers, RanksOfMindSpeedHaveWholePrompts) {
  RunNumbers numbers = MindSpeedExample();
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.roles[0].mini_batch.value = 0;
  numbers.roles[0].micro_batch.value = 1;
  numbers.samples_per_prompt.value = 8;
  numbers.prompts.value = 1023;  // 8184 samples
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("data.train_batch_size, rl_config.actor_resource.num_npus",
                             {"1023 prompts", "8 ranks", "the actor"}, "data.train_batch_size = 1016 or 1024")));
}

TEST(RunNumbers, MicroBatchesOfMindSpeedDivideARanksSamples) {
  RunNumbers numbers = MindSpeedExample();
  numbers.roles.push_back(numbers.roles[0]);
  RoleNumbers& ref = numbers.roles[1];
  ref.role = "ref";
  ref.mini_batch = {};
  ref.micro_batch = {320, "ref.log_prob_micro_batch_size_per_gpu"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  ref.micro_batch.value = 300;
  EXPECT_THAT(
      Violations(numbers),
      ElementsAre(Of(
          "ref.log_prob_micro_batch_size_per_gpu, data.train_batch_size, rollout.n, rl_config.actor_resource.num_npus",
          {"micro-batches of 300", "640 samples"}, "ref.log_prob_micro_batch_size_per_gpu = 160 or 320")));
}

TEST(RunNumbers, DispatchSizesHaveDefaults) {
  RunNumbers numbers = MindSpeedExample();
  numbers.dispatch_sizes = {{.name = "actor_rollout", .size = {}, .ranks = 4},
                            {.name = "adv", .size = {}, .groups = true},
                            {.name = "reward", .size = {1280, "rl_config.reward_dispatch_size"}, .groups = true}};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  EXPECT_THAT(Derived(numbers, "actor_rollout_dispatch_size"), Follows(1280, {"4 ranks"}));
  EXPECT_THAT(Derived(numbers, "adv_dispatch_size"), Follows(5120, {"batch"}));
  EXPECT_EQ(Derived(numbers, "reward_dispatch_size"), "1280: rl_config.reward_dispatch_size");
}

TEST(RunNumbers, DispatchSizesDivideABatch) {
  RunNumbers numbers = MindSpeedExample();
  numbers.dispatch_sizes = {{.name = "ref", .size = {320, "rl_config.ref_dispatch_size"}, .ranks = 8}};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.dispatch_sizes[0].size.value = 300;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("rl_config.ref_dispatch_size, data.train_batch_size, rollout.n", {"300 samples", "5120"},
                             "rl_config.ref_dispatch_size = 256 or 320")));
}

TEST(RunNumbers, DispatchSizesAreNoMoreThanARankHas) {
  RunNumbers numbers = MindSpeedExample();
  numbers.dispatch_sizes = {{.name = "ref", .size = {640, "rl_config.ref_dispatch_size"}, .ranks = 8}};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.dispatch_sizes[0].size.value = 1280;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("rl_config.ref_dispatch_size, data.train_batch_size, rollout.n",
                             {"1280 samples", "640", "8 ranks"}, "rl_config.ref_dispatch_size = 640")));
}

TEST(RunNumbers, DispatchSizesOfGroupsAreWholeGroups) {
  RunNumbers numbers = MindSpeedExample();
  numbers.dispatch_sizes = {{.name = "reward", .size = {20, "rl_config.reward_dispatch_size"}, .groups = true}};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.dispatch_sizes[0].size.value = 32;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("rl_config.reward_dispatch_size, rollout.n", {"32 samples", "groups of 5"},
                             "rl_config.reward_dispatch_size = 20 or 40")));
}

TEST(RunNumbers, AnUpdateTakesARanksMiniBatch) {
  RunNumbers numbers = MindSpeedExample();
  numbers.dispatch_sizes = {{.name = "actor_update",
                             .size = {32, "rl_config.actor_update_dispatch_size"},
                             .ranks = 8,
                             .at_least_prompts = {256, "actor.ppo_mini_batch_size"}}};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.dispatch_sizes[0].size.value = 20;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("rl_config.actor_update_dispatch_size, actor.ppo_mini_batch_size",
                                                  {"20 at", "256 / 8"}, "rl_config.actor_update_dispatch_size = 32")));
}

TEST(RunNumbers, TheLowerClipIsNotAboveTheUpperOne) {
  RunNumbers numbers = VerlExample();
  numbers.has_clip = true;
  numbers.clip_low = 0.2, numbers.clip_high = 0.2;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.clip_low = 0.3;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("actor.clip_ratio_low, actor.clip_ratio_high", {", 0.3,", ", 0.2"},
                                                  "actor.clip_ratio_low = 0.2 or less")));
}

TEST(RunNumbers, AnOverlongBufferIsShorterThanAResponse) {
  RunNumbers numbers = VerlExample();
  numbers.overlong_buffer = {1023, "reward_model.overlong_buffer.len"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.overlong_buffer.value = 1024;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("reward_model.overlong_buffer.len, data.max_response_length",
                                                  {"1024 tokens"}, "reward_model.overlong_buffer.len = 1023 or less")));
}

TEST(RunNumbers, EachVerifierHasAWeight) {
  RunNumbers numbers = MindSpeedExample();
  numbers.verifiers = {2, "rl_config.verifier_function"};
  numbers.verifier_weights = {2, "rl_config.verifier_weight"};
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.verifier_weights.value = 1;
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Of("rl_config.verifier_function, rl_config.verifier_weight", {"2 verifiers", "1 weights"})));
}

TEST(RunNumbers, ValidationThatSamplesHasATemperature) {
  RunNumbers numbers = VerlExample();
  numbers.validation_samples = true;
  numbers.validation_temperature = 0.6;
  EXPECT_THAT(Violations(numbers), IsEmpty());
  numbers.validation_temperature = 0;
  EXPECT_THAT(Violations(numbers), ElementsAre(Of("rollout.val_kwargs.temperature, rollout.val_kwargs.do_sample",
                                                  {"above 0", "rollout.val_kwargs.temperature = 1"})));
}

TEST(RunNumbers, StepsAreCounted) {
  RunNumbers numbers = VerlExample();
  numbers.steps = {100, "trainer.total_training_steps"};
  numbers.epochs = {3, "trainer.total_epochs"};
  EXPECT_EQ(Derived(numbers, "total_epochs"), "3: trainer.total_epochs");
  EXPECT_EQ(Derived(numbers, "total_training_steps"), "100: trainer.total_training_steps");
  EXPECT_EQ(Derived(numbers, "total_optimizer_steps"), "400: 100 steps x 4");
}

TEST(RunNumbers, OfACriticHaveItsName) {
  RunNumbers numbers = VerlExample();
  RoleNumbers critic = numbers.roles[0];
  critic.role = "critic";
  critic.mini_batch = {128, "critic.ppo_mini_batch_size"};
  critic.micro_batch = {30, "critic.ppo_micro_batch_size_per_gpu"};
  numbers.roles.push_back(critic);
  EXPECT_EQ(Derived(numbers, "critic.local_mini_batch"), "80: 128 prompts x 5 / 8 ranks");
  EXPECT_THAT(Violations(numbers),
              ElementsAre(Mentions({"5120 samples", "8 ranks", "micro-batches of 30"}),
                          testing::AllOf(Mentions({"micro-batches of 30", "80 samples"}),
                                         testing::EndsWith("[critic.ppo_micro_batch_size_per_gpu = 20 or 40]"))));
}

TEST(RunNumbers, AllViolationsAreReportedTogether) {
  RunNumbers numbers = MindSpeedExample();
  numbers.roles[0].mini_batch.value = 300;
  numbers.roles[0].micro_batch.value = 7;
  numbers.heads = 9;
  numbers.roles[0].tensor = {2, "actor_config.tensor_model_parallel_size"};
  numbers.max_model_len = {100, "generate_config.max_model_len"};
  numbers.dispatch_sizes = {{.name = "adv", .size = {33, "rl_config.adv_dispatch_size"}, .groups = true}};
  numbers.clip_low = 1, numbers.has_clip = true;
  numbers.validation_samples = true;
  EXPECT_EQ(Violations(numbers).size(), 10U);
}

}  // namespace
}  // namespace tdock::trainer
