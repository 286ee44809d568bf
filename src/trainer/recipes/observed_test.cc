// What runs train on, counted by who watches their dock, while their stages fail at random and the runs go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/match.h"
#include "tdock/local_dock.h"
#include "trainer/recipes/testing/faulty_recipe.h"
#include "trainer/recipes/testing/small_run.h"
#include "trainer/recipes/testing/watched_dock.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kEpochs = 2;

struct WatchedRecipe {
  std::string label;  // of the test
  std::string name;   // of the recipe
  std::vector<std::string> (*overrides)();
  int64_t rows_per_prompt;
  int calls_per_fault;  // of a stage
  bool requeues;        // it has stages that can be asked for a group again
  bool inside;          // it has stages that fail half-way
  bool drops = false;   // it leaves out some answers
  bool exact = true;    // the same samples give the same weights
};

const std::vector<WatchedRecipe>& WatchedRecipes() {
  static const auto* const recipes = new std::vector<WatchedRecipe>{
      {"sft", "sft", [] { return std::vector<std::string>{"data.train_batch_size=5"}; }, 1, 3, false, false},
      {"rm", "rm", [] { return std::vector<std::string>{"data.train_batch_size=5"}; }, 2, 3, false, false},
      {"dpo", "dpo", [] { return std::vector<std::string>{"data.train_batch_size=5"}; }, 2, 4, true, false},
      {"grpo", "grpo",
       [] {
         return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false", "actor.ppo_epochs=2"};
       },
       4, 6, true, true},
      {"dapo", "dapo",
       [] {
         return std::vector<std::string>{"data.gen_batch_size=8", "data.train_batch_size=6",
                                         "actor.ppo_mini_batch_size=3"};
       },
       4, 8, true, true, true},
      {"ppo", "ppo",
       [] {
         return std::vector<std::string>{"model.path=" + AnsweringModel(), "critic.model.path=" + ScoringModel(),
                                         "reward_model.model.path=" + ScoringModel(), "actor.ppo_epochs=2",
                                         "actor.optim.lr=1e-5"};  // keeps it answering
       },
       4, 8, true, true, true},
      {"grpo_at_the_same_time", "grpo",
       [] {
         return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false", "actor.ppo_epochs=2",
                                         "trainer.executor=concurrent"};
       },
       4, 6, true, false},
      {"dapo_at_the_same_time", "dapo",
       [] {
         return std::vector<std::string>{"data.gen_batch_size=8", "data.train_batch_size=6",
                                         "actor.ppo_mini_batch_size=3", "trainer.executor=concurrent"};
       },
       4, 6, true, false, true},
      {"grpo_ahead", "grpo",
       [] {
         return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                         "async_training.steps_ahead=1"};
       },
       4, 6, true, false, false, false},
      {"grpo_far_ahead_without_waiting", "grpo",
       [] {
         return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=true",
                                         "async_training.steps_ahead=3", "async_training.weights=wait",
                                         "async_training.max_version_lag=2"};
       },
       4, 6, true, false, false, false},
      {"grpo_partial", "grpo",
       [] {
         return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                         "rollout.partial_rollout_max_split=3"};
       },
       4, 6, true, false, false, false},
      {"grpo_partial_ahead", "grpo",
       [] {
         return std::vector<std::string>{"algorithm.rollout_correction.bypass_mode=false",
                                         "rollout.partial_rollout_max_split=3", "async_training.steps_ahead=1"};
       },
       4, 6, true, false, false, false}};
  return *recipes;
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
  explicit WatchedRun(const WatchedRecipe& watched) : run_(watched.name, With(watched.overrides())) {}

  template <class Wrapper = FaultyRecipe>
  absl::StatusOr<RunResult> Train(Faults& faults) {
    SmallRun::Outside outside;
    outside.stop = &faults.stop();
    outside.reward = &reward_;
    outside.wrap = [&](std::unique_ptr<Recipe> recipe) { return std::make_unique<Wrapper>(std::move(recipe), faults); };
    outside.make_dock = [this](Clock& clock) { return observer_.Watch(MakeLocalDock({.clock = &clock})); };
    faults.stop() = false;
    return run_.Train(outside);
  }
  const SmallRun& run() const { return run_; }
  int64_t prompts() const {
    const std::string lines = *Env::Real().ReadFile(run_.folder() + "/train.jsonl");
    return std::count(lines.begin(), lines.end(), '\n');
  }
  const Observer& observer() const { return observer_; }

 private:
  static std::vector<std::string> With(std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"trainer.total_training_steps=0", absl::StrCat("trainer.total_epochs=", kEpochs),
                                       "trainer.save_freq=2", "trainer.test_freq=0", "trainer.val_before_train=false"});
    return overrides;
  }

  SmallRun run_;
  SmallFirst reward_;
  Observer observer_;
};

// What is wrong with what was trained on: prompts that were not all trained on once in each epoch.
std::vector<std::string> Mistakes(const WatchedRun& run, const WatchedRecipe& recipe) {
  std::vector<std::string> mistakes;
  std::map<std::vector<int32_t>, int64_t> in_epoch;
  const int64_t prompts = run.prompts();
  int64_t number = 0;
  for (const auto& [group, sample] : run.observer().samples()) {
    if (sample.trained + sample.dropped != recipe.rows_per_prompt || (sample.dropped > 0 && !recipe.drops)) {
      mistakes.push_back(absl::StrCat("of group ", group, " ", sample.trained, " rows were trained on and ",
                                      sample.dropped, " dropped, of ", recipe.rows_per_prompt));
    }
    if (++in_epoch[sample.prompt] > 1) mistakes.push_back(absl::StrCat("group ", group, " repeats a prompt"));
    if (++number % prompts != 0) continue;
    if (static_cast<int64_t>(in_epoch.size()) != prompts) {
      mistakes.push_back(absl::StrCat(prompts - static_cast<int64_t>(in_epoch.size()), " prompts were lost"));
    }
    in_epoch.clear();
  }
  if (number != prompts * kEpochs) mistakes.push_back(absl::StrCat("there were ", number, " groups"));
  return mistakes;
}

class Observed : public testing::TestWithParam<WatchedRecipe> {};

TEST_P(Observed, EachSampleIsTrainedOnOnceInEachEpochWhateverFails) {
  WatchedRun whole(GetParam());
  Faults none(0, 0);
  const auto undisturbed = whole.Train(none);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  EXPECT_THAT(Mistakes(whole, GetParam()), testing::IsEmpty());
  EXPECT_EQ(std::any_of(whole.observer().samples().begin(), whole.observer().samples().end(),
                        [](const auto& entry) { return entry.second.dropped > 0; }),
            GetParam().drops);
  const char* const long_rounds = std::getenv("TDOCK_FAULT_ROUNDS");  // of `make nightly-train`
  const int rounds = long_rounds != nullptr ? std::atoi(long_rounds) : 1;
  std::map<std::string, int> happened;
  int64_t given_up = 0;
  for (int round = 0; round < rounds; ++round) {
    WatchedRun run(GetParam());
    Faults faults(static_cast<uint32_t>(round), GetParam().calls_per_fault);
    absl::StatusOr<RunResult> result = absl::UnknownError("not begun");
    for (int attempt = 0; !result.ok(); ++attempt) {
      ASSERT_LT(attempt, 1000);
      result = run.Train(faults);
      if (result.ok() || absl::IsCancelled(result.status())) continue;
      ASSERT_THAT(std::string(result.status().message()), testing::HasSubstr("the test fails it"));
    }
    EXPECT_THAT(Mistakes(run, GetParam()), testing::IsEmpty()) << "round " << round;
    EXPECT_EQ(run.observer().samples(), whole.observer().samples()) << "round " << round;
    given_up += run.observer().given_up();
    for (const auto& [what, times] : faults.happened()) happened[what] += times;
    if (!GetParam().exact) continue;
    EXPECT_TRUE(run.run().File("checkpoint/model.safetensors") == whole.run().File("checkpoint/model.safetensors"))
        << "the same samples give other weights, round " << round;
  }
  // One round has faults of every kind of place, many have all kinds of faults there.
  std::vector<std::string> wanted = {" before ", " after "};
  if (GetParam().inside) wanted.emplace_back(" inside ");
  if (long_rounds != nullptr) {
    EXPECT_GT(given_up, 0);
    wanted.insert(wanted.end(),
                  {"error before", "exception before", "stop before", "error after", "exception after", "stop after"});
    if (GetParam().requeues) wanted.emplace_back("requeue after");
    if (GetParam().inside) wanted.insert(wanted.end(), {"error inside", "stop inside"});
  }
  for (const std::string& what : wanted) {
    EXPECT_TRUE(std::any_of(happened.begin(), happened.end(),
                            [&](const auto& entry) { return absl::StrContains(entry.first, what); }))
        << what << " is not among " << testing::PrintToString(happened);
  }
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

TEST_P(Observed, ASampleInPlaceOfAnotherIsNoticed) {
  WatchedRun run(GetParam());
  Faults none(0, 0);
  ASSERT_TRUE(run.Train<Confused>(none).ok());
  EXPECT_THAT(Mistakes(run, GetParam()),
              testing::IsSupersetOf({testing::HasSubstr("group 1 repeats a prompt"), testing::HasSubstr("were lost")}));
}

INSTANTIATE_TEST_SUITE_P(Runs, Observed, testing::ValuesIn(WatchedRecipes()),
                         [](const auto& watched) { return watched.param.label; });

}  // namespace
}  // namespace tdock::trainer
