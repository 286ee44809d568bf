#include "trainer/recipes/grpo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <map>
#include <new>
#include <regex>
#include <set>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/testing/limited_env.h"
#include "engine/model_folder.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "nlohmann/json.hpp"
#include "text/arithmetic.h"
#include "text/char_tokenizer.h"
#include "text/testing/small_tokenizers.h"
#include "trainer/run_log/report_template.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string NewFolder() {
  std::string path = testing::TempDir() + "/grpo_test_XXXXXX";
  return ::mkdtemp(path.data());
}

GrpoConfig TinyConfig() {
  GrpoConfig config;
  config.model.hidden_size = 32;
  config.model.intermediate_size = 48;
  config.model.num_hidden_layers = 2;
  config.data.train_batch_size = 8;
  config.data.max_response_length = 5;
  config.rollout.n = 4;
  config.actor.ppo_mini_batch_size = 4;
  config.warmup.batch_size = 32;
  config.warmup.max_steps = 3;
  config.warmup.target_accuracy = 1.0;
  config.trainer.total_training_steps = 3;
  config.trainer.run_dir = NewFolder();
  config.threads = 2;
  return config;
}

absl::StatusOr<GrpoResult> RunIn(Env& env, const GrpoConfig& config, reward::Reward* reward = nullptr) {
  Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, Clock::Real());
  TDOCK_ASSIGN_OR_RETURN(const auto run, PrepareGrpo(config, {env, Clock::Real(), progress}, reward));
  return run->Run();
}

std::vector<json> Records(const std::string& path) {
  std::vector<json> records;
  const std::string text = *Env::Real().ReadFile(path);
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) records.push_back(json::parse(line));
  return records;
}

std::vector<json> LoggedMetrics(const GrpoConfig& config) { return Records(config.trainer.run_dir + "/metrics.jsonl"); }

// Metrics without what a clock measured.
std::vector<json> Reproducible(const GrpoConfig& config) {
  std::vector<json> records = LoggedMetrics(config);
  for (json& record : records) {
    for (auto it = record.begin(); it != record.end();) {
      const bool timed = it.key().starts_with("timing_") || it.key().starts_with("perf/");
      it = timed ? record.erase(it) : std::next(it);
    }
  }
  return records;
}

TEST(Grpo, LeavesACompleteRunDirectory) {
  const GrpoConfig config = TinyConfig();
  const auto result = RunIn(Env::Real(), config);
  ASSERT_TRUE(result.ok()) << result.status();
  const auto names = *Env::Real().List(config.trainer.run_dir);
  EXPECT_THAT(names, testing::UnorderedElementsAre("checkpoint", "config.yaml", "metrics.jsonl", "report.html",
                                                   "samples.jsonl", "tensorboard"));
  EXPECT_THAT(*Env::Real().List(config.trainer.run_dir + "/checkpoint"),
              testing::UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors",
                                            "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"));
  const std::vector<json> metrics = LoggedMetrics(config);
  ASSERT_EQ(metrics.size(), 4u + 4u);
  EXPECT_EQ(metrics.back()["step"], 3);
  EXPECT_EQ(metrics.back()["actor/optimizer_steps"], 2.0);
  EXPECT_EQ(metrics.back()["val/test_accuracy"], result->final_accuracy);

  GrpoConfig reloaded;
  config::Spec spec;
  Bind(spec, reloaded);
  ASSERT_TRUE(config::LoadFile(Env::Real(), spec, config.trainer.run_dir + "/config.yaml", {}).ok());
  EXPECT_EQ(reloaded.data.max_response_length, 5);
  EXPECT_EQ(reloaded.actor.max_row_tokens, 10) << "a third of 32";
  EXPECT_EQ(reloaded.trainer.run_dir, config.trainer.run_dir);
}

TEST(Grpo, EveryStageRunsOnTheDockAndTheDockIsEmptyAfterEachStep) {
  const GrpoConfig config = TinyConfig();
  ASSERT_TRUE(RunIn(Env::Real(), config).ok());
  for (const json& record : LoggedMetrics(config)) {
    if (record["phase"] != "grpo" || record["step"] == 0) continue;
    for (const char* stage : {"rollout", "reward", "ref", "old_log_prob", "advantage", "actor"}) {
      EXPECT_EQ(record[absl::StrCat("dock/completed/", stage)], 32.0 * record["step"].get<double>()) << stage;
      EXPECT_TRUE(record.contains(absl::StrCat("timing_s/", stage))) << stage;
    }
    EXPECT_EQ(record["dock/rows"], 0.0);
  }
}

// What stands between quotes and fits, from `begin` up to `end` in the page of a run.
std::set<std::string> QuotedInPage(const std::string& begin, const std::string& end, const std::string& fits) {
  const std::string page(kReportTemplate);
  const size_t first = page.find(begin);
  const std::string part = page.substr(first, page.find(end, first) - first);
  const std::regex quoted("'(" + fits + ")'");
  std::set<std::string> found;
  for (std::sregex_iterator it(part.begin(), part.end(), quoted); it != std::sregex_iterator(); ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

TEST(Grpo, TheReportChartsWhatTheRunLogsUnderTheNamesThatItLogs) {
  const std::set<std::string> charted = QuotedInPage("const known = [", "];", "[a-z_]+/[a-z_/]+");
  EXPECT_THAT(charted, testing::IsSupersetOf({"val/test_accuracy", "critic/score/mean", "actor/kl_loss",
                                              "actor/entropy", "response_length/mean"}));
  const GrpoConfig config = TinyConfig();
  ASSERT_TRUE(RunIn(Env::Real(), config).ok());
  std::set<std::string> logged;
  for (const json& record : LoggedMetrics(config)) {
    for (const auto& [tag, value] : record.items()) logged.insert(tag);
  }
  for (const std::string& tag : charted) EXPECT_TRUE(logged.contains(tag)) << tag;
  const std::set<std::string> stages = QuotedInPage("const stageOrder = [", "];", "[a-z_]+");
  for (const std::string& stage : stages) EXPECT_TRUE(logged.contains("timing_s/" + stage)) << stage;
  for (const std::string& tag : logged) {
    if (!absl::StartsWith(tag, "timing_s/") || tag == "timing_s/step") continue;
    EXPECT_TRUE(stages.contains(tag.substr(9))) << tag;
  }
}

TEST(Grpo, TheRatioIsOneOnTheFirstPassOverFreshSamples) {
  GrpoConfig config = TinyConfig();
  config.trainer.total_training_steps = 10;
  config.rollout.temperature = 0.8;
  config.actor.ppo_micro_batch_size_per_gpu = 4;
  ASSERT_TRUE(RunIn(Env::Real(), config).ok());
  for (const json& record : LoggedMetrics(config)) {
    if (record["phase"] != "grpo" || record["step"] == 0) continue;
    EXPECT_LE(record["actor/fresh_ratio_deviation"].get<double>(), 1e-5) << "step " << record["step"];
  }
}

class GrpoOnDevice : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, GrpoOnDevice, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(GrpoOnDevice, TrainsWithARatioOfOneOnFreshSamplesAndLeavesACheckpoint) {
  GrpoConfig config = TinyConfig();
  config.device = GetParam().str();
  const auto result = RunIn(Env::Real(), config);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(Env::Real().Exists(config.trainer.run_dir + "/checkpoint/config.json"));
  for (const json& record : LoggedMetrics(config)) {
    if (record["phase"] != "grpo" || record["step"] == 0) continue;
    EXPECT_LE(record["actor/fresh_ratio_deviation"].get<double>(), GetParam().is_cpu() ? 1e-5 : 1e-4);
    EXPECT_TRUE(std::isfinite(record["actor/grad_norm"].get<double>()));
  }
}

TEST(Grpo, TheSameSeedGivesTheSameBits) {
  const GrpoConfig first = TinyConfig();
  GrpoConfig second = first;
  second.trainer.run_dir = NewFolder();
  GrpoConfig other = first;
  other.trainer.run_dir = NewFolder();
  other.seed = 2;
  for (const GrpoConfig& config : {first, second, other}) ASSERT_TRUE(RunIn(Env::Real(), config).ok());
  EXPECT_EQ(Reproducible(first), Reproducible(second));
  EXPECT_NE(Reproducible(first), Reproducible(other));
  const auto weights = [](const GrpoConfig& config) {
    return *Env::Real().ReadFile(config.trainer.run_dir + "/checkpoint/model.safetensors");
  };
  EXPECT_EQ(weights(first), weights(second));
  EXPECT_NE(weights(first), weights(other));
}

TEST(Grpo, StartsFromACheckpoint) {
  const GrpoConfig first = TinyConfig();
  const auto trained = RunIn(Env::Real(), first);
  ASSERT_TRUE(trained.ok());
  GrpoConfig second = TinyConfig();
  second.threads = 0;
  second.model.path = first.trainer.run_dir + "/checkpoint";
  second.warmup.max_steps = 0;
  second.trainer.total_training_steps = 0;
  const auto continued = RunIn(Env::Real(), second);
  ASSERT_TRUE(continued.ok()) << continued.status();
  EXPECT_EQ(continued->final_accuracy, trained->final_accuracy);
  EXPECT_EQ(*Env::Real().ReadFile(second.model.path + "/model.safetensors"),
            *Env::Real().ReadFile(second.trainer.run_dir + "/checkpoint/model.safetensors"));

  const std::string resolved = *Env::Real().ReadFile(second.trainer.run_dir + "/config.yaml");
  EXPECT_THAT(resolved, testing::Not(HasSubstr("hidden_size")));
  GrpoConfig reloaded;
  config::Spec spec;
  Bind(spec, reloaded);
  const absl::Status loaded = config::Load(spec, resolved, "config.yaml", {});
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(reloaded.model.path, second.model.path);
  EXPECT_GE(reloaded.threads, 1);
}

TEST(Grpo, TrainsACheckpointWithMoreRowsThanTokens) {
  GrpoConfig config = TinyConfig();
  config.model.path = NewFolder();
  const auto tokenizer = *text::CharTokenizer::Create(text::kAdditionAlphabet);
  ASSERT_TRUE(tokenizer->Save(Env::Real(), config.model.path).ok());
  model::ModelConfig padded = model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/true);
  padded.vocab_size = 64;
  ASSERT_TRUE(model::SaveCheckpoint(Env::Real(), config.model.path, model::Decoder::Random(padded, 1, at::kCPU)).ok());
  ASSERT_TRUE(RunIn(Env::Real(), config).ok());
  EXPECT_LE(LoggedMetrics(config).back()["actor/fresh_ratio_deviation"].get<double>(), 1e-5);
  EXPECT_LE(LoggedMetrics(config).back()["actor/entropy"].get<double>(), std::log(14.0));
  EXPECT_THAT(*Env::Real().ReadFile(config.trainer.run_dir + "/checkpoint/config.json"),
              HasSubstr("\"vocab_size\": 64"));
}

TEST(Grpo, TrainsAModelWithATokenizerOfItsOwnAndKeepsItsFiles) {
  GrpoConfig config = TinyConfig();
  config.model.path = NewFolder();
  const std::map<std::string, std::string> files = {
      {"tokenizer.json", text::small::SmallByteLevel().dump()},
      {"tokenizer_config.json", R"({"eos_token": "<|end|>", "chat_template": "as the model has it"})"},
      {"special_tokens_map.json", R"({"eos_token": "<|end|>"})"}};
  for (const auto& [name, contents] : files) {
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), JoinPath(config.model.path, name), contents).ok());
  }
  model::ModelConfig wide = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true);
  wide.vocab_size = 262;
  ASSERT_TRUE(model::SaveCheckpoint(Env::Real(), config.model.path, model::Decoder::Random(wide, 1, at::kCPU)).ok());
  const auto result = RunIn(Env::Real(), config);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::string checkpoint = config.trainer.run_dir + "/checkpoint";
  for (const auto& [name, contents] : files) {
    EXPECT_EQ(*Env::Real().ReadFile(JoinPath(checkpoint, name)), contents) << name;
  }
  const auto saved = engine::LoadModelFolder(Env::Real(), checkpoint, at::kCPU);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->tokenizer->eos_id(), 261);
}

class BrokenReward final : public reward::Reward {
 public:
  enum class Fault { kNan, kThrows, kError };
  explicit BrokenReward(Fault fault) : fault_(fault) {}
  absl::StatusOr<std::vector<float>> Score(std::span<const reward::Answer> answers) override {
    std::vector<float> scores(answers.size(), 0.5f);
    if (++calls_ < 2) return scores;
    if (fault_ == Fault::kThrows) throw std::runtime_error("the judge fell asleep");
    if (fault_ == Fault::kError) return absl::UnavailableError("the judge does not answer");
    scores[5] = std::nanf("");
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
    const GrpoConfig config = TinyConfig();
    BrokenReward reward(fault);
    const absl::Status status = RunIn(Env::Real(), config, &reward).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("GRPO, step 2: stage 'reward', 32 rows between 32 and 63"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
    EXPECT_EQ(LoggedMetrics(config).size(), 4u + 2u);
    const std::string report = *Env::Real().ReadFile(config.trainer.run_dir + "/report.html");
    EXPECT_THAT(report, HasSubstr("stage 'reward'"));
    EXPECT_FALSE(Env::Real().Exists(config.trainer.run_dir + "/checkpoint/config.json"));
  }
}

TEST(Grpo, AFullDiskStopsTheRunNamingPhaseAndFileAndKeepsWhatWasWritten) {
  const std::pair<int64_t, std::string> cases[] = {{0, "writing the configuration: "},
                                                   {2'000, "warm-up, step "},
                                                   {3'000, "GRPO, step 0: testing: "},
                                                   {12'000, "GRPO, step "},
                                                   {40'000, "saving the checkpoint: "}};
  for (const auto& [capacity, what] : cases) {
    const GrpoConfig config = TinyConfig();
    LimitedEnv env(Env::Real(), capacity);
    const absl::Status status = RunIn(env, config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << capacity << ": " << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(what)) << capacity;
    EXPECT_THAT(std::string(status.message()), HasSubstr(": cannot write to " + config.trainer.run_dir));
    EXPECT_FALSE(Env::Real().Exists(config.trainer.run_dir + "/checkpoint/config.json"));
    if (!Env::Real().Exists(config.trainer.run_dir + "/metrics.jsonl")) continue;
    std::string text = *Env::Real().ReadFile(config.trainer.run_dir + "/metrics.jsonl");
    text.resize(text.rfind('\n') + 1);  // a line without its end is what the disk had no room for
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      EXPECT_TRUE(json::accept(line)) << line;
    }
  }
}

TEST(Grpo, AnExceptionOutsideOfTheStagesNamesPhaseAndStep) {
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
  EXPECT_EQ(RunIn(metrics, TinyConfig()).status().message(), "warm-up, step 0: out of memory");
  EXPECT_EQ(RunIn(samples, TinyConfig()).status().message(), "GRPO, step 0: out of memory");
}

TEST(Grpo, WhatCannotRunIsRefusedBeforeAnythingIsWritten) {
  const auto refused = [](const std::function<void(GrpoConfig&)>& spoil) {
    GrpoConfig config = TinyConfig();
    spoil(config);
    const absl::Status status = RunIn(Env::Real(), config).status();
    EXPECT_TRUE(Env::Real().List(config.trainer.run_dir)->empty()) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](GrpoConfig& c) { c.device = "tpu"; }), HasSubstr("'tpu' is not cpu, cuda or cuda:N"));
  EXPECT_THAT(refused([](GrpoConfig& c) { c.model.path = "/nonexistent"; }), HasSubstr("/nonexistent/"));
  EXPECT_THAT(refused([](GrpoConfig& c) { c.data.max_response_length = 100; }),
              HasSubstr("need 106 positions; the model has 64"));
  EXPECT_THAT(refused([](GrpoConfig& c) { c.data.max_response_length = 3; }),
              HasSubstr("data.max_response_length = 3 truncates correct answers, which have up to 4 tokens"));
  EXPECT_THAT(refused([](GrpoConfig& c) { c.model.hidden_size = 4 * c.model.num_attention_heads << 16; }),
              HasSubstr("model: head_dim must be between 1 and 65536, not 262144"));
}

TEST(Grpo, ARunToldToStopEndsBeforeItsNextStepAndReportsSo) {
  const GrpoConfig config = TinyConfig();
  std::atomic<bool> stop = false;
  // The reward of step 2 is when somebody presses Ctrl-C.
  class StoppingReward final : public reward::Reward {
   public:
    explicit StoppingReward(std::atomic<bool>& flag) : flag_(flag) {}
    absl::StatusOr<std::vector<float>> Score(std::span<const reward::Answer> answers) override {
      flag_ = ++calls_ == 2;
      return std::vector<float>(answers.size(), 0.0f);
    }

   private:
    std::atomic<bool>& flag_;
    int calls_ = 0;
  } reward(stop);
  Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, Clock::Real());
  const auto run = PrepareGrpo(config, {Env::Real(), Clock::Real(), progress, &stop}, &reward);
  ASSERT_TRUE(run.ok()) << run.status();
  const absl::Status status = (*run)->Run().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(status.message(), "GRPO, before step 3: interrupted");
  EXPECT_EQ(LoggedMetrics(config).back()["step"], 2);
  EXPECT_THAT(*Env::Real().ReadFile(config.trainer.run_dir + "/report.html"), HasSubstr("before step 3: interrupted"));
}

TEST(Grpo, AFolderThatHoldsSomethingIsRefused) {
  const GrpoConfig config = TinyConfig();
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), config.trainer.run_dir + "/precious", "data").ok());
  EXPECT_EQ(RunIn(Env::Real(), config).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Env::Real().List(config.trainer.run_dir)->size(), 1u);
}

TEST(GrpoConfig, TheExampleHoldsTheDefaults) {
  GrpoConfig defaults, example;
  config::Spec default_spec, example_spec;
  Bind(default_spec, defaults);
  Bind(example_spec, example);
  ASSERT_TRUE(config::LoadFile(Env::Real(), example_spec, "examples/arithmetic/grpo.yaml", {}).ok());
  EXPECT_EQ(config::Dump(example_spec), config::Dump(default_spec));
  EXPECT_TRUE(config::Load(default_spec, config::Dump(default_spec), "defaults", {}).ok());
}

TEST(GrpoConfig, TheDocumentationListsEveryKey) {
  GrpoConfig config;
  config::Spec spec;
  Bind(spec, config);
  EXPECT_THAT(*Env::Real().ReadFile("docs/configuration.md"), HasSubstr(config::Reference(spec)))
      << "write what `tdock train --keys` prints into it";
}

TEST(GrpoConfig, ReportsEveryContradictionAtOnce) {
  GrpoConfig config;
  config::Spec spec;
  Bind(spec, config);
  const std::string yaml =
      "data: {train_batch_size: 100}\nactor: {ppo_micro_batch_size_per_gpu: 7}\n"
      "model: {num_attention_heads: 5}\n";
  const std::string message(config::Load(spec, yaml, "run.yaml", {}).message());
  EXPECT_THAT(message, HasSubstr("the mini-batch must divide the batch"));
  EXPECT_THAT(message, HasSubstr("the micro-batch must divide the 256 samples of a mini-batch"));
  EXPECT_THAT(message, HasSubstr("the heads must divide the width"));
  EXPECT_THAT(message, HasSubstr("must be a multiple of the key and value heads"));
}

TEST(GrpoConfig, BatchesThatNoMachineHoldsAreRefused) {
  GrpoConfig config;
  config::Spec spec;
  Bind(spec, config);
  const auto refused = [&](const std::vector<std::string>& overrides) {
    return std::string(config::Load(spec, "", "run.yaml", overrides).message());
  };
  for (const char* key : {"data.train_batch_size", "actor.ppo_mini_batch_size", "rollout.n", "rollout.max_num_seqs",
                          "warmup.batch_size", "data.max_response_length"}) {
    EXPECT_THAT(refused({absl::StrCat(key, "=1000000000000")}), HasSubstr(absl::StrCat("command line: ", key, ": ")));
  }
  EXPECT_THAT(refused({"data.train_batch_size=1048576", "rollout.n=1048576"}),
              HasSubstr("a step has 1099511627776 samples; at most 1048576 are possible"));
}

}  // namespace
}  // namespace tdock::trainer
