#include "trainer/stages/objectives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>

namespace tdock::trainer {
namespace {

std::string RefusalOf(const algo::ActorLossOptions& options) {
  try {
    MakeClippedObjective(options);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

TEST(ClippedObjective, RefusesWhatItCouldNeverRunWith) {
  using Kind = algo::PolicyLossKind;
  using How = algo::Aggregation;
  for (const Kind kind : {Kind::kPpoClip, Kind::kCispo, Kind::kGpg, Kind::kSapo}) {
    EXPECT_EQ(RefusalOf({.kl_coef = 0.1, .kind = kind}), "");
  }
  for (const Kind kind : {Kind::kGspo, Kind::kSequenceClip, Kind::kGmpo, Kind::kVespo}) {
    EXPECT_THAT(RefusalOf({.kind = kind, .reduction = {How::kSeqMeanTokenMean}}),
                testing::HasSubstr("does not say which sequences"));
  }
  for (const Kind kind : {Kind::kClipCov, Kind::kKlCov}) {
    EXPECT_THAT(RefusalOf({.kind = kind}), testing::HasSubstr("no stage selects their tokens"));
  }
  for (const How how : {How::kSeqMeanTokenSum, How::kSeqMeanTokenMean, How::kSeqMeanTokenSumNorm}) {
    EXPECT_THAT(RefusalOf({.reduction = {how, 10}}), testing::HasSubstr("by token-mean only"));
  }
  EXPECT_THAT(RefusalOf({.entropy_coef = 0.5}), testing::HasSubstr("entropy_coef must be 0 here, not 0.5"));
  EXPECT_THAT(RefusalOf({.dual_clip = 0.5}), testing::HasSubstr("dual_clip must be above 1"));
}

}  // namespace
}  // namespace tdock::trainer
