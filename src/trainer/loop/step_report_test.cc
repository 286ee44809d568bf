#include "trainer/loop/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::trainer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

auto Shows(const std::string& name, double value, const std::string& note = "") {
  return AllOf(Field(&Progress::Figure::name, name), Field(&Progress::Figure::value, value),
               Field(&Progress::Figure::note, note));
}

// The metrics of a step whose answers are by servers that were sent its weights.
Metrics Served(double difference) {
  return {{"rollout/server_weights_s", 0.1}, {"rollout_corr/mean_abs_diff", difference}};
}

class StepReportTest : public testing::Test {
 protected:
  // The numbers of the steps that are warned of.
  std::vector<int64_t> WarnedOf(int64_t first, int64_t last, const Metrics& metrics) {
    std::vector<int64_t> steps;
    for (int64_t step = first; step <= last; ++step) {
      const size_t before = log_.size();
      report_.Take({}, step, metrics);
      if (log_.size() > before) steps.push_back(step);
    }
    return steps;
  }

  std::vector<std::string> log_;
  StepReport report_{[this](const std::string& line) { log_.push_back(line); }};
};

TEST_F(StepReportTest, FiguresOfAValidationStayWithTheirStepAndThoseOfTrainingDoNot) {
  const std::vector<ShownFigure> shown = {{"accuracy", "train/accuracy"}, {"val accuracy", "val/accuracy"}};
  EXPECT_THAT(report_.Take(shown, 0, {{"val/accuracy", 0.5}}), ElementsAre(Shows("val accuracy", 0.5, " (step 0)")));
  EXPECT_THAT(report_.Take(shown, 1, {{"train/accuracy", 1}}),
              ElementsAre(Shows("accuracy", 1), Shows("val accuracy", 0.5, " (step 0)")));
  EXPECT_THAT(report_.Take(shown, 2, {{"val/accuracy", 0.75}}), ElementsAre(Shows("val accuracy", 0.75, " (step 2)")));
}

TEST_F(StepReportTest, AFigureMayBeHiddenWhileItIsZero) {
  const std::vector<ShownFigure> shown = {{"equal", "a", true}, {"kl", "b"}};
  EXPECT_THAT(report_.Take(shown, 1, {{"a", 0.25}, {"b", 0}}), ElementsAre(Shows("equal", 0.25), Shows("kl", 0)));
  EXPECT_THAT(report_.Take(shown, 2, {{"a", 0}, {"b", 0}}), ElementsAre(Shows("kl", 0)));
}

TEST_F(StepReportTest, StepsWithoutAGradientAreToldOfWheneverTheirNumberHasDoubled) {
  const Metrics equal = {{"critic/rewards/equal_share", 1}, {"critic/score/min", 0}, {"critic/score/max", 1}};
  const Metrics different = {{"critic/rewards/equal_share", 0.75}, {"critic/score/min", 0}, {"critic/score/max", 1}};
  EXPECT_THAT(WarnedOf(1, 2, different), IsEmpty());
  EXPECT_THAT(WarnedOf(3, 12, equal), ElementsAre(3, 4, 6, 10));
  EXPECT_THAT(log_[0], Mentions({"warning: step 3 ", "1 of 3", "rollout.n", "rollout.temperature", "easier"}));
  EXPECT_THAT(WarnedOf(13, 20, different), IsEmpty());
  EXPECT_THAT(WarnedOf(21, 26, {{"actor/grad_norm", 0}}), ElementsAre(26)) << "the sixteenth";
  log_.clear();
  report_.End();
  EXPECT_THAT(log_, IsEmpty()) << "some steps had one";
}

TEST_F(StepReportTest, ARunThatNeverHadAGradientEndsWithThat) {
  report_.End();
  EXPECT_THAT(log_, IsEmpty()) << "it had no step";
  WarnedOf(1, 3, {{"critic/rewards/equal_share", 1}, {"critic/score/at_max", 1}, {"critic/score/min", 1}});
  report_.End();
  EXPECT_THAT(log_.back(), Mentions({"warning: ", "its 3 steps", "harder"}));
}

TEST_F(StepReportTest, RewardsThatWereAlwaysZeroAreToldOfThoughThereIsAGradient) {
  const Metrics zero = {{"critic/score/min", 0}, {"critic/score/max", 0}, {"actor/grad_norm", 0.5}};
  EXPECT_THAT(WarnedOf(1, 5, zero), ElementsAre(1, 2, 4));
  EXPECT_THAT(log_.back(), Mentions({"warning: ", "0, in 4 steps"}));
  report_.End();
  EXPECT_THAT(log_.back(), Mentions({"warning: ", "0, in 5 steps"}));
  WarnedOf(6, 6, {{"critic/score/min", 0}, {"critic/score/max", 1}});
  EXPECT_THAT(WarnedOf(7, 20, zero), IsEmpty()) << "there was a reward";
}

TEST_F(StepReportTest, GoesOnCountingWhereAnotherProcessStopped) {
  const Metrics equal = {{"critic/rewards/equal_share", 1}};
  WarnedOf(1, 2, equal);
  Metrics third = Served(0);
  third.merge(Metrics(equal));
  WarnedOf(3, 3, third);
  State state;
  state.Set("report", report_);
  std::vector<std::string> log;
  StepReport other([&](const std::string& line) { log.push_back(line); });
  EXPECT_EQ(state.Get("report", other), absl::OkStatus());
  other.Take({}, 4, equal);
  EXPECT_THAT(log, ElementsAre(Mentions({"step 4 ", "4 of 4"})));
  other.Take({}, 5, Served(0.1));
  EXPECT_THAT(log, SizeIs(2)) << "it knows the first difference";
  // Older checkpoints have none of it.
  EXPECT_EQ(State().Get("report", other), absl::OkStatus());
}

TEST_F(StepReportTest, ServersThatAnswerWithOtherWeightsAreToldOf) {
  EXPECT_THAT(WarnedOf(1, 3, Served(1e-6)), IsEmpty());
  EXPECT_THAT(WarnedOf(4, 6, Served(9e-4)), IsEmpty()) << "roundings of a small model";
  EXPECT_THAT(WarnedOf(7, 11, Served(2e-3)), ElementsAre(7, 8, 10));
  EXPECT_THAT(log_[0], Mentions({"warning: ", "step 7 ", "0.002", "1e-06", "rollout.servers", "rollout_is"}));
}

TEST_F(StepReportTest, RoundingsOfServersAreNotToldOfUnlessTheyGrowTenfold) {
  EXPECT_THAT(WarnedOf(1, 1, Served(0.015)), IsEmpty());
  EXPECT_THAT(WarnedOf(2, 20, Served(0.12)), IsEmpty());
  EXPECT_THAT(WarnedOf(21, 21, Served(0.16)), ElementsAre(21));
}

TEST_F(StepReportTest, AServerWithAnotherModelIsToldOfAtOnce) {
  EXPECT_THAT(WarnedOf(1, 4, Served(0.7)), ElementsAre(1, 2, 4));
}

TEST_F(StepReportTest, AnswersOfEarlierWeightsAndOfThisProcessAreNotToldOf) {
  Metrics stale = Served(0.7);
  stale["async/staleness/mean"] = 1.5;
  EXPECT_THAT(WarnedOf(1, 4, stale), IsEmpty());
  Metrics unsent = Served(0.7);
  unsent["rollout/server_weights_s"] = 0;
  EXPECT_THAT(WarnedOf(5, 8, unsent), IsEmpty());
  EXPECT_THAT(WarnedOf(9, 12, {{"rollout_corr/mean_abs_diff", 0.7}}), IsEmpty());
}

TEST_F(StepReportTest, ARecipeWithoutRewardsIsNotWarnedOf) {
  EXPECT_THAT(WarnedOf(1, 4, {{"train/loss", 0}, {"train/grad_norm", 0}}), IsEmpty());
  report_.End();
  EXPECT_THAT(log_, SizeIs(0));
}

}  // namespace
}  // namespace tdock::trainer
