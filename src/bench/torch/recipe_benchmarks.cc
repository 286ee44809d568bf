#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/torch/model_benchmarks.h"
#include "core/base/env.h"
#include "core/base/json_text.h"
#include "trainer/loop/train.h"
#include "trainer/recipes/recipes.h"
#include "trainer/reward/reward.h"
#include "trainer/run_log/progress.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

enum class Mode { kInTurn, kTogether, kAhead };

struct Size {
  int64_t prompts, samples, response_tokens, steps;
  int64_t hidden, layers;
};
constexpr Size kFull = {.prompts = 16, .samples = 8, .response_tokens = 48, .steps = 8, .hidden = 128, .layers = 4};
constexpr Size kQuick = {.prompts = 4, .samples = 2, .response_tokens = 8, .steps = 3, .hidden = 32, .layers = 2};

// The share of even digits in an answer, which takes as long as another program would that judges one after another.
class WaitingReward final : public reward::Reward {
 public:
  explicit WaitingReward(absl::Duration of_each) : of_each_(of_each) {}

  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    absl::SleepFor(of_each_ * static_cast<int64_t>(answers.size()));
    reward::Scores scores;
    for (const reward::Answer& answer : answers) {
      const auto even = std::count_if(answer.response.begin(), answer.response.end(),
                                      [](char c) { return c >= '0' && c <= '9' && (c - '0') % 2 == 0; });
      scores.totals.push_back(static_cast<float>(even) /
                              static_cast<float>(std::max<size_t>(answer.response.size(), 1)));
    }
    return scores;
  }

 private:
  const absl::Duration of_each_;
};

absl::StatusOr<std::vector<nlohmann::json>> ReadRecords(const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, Env::Real().ReadFile(path));
  std::vector<nlohmann::json> records;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    records.push_back(ReadJson(line));
  }
  return records;
}

// How old what was trained on was, in versions of the weights, of which each step makes one.
absl::StatusOr<std::vector<Detail>> Staleness(const std::string& run_dir) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<nlohmann::json> records, ReadRecords(JoinPath(run_dir, "metrics.jsonl")));
  double sum = 0, most = 0, steps = 0;
  for (const nlohmann::json& record : records) {
    if (!record.contains("async/staleness/mean")) continue;
    sum += record["async/staleness/mean"].get<double>();
    most = std::max(most, record["async/staleness/max"].get<double>());
    ++steps;
  }
  if (steps == 0) return absl::InternalError(absl::StrCat(run_dir, " tells of no staleness"));
  return std::vector<Detail>{{"staleness", sum / steps}, {"staleness_max", most}};
}

// The share of the time from the first to the last span of the timeline in which each of these stages did not work.
absl::StatusOr<std::vector<Detail>> IdleShares(const std::string& run_dir) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<nlohmann::json> spans, ReadRecords(JoinPath(run_dir, "timeline.jsonl")));
  std::map<std::string, double> worked;
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const nlohmann::json& span : spans) {
    const double from = span.at("begin").get<double>(), to = span.at("end").get<double>();
    begin = std::min(begin, from);
    end = std::max(end, to);
    if (span.at("what") == "work") worked[span.at("stage").get<std::string>()] += to - from;
  }
  std::vector<Detail> shares;
  for (const char* stage : {"rollout", "reward", "actor"}) {
    if (!worked.contains(stage)) return absl::InternalError(absl::StrCat(run_dir, " tells of no work of ", stage));
    shares.push_back({absl::StrCat("idle_", stage), 1 - worked[stage] / (end - begin)});
  }
  return shares;
}

// Runs of GRPO as `tdock train` would carry them out, in folders that are gone afterwards. All do the same work: random
// weights that answer random prompts, always with as many tokens.
class RecipeRuns {
 public:
  explicit RecipeRuns(const Settings& settings)
      : settings_(settings),
        size_(settings.quick ? kQuick : kFull),
        folder_(absl::StrCat(std::filesystem::temp_directory_path().string(), "/tdock-bench-recipe-", ::getpid())) {}
  ~RecipeRuns() { std::filesystem::remove_all(folder_); }
  RecipeRuns(const RecipeRuns&) = delete;
  RecipeRuns& operator=(const RecipeRuns&) = delete;

  absl::Status SetUp() {
    std::filesystem::create_directories(folder_);
    std::string lines;
    for (int i = 0; i < 1000; ++i)
      absl::StrAppend(&lines, absl::StrFormat(R"({"prompt": "%04d=", "answer": ""})", i), "\n");
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(Env::Real(), JoinPath(folder_, "train.jsonl"), lines));
    return WriteFileAtomically(Env::Real(), JoinPath(folder_, "run.yaml"), "recipe: grpo\n");
  }

  // From now on, scoring an answer takes so long that a step's take half of a step whose stages run in turn: as long as
  // the rest of it, which is measured.
  absl::Status LetRewardsSleep() {
    TDOCK_RETURN_IF_ERROR(Run(Mode::kInTurn).status());  // warms up
    TDOCK_ASSIGN_OR_RETURN(const Figure figure, Run(Mode::kInTurn));
    of_each_ = absl::Seconds(1 / figure.value);
    return absl::OkStatus();
  }

  // Samples that a run goes through in a second, from its beginning to its end. Its first step has nothing that was
  // done ahead, and its last nothing to do ahead.
  absl::StatusOr<Figure> Run(Mode mode) {
    const std::string run_dir = JoinPath(folder_, absl::StrCat("run-", ++runs_));
    TDOCK_ASSIGN_OR_RETURN(const auto recipe,
                           trainer::LoadRecipe(Env::Real(), JoinPath(folder_, "run.yaml"), Overrides(mode, run_dir)));
    trainer::Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, settings_.clock);
    WaitingReward reward(of_each_);
    TDOCK_ASSIGN_OR_RETURN(const auto run,
                           trainer::PrepareRun(*recipe, {Env::Real(), settings_.clock, progress}, &reward));
    trainer::RunResult result;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(settings_.clock, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(result, run->Train());
                             return absl::OkStatus();
                           }));
    if (result.steps != size_.steps) {
      return absl::InternalError(absl::StrCat("the run made ", result.steps, " steps of ", size_.steps));
    }
    const auto samples = static_cast<double>(size_.steps * size_.prompts * size_.samples);
    TDOCK_ASSIGN_OR_RETURN(std::vector<Detail> details, IdleShares(run_dir));
    if (mode == Mode::kAhead) {
      TDOCK_ASSIGN_OR_RETURN(const std::vector<Detail> staleness, Staleness(run_dir));
      details.insert(details.end(), staleness.begin(), staleness.end());
    }
    details.push_back({"step_s", seconds / static_cast<double>(size_.steps)});
    details.push_back({"slept_share", absl::ToDoubleSeconds(of_each_) * samples / seconds});
    std::filesystem::remove_all(run_dir);
    return Figure(samples / seconds, std::move(details));
  }

 private:
  std::vector<std::string> Overrides(Mode mode, const std::string& run_dir) const {
    std::vector<std::string> overrides = {
        absl::StrCat("data.train_files=", folder_, "/train.jsonl"),
        absl::StrCat("trainer.run_dir=", run_dir),
        absl::StrCat("threads=", settings_.threads),
        absl::StrCat("device=", settings_.device),
        "model.alphabet=0123456789=",
        absl::StrCat("model.hidden_size=", size_.hidden),
        absl::StrCat("model.intermediate_size=", 3 * size_.hidden),
        absl::StrCat("model.num_hidden_layers=", size_.layers),
        absl::StrCat("data.train_batch_size=", size_.prompts),
        "data.max_prompt_length=8",
        absl::StrCat("data.max_response_length=", size_.response_tokens),
        absl::StrCat("rollout.n=", size_.samples),
        "rollout.ignore_eos=true",
        absl::StrCat("actor.ppo_mini_batch_size=", size_.prompts),
        // The same stages in every mode, a reference among them.
        "algorithm.rollout_correction.bypass_mode=true",
        "actor.kl_loss_coef=0.001",
        absl::StrCat("trainer.total_training_steps=", size_.steps),
        "trainer.val_before_train=false",
        "trainer.test_freq=0",
        "trainer.evaluations=[]",
        "trainer.save_freq=0",
        // Otherwise it is measured before the first step.
        "trainer.peak_flops=1e12",
    };
    if (mode == Mode::kInTurn) overrides.push_back("trainer.executor=sequential");
    if (mode == Mode::kTogether) overrides.push_back("trainer.executor=concurrent");
    if (mode == Mode::kAhead) overrides.push_back("async_training.steps_ahead=1");
    return overrides;
  }

  const Settings settings_;
  const Size size_;
  const std::string folder_;
  absl::Duration of_each_ = absl::ZeroDuration();
  int runs_ = 0;
};

absl::StatusOr<Prepared> PrepareRuns(Mode mode, bool sleeps, const Settings& settings) {
  const auto runs = std::make_shared<RecipeRuns>(settings);
  TDOCK_RETURN_IF_ERROR(runs->SetUp());
  if (sleeps) TDOCK_RETURN_IF_ERROR(runs->LetRewardsSleep());
  const auto run = [runs](Mode of) { return trainer::Guarded([&] { return runs->Run(of); }); };
  Prepared prepared{.run = [=] { return run(mode); }};
  if (mode != Mode::kInTurn) prepared.reference = [=] { return run(Mode::kInTurn); };
  return prepared;
}

}  // namespace

std::vector<Benchmark> RecipeBenchmarks() {
  struct Row {
    const char* name;
    Mode mode;
  };
  constexpr std::array<Row, 3> kRows = {{{"recipe/sync", Mode::kInTurn},
                                         {"recipe/sync/executor=concurrent", Mode::kTogether},
                                         {"recipe/async", Mode::kAhead}}};
  std::vector<Benchmark> benchmarks;
  for (const bool sleeps : {false, true}) {
    for (const auto& [name, mode] : kRows) {
      benchmarks.push_back({.name = absl::StrCat(name, sleeps ? "/stage=sleeps" : "/stage=none"),
                            .unit = "samples/s",
                            .better = Better::kHigher,
                            .of = mode == Mode::kInTurn ? "" : "recipe/sync",
                            .prepare = [mode = mode, sleeps](const Settings& settings) {
                              return trainer::Guarded([&] { return PrepareRuns(mode, sleeps, settings); });
                            }});
    }
  }
  return benchmarks;
}

}  // namespace tdock::bench
