#include "trainer/preflight/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "trainer/preflight/numbers.h"
#include "trainer/preflight/passes.h"
#include "trainer/preflight/report.h"
#include "trainer/recipes/recipes.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A run on two digits that are to be reversed, looked at before it begins.
class PreflightTest : public testing::Test {
 protected:
  absl::StatusOr<PreflightReport> Look(const std::string& name, const std::string& lines,
                                       const std::vector<std::string>& overrides = {},
                                       const PreflightOptions& options = {}) {
    const std::string folder = NewFolder();
    EXPECT_EQ(WriteFileAtomically(Env::Real(), folder + "/data.jsonl", lines), absl::OkStatus());
    EXPECT_EQ(WriteFileAtomically(Env::Real(), folder + "/run.yaml", absl::StrCat("recipe: ", name, "\n")),
              absl::OkStatus());
    std::vector<std::string> all = {absl::StrCat("data.train_files=", folder, "/data.jsonl"), "data.train_batch_size=8",
                                    "threads=2"};
    const auto is_path = [](const std::string& given) { return absl::StartsWith(given, "model.path="); };
    if (std::ranges::none_of(overrides, is_path)) {
      all.insert(all.end(), {"model.alphabet=0123456789>", "model.hidden_size=32", "model.intermediate_size=48",
                             "model.num_hidden_layers=2"});
    }
    if (name == "grpo") {
      for (const char* more : {"data.max_prompt_length=8", "data.max_response_length=5", "rollout.n=4",
                               "actor.ppo_mini_batch_size=4", "actor.kl_loss_coef=0.001"}) {
        all.emplace_back(more);
      }
    } else {
      all.emplace_back("data.max_length=12");
    }
    all.insert(all.end(), overrides.begin(), overrides.end());
    TDOCK_ASSIGN_OR_RETURN(recipe_, LoadRecipe(Env::Real(), folder + "/run.yaml", all));
    TDOCK_ASSIGN_OR_RETURN(inputs_, LoadRunInputs(*recipe_, Env::Real(), [](const std::string&) {}));
    return Preflight(*recipe_, inputs_, CheckNumbers(*recipe_), Env::Real(), Clock::Real(), options);
  }

  std::unique_ptr<Recipe> recipe_;
  RunInputs inputs_;
};

std::map<std::string, int64_t> PartsByName(const MemoryEstimate& memory) {
  std::map<std::string, int64_t> parts;
  for (const MemoryPart& part : memory.parts) parts[part.name] = part.bytes;
  return parts;
}

// Bytes of the part whose name contains `word`; 0 if there is none.
int64_t BytesOfPart(const MemoryEstimate& memory, const std::string& word) {
  for (const MemoryPart& part : memory.parts) {
    if (absl::StrContains(part.name, word)) return part.bytes;
  }
  return 0;
}

TEST_F(PreflightTest, CountsTokensAndThoseThatAreTrainedOn) {
  const auto report = Look("sft", Reversals(false));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->data.training, 80);
  EXPECT_EQ(report->data.validation, 0);
  EXPECT_TRUE(report->data.complete());
  EXPECT_EQ(report->data.usable, 80);
  EXPECT_EQ(report->data.tokens, 80 * 6);          // "37>73" and the end
  EXPECT_EQ(report->data.trained_tokens, 80 * 3);  // "73" and the end
  EXPECT_EQ(report->data.longest, 6);
  EXPECT_EQ(report->data.some.size(), 8u);
  EXPECT_TRUE(report->data.losses.empty());
  EXPECT_TRUE(report->warnings.empty());
}

TEST_F(PreflightTest, NamesWhatIsLostAndTheKeysThatChangeIt) {
  const auto report = Look("sft",
                           "{\"prompt\": \"1>\", \"answer\": \"1\"}\n"
                           "{\"prompt\": \"12>\", \"answer\": \"12345678901234567890\"}\n"
                           "{\"prompt\": \"12345678901234567890>\", \"answer\": \"1\"}\n"
                           "{\"prompt\": \"7>\", \"answer\": null}\n",
                           {"data.train_batch_size=2"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->data.usable, 2);
  std::vector<std::string> losses;
  for (const DataLoss& loss : report->data.losses) {
    losses.push_back(absl::StrCat(loss.samples, " ", loss.what, ": ", loss.keys));
  }
  EXPECT_THAT(losses, ElementsAre(Mentions({"1 left out", "too long", ": data.max_length"}),
                                  Mentions({"1 cut", ": data.max_length"}),
                                  Mentions({"1 left out", "lack",
                                            ": data.columns.prompt, data.columns.chosen, data.columns.conversation"})));
  EXPECT_EQ(report->data.longest, 12);
  EXPECT_THAT(report->warnings, testing::Contains(Mentions({"25.0 %", "cut"})));
}

TEST_F(PreflightTest, TellsOfEmptyPromptsAndAnswers) {
  const auto report = Look("sft",
                           "{\"prompt\": \"1>\", \"answer\": \"1\"}\n"
                           "{\"prompt\": \"2>\", \"answer\": \"\"}\n"
                           "{\"prompt\": \"\", \"answer\": \"2\"}\n"
                           "{\"prompt\": \"3>\", \"answer\": \"\"}\n",
                           {"data.train_batch_size=2"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->data.usable, 4);
  EXPECT_THAT(report->warnings,
              ElementsAre(Mentions({"25.0 %", "prompt is", "(data.columns.prompt, data.columns.conversation)"}),
                          Mentions({"50.0 %", "answer is", "(data.columns.chosen, data.columns.conversation)"})));
  const auto texts = Look("sft", "{\"text\": \"12>21\"}\n{\"text\": \"13>31\"}\n", {"data.train_batch_size=2"});
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_TRUE(texts->data.losses.empty());
}

TEST_F(PreflightTest, ReadsNoMoreThanItMay) {
  const auto report = Look("sft", Reversals(false), {"trainer.total_epochs=2"}, {.reading = {.samples = 70}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->data.training, 80);
  EXPECT_EQ(report->data.read, 70);
  const auto text = ReportText(*report, *inputs_.tokenizer, nullptr, /*terminal=*/false);
  EXPECT_THAT(*text, Mentions({"80 samples, 70 of them", "everywhere"}));
  EXPECT_EQ(report->data.steps, 20);
  EXPECT_THAT(*text, HasSubstr("<eos>⟧"));
}

TEST_F(PreflightTest, ReadsOnUntilSomethingCanBeUsed) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"prompt\": \"123456789012>\", \"answer\": \"1\"}\n";
  for (const std::string& all : {Reversals(false) + lines, lines + Reversals(false)}) {
    const auto report = Look("sft", all, {}, {.reading = {.samples = 1, .time = absl::ZeroDuration()}});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_GT(report->data.usable, 0);
    EXPECT_FALSE(report->data.complete());
    EXPECT_EQ(report->data.longest, 6);
  }
  EXPECT_THAT(Look("sft", lines, {}, {.reading = {.samples = 1}}).status().message(),
              Mentions({"none", "2000 records"}));
}

TEST_F(PreflightTest, StopsWhenItIsTold) {
  const std::atomic<bool> stop = true;
  EXPECT_EQ(Look("sft", Reversals(false), {}, {.reading = {.stop = &stop}}).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(PreflightTest, ABadRecordIsTheErrorThatTrainingWouldMeet) {
  const auto report = Look("sft", Reversals(false) + "{\"prompt\": \"1>\", \"answer\": \"x\"}\n");
  EXPECT_THAT(report.status().message(), HasSubstr("data.jsonl:81"));
}

TEST_F(PreflightTest, TheProbeAnswersWithTheRolloutAndScores) {
  const auto report = Look("grpo", Reversals(false), {}, {.probed_prompts = 3});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->data.trained_tokens, 0);
  ASSERT_TRUE(report->probe.has_value());
  EXPECT_EQ(report->probe->prompts, 3);
  EXPECT_EQ(report->probe->answers, 12);
  EXPECT_GE(report->probe->tokens, 12);
  EXPECT_LE(report->probe->tokens, 12 * 5);
  EXPECT_LE(report->probe->clipped, 12);
  EXPECT_GE(report->probe->mean_reward, 0);
  EXPECT_LE(report->probe->equal_groups, 3);
  EXPECT_FALSE(report->probe->prompt.empty());
}

TEST_F(PreflightTest, TheProbeCountsEmptyAnswersAndGroupsOfSeveral) {
  const auto one = Look("grpo", Reversals(false), {"rollout.n=1"}, {.probed_prompts = 8});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->probe->answers, 8);
  EXPECT_EQ(one->probe->equal_groups, 0) << "an answer alone differs from none";
  const auto never = Look("grpo", Reversals(false), {"reward.regex.weight=1", "reward.regex.pattern=^never"},
                          {.probed_prompts = 8, .probe_option = "rollout.probe_prompts"});
  ASSERT_TRUE(never.ok()) << never.status();
  EXPECT_EQ(never->probe->equal_groups, 8);
  EXPECT_LE(never->probe->empty, 32);
  EXPECT_THAT(never->warnings, testing::Contains(HasSubstr("raise rollout.n")));
  EXPECT_THAT(SummaryText(*never), Mentions({"32 answers to 8 prompts", "0.000", "100.0 %"}));
}

TEST_F(PreflightTest, TheProbeIsScoredByTheRewardModelIfThereIsOne) {
  const auto report = Look("grpo", Reversals(false),
                           {"model.path=" + AnsweringModel(), "reward_model.model.path=" + ScoringModel(),
                            "reward.regex.weight=1", "reward.regex.pattern=^never"},
                           {.probed_prompts = 8});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->probe->scored);
  EXPECT_NE(report->probe->mean_reward, 0);
  EXPECT_TRUE(report->probe->mean_by_rule.empty());
}

TEST_F(PreflightTest, RulesThatCompareWithTruthsThatTheDataDoNotHaveAreRefused) {
  const std::string prompts = "{\"prompt\": \"12>\"}\n{\"prompt\": \"13>\"}\n";
  const std::vector<std::string> two = {"data.train_batch_size=2", "actor.ppo_mini_batch_size=2"};
  const auto look = [&](std::vector<std::string> more, const std::string& lines) {
    more.insert(more.end(), two.begin(), two.end());
    return Look("grpo", lines, more);
  };
  EXPECT_THAT(look({}, prompts).status(), Fails(absl::StatusCode::kFailedPrecondition,
                                                {"2 samples", "/data.jsonl", "(exact", "data.columns.truth"}));
  EXPECT_THAT(look({"reward.math.weight=1", "reward.number.weight=1"}, prompts).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"(number, math)", "reward.format", "reward.function"}));
  EXPECT_EQ(look({"reward.format.weight=1", "reward.format.pattern=.*"}, prompts).status(), absl::OkStatus());
  EXPECT_EQ(look({"trainer.external_stages=[reward]", "trainer.serve=unix"}, prompts).status(), absl::OkStatus());
  const auto some = look({},
                         "{\"prompt\": \"14>\", \"answer\": \"41\"}\n{\"prompt\": \"15>\", \"answer\": \"\"}\n"
                         "{\"prompt\": \"16>\", \"answer\": \" \"}\n");
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(some->warnings, testing::Contains(Mentions({"66.7 %", "truth", "data.columns.truth"})));
}

TEST_F(PreflightTest, TheProbeMayAnswerMoreThanABatch) {
  const auto report = Look("grpo", Reversals(false), {}, {.probed_prompts = 12});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->probe->prompts, 12);
  EXPECT_THAT(report->warnings, testing::Not(testing::Contains(HasSubstr("--probe"))));
  const auto all = Look("grpo", Reversals(false), {}, {.probed_prompts = 100});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->probe->prompts, 80);
  EXPECT_THAT(all->warnings, testing::Contains(Mentions({"--probe", "100 prompts", "only 80"})));
}

TEST_F(PreflightTest, TheProbeTellsWhetherTheRoundsOfAStepWouldGiveEnoughPrompts) {
  const auto warns = [&](const std::string& rounds, const std::string& pattern) {
    const auto report =
        Look("grpo", Reversals(false),
             {"algorithm.filter_groups.enable=true", "data.gen_batch_size=4", "reward.regex.weight=1",
              "reward.regex.pattern=" + pattern, "algorithm.filter_groups.max_num_gen_batches=" + rounds},
             {.probed_prompts = 12});
    EXPECT_TRUE(report.ok()) << report.status();
    return std::ranges::any_of(report->warnings, [&](const std::string& warning) {
      return absl::StrContains(warning, rounds + " rounds of 4 (algorithm.filter_groups.max_num_gen_batches");
    });
  };
  EXPECT_TRUE(warns("3", "^never")) << "no prompt has answers with different rewards";
  EXPECT_FALSE(warns("0", "^never")) << "there is no limit";
  EXPECT_FALSE(warns("100", "^[0-4]"));
}

TEST_F(PreflightTest, TheProbeDoesNotScoreWhereAnotherProcessDoes) {
  const auto report =
      Look("grpo", Reversals(false), {"trainer.external_stages=[reward]", "trainer.serve=unix"}, {.probed_prompts = 3});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->probe->scored);
  EXPECT_EQ(report->probe->answers, 12);
  EXPECT_FALSE(report->probe->prompt.empty());
  for (const std::string& warning : report->warnings) EXPECT_THAT(warning, testing::Not(HasSubstr("reward")));
  const auto text = ReportText(*report, *inputs_.tokenizer, recipe_->shape().rollout, /*terminal=*/false);
  EXPECT_THAT(*text, HasSubstr("another process (trainer.external_stages)"));
  EXPECT_THAT(*text, testing::Not(HasSubstr("mean reward")));
}

TEST_F(PreflightTest, AProgramThatScoresIsStartedAndTried) {
  // It gives a score to the one sample of a batch, with the number that it is told to give.
  const auto program = [](const std::string& score) {
    return absl::StrCat(R"(reward.program=sh -c 'read l; echo "{\"type\":\"hello\",\"protocol\":1}"; read l; )",
                        R"(echo "{\"type\":\"scores\",\"batch\":1,\"scores\":[{\"sample\":0,\"score\":)", score,
                        R"(}]}"; read l')");
  };
  const auto report = Look("grpo", Reversals(false), {program("0.25")});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->reward.has_value());
  EXPECT_THAT(report->reward->scores, testing::ElementsAre(testing::Pair("sh", 0.25F)));
  const auto text = ReportText(*report, *inputs_.tokenizer, recipe_->shape().rollout, /*terminal=*/false);
  EXPECT_THAT(*text, Mentions({"\nreward: ", "scored in", "0.250"}));
  EXPECT_THAT(Look("grpo", Reversals(false), {program("oops"), "reward.retries=0"}).status().message(),
              Mentions({"right answer", "oops"}));
  EXPECT_THAT(
      Look("grpo", Reversals(false), {program("oops"), "reward.retries=0", "reward.on_error=drop"}).status().message(),
      Mentions({"right answer", "no score", "oops"}));
  EXPECT_THAT(Look("grpo", Reversals(false), {"reward.program=no-such-program"}).status().message(),
              HasSubstr("no-such-program"));
}

TEST_F(PreflightTest, ARecipeWithoutARolloutIsNotProbed) {
  EXPECT_THAT(Look("sft", Reversals(false), {}, {.probed_prompts = 3}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"--probe", "rollout", "recipe sft"}));
}

TEST_F(PreflightTest, CountsWeightsAndWhatIsHeldBesideThem) {
  const auto report = Look("grpo", Reversals(false));
  ASSERT_TRUE(report.ok()) << report.status();
  std::map<std::string, int64_t> parts = PartsByName(report->memory);
  const int64_t weights = inputs_.decoder->parameter_count() * 4;
  EXPECT_EQ(parts["weights"], weights);
  EXPECT_EQ(parts["reference"], weights);
  EXPECT_EQ(parts["optimizer state"], 2 * weights);
  int64_t sum = 0;
  for (const auto& [name, bytes] : parts) sum += bytes;
  EXPECT_EQ(sum, report->memory.peak);
  EXPECT_EQ(report->memory.where, "cpu");
}

TEST_F(PreflightTest, CountsMomentsAsTheyAreStoredAndTheAverage) {
  for (const auto& [recipe, key] : std::map<std::string, std::string>{{"sft", "optim"}, {"grpo", "actor.optim"}}) {
    const auto report =
        Look(recipe, Reversals(false), {key + ".moment_dtype=int8", "trainer.ema_decay=0.9", "model.hidden_size=64"});
    ASSERT_TRUE(report.ok()) << report.status();
    std::map<std::string, int64_t> parts = PartsByName(report->memory);
    EXPECT_EQ(BytesOfPart(report->memory, "average"), parts["weights"]);
    // Of at least 4,096 numbers, a byte each and four for each 256; of fewer, float32.
    int64_t bytes = 0;
    for (const at::Tensor& parameter : inputs_.decoder->parameters()) {
      const int64_t size = parameter.numel();
      bytes += size < 4096 ? 8 * size : 2 * (size + size / 64);
    }
    EXPECT_EQ(parts["optimizer state"], bytes);
    EXPECT_LT(bytes, 2 * parts["weights"]);
  }
}

TEST_F(PreflightTest, CountsWeightsOfBfloat16AndWhatStaysInFloat32BesideThem) {
  const auto memory_with = [&](const std::string& type, const std::string& micro_batch) {
    const auto report = Look("sft", Reversals(false),
                             {"model.param_dtype=" + type, "model.compute_dtype=" + type, "trainer.ema_decay=0.9",
                              "data.micro_batch_size_per_gpu=" + micro_batch});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? report->memory : MemoryEstimate();
  };
  const MemoryEstimate half = memory_with("bfloat16", "1");
  std::map<std::string, int64_t> wide = PartsByName(memory_with("float32", "1")), parts = PartsByName(half);
  const int64_t numbers = inputs_.decoder->parameter_count();
  EXPECT_EQ(parts["weights"], 2 * numbers);
  EXPECT_EQ(parts["optimizer state"], 2 * 4 * numbers);
  EXPECT_EQ(BytesOfPart(half, "average"), 4 * numbers);
  EXPECT_GT(parts["gradients"], 4 * numbers);
  EXPECT_LT(parts["gradients"], wide["gradients"]);
  // One pass: the copy in float32 is made of its gradients.
  std::map<std::string, int64_t> once = PartsByName(memory_with("bfloat16", "8"));
  EXPECT_GE(once["gradients"] + once["activations"] + once["logits"], 4 * numbers);
}

TEST_F(PreflightTest, CountsThePassesOfValidation) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += Reversals(false);
  const std::string path = NewFolder() + "/validation.jsonl";
  ASSERT_EQ(WriteFileAtomically(Env::Real(), path, lines), absl::OkStatus());
  const auto report = Look("sft", Reversals(false), {"data.val_files=" + path, "trainer.val_max_samples=1600"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->memory.when, "validating");
  EXPECT_GT(PartsByName(report->memory)["activations"], 0);
}

TEST_F(PreflightTest, HalfPrecisionKeepsWhatItWidensOnTheCpu) {
  const auto report = Look("sft", Reversals(false), {"model.compute_dtype=bfloat16"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->memory.arithmetic, testing::StartsWith("bfloat16 by "));
  absl::StatusOr<Outline> outline = OutlineOf(*inputs_.decoder, inputs_.tokenizer->vocab_size(), 12);
  ASSERT_TRUE(outline.ok()) << outline.status();
  EXPECT_TRUE(outline->widened.attention);
  const std::vector<int32_t> ids(8, 1);
  const std::vector<Sequence> samples(4, {std::span(ids).first(3), std::span(ids).subspan(3)});
  Workers workers(1);
  const auto activations = [&](const Widened& widened) {
    outline->widened = widened;
    return MeasurePasses(*outline, samples, {.workers = workers}, at::kCPU, {}).largest.activations;
  };
  const int64_t narrow = activations({});
  // Queries, keys and values of both layers, in a row of a prompt and four responses without their last tokens.
  EXPECT_GE(activations({.attention = true}) - narrow, 2 * (3 + 4 * 4) * 3 * 32 * 2);
  int64_t matrices = 0;
  for (const at::Tensor& parameter : inputs_.decoder->parameters()) {
    if (parameter.dim() == 2) matrices += parameter.numel();
  }
  matrices -= inputs_.decoder->parameters()[0].numel();  // the embedding multiplies only for the logits
  EXPECT_GE(activations({.products = true}) - narrow, matrices * 2);
  EXPECT_EQ(activations({}), narrow);
}

TEST_F(PreflightTest, LongerSamplesTakeMoreMemoryAndRecomputationLess) {
  std::string lines;
  const std::string digits(40, '7');
  for (int i = 0; i < 50; ++i)
    absl::StrAppend(&lines, R"({"prompt": ")", digits, R"(>", "answer": ")", digits, "\"}\n");
  const auto activations = [&](const std::string& data, const std::string& recompute) {
    const auto report =
        Look("sft", data, {"data.max_length=100", "model.max_position_embeddings=100", "model.recompute=" + recompute});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? PartsByName(report->memory)["activations"] : 0;
  };
  const int64_t of_long = activations(lines, "nothing");
  EXPECT_GT(of_long, 2 * activations(Reversals(false), "nothing"));
  EXPECT_LT(activations(lines, "layers"), of_long / 2);
}

TEST_F(PreflightTest, LongSamplesOfASecondDataSetAreCounted) {
  std::string lines;
  for (int i = 0; i < 50; ++i)
    absl::StrAppend(&lines, R"({"prompt": "1>", "answer": ")", std::string(90, '7'), "\"}\n");
  const std::string file = NewFolder() + "/long.jsonl";
  ASSERT_EQ(WriteFileAtomically(Env::Real(), file, lines), absl::OkStatus());
  const auto largest = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"data.max_prompt_length=150", "model.max_position_embeddings=200",
                             "actor.ppo_mini_batch_size=1", "rollout.max_num_seqs=1"});
    const auto report = Look("grpo", Reversals(false), more);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? report->memory : MemoryEstimate();
  };
  const MemoryEstimate without = largest({}), with = largest({"actor.ptx_coef=1", "data.ptx_files=" + file});
  EXPECT_THAT(with.when, HasSubstr("data.ptx_files"));
  EXPECT_NE(without.when, with.when);
  EXPECT_GT(with.peak, without.peak);
}

TEST_F(PreflightTest, TheMemoryIsThatOfARankWithItsStage) {
  const auto of_rank = [&](int zero, int64_t ranks) {
    const auto report = Look("grpo", Reversals(false),
                             {absl::StrCat("actor.zero_stage=", zero), "actor.ppo_micro_batch_size_per_gpu=2",
                              "trainer.ema_decay=0.9", "trainer.save_freq=1", "model.hidden_size=256"},
                             {.ranks = {{"actor", ranks}}});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? report->memory : MemoryEstimate();
  };
  const MemoryEstimate alone = of_rank(3, 1);
  EXPECT_TRUE(alone.shares.empty());
  const int64_t weights = PartsByName(alone)["weights"];
  std::vector<int64_t> held, saving;
  for (int zero = 0; zero <= 3; ++zero) {
    MemoryEstimate memory = of_rank(zero, 4);
    std::map<std::string, int64_t> parts = PartsByName(memory);
    ASSERT_EQ(memory.shares.size(), 1u);
    EXPECT_EQ(parts["weights"], memory.shares[0].bytes[static_cast<size_t>(zero)].weights);
    EXPECT_EQ(parts["optimizer state"], memory.shares[0].bytes[static_cast<size_t>(zero)].moments);
    const int64_t average = BytesOfPart(memory, "average");
    EXPECT_EQ(average, zero == 0 ? weights : weights / 4);
    EXPECT_EQ(parts["reference"], weights);  // each rank has it
    // All of them are there when answers are sampled; in training, some layers.
    EXPECT_EQ(BytesOfPart(memory, "gathered") + BytesOfPart(memory, "layers") > 0, zero == 3);
    held.push_back(parts["weights"] + parts["optimizer state"] + average);
    saving.push_back(memory.while_saving);
  }
  EXPECT_EQ(held[0], 4 * weights);
  EXPECT_EQ(held[1], weights + 3 * weights / 4);
  EXPECT_EQ(held[2], held[1]);
  EXPECT_EQ(held[3], weights);
  EXPECT_EQ(saving[0], alone.while_saving);
  EXPECT_EQ(saving[1], held[1]);
  EXPECT_EQ(saving[3], held[3]);
}

// A machine on which so much is available to a process that has 64 MiB by now.
class SmallMachine final : public LimitedEnv {
 public:
  static constexpr int64_t kResident = int64_t{64} << 20;

  explicit SmallMachine(int64_t available) : LimitedEnv(Env::Real(), 0), available_(available) {}
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    if (path == "/proc/self/statm") return absl::StrCat("1 ", kResident / ::sysconf(_SC_PAGESIZE), " 1");
    if (path == "/proc/meminfo") return absl::StrCat("MemAvailable: ", (available_ - kResident) >> 10, " kB\n");
    return absl::NotFoundError(path);
  }

 private:
  const int64_t available_;
};

TEST_F(PreflightTest, WarnsOfARankThatNeedsMoreThanThereIs) {
  const auto estimate = [&](int zero, int64_t ranks, int64_t available) {
    const auto report = Look("sft", Reversals(false),
                             {absl::StrCat("zero_stage=", zero), "data.micro_batch_size_per_gpu=1", "threads=1",
                              "model.hidden_size=256", "model.num_hidden_layers=8", "trainer.save_freq=0"});
    EXPECT_TRUE(report.ok()) << report.status();
    SmallMachine machine(available);
    auto memory = EstimateMemory(*recipe_, inputs_, report->data.some, machine, {{"actor", ranks}});
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  };
  constexpr int64_t kMuch = int64_t{1} << 40;
  const int64_t alone = estimate(0, 1, kMuch).peak, part = estimate(3, 8, kMuch).peak;
  ASSERT_LT(part, alone - (int64_t{1} << 20));
  const int64_t between = (alone + part) / 2;
  EXPECT_THAT(estimate(0, 1, between).warning, testing::StartsWith("the run "));
  EXPECT_THAT(estimate(0, 8, between).warning,
              testing::AllOf(testing::StartsWith("rank 0 "), testing::EndsWith(" zero_stage")));
  EXPECT_EQ(estimate(3, 8, between).warning, "");
}

TEST_F(PreflightTest, EveryFormOfAModelCanBeEstimated) {
  for (const char* form : {"model.num_key_value_heads=2", "model.compute_dtype=bfloat16", "model.compute_dtype=float16",
                           "model.recompute=mlp", "model.tie_word_embeddings=false", "model.recompute=attention_core",
                           "model.dropout=0.1"}) {
    for (const char* recipe : {"sft", "grpo"}) {
      const auto report = Look(recipe, Reversals(false), {form});
      ASSERT_TRUE(report.ok()) << form << ": " << report.status();
      EXPECT_GT(PartsByName(report->memory)["activations"], 0);
    }
  }
}

}  // namespace
}  // namespace tdock::trainer
