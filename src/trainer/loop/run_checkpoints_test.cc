#include "trainer/loop/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <limits>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

class RunCheckpointsTest : public testing::Test {
 protected:
  static std::string NewFolder() {
    std::string path = testing::TempDir() + "/run_checkpoints_XXXXXX";
    return ::mkdtemp(path.data());
  }
  RunCheckpoints Make(RunCheckpoints::Options options) {
    return {Env::Real(),
            clock_,
            folder_,
            {},
            std::move(options),
            [this](const std::string& line) { log_.push_back(line); }};
  }
  static CheckpointContents Contents(const absl::Status& status = absl::OkStatus()) {
    return {.bytes = 2'000'000'000, .write = [status](const std::string& folder) {
              return status.ok() ? WriteFileAtomically(Env::Real(), JoinPath(folder, "file"), "contents") : status;
            }};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names = *Env::Real().List(CheckpointsPath(folder_));
    std::sort(names.begin(), names.end());
    return names;
  }

  FakeClock clock_;
  const std::string folder_ = NewFolder();
  std::vector<std::string> log_;
};

TEST_F(RunCheckpointsTest, AreDueAfterSteps) {
  RunCheckpoints checkpoints = Make({.freq = {.steps = 50}});
  EXPECT_FALSE(*checkpoints.IsDue(0, {}));
  EXPECT_FALSE(*checkpoints.IsDue(49, {}));
  EXPECT_TRUE(*checkpoints.IsDue(50, {}));
  EXPECT_FALSE(*checkpoints.IsDue(51, {}));
}

TEST_F(RunCheckpointsTest, AreDueAfterATime) {
  RunCheckpoints checkpoints = Make({.freq = {.time = absl::Minutes(30)}});
  clock_.Advance(absl::Minutes(29));
  EXPECT_FALSE(*checkpoints.IsDue(1, {}));
  clock_.Advance(absl::Minutes(1));
  EXPECT_TRUE(*checkpoints.IsDue(2, {}));
  checkpoints.Write({2, 0}, {}, Contents());
  checkpoints.Finish();
  EXPECT_FALSE(*checkpoints.IsDue(3, {}));
  EXPECT_THAT(Names(), ElementsAre("step-000002"));
}

TEST_F(RunCheckpointsTest, ThatCannotBeWrittenAreTriedAgainAMinuteLater) {
  RunCheckpoints checkpoints = Make({.freq = {.steps = 50}});
  checkpoints.Write({50, 0}, {}, Contents());
  checkpoints.Finish();
  checkpoints.Write({100, 0}, {}, Contents(absl::ResourceExhaustedError("no space left on device")));
  checkpoints.Finish();
  EXPECT_THAT(log_, ElementsAre(Mentions({"step 100", CheckpointsPath(folder_), "2 GB", "no space left on device",
                                          JoinPath(CheckpointsPath(folder_), "step-000050")})));
  EXPECT_THAT(Names(), ElementsAre("step-000050"));
  EXPECT_FALSE(*checkpoints.IsDue(101, {}));
  clock_.Advance(absl::Minutes(1));
  EXPECT_TRUE(*checkpoints.IsDue(102, {}));
  checkpoints.Write({102, 0}, {}, Contents());
  checkpoints.Finish();
  EXPECT_FALSE(*checkpoints.IsDue(103, {}));
  EXPECT_THAT(Names(), ElementsAre("step-000050", "step-000102"));
}

TEST_F(RunCheckpointsTest, KeepTheBestOfThoseThatAreNumbers) {
  RunCheckpoints checkpoints = Make({.most_kept = 1, .best_metric = "val/loss", .best_is_least = true});
  const double losses[] = {std::numeric_limits<double>::quiet_NaN(), 3, 1, 2, 5};
  int64_t step = 0;
  for (const double loss : losses) {
    const Metrics validation = {{"val/loss", loss}};
    EXPECT_EQ(*checkpoints.IsDue(++step, validation), loss == 3 || loss == 1) << loss;
    ASSERT_EQ(checkpoints.WriteNow({step, 0}, validation, Contents()), absl::OkStatus());
  }
  EXPECT_THAT(Names(), ElementsAre("step-000003", "step-000005"));
  // Another process knows them, too.
  RunCheckpoints later(Env::Real(), clock_, folder_, {5, 0}, {.best_metric = "val/loss", .best_is_least = true}, {});
  EXPECT_FALSE(*later.IsDue(6, {{"val/loss", 1.5}}));
  EXPECT_TRUE(*later.IsDue(6, {{"val/loss", 0.5}}));
}

}  // namespace
}  // namespace tdock::trainer
