// What runs train on, counted by who watches their dock, while their processes are killed and others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/child_process.h"
#include "core/base/testing/patience.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/recipes/testing/watched_run.h"

namespace tdock::trainer {
namespace {

// Names a file with the Errand of a process.
constexpr char kErrandVariable[] = "TDOCK_TEST_ERRAND";
// No run has fewer calls of the dock that may change rows.
constexpr int kCallsOfARun = 90;
// So that a run is killed even if the thread that does it gets no processor.
constexpr int kMaxCallsSince = 10;

// What a process that may be killed does.
struct Errand {
  // The run, which the first process has made, and the record of the observer.
  std::string folder;
  std::vector<std::string> overrides;
  std::string record;
  // When it is killed: at a moment of its call of the dock with this number, from 1 on; 0: never.
  int call = 0;
  WatchedDock::Moment moment = WatchedDock::Moment::kBefore;
  int delay_us = 0;               // after that moment, while everything goes on, but no more than a few calls later
  bool after_checkpoint = false;  // of a later call, if the run has no checkpoint before
  bool is_confused = false;       // see Confused
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Errand, folder, overrides, record, call, moment, delay_us, after_checkpoint,
                                   is_confused)

class Killer {
 public:
  explicit Killer(const Errand& errand)
      : errand_(errand), checkpoints_(Env::Real(), errand.folder + "/run/checkpoints") {}

  void During(WatchedDock::Moment moment) {
    if (moment == WatchedDock::Moment::kBefore) {
      if (is_killing_ && ++calls_since_ == kMaxCallsSince) Kill();
      is_due_ = ++call_ >= errand_.call && errand_.call > 0 && MayKill();
    }
    if (!is_due_ || moment != errand_.moment || is_killing_) return;
    if (errand_.delay_us == 0) Kill();
    is_killing_ = true;
    std::thread([delay = absl::Microseconds(errand_.delay_us)] {
      absl::SleepFor(delay);
      Kill();
    }).detach();
  }
  std::atomic<bool>& save() { return save_; }

 private:
  [[noreturn]] static void Kill() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  // Has the run saved as soon as possible where that is waited for: after the next step it begins to, and after the one
  // after that it has done so.
  bool MayKill() {
    if (!errand_.after_checkpoint) return true;
    const auto places = checkpoints_.List();
    if (places.ok() && !places->empty()) return true;
    save_ = true;
    return false;
  }

  const Errand errand_;
  const CheckpointFolder checkpoints_;
  std::atomic<bool> save_ = false;
  // By one thread at a time.
  int call_ = 0, calls_since_ = 0;  // since it is to be killed
  bool is_due_ = false, is_killing_ = false;
};

class ObservedKills : public testing::TestWithParam<WatchedRecipe> {
 protected:
  // The part of a process that may be killed.
  static void DoErrand(const Errand& errand) {
    Killer killer(errand);
    WatchedRun run({errand.folder, errand.overrides}, GetParam(),
                   {.record = errand.record,
                    .during = [&killer](WatchedDock::Moment moment) { killer.During(moment); },
                    .save = &killer.save()});
    Faults none(0, 0);
    const auto result = errand.is_confused ? run.Train<Confused>(none) : run.Train(none);
    ASSERT_TRUE(result.ok()) << result.status();
  }

  // The errand of this process, if it has one.
  static std::optional<Errand> OwnErrand() {
    const char* const file = std::getenv(kErrandVariable);
    if (file == nullptr) return std::nullopt;
    return nlohmann::json::parse(*Env::Real().ReadFile(file)).get<Errand>();
  }

  // This test in a process of its own, with an errand; whether it was killed.
  static bool WasKilled(const Errand& errand) {
    const std::string file = errand.folder + "/errand.json";
    EXPECT_EQ(WriteFileAtomically(Env::Real(), file, nlohmann::json(errand).dump()), absl::OkStatus());
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    const auto child = ChildProcess::Start(
        {"/bin/sh", "-c", "exec env \"$@\" 2>&1", "sh", absl::StrCat(kErrandVariable, "=", file),
         std::filesystem::read_symlink("/proc/self/exe"),
         absl::StrCat("--gtest_filter=", test.test_suite_name(), ".", test.name()), "--gtest_brief=1"});
    EXPECT_TRUE(child.ok()) << child.status();
    std::string said;
    for (;;) {
      const auto line = (*child)->ReadLine(kPatience);
      if (!line.ok()) break;
      absl::StrAppend(&said, *line, "\n");
    }
    const absl::StatusOr<int> code = (*child)->Wait(kPatience);
    EXPECT_TRUE(code.ok()) << code.status();
    const bool killed = code == absl::StatusOr<int>(128 + SIGKILL);
    EXPECT_TRUE(killed || code == absl::StatusOr<int>(0)) << "it has ended with " << code.value_or(-1) << ":\n" << said;
    return killed;
  }

  // A run that is killed `kills` times, or fewer if it is through before, and then is not.
  struct Killed {
    std::vector<std::string> mistakes;
    int kills = 0;
  };
  static Killed RunAndKill(uint32_t seed, int kills, bool is_confused = false) {
    std::mt19937 random(seed + static_cast<uint32_t>(std::hash<std::string>()(GetParam().label)));
    const auto below = [&](int limit) { return std::uniform_int_distribution(0, limit - 1)(random); };
    const WatchedRun made(GetParam());
    const auto [folder, overrides] = made.run().made();
    Errand errand{.folder = folder, .overrides = overrides, .record = folder + "/record"};
    Killed killed;
    do {
      errand.call = killed.kills < kills ? 1 + below(kCallsOfARun) : 0;
      errand.moment = static_cast<WatchedDock::Moment>(below(3));
      errand.delay_us = below(2) == 0 ? below(20'000) : 0;
      errand.after_checkpoint = killed.kills == 0 || below(2) == 0;
      errand.is_confused = is_confused && killed.kills == kills;
    } while (WasKilled(errand) && ++killed.kills > 0 && !HasFailure());
    const WatchedRun seen(made.run().made(), GetParam(), {.record = errand.record});
    killed.mistakes = Mistakes(seen, GetParam());
    return killed;
  }
};

TEST_P(ObservedKills, EachSampleIsTrainedOnOnceInEachEpochWhereverProcessesAreKilled) {
  if (const auto errand = OwnErrand()) return DoErrand(*errand);
  const char* const long_rounds = std::getenv("TDOCK_FAULT_ROUNDS");  // of `make nightly-train`
  const int rounds = long_rounds != nullptr ? std::atoi(long_rounds) : 1;
  for (int round = 0; round < rounds; ++round) {
    const Killed killed = RunAndKill(static_cast<uint32_t>(round), long_rounds != nullptr ? 6 : 1);
    EXPECT_THAT(killed.mistakes, testing::IsEmpty()) << "round " << round;
    EXPECT_GT(killed.kills, 0) << "round " << round;
  }
}

// The record of a process that was killed, and that of the one that goes on, count as one.
using ObservedKillsOfAFew = ObservedKills;

TEST_P(ObservedKillsOfAFew, ASampleInPlaceOfAnotherIsNoticed) {
  if (const auto errand = OwnErrand()) return DoErrand(*errand);
  const Killed killed = RunAndKill(0, 1, /*is_confused=*/true);
  EXPECT_EQ(killed.kills, 1);
  EXPECT_THAT(killed.mistakes,
              testing::IsSupersetOf({testing::HasSubstr("repeats a prompt"), testing::HasSubstr("were lost")}));
}

// One in turn, one at the same time, one ahead.
bool IsAmongAFew(const WatchedRecipe& watched) {
  return watched.label == "sft" || watched.label == "grpo_at_the_same_time" || watched.label == "grpo_ahead";
}

INSTANTIATE_TEST_SUITE_P(Runs, ObservedKills, testing::ValuesIn(WatchedRecipes()),
                         [](const auto& watched) { return watched.param.label; });
INSTANTIATE_TEST_SUITE_P(Runs, ObservedKillsOfAFew, testing::ValuesIn(WatchedRecipesThat(IsAmongAFew)),
                         [](const auto& watched) { return watched.param.label; });

}  // namespace
}  // namespace tdock::trainer
