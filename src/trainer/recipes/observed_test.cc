// What runs train on, counted by who watches their dock, while their stages fail at random and the runs go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/match.h"
#include "trainer/recipes/testing/watched_run.h"

namespace tdock::trainer {
namespace {

// Whether a run may end like this after what has gone wrong in it.
bool IsOfFault(const absl::Status& status, const Faults& faults) {
  if (status.ok()) return faults.hung().empty();
  if (absl::IsCancelled(status) || absl::StrContains(status.message(), "the test fails it")) return true;
  return absl::IsDeadlineExceeded(status) && absl::StrContains(status.message(), " rows") &&
         absl::StrContains(status.message(), " progress") &&
         std::any_of(faults.hung().begin(), faults.hung().end(), [&](const std::string& stage) {
           return absl::StrContains(status.message(), absl::StrCat("stage '", stage, "', "));
         });
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
    Faults faults(static_cast<uint32_t>(round), GetParam().calls_per_fault, GetParam().hangs);
    absl::StatusOr<RunResult> result = absl::UnknownError("not begun");
    for (int attempt = 0; !result.ok(); ++attempt) {
      ASSERT_LT(attempt, 1000);
      result = run.Train(faults);
      ASSERT_TRUE(IsOfFault(result.status(), faults)) << result.status();
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
  if (GetParam().hangs) wanted.emplace_back("hang ");
  if (GetParam().inside) wanted.emplace_back(" inside ");
  if (long_rounds != nullptr) {
    EXPECT_GT(given_up, 0);
    wanted.insert(wanted.end(),
                  {"error before", "exception before", "stop before", "error after", "exception after", "stop after"});
    if (GetParam().requeues) wanted.emplace_back("requeue after");
    if (GetParam().inside) wanted.insert(wanted.end(), {"error inside", "stop inside"});
    if (GetParam().hangs) wanted.insert(wanted.end(), {"hang before", "hang after"});
  }
  for (const std::string& what : wanted) {
    EXPECT_TRUE(std::any_of(happened.begin(), happened.end(),
                            [&](const auto& entry) { return absl::StrContains(entry.first, what); }))
        << what << ", of " << testing::PrintToString(happened);
  }
}

TEST_P(Observed, ASampleInPlaceOfAnotherIsNoticed) {
  WatchedRun run(GetParam());
  Faults none(0, 0);
  ASSERT_TRUE(run.Train<Confused>(none).ok());
  EXPECT_THAT(Mistakes(run, GetParam()),
              testing::IsSupersetOf({testing::HasSubstr("group 1 repeats a prompt"), testing::HasSubstr("were lost")}));
}

// In the threads of stages and in the run's own.
using ObservedHangs = Observed;

TEST_P(ObservedHangs, EndTheRunWhicheverStageItIs) {
  for (const char* stage : {"rollout", "advantage", "actor"}) {
    WatchedRun run(GetParam());
    Faults faults(0, 0);
    faults.HangIn(stage);
    const absl::Status status = run.Train(faults).status();
    EXPECT_THAT(faults.hung(), testing::ElementsAre(stage));
    EXPECT_TRUE(!status.ok() && IsOfFault(status, faults)) << stage << ": " << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Observed, testing::ValuesIn(WatchedRecipes()),
                         [](const auto& watched) { return watched.param.label; });
INSTANTIATE_TEST_SUITE_P(Runs, ObservedHangs,
                         testing::ValuesIn(WatchedRecipesThat([](const WatchedRecipe& w) { return w.hangs; })),
                         [](const auto& watched) { return watched.param.label; });

}  // namespace
}  // namespace tdock::trainer
