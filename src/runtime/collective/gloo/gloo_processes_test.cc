// Groups whose ranks are processes: this program, started once more for each of them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/child_process.h"
#include "core/base/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/launch/port.h"

namespace tdock::runtime {
namespace {

constexpr int kProcesses = 3;
constexpr int64_t kNumbersOfProcesses = 1 << 20;

absl::Time LateForProcesses() { return Clock::Real().Now() + kPatience; }

// One of the processes that find each other at the port. Rank 0 is that of the test.
class RankProcess {
 public:
  RankProcess(int rank, int port) {
    auto rendezvous = Rendezvous::Open(
        {.rank = rank, .world_size = kProcesses, .master_addr = "127.0.0.1", .master_port = port}, kPatience);
    EXPECT_TRUE(rendezvous.ok()) << rendezvous.status();
    rendezvous_ = *std::move(rendezvous);
  }
  absl::StatusOr<std::unique_ptr<TensorCollective>> Open(int rank) {
    return OpenGlooCollective(
        {.rendezvous = *rendezvous_, .name = "processes", .rank = rank, .size = kProcesses, .host = "127.0.0.1"},
        LateForProcesses());
  }

 private:
  std::unique_ptr<Rendezvous> rendezvous_;
};

absl::Status AddUp(TensorCollective& group) {
  const at::Tensor tensor = at::full({kNumbersOfProcesses}, group.rank() + 1, at::kFloat);
  const absl::Status added = group.AllReduceSum(tensor, LateForProcesses());
  EXPECT_TRUE(!added.ok() || at::equal(tensor, at::full_like(tensor, 6)));
  return added;
}

// Not by the deadline. On a loaded machine, the other rank that waits may be suspected, too.
auto EndsByRank2() { return Fails(absl::StatusCode::kUnavailable, {" 2 of 3 left before", "sum"}); }

TEST(GlooProcess, DISABLED_Rank) {
  const char *rank_text = std::getenv("RANK_OF_TEST"), *port_text = std::getenv("PORT_OF_TEST");
  int rank = 0, port = 0;
  ASSERT_TRUE(rank_text != nullptr && port_text != nullptr && absl::SimpleAtoi(rank_text, &rank) &&
              absl::SimpleAtoi(port_text, &port))
      << "only started by the test below";
  RankProcess process(rank, port);
  const auto group = process.Open(rank);
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_EQ(AddUp(**group), absl::OkStatus());
  if (rank == kProcesses - 1) std::raise(SIGKILL);
  EXPECT_THAT(AddUp(**group), EndsByRank2());
}

TEST(GlooProcesses, NameTheRankThatIsKilledLongBeforeTheirDeadline) {
  const absl::StatusOr<int> port = FreePort();
  ASSERT_TRUE(port.ok()) << port.status();
  RankProcess process(0, *port);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::unique_ptr<ChildProcess>> others;
  for (int rank = 1; rank < kProcesses; ++rank) {
    auto started =
        ChildProcess::Start({"/usr/bin/env", absl::StrCat("RANK_OF_TEST=", rank), absl::StrCat("PORT_OF_TEST=", *port),
                             program, "--gtest_filter=GlooProcess.DISABLED_Rank", "--gtest_also_run_disabled_tests"});
    ASSERT_TRUE(started.ok()) << started.status();
    others.push_back(*std::move(started));
  }
  const auto group = process.Open(0);
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_EQ(AddUp(**group), absl::OkStatus());
  EXPECT_THAT(AddUp(**group), EndsByRank2());
  std::string said;
  for (auto line = others[0]->ReadLine(kPatience); line.ok(); line = others[0]->ReadLine(kPatience)) {
    absl::StrAppend(&said, *line, "\n");
  }
  EXPECT_EQ(*others[0]->Wait(kPatience), 0) << said;
}

}  // namespace
}  // namespace tdock::runtime
