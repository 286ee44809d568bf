#include "bench/harness/peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/harness/harness.h"
#include "core/base/testing/fails.h"

namespace tdock::bench {
namespace {

const Settings kSettings = {.clock = Clock::Real(), .runs = 3, .threads = 2};

// Counts its runs: 1, 2, 3, …
constexpr char kCounts[] =
    R"(sh -c 'i=0; trap "i=\$((i + 1)); echo \$i" USR1; echo ready; while :; do sleep 0.01; done')";

TEST(Peer, IsRunAfterEachRunOfOurs) {
  Settings settings = kSettings;
  settings.peer = kCounts;
  const Benchmark benchmark = {.name = "a/b", .unit = "x", .better = Better::kHigher, .prepare = [](const Settings&) {
                                 return Prepared{.run = [] { return Figure(12.0); }};
                               }};
  const auto result = Measure(benchmark, settings, [](const Benchmark&, int) {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->reference_runs, testing::ElementsAre(2, 3, 4));  // the first run is not counted
  EXPECT_EQ(result->of, "peer");
  EXPECT_EQ(*result->ratio, 4.0);
}

TEST(Peer, IsToldWhatIsMeasured) {
  const auto peer =
      Peer::Start(R"(sh -c 'trap "echo no figure: $1 $3" USR1; echo ready; while :; do sleep 0.01; done' sh)",
                  "train_step/x", kSettings);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_THAT((*peer)->Run().status(), Fails(absl::StatusCode::kInvalidArgument, {"'no figure: train_step/x 2'"}));
}

TEST(Peer, ThatEndsIsNamed) {
  EXPECT_THAT(Peer::Start("false", "a", kSettings).status(), Fails(absl::StatusCode::kOutOfRange, {"peer 'false'"}));
  const auto peer = Peer::Start("echo", "a", kSettings);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_THAT((*peer)->Run().status(), Fails(absl::StatusCode::kOutOfRange, {"peer 'echo'"}));
}

}  // namespace
}  // namespace tdock::bench
