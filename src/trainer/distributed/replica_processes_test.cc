// Replicas whose ranks are processes: this program, started once more for each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/child_process.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/testing/patience.h"
#include "dock/local/shared_dock.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/launch/port.h"
#include "runtime/rendezvous/rendezvous.h"
#include "trainer/distributed/replica_runner.h"

namespace tdock::trainer {
namespace {

constexpr char kSquares[] = "squares";
constexpr MeshSizes kTwoByTwo{.tp = 2, .dp = 2};
constexpr int64_t kRowsOfTest = 10;

// Writes the square of x, and says which rows it has computed. The rank named in LOST ends in its second round.
class SquareStage final : public Stage {
 public:
  explicit SquareStage(bool is_lost) : is_lost_(is_lost) {}
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext&) override {
    if (is_lost_ && ++rounds_ == 2) std::raise(SIGKILL);
    std::vector<float> squares;
    for (size_t row = 0; row < rows.size(); ++row) {
      const float x = rows.Get<float>(row, "x")->front();
      squares.push_back(x * x);
      std::cout << "computed " << rows.ids()[row] << std::endl;
    }
    StageOutput output;
    TDOCK_RETURN_IF_ERROR(output.columns.Add("square", Column::FromValues(squares)));
    return output;
  }

 private:
  const ConsumerOptions consumer_{.name = kSquares, .reads = {"x"}, .writes = {"square"}};
  const bool is_lost_;
  int rounds_ = 0;
};

// A rank: takes one row after another until all of its replica are done. The text is for the test that started it.
absl::Status BeRank(int rank, int port, const std::string& dock_address, int lost) {
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<dock::SharedDock> shared,
                         dock::OpenSharedDock({.connect = dock_address}));
  TDOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<runtime::Rendezvous> rendezvous,
      runtime::Rendezvous::Open({.rank = rank + 1, .world_size = 5, .master_addr = "127.0.0.1", .master_port = port},
                                kPatience));
  TDOCK_ASSIGN_OR_RETURN(const MeshCoordinates at, CoordinatesOf(rank, kTwoByTwo));
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::Collective> group,
                         runtime::OpenGlooCollective({.rendezvous = *rendezvous,
                                                      .name = absl::StrCat("replica ", at.dp),
                                                      .rank = static_cast<int>(at.tp),
                                                      .size = 2,
                                                      .host = "127.0.0.1"},
                                                     Clock::Real().Now() + kPatience));
  TDOCK_ASSIGN_OR_RETURN(
      runtime::Replica replica,
      runtime::Replica::Make({.sizes = kTwoByTwo, .at = at, .group = *group, .dock = shared->dock()}));
  ReplicaRunner runner(replica, shared->dock(), "train");
  SquareStage stage(rank == lost);
  TDOCK_RETURN_IF_ERROR(runner.Add(stage));
  StepMetrics metrics;
  StageContext context{0, metrics};
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const ReplicaRunner::Round round, runner.Run(stage, {}, context));
    if (round.outcome == runtime::Replica::Outcome::kNoMoreRows) return absl::OkStatus();
  }
}

int NumberOf(const char* variable) {
  const char* text = std::getenv(variable);
  int number = -1;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : -1;
}

TEST(ReplicaProcess, DISABLED_Rank) {
  ASSERT_NE(std::getenv("DOCK_OF_TEST"), nullptr) << "only started by the tests below";
  const absl::Status status =
      BeRank(NumberOf("RANK_OF_TEST"), NumberOf("PORT_OF_TEST"), std::getenv("DOCK_OF_TEST"), NumberOf("LOST"));
  std::cout << "ended " << status.ToString() << std::endl;
}

class ReplicaProcesses : public testing::Test {
 protected:
  ReplicaProcesses() {
    auto served = dock::OpenSharedDock({.serve = "unix"});
    EXPECT_TRUE(served.ok()) << served.status();
    served_ = *std::move(served);
    EXPECT_EQ(dock().CreatePartition({.name = "train", .growing = true}), absl::OkStatus());
    std::vector<float> x;
    for (int64_t row = 0; row < kRowsOfTest; ++row) x.push_back(static_cast<float>(row));
    Batch batch;
    EXPECT_EQ(batch.Add("x", Column::FromValues(x)), absl::OkStatus());
    EXPECT_TRUE(dock().Put({.partition = "train", .batch = batch}).ok());
    EXPECT_EQ(dock().Seal("train"), absl::OkStatus());
  }

  Dock& dock() { return served_->dock(); }

  // Runs all ranks to their ends, the rank `lost` to its death.
  void RunRanks(int lost) {
    const absl::StatusOr<int> port = runtime::FreePort();
    ASSERT_TRUE(port.ok()) << port.status();
    const auto rendezvous = runtime::Rendezvous::Open(
        {.rank = 0, .world_size = 5, .master_addr = "127.0.0.1", .master_port = *port}, kPatience);
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      auto started = ChildProcess::Start(
          {"/usr/bin/env", absl::StrCat("RANK_OF_TEST=", rank), absl::StrCat("PORT_OF_TEST=", *port),
           absl::StrCat("LOST=", lost), absl::StrCat("DOCK_OF_TEST=", served_->address()), program,
           "--gtest_filter=ReplicaProcess.DISABLED_Rank", "--gtest_also_run_disabled_tests"});
      ASSERT_TRUE(started.ok()) << started.status();
      ranks.push_back(*std::move(started));
    }
    for (int rank = 0; rank < 4; ++rank) {
      ChildProcess& process = *ranks[static_cast<size_t>(rank)];
      for (auto line = process.ReadLine(kPatience); line.ok(); line = process.ReadLine(kPatience)) {
        RowId row = 0;
        if (line->starts_with("computed ") && absl::SimpleAtoi(line->substr(9), &row)) computed_[row].insert(rank);
        if (line->starts_with("ended ")) ended_[rank] = line->substr(6);
      }
      EXPECT_TRUE(process.Wait(kPatience).ok());
    }
  }

  std::unique_ptr<dock::SharedDock> served_;
  std::map<RowId, std::multiset<int>> computed_;  // by row, the ranks
  std::map<int, std::string> ended_;              // by rank, with what
};

TEST_F(ReplicaProcesses, ComputeEachRowOnBothRanksOfOneReplicaAndPutItOnce) {
  RunRanks(/*lost=*/-1);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ended_[rank], "OK") << rank;
  for (RowId row = 0; row < kRowsOfTest; ++row) {
    const int first = static_cast<int>(row % 2) * 2;
    EXPECT_EQ(computed_[row], (std::multiset<int>{first, first + 1})) << row;
    const auto rows = dock().Fetch({.partition = "train", .rows = {row}, .columns = {"square"}});
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->Get<float>(0, "square")->front(), static_cast<float>(row * row));
  }
  EXPECT_EQ(dock().GetConsumerStatus("train", kSquares)->completed, kRowsOfTest);
}

TEST_F(ReplicaProcesses, OneThatDiesEndsItsReplicaAndItsRowsAreReadyAgain) {
  RunRanks(/*lost=*/3);
  EXPECT_FALSE(ended_.contains(3));
  EXPECT_EQ(ended_[0], "OK");
  EXPECT_EQ(ended_[1], "OK");
  EXPECT_THAT(ended_[2], testing::AllOf(testing::StartsWith("UNAVAILABLE"), testing::HasSubstr("rank 1 of 2 left"),
                                        testing::HasSubstr("stage 'squares'")));
  const ConsumerStatus status = *dock().GetConsumerStatus("train", kSquares);
  EXPECT_EQ(status.done, kRowsOfTest / 2 + 1);
  EXPECT_EQ(status.ready, kRowsOfTest / 2 - 1);
}

}  // namespace
}  // namespace tdock::trainer
