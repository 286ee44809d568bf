#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <regex>
#include <set>
#include <stdexcept>

#include "absl/strings/match.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "engine/model_folder.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "text/char_tokenizer.h"
#include "text/testing/small_tokenizers.h"
#include "trainer/recipes/testing/small_run.h"
#include "trainer/run_log/report_template.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Grpo, LeavesACompleteRunDirectory) {
  SmallRun run("grpo");
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ended, "all 3 steps");
  EXPECT_THAT(*Env::Real().List(run.run_dir()),
              testing::UnorderedElementsAre("checkpoint", "checkpoints", "config.yaml", "evaluation.json", "lock",
                                            "metrics.csv", "metrics.jsonl", "report.html", "samples.jsonl",
                                            "tensorboard", "timeline.jsonl"));
  EXPECT_THAT(*Env::Real().List(run.run_dir() + "/checkpoint"),
              testing::UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors",
                                            "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"));
  const std::vector<json> metrics = run.Metrics();
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_EQ(metrics.back()["step"], 3);
  EXPECT_EQ(metrics.back()["phase"], "grpo");
  EXPECT_EQ(metrics.back()["actor/optimizer_steps"], 2.0);
  EXPECT_EQ(metrics.back()["val/accuracy"], result->last.at("val/accuracy"));
  EXPECT_EQ(metrics.front()["val/accuracy"], result->first.at("val/accuracy"));

  // What was written configures the same run.
  const auto reloaded = LoadRecipe(Env::Real(), run.run_dir() + "/config.yaml", {});
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_EQ((*reloaded)->samples_per_prompt(), 4);
  EXPECT_EQ((*reloaded)->config().trainer.run_dir, run.run_dir());
}

TEST(Grpo, EveryStageRunsOnTheDockAndTheDockIsEmptyAfterEachStep) {
  SmallRun run("grpo", {"algorithm.rollout_correction.bypass_mode=false"});
  ASSERT_TRUE(run.Train().ok());
  for (const json& record : run.Metrics()) {
    if (record["step"] == 0) continue;
    for (const char* stage : {"rollout", "reward", "ref", "old_log_prob", "advantage", "actor"}) {
      EXPECT_EQ(record[absl::StrCat("dock/completed/", stage)], 32.0 * record["step"].get<double>()) << stage;
      EXPECT_TRUE(record.contains(absl::StrCat("timing_s/", stage))) << stage;
    }
    EXPECT_EQ(record["dock/rows"], 0.0);
    EXPECT_TRUE(record.contains("reward/exact/mean"));
  }
}

// What stands between quotes and fits, from `begin` up to `end` in the page of a run.
std::set<std::string> QuotedInPage(const std::string& begin, const std::string& end, const std::string& fits) {
  const std::string page(kRunViewScript);
  const size_t first = page.find(begin);
  const std::string part = page.substr(first, page.find(end, first) - first);
  const std::regex quoted("'(" + fits + ")'");
  std::set<std::string> found;
  for (std::sregex_iterator it(part.begin(), part.end(), quoted); it != std::sregex_iterator(); ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

TEST(Recipes, TheReportChartsWhatRunsLogUnderTheNamesThatTheyLog) {
  const std::set<std::string> charted = QuotedInPage("const known = [", "];", "[a-z_]+/[a-z_/]+");
  EXPECT_THAT(charted, testing::IsSupersetOf({"val/accuracy", "val/loss", "train/loss", "critic/score/mean",
                                              "actor/kl_loss", "actor/entropy", "response_length/mean"}));
  const std::set<std::string> stages = QuotedInPage("const stageOrder = [", "];", "[a-z_]+");
  std::set<std::string> logged;
  const std::pair<const char*, std::vector<std::string>> runs[] = {
      {"grpo", {"algorithm.rollout_correction.bypass_mode=false"}},
      {"grpo", {"async_training.steps_ahead=1", "algorithm.rollout_correction.rollout_is=token"}},
      {"dapo", {"algorithm.adv_estimator=remax", "reward.regex.weight=1", "reward.regex.pattern=^[0-4]"}},
      {"sft", {}}};
  for (const auto& [recipe, overrides] : runs) {
    SmallRun run(recipe, overrides);
    ASSERT_TRUE(run.Train().ok());
    for (const json& record : run.Metrics()) {
      for (const auto& [tag, value] : record.items()) logged.insert(tag);
    }
  }
  for (const std::string& tag : charted) EXPECT_TRUE(logged.contains(tag)) << tag;
  for (const std::string& stage : stages) EXPECT_TRUE(logged.contains("timing_s/" + stage)) << stage;
  for (const std::string& tag : logged) {
    if (!absl::StartsWith(tag, "timing_s/") || tag == "timing_s/step") continue;
    EXPECT_TRUE(stages.contains(tag.substr(9))) << tag;
  }
}

TEST(Grpo, TheRatioIsOneOnTheFirstPassOverFreshSamples) {
  SmallRun run("grpo",
               {"trainer.total_training_steps=10", "rollout.temperature=0.8", "actor.ppo_micro_batch_size_per_gpu=4"});
  ASSERT_TRUE(run.Train().ok());
  for (const json& record : run.Metrics()) {
    if (record["step"] == 0) continue;
    EXPECT_LE(record["actor/fresh_ratio_deviation"].get<double>(), 1e-5) << "step " << record["step"];
  }
}

TEST(Grpo, InBatchInvariantModeRolloutAndTrainingAgreeToTheLastBit) {
  // The largest deviation of the ratio from 1, and of log-probabilities from those of the rollout. Old
  // log-probabilities are computed in other micro-batches than new ones.
  const auto deviations = [](const std::string& batch_invariant, const std::string& compute) {
    SmallRun run("grpo", {"model.batch_invariant=" + batch_invariant, "model.compute_dtype=" + compute,
                          "rollout.temperature=0.8", "model.hidden_size=128", "actor.ppo_micro_batch_size_per_gpu=1",
                          "algorithm.rollout_correction.bypass_mode=false", "ref.log_prob_micro_batch_size_per_gpu=8"});
    EXPECT_EQ(run.Train().status(), absl::OkStatus());
    double ratio = 0, rollout = 0;
    for (const json& record : run.Metrics()) {
      if (record["step"] == 0) continue;
      ratio = std::max(ratio, record["actor/fresh_ratio_deviation"].get<double>());
      rollout = std::max(rollout, record["rollout_corr/max_abs_diff"].get<double>());
    }
    return std::pair(ratio, rollout);
  };
  const std::pair fast = deviations("false", "float32"), none = std::pair(0.0, 0.0);
  EXPECT_GT(fast.first, 0);
  EXPECT_GT(fast.second, 0);
  EXPECT_LT(fast.second, 1e-4);
  EXPECT_EQ(deviations("true", "float32"), none);
  EXPECT_EQ(deviations("true", "bfloat16"), none);
}

TEST(Grpo, TakesTheLogProbsOfTheRolloutWhereTheyAreThoseOfTraining) {
  const auto train = [](const std::vector<std::string>& overrides) {
    auto run = std::make_unique<SmallRun>("grpo", overrides);
    EXPECT_EQ(run->Train().status(), absl::OkStatus());
    return run;
  };
  // Without the work of the pass of its own.
  const auto figures = [](const SmallRun& run) {
    std::vector<json> records = run.ReproducibleMetrics();
    for (json& record : records) {
      for (const char* of_pass : {"perf/flops/old_log_prob", "perf/flops/step", "dock/completed/old_log_prob"}) {
        record.erase(of_pass);
      }
    }
    return records;
  };
  const std::string bypass = "algorithm.rollout_correction.bypass_mode=";
  const auto taken = train({}), computed = train({bypass + "false"});
  const auto is_timed = [](const SmallRun& run) { return run.Metrics()[1].contains("timing_s/old_log_prob"); };
  EXPECT_FALSE(is_timed(*taken));
  EXPECT_TRUE(is_timed(*computed));
  EXPECT_EQ(figures(*taken), figures(*computed));
  EXPECT_TRUE(is_timed(*train({"model.batch_invariant=false"})));
  EXPECT_FALSE(is_timed(*train({"model.batch_invariant=false", bypass + "true"})));
}

TEST(Grpo, RolloutsInInt8AreMeasuredAgainstTraining) {
  SmallRun run("grpo", {"rollout.quantization=int8"});
  ASSERT_EQ(run.Train().status(), absl::OkStatus());
  const json record = run.Metrics()[1];
  EXPECT_TRUE(record.contains("timing_s/old_log_prob"));
  EXPECT_GT(record["rollout_corr/max_abs_diff"].get<double>(), 0);
  EXPECT_LT(record["rollout_corr/max_abs_diff"].get<double>(), 0.5);
  EXPECT_EQ(record["actor/fresh_ratio_deviation"].get<double>(), 0);
  for (const char* other : {"model.compute_dtype=float16", "model.batch_invariant=false", "device=cuda"}) {
    EXPECT_THAT(SmallRun("grpo", {"rollout.quantization=int8", other}).Train().status().message(),
                Mentions({"rollout.quantization = int8", "to none"}));
  }
}

TEST(Grpo, AnswersAreAsLongAsTheRolloutAsksFor) {
  // Shortest and longest answer of all steps.
  const auto lengths = [](const std::vector<std::string>& overrides) {
    SmallRun run("grpo", overrides);
    EXPECT_EQ(run.Train().status(), absl::OkStatus());
    std::pair<double, double> found(100, 0);
    for (const json& record : run.Metrics()) {
      if (record["step"] == 0) continue;
      found.first = std::min(found.first, record["response_length/min"].get<double>());
      found.second = std::max(found.second, record["response_length/max"].get<double>());
      EXPECT_EQ(record["actor/fresh_ratio_deviation"].get<double>(), 0) << "step " << record["step"];
    }
    return found;
  };
  EXPECT_EQ(lengths({}), std::pair(1.0, 5.0));
  EXPECT_EQ(lengths({"rollout.min_new_tokens=2"}), std::pair(3.0, 5.0)) << "two tokens and an end token";
  EXPECT_EQ(lengths({"rollout.min_new_tokens=5"}), std::pair(5.0, 5.0));
  EXPECT_EQ(lengths({"rollout.ignore_eos=true"}), std::pair(5.0, 5.0));
  // The prompts fill data.max_prompt_length, and the last position stays free.
  EXPECT_EQ(lengths({"rollout.min_new_tokens=5", "rollout.leave_last_position=true", "data.max_prompt_length=3"}),
            std::pair(4.0, 4.0));
  EXPECT_THAT(SmallRun("grpo", {"rollout.min_new_tokens=6"}).Train().status().message(),
              Mentions({"rollout.min_new_tokens = 6", "data.max_response_length = 5"}));
}

TEST(Grpo, DropoutChangesTheUpdatesAloneAndRepeats) {
  SmallRun plain("grpo"), dropping("grpo", {"model.dropout=0.3"}), again("grpo", {"model.dropout=0.3", "threads=3"});
  for (SmallRun* run : {&plain, &dropping, &again}) ASSERT_TRUE(run->Train().ok());
  EXPECT_EQ(again.ReproducibleMetrics(), dropping.ReproducibleMetrics());
  const std::vector<json> without = plain.Metrics(), with = dropping.Metrics();
  EXPECT_EQ(with[0]["val/accuracy"], without[0]["val/accuracy"]);
  EXPECT_EQ(with[1]["response_length/mean"], without[1]["response_length/mean"]);
  EXPECT_NE(with[1]["actor/grad_norm"], without[1]["actor/grad_norm"]);
  EXPECT_TRUE(without[1].contains("actor/fresh_ratio_deviation"));
  // It would measure the dropout.
  EXPECT_FALSE(with[1].contains("actor/fresh_ratio_deviation"));
}

TEST(Sft, DropoutFollowsFromTheSeed) {
  SmallRun first("sft", {"model.dropout=0.3"}), again("sft", {"model.dropout=0.3"}), plain("sft");
  for (SmallRun* run : {&first, &again, &plain}) ASSERT_TRUE(run->Train().ok());
  EXPECT_EQ(first.ReproducibleMetrics(), again.ReproducibleMetrics());
  EXPECT_NE(first.Metrics()[1]["train/loss"], plain.Metrics()[1]["train/loss"]);
  EXPECT_EQ(first.Metrics()[0]["val/loss"], plain.Metrics()[0]["val/loss"]);
}

class GrpoOnDevice : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, GrpoOnDevice, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(GrpoOnDevice, TrainsWithARatioOfOneOnFreshSamplesAndLeavesACheckpoint) {
  SmallRun run("grpo", {"device=" + GetParam().str()});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(Env::Real().Exists(run.run_dir() + "/checkpoint/config.json"));
  for (const json& record : run.Metrics()) {
    if (record["step"] == 0) continue;
    EXPECT_LE(record["actor/fresh_ratio_deviation"].get<double>(), GetParam().is_cpu() ? 1e-5 : 1e-4);
    EXPECT_TRUE(std::isfinite(record["actor/grad_norm"].get<double>()));
  }
}

TEST(Recipes, TheSameSeedGivesTheSameBitsOnAnyNumberOfThreads) {
  for (const char* recipe : {"grpo", "sft"}) {
    SmallRun first(recipe), second(recipe), more(recipe, {"threads=3"}), other(recipe, {"seed=2"});
    for (SmallRun* run : {&first, &second, &more, &other}) ASSERT_TRUE(run->Train().ok());
    EXPECT_EQ(first.ReproducibleMetrics(), second.ReproducibleMetrics());
    EXPECT_EQ(first.ReproducibleMetrics(), more.ReproducibleMetrics());
    EXPECT_NE(first.ReproducibleMetrics(), other.ReproducibleMetrics());
    const std::string weights = "checkpoint/model.safetensors";
    EXPECT_EQ(first.File(weights), second.File(weights));
    EXPECT_EQ(first.File(weights), more.File(weights));
    EXPECT_NE(first.File(weights), other.File(weights));
  }
}

TEST(Recipes, GoOnFromACheckpoint) {
  SmallRun first("sft");
  const auto trained = first.Train();
  ASSERT_TRUE(trained.ok());
  const std::string model = first.run_dir() + "/checkpoint";
  SmallRun second("sft", {"model.path=" + model, "threads=0", "data.val_files=" + first.folder() + "/val.jsonl"});
  const auto continued = second.Train();
  ASSERT_TRUE(continued.ok()) << continued.status();
  EXPECT_NEAR(continued->first.at("val/loss"), trained->last.at("val/loss"), 1e-9);
  EXPECT_LT(continued->last.at("val/loss"), trained->last.at("val/loss"));

  const std::string resolved = second.File("config.yaml");
  EXPECT_THAT(resolved, testing::Not(HasSubstr("hidden_size")));
  const auto reloaded = LoadRecipe(Env::Real(), second.run_dir() + "/config.yaml", {});
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_EQ((*reloaded)->config().model.path, model);
  EXPECT_GE((*reloaded)->config().threads, 1);
}

TEST(Grpo, TrainsACheckpointWithMoreRowsThanTokens) {
  const std::string model = NewFolder();
  const auto tokenizer = *text::CharTokenizer::Create("0123456789>=");
  ASSERT_TRUE(tokenizer->Save(Env::Real(), model).ok());
  model::ModelConfig padded = model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/true);
  padded.vocab_size = 64;
  ASSERT_TRUE(model::SaveCheckpoint(Env::Real(), model, model::Decoder::Random(padded, 1, at::kCPU)).ok());
  SmallRun run("grpo", {"model.path=" + model});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LE(run.Metrics().back()["actor/fresh_ratio_deviation"].get<double>(), 1e-5);
  EXPECT_LE(run.Metrics().back()["actor/entropy"].get<double>(), std::log(14.0));
  EXPECT_THAT(run.File("checkpoint/config.json"), HasSubstr("\"vocab_size\": 64"));
}

TEST(Grpo, TrainsAModelWithATokenizerOfItsOwnAndKeepsItsFiles) {
  const std::string model = NewFolder();
  const std::map<std::string, std::string> files = {
      {"tokenizer.json", text::small::SmallByteLevel().dump()},
      {"tokenizer_config.json", R"({"eos_token": "<|end|>", "chat_template": "as the model has it"})"},
      {"special_tokens_map.json", R"({"eos_token": "<|end|>"})"}};
  for (const auto& [name, contents] : files) {
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), JoinPath(model, name), contents).ok());
  }
  model::ModelConfig wide = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true);
  wide.vocab_size = 262;
  ASSERT_TRUE(model::SaveCheckpoint(Env::Real(), model, model::Decoder::Random(wide, 1, at::kCPU)).ok());
  SmallRun run("grpo", {"model.path=" + model});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  for (const auto& [name, contents] : files) EXPECT_EQ(run.File("checkpoint/" + name), contents) << name;
  const auto saved = engine::LoadModelFolder(Env::Real(), run.run_dir() + "/checkpoint", at::kCPU);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->tokenizer->eos_id(), 261);
}

// The same for each answer.
class ConstantReward final : public reward::Reward {
 public:
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    return reward::Scores{.totals = std::vector<float>(answers.size(), 0.0f), .parts = {}};
  }
};

TEST(Grpo, ARunThatLearnsNothingSaysSoWhileItWorksAndAtItsEnd) {
  SmallRun run("grpo", {"actor.kl_loss_coef=0"});
  ConstantReward reward;
  ASSERT_EQ(run.Train({.reward = &reward}).status(), absl::OkStatus());
  for (const json& record : run.Metrics()) {
    if (record["step"] == 0) continue;
    EXPECT_EQ(record["critic/rewards/equal_share"], 1);
    EXPECT_EQ(record["actor/grad_norm"], 0);
  }
  EXPECT_THAT(run.log(), testing::Contains(Mentions({"warning: step 1 ", "rollout.n"})));
  EXPECT_THAT(run.log(), testing::Contains(Mentions({"warning: step 2 ", "2 of 2"})));
  EXPECT_THAT(run.log(), testing::Not(testing::Contains(Mentions({"warning: step 3 "}))));
  EXPECT_THAT(run.log().back(), Mentions({"warning: ", " 3 steps", "0"}));
}

TEST(Grpo, EmptyAnswersAndRewardsAtTheirBoundsAreCounted) {
  SmallRun run("grpo", {"reward.exact.weight=1", "reward.length.weight=0.5", "reward.length.soft_limit=0",
                        "reward.length.hard_limit=4"});
  ASSERT_EQ(run.Train().status(), absl::OkStatus());
  for (const json& record : run.Metrics()) {
    if (record["step"] == 0) continue;
    // No answer is right and has no length; one of four characters is wrong, and has the greatest penalty.
    EXPECT_EQ(record["critic/score/at_max"], 0);
    EXPECT_GT(record["critic/score/at_min"].get<double>(), 0);
    EXPECT_LT(record["critic/score/at_min"].get<double>(), 1);
    EXPECT_GE(record["response_length/empty"].get<double>(), 0);
    EXPECT_LE(record["response_length/empty"].get<double>(), record["response_length/finished"].get<double>());
    EXPECT_GE(record["critic/rewards/equal_share"].get<double>(), 0);
    EXPECT_LT(record["critic/rewards/equal_share"].get<double>(), 1);
  }
  EXPECT_THAT(run.log(), testing::Not(testing::Contains(testing::HasSubstr("gradient"))));
}

class BrokenReward final : public reward::Reward {
 public:
  enum class Fault { kNan, kThrows, kError };
  explicit BrokenReward(Fault fault) : fault_(fault) {}
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    reward::Scores scores{.totals = std::vector<float>(answers.size(), 0.5f), .parts = {}};
    // The first call is the validation's.
    if (++calls_ < 3) return scores;
    if (fault_ == Fault::kThrows) throw std::runtime_error("the judge fell asleep");
    if (fault_ == Fault::kError) return absl::UnavailableError("the judge does not answer");
    scores.totals[5] = std::nanf("");
    return scores;
  }

 private:
  const Fault fault_;
  int calls_ = 0;
};

TEST(Grpo, ABrokenRewardStopsTheRunNamingStageAndSamplesAndKeepsWhatWasWritten) {
  const std::pair<BrokenReward::Fault, const char*> cases[] = {
      {BrokenReward::Fault::kNan, "nan for sample 5, prompt"},
      {BrokenReward::Fault::kThrows, "the judge fell asleep"},
      {BrokenReward::Fault::kError, "the judge does not answer"}};
  for (const auto& [fault, reason] : cases) {
    SmallRun run("grpo");
    BrokenReward reward(fault);
    const absl::Status status = run.Train({.reward = &reward}).status();
    EXPECT_THAT(status.message(), Mentions({"grpo: step 2: stage 'reward', 32 rows between 32 and 63", reason}));
    EXPECT_EQ(run.Metrics().size(), 2u);
    EXPECT_THAT(run.File("report.html"), HasSubstr("stage 'reward'"));
    EXPECT_FALSE(Env::Real().Exists(run.run_dir() + "/checkpoint/config.json"));
  }
}

TEST(Grpo, AFullDiskStopsTheRunNamingStepAndFileAndKeepsWhatWasWritten) {
  SmallRun whole("grpo");
  ASSERT_TRUE(whole.Train().ok());
  const auto config = static_cast<int64_t>(whole.File("config.yaml").size());
  const std::pair<int64_t, std::string> cases[] = {{0, "the configuration: "},
                                                   {config + 100, "grpo: step 0: "},
                                                   {config + 6'000, "grpo: step "},
                                                   {40'000, "the checkpoint: "}};
  for (const auto& [capacity, what] : cases) {
    SmallRun run("grpo");
    LimitedEnv env(Env::Real(), capacity);
    const absl::Status status = run.Train({.env = env}).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, {what, " " + run.run_dir() + "/"})) << capacity;
    EXPECT_FALSE(Env::Real().Exists(run.run_dir() + "/checkpoint/config.json"));
    if (!Env::Real().Exists(run.run_dir() + "/metrics.jsonl")) continue;
    std::string text = run.File("metrics.jsonl");
    text.resize(text.rfind('\n') + 1);  // a line without its end is what the disk had no room for
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      EXPECT_TRUE(json::accept(line)) << line;
    }
  }
}

TEST(Grpo, AnExceptionOutsideOfTheStagesNamesTheStep) {
  class ThrowingEnv final : public LimitedEnv {
   public:
    explicit ThrowingEnv(std::string file) : LimitedEnv(Env::Real(), 1'000'000), file_(std::move(file)) {}
    absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) override {
      if (absl::EndsWith(path, file_)) throw std::bad_alloc();
      return LimitedEnv::OpenForWriting(path, mode);
    }

   private:
    const std::string file_;
  };
  ThrowingEnv metrics("metrics.jsonl"), samples("samples.jsonl");
  for (ThrowingEnv* env : {&metrics, &samples}) {
    EXPECT_THAT(SmallRun("grpo").Train({.env = *env}).status().message(), Mentions({"grpo: step 0: ", "memory"}));
  }
}

TEST(Recipes, WhatCannotRunIsRefusedBeforeAnythingIsWritten) {
  const auto refused = [](const std::string& recipe, const std::string& spoil) {
    SmallRun run(recipe, {spoil});
    const absl::Status status = run.Train().status();
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(Env::Real().Exists(run.run_dir())) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused("grpo", "device=tpu"), Mentions({"'tpu'", "cuda:N"}));
  EXPECT_THAT(refused("grpo", "model.path=/nonexistent"), Mentions({"/nonexistent"}));
  EXPECT_THAT(refused("grpo", "data.max_response_length=100"),
              Mentions({"data.max_prompt_length + data.max_response_length = 108", "64 positions"}));
  EXPECT_THAT(refused("sft", "data.max_length=100"), Mentions({"data.max_length = 100", "64 positions"}));
  EXPECT_THAT(refused("grpo", "model.hidden_size=1048576"), Mentions({"head_dim", "65536", "262144"}));
  EXPECT_THAT(refused("sft", "data.train_files=/nonexistent.jsonl"), Mentions({"/nonexistent.jsonl"}));
  EXPECT_THAT(refused("sft", "model.alphabet="), Mentions({"model.path", "model.alphabet"}));
  EXPECT_THAT(refused("sft", "trainer.stop_when=accuracy"), HasSubstr("val/accuracy >= 0.30"));
  EXPECT_THAT(refused("sft", "data.train_batch_size=81"), Mentions({"80 samples", "batch of 81"}));
  EXPECT_THAT(refused("grpo", "data.keep=rewards"), Mentions({"data.keep", "column", "rewards"}));
}

TEST(Grpo, ARunToldToStopEndsAtOnceAndReportsSo) {
  std::atomic<bool> stop = false;
  // The reward of step 2 is when somebody presses Ctrl-C.
  class StoppingReward final : public reward::Reward {
   public:
    explicit StoppingReward(std::atomic<bool>& flag) : flag_(flag) {}
    absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
      flag_ = ++calls_ == 3;
      return reward::Scores{.totals = std::vector<float>(answers.size(), 0.0f), .parts = {}};
    }

   private:
    std::atomic<bool>& flag_;
    int calls_ = 0;
  } reward(stop);
  SmallRun run("grpo");
  const absl::Status status = run.Train({.reward = &reward, .stop = &stop}).status();
  EXPECT_THAT(status,
              Fails(absl::StatusCode::kCancelled, {"interrupted", "step 1", "a part", "saved in " + run.run_dir()}));
  EXPECT_EQ(run.Metrics().back()["step"], 1);
  EXPECT_THAT(run.File("report.html"), HasSubstr("interrupted"));
}

TEST(Recipes, AFolderThatHoldsSomethingIsRefused) {
  SmallRun run("grpo");
  ASSERT_TRUE(Env::Real().CreateFolders(run.run_dir()).ok());
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), run.run_dir() + "/precious", "data").ok());
  EXPECT_EQ(run.Train().status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Env::Real().List(run.run_dir())->size(), 1u);
}

}  // namespace
}  // namespace tdock::trainer
