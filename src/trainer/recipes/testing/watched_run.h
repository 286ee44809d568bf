// For tests: runs whose dock is watched by who counts what became of each sample.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tdock/local_dock.h"
#include "trainer/recipes/testing/faulty_recipe.h"
#include "trainer/recipes/testing/small_run.h"
#include "trainer/recipes/testing/talking_program.h"
#include "trainer/recipes/testing/watched_dock.h"

namespace tdock::trainer {

inline constexpr int64_t kWatchedEpochs = 2;

struct WatchedRecipe {
  std::string label;  // of the test
  std::string name;   // of the recipe
  std::vector<std::string> (*overrides)();
  int64_t rows_per_prompt;
  int64_t prompts_per_step;
  int calls_per_fault;    // of a stage
  bool requeues = false;  // it has stages that can be asked for a group again
  bool inside = false;    // it has stages that fail half-way
  bool drops = false;     // it leaves out some answers
  bool gathers = false;   // those of whole prompts, so that steps train on the others
  bool exact = true;      // the same samples give the same weights
  bool hangs = false;     // a stage that does not come back is noticed
  bool plays = false;     // with an environment
};

inline const std::vector<WatchedRecipe>& WatchedRecipes() {
  static const auto* const recipes = new std::vector<WatchedRecipe>{
      {.label = "sft",
       .name = "sft",
       .overrides = [] { return std::vector<std::string>{"data.train_batch_size=5"}; },
       .rows_per_prompt = 1,
       .prompts_per_step = 5,
       .calls_per_fault = 3},
      {.label = "rm",
       .name = "rm",
       .overrides = [] { return std::vector<std::string>{"data.train_batch_size=5"}; },
       .rows_per_prompt = 2,
       .prompts_per_step = 5,
       .calls_per_fault = 3},
      {.label = "dpo",
       .name = "dpo",
       .overrides = [] { return std::vector<std::string>{"data.train_batch_size=5"}; },
       .rows_per_prompt = 2,
       .prompts_per_step = 5,
       .calls_per_fault = 4,
       .requeues = true},
      {.label = "grpo",
       .name = "grpo",
       .overrides =
           [] {
             return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false", "actor.ppo_epochs=2"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .inside = true},
      {.label = "dapo",
       .name = "dapo",
       .overrides =
           [] {
             return std::vector<std::string>{"data.gen_batch_size=8", "data.train_batch_size=6",
                                             "actor.ppo_mini_batch_size=3"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 6,
       .calls_per_fault = 8,
       .requeues = true,
       .inside = true,
       .drops = true,
       .gathers = true},
      {.label = "ppo",
       .name = "ppo",
       .overrides =
           [] {
             return std::vector<std::string>{"model.path=" + AnsweringModel(), "critic.model.path=" + ScoringModel(),
                                             "reward_model.model.path=" + ScoringModel(), "actor.ppo_epochs=2",
                                             "actor.optim.lr=1e-5"};  // keeps it answering
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 8,
       .requeues = true,
       .inside = true,
       .drops = true},
      {.label = "grpo_at_the_same_time",
       .name = "grpo",
       .overrides =
           [] {
             return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false", "actor.ppo_epochs=2",
                                             "trainer.executor=concurrent"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .hangs = true},
      {.label = "dapo_at_the_same_time",
       .name = "dapo",
       .overrides =
           [] {
             return std::vector<std::string>{"data.gen_batch_size=8", "data.train_batch_size=6",
                                             "actor.ppo_mini_batch_size=3", "trainer.executor=concurrent"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 6,
       .calls_per_fault = 6,
       .requeues = true,
       .drops = true,
       .gathers = true,
       .hangs = true},
      {.label = "grpo_ahead",
       .name = "grpo",
       .overrides =
           [] {
             return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                             "async_training.steps_ahead=1"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .exact = false,
       .hangs = true},
      {.label = "grpo_far_ahead_without_waiting",
       .name = "grpo",
       .overrides =
           [] {
             return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=true",
                                             "async_training.steps_ahead=3", "async_training.weights=wait",
                                             "async_training.max_version_lag=2"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .exact = false,
       .hangs = true},
      {.label = "grpo_partial",
       .name = "grpo",
       .overrides =
           [] {
             return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                             "rollout.partial_rollout_max_split=3"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .exact = false},
      {.label = "grpo_partial_ahead",
       .name = "grpo",
       .overrides =
           [] {
             return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                             "rollout.partial_rollout_max_split=3", "async_training.steps_ahead=1"};
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .exact = false,
       .hangs = true},
      {.label = "grpo_playing_ahead",
       .name = "grpo",
       .overrides =
           [] {
             std::vector<std::string> overrides = TalkingProgram(NewFolder());
             overrides.insert(overrides.end(),
                              {"algorithm.rollout_correction.bypass_mode=false", "async_training.steps_ahead=1"});
             return overrides;
           },
       .rows_per_prompt = 4,
       .prompts_per_step = 8,
       .calls_per_fault = 6,
       .requeues = true,
       .exact = false,
       .hangs = true,
       .plays = true}};
  return *recipes;
}

// Those for which `wanted` is true.
template <class Wanted>
std::vector<WatchedRecipe> WatchedRecipesThat(const Wanted& wanted) {
  std::vector<WatchedRecipe> some;
  std::copy_if(WatchedRecipes().begin(), WatchedRecipes().end(), std::back_inserter(some), wanted);
  return some;
}

// Likes answers that begin with a small digit.
class SmallFirst final : public reward::Reward {
 public:
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    reward::Scores scores;
    for (const reward::Answer& answer : answers) {
      scores.totals.push_back(!answer.response.empty() && answer.response[0] < '5' ? 1.0F : 0.0F);
    }
    return scores;
  }
};

// A run of two epochs that is watched.
class WatchedRun {
 public:
  explicit WatchedRun(const WatchedRecipe& watched)
      : WatchedRun(SmallRun(watched.name, With(watched)).made(), watched, {}) {}

  struct Process {
    std::string record = {};  // see Observer::Options
    std::function<void(WatchedDock::Moment)> during = [](WatchedDock::Moment) {};
    std::atomic<bool>* save = nullptr;  // see RunContext
  };
  // One that another process has made.
  WatchedRun(SmallRun::Made made, const WatchedRecipe& watched, const Process& process)
      : run_(std::move(made)),
        observer_({.prompt = watched.plays ? kInitialPrompt : kPrompt,
                   .record = process.record,
                   .during = process.during,
                   .taken = [this] { clock_.NoteWork(); }}),
        save_(process.save) {}

  template <class Wrapper = FaultyRecipe>
  absl::StatusOr<RunResult> Train(Faults& faults) {
    SmallRun::Outside outside{.clock = clock_};
    outside.stop = &faults.stop();
    outside.save = save_;
    outside.reward = &reward_;
    outside.wrap = [&](std::unique_ptr<Recipe> recipe) { return std::make_unique<Wrapper>(std::move(recipe), faults); };
    outside.make_dock = [this](Clock& clock) { return observer_.Watch(MakeLocalDock({.clock = &clock})); };
    outside.give_up = [this](const absl::Status&) { clock_.LetGo(); };
    faults.BeginRun(clock_);
    return run_.Train(outside);
  }
  const SmallRun& run() const { return run_; }
  int64_t prompts() const {
    const std::string lines = *Env::Real().ReadFile(run_.folder() + "/train.jsonl");
    return std::count(lines.begin(), lines.end(), '\n');
  }
  // That the run has come to.
  int64_t steps() const { return run_.Metrics().back().at("training/global_step").get<int64_t>(); }
  const Observer& observer() const { return observer_; }

 private:
  static std::vector<std::string> With(const WatchedRecipe& watched) {
    std::vector<std::string> overrides = watched.overrides();
    overrides.insert(overrides.end(),
                     {"trainer.total_training_steps=0", absl::StrCat("trainer.total_epochs=", kWatchedEpochs),
                      "trainer.save_freq=2", "trainer.test_freq=0", "trainer.val_before_train=false",
                      absl::StrCat("trainer.stage_timeout=", HangClock::kPatience)});
    return overrides;
  }

  HangClock clock_;
  SmallRun run_;
  SmallFirst reward_;
  Observer observer_;
  std::atomic<bool>* const save_;
};

// What is wrong with what was trained on: prompts that were not all trained on once in each epoch, or not by the steps
// of the run that has come of it. Steps after the checkpoint that it went on from do not count, whatever became of what
// was trained on in them.
inline std::vector<std::string> Mistakes(const WatchedRun& run, const WatchedRecipe& recipe) {
  std::vector<std::string> mistakes;
  std::map<std::vector<int32_t>, int64_t> in_epoch;
  const int64_t prompts = run.prompts();
  int64_t number = 0, of_steps = 0;
  for (const auto& [group, sample] : run.observer().samples()) {
    if (sample.trained + sample.dropped != recipe.rows_per_prompt || (sample.dropped > 0 && !recipe.drops)) {
      mistakes.push_back(absl::StrCat("of group ", group, " ", sample.trained, " rows were trained on and ",
                                      sample.dropped, " dropped, of ", recipe.rows_per_prompt));
    }
    if (sample.trained > 0 || !recipe.gathers) ++of_steps;
    if (++in_epoch[sample.prompt] > 1) mistakes.push_back(absl::StrCat("group ", group, " repeats a prompt"));
    if (++number % prompts != 0) continue;
    if (static_cast<int64_t>(in_epoch.size()) != prompts) {
      mistakes.push_back(absl::StrCat(prompts - static_cast<int64_t>(in_epoch.size()), " prompts were lost"));
    }
    in_epoch.clear();
  }
  const int64_t steps = (of_steps + recipe.prompts_per_step - 1) / recipe.prompts_per_step;
  if (run.steps() != steps) {
    mistakes.push_back(absl::StrCat(of_steps, " groups are those of ", steps, " steps, not of ", run.steps()));
  }
  if (number != prompts * kWatchedEpochs) mistakes.push_back(absl::StrCat("there were ", number, " groups"));
  return mistakes;
}

// Feeds the first prompt of each step in place of the second.
class Confused final : public FaultyRecipe {
 public:
  using FaultyRecipe::FaultyRecipe;
  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    TDOCK_ASSIGN_OR_RETURN(Plan plan, FaultyRecipe::MakePlan(parts));
    plan.feed = [feed = plan.feed](std::span<const data::EncodedSample> samples) {
      std::vector<data::EncodedSample> confused(samples.begin(), samples.end());
      confused[1] = confused[0];
      return feed(confused);
    };
    return plan;
  }
};

}  // namespace tdock::trainer
