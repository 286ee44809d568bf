#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {
namespace {

using algo::LrCurve;
using algo::LrDecay;

absl::StatusOr<algo::LrSchedule> Bound(absl::string_view yaml) {
  OptimSection optim;
  config::Spec spec;
  BindSchedule(spec, "optim", optim.lr_schedule);
  const absl::Status loaded = config::Load(spec, yaml, "run.yaml", {});
  if (!loaded.ok()) return loaded;
  return optim.schedule(/*total_steps=*/110);
}

absl::StatusOr<LrDecay> DecayNamed(absl::string_view name, absl::string_view more = "") {
  const auto schedule = Bound(absl::StrCat("optim: {lr_scheduler_type: ", name, more, "}"));
  if (!schedule.ok()) return schedule.status();
  return schedule->decay;
}

TEST(ScheduleSection, HasTheNamesOfTransformers) {
  EXPECT_EQ(*DecayNamed("constant"), LrDecay::kConstant);
  EXPECT_EQ(*DecayNamed("constant_with_warmup"), LrDecay::kConstant);
  EXPECT_EQ(*DecayNamed("linear"), LrDecay::kLinear);
  EXPECT_EQ(*DecayNamed("cosine"), LrDecay::kCosine);
  EXPECT_EQ(*DecayNamed("cosine_with_min_lr"), LrDecay::kCosine);
  EXPECT_EQ(*DecayNamed("cosine_with_restarts"), LrDecay::kCosineWithRestarts);
  EXPECT_EQ(*DecayNamed("cosine_warmup_with_min_lr"), LrDecay::kCosineOneAhead);
  EXPECT_EQ(*DecayNamed("polynomial"), LrDecay::kPolynomial);
  EXPECT_EQ(*DecayNamed("inverse_sqrt"), LrDecay::kInverseSqrt);
  EXPECT_EQ(*DecayNamed("warmup_stable_decay", ", lr_scheduler_kwargs: {num_decay_steps: 5}"),
            LrDecay::kWarmupStableDecay);
}

TEST(ScheduleSection, EveryKeyReachesItsOption) {
  const auto stable = Bound(
      "optim:\n  lr_scheduler_type: warmup_stable_decay\n  lr_warmup_steps: 10\n  lr_scheduler_kwargs: "
      "{num_decay_steps: "
      "20, decay_type: 1-sqrt, warmup_type: cosine, num_cycles: 1.5, min_lr_ratio: 0.1}\n");
  ASSERT_TRUE(stable.ok()) << stable.status();
  EXPECT_EQ(stable->warmup_steps, 10);
  EXPECT_EQ(stable->total_steps, 110);
  EXPECT_EQ(stable->decay_steps, 20);
  EXPECT_EQ(stable->decay_curve, LrCurve::kOneMinusSqrt);
  EXPECT_EQ(stable->warmup_curve, LrCurve::kCosine);
  EXPECT_EQ(stable->cycles, 1.5);
  EXPECT_EQ(stable->floor, 0.1);
  EXPECT_EQ(Bound("optim: {lr_scheduler_type: polynomial, lr_scheduler_kwargs: {power: 2}}")->power, 2);
  EXPECT_EQ(Bound("optim: {lr_scheduler_type: inverse_sqrt, lr_scheduler_kwargs: {timescale: 9}}")->timescale, 9);
  const auto ahead = Bound(
      "optim: {lr_scheduler_type: cosine_warmup_with_min_lr, lr_scheduler_kwargs: {warmup_lr_rate: 0.2, min_lr_rate: "
      "0.3}}");
  ASSERT_TRUE(ahead.ok()) << ahead.status();
  EXPECT_EQ(ahead->warmup_start, 0.2);
  EXPECT_EQ(ahead->floor, 0.3);
}

TEST(ScheduleSection, NamesWhatAScheduleNeedsAndWhatItDoesNotHave) {
  const auto refused = [](std::vector<std::string> names) {
    return Fails(absl::StatusCode::kInvalidArgument, std::move(names));
  };
  for (const char* follows : {"reduce_lr_on_plateau", "greedy"}) {
    EXPECT_THAT(DecayNamed(follows).status(), refused({"optim.lr_scheduler_type", follows, "metric", "cosine"}));
  }
  EXPECT_THAT(DecayNamed("warmup_stable_decay").status(), refused({"optim.lr_scheduler_kwargs.num_decay_steps"}));
  EXPECT_THAT(DecayNamed("linear", ", lr_scheduler_kwargs: {power: 2}").status(),
              refused({"optim.lr_scheduler_kwargs.power", "polynomial"}));
  EXPECT_EQ(DecayNamed("constant", ", lr_scheduler_kwargs: {num_cycles: 0.5}").status(), absl::OkStatus())
      << "verl's default";
  EXPECT_THAT(DecayNamed("polynomial", ", lr_scheduler_kwargs: {lr_end: 1.0e-7}").status(),
              refused({"optim.lr_scheduler_kwargs.lr_end", "optim.min_lr_ratio"}));
  EXPECT_THAT(
      DecayNamed("warmup_stable_decay", ", lr_scheduler_kwargs: {num_decay_steps: 5, num_stable_steps: 3}").status(),
      refused({"optim.lr_scheduler_kwargs.num_stable_steps", "optim.lr_scheduler_kwargs.num_decay_steps"}));
}

}  // namespace
}  // namespace tdock::trainer
