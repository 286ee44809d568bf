#include "trainer/distributed/replica_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "runtime/collective/thread_collective.h"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

using Code = absl::StatusCode;
using runtime::Replica;

constexpr char kReplicated[] = "train";

// The largest token of each row: each rank looks at its part of the sequence, and together they know it. Groups
// can be dropped or requeued, and the first row be put early.
class LargestStage final : public Stage {
 public:
  struct Behaviour {
    std::set<GroupId> dropped = {}, requeued = {};
    bool publishes_first = false;
  };
  // A group for what the ranks do within the stage.
  LargestStage(const Replica& replica, runtime::Collective& together, ContextSlicing slicing, Behaviour behaviour)
      : replica_(replica), together_(together), slicing_(slicing), behaviour_(std::move(behaviour)) {}

  const ConsumerOptions& consumer() const override { return consumer_; }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<int64_t> largest;
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::span<const int64_t> tokens = *rows.Get<int64_t>(row, "tokens");
      TDOCK_ASSIGN_OR_RETURN(const runtime::ContextPart part,
                             replica_.PartOf(static_cast<int64_t>(tokens.size()), slicing_));
      int64_t own = INT64_MIN;
      for (const TokenRange& range : part.ranges) {
        const int64_t end = std::min(range.begin + range.count, static_cast<int64_t>(tokens.size()));
        for (int64_t i = range.begin; i < end; ++i) own = std::max(own, tokens[static_cast<size_t>(i)]);
      }
      TDOCK_ASSIGN_OR_RETURN(const int64_t all, together_.AllReduceMax(own, Clock::Real().Now() + kPatience));
      largest.push_back(all);
    }
    if (behaviour_.publishes_first) {
      Batch first;
      TDOCK_RETURN_IF_ERROR(first.Add("largest", Column::FromValues(std::vector<int64_t>{largest.front()})));
      TDOCK_RETURN_IF_ERROR(context.renew());
      TDOCK_RETURN_IF_ERROR(context.publish(std::vector<size_t>{0}, std::move(first), 5));
      largest.erase(largest.begin());
    }
    StageOutput output{.weights_version = 5};
    for (const GroupId group : std::set<GroupId>(rows.groups().begin(), rows.groups().end())) {
      if (behaviour_.dropped.contains(group)) output.dropped.push_back(group);
      if (behaviour_.requeued.contains(group)) output.requeued.push_back(group);
    }
    if (!largest.empty()) TDOCK_RETURN_IF_ERROR(output.columns.Add("largest", Column::FromValues(largest)));
    return output;
  }

 private:
  const ConsumerOptions consumer_{.name = "largest", .reads = {"tokens"}, .writes = {"largest"}};
  const Replica& replica_;
  runtime::Collective& together_;
  const ContextSlicing slicing_;
  const Behaviour behaviour_;
};

// Row r is a group of its own, of r + 3 tokens; the largest of them, 100 + r, is at place r % (r + 3).
std::unique_ptr<Dock> DockOfTokens(int64_t rows) {
  std::unique_ptr<Dock> dock = MakeLocalDock();
  EXPECT_EQ(dock->CreatePartition({.name = kReplicated, .growing = true}), absl::OkStatus());
  std::vector<std::vector<int64_t>> tokens;
  std::vector<GroupId> groups;
  for (int64_t row = 0; row < rows; ++row) {
    tokens.emplace_back(static_cast<size_t>(row + 3), 1);
    tokens.back()[static_cast<size_t>((5 * row) % (row + 3))] = 100 + row;
    groups.push_back(static_cast<GroupId>(row));
  }
  Batch batch;
  EXPECT_EQ(batch.Add("tokens", Column::FromRows(tokens)), absl::OkStatus());
  EXPECT_TRUE(dock->Put({.partition = kReplicated, .batch = batch, .groups = groups}).ok());
  return dock;
}

using Behaviour = std::function<LargestStage::Behaviour(int64_t rank)>;
using Body = std::function<void(int64_t rank, ReplicaRunner& runner, Stage& stage, StageContext& context)>;

void OnRanks(Dock& dock, const MeshSizes& sizes, const Behaviour& behaviour, const Body& body,
             ContextSlicing slicing = ContextSlicing::kContiguous) {
  const int64_t of_replica = sizes.tp * sizes.cp * sizes.pp;
  std::vector<std::vector<std::unique_ptr<runtime::Collective>>> groups, within;
  for (int64_t dp = 0; dp < sizes.dp; ++dp) {
    groups.push_back(runtime::MakeThreadCollectives(static_cast<int>(of_replica), absl::StrCat("replica ", dp)));
    within.push_back(runtime::MakeThreadCollectives(static_cast<int>(of_replica), absl::StrCat("stage of ", dp)));
  }
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < of_replica * sizes.dp; ++rank) {
    threads.emplace_back([&, rank] {
      const MeshCoordinates at = *CoordinatesOf(rank, sizes);
      const auto place = static_cast<size_t>(at.tp + sizes.tp * (at.cp + sizes.cp * at.pp));
      const auto dp = static_cast<size_t>(at.dp);
      Replica replica =
          *Replica::Make({.sizes = sizes, .at = at, .group = *groups[dp][place], .dock = dock, .patience = kPatience});
      ReplicaRunner runner(replica, dock, kReplicated);
      LargestStage stage(replica, *within[dp][place], slicing, behaviour(rank));
      ASSERT_EQ(runner.Add(stage), absl::OkStatus());
      StepMetrics metrics;
      StageContext context{3, metrics};
      body(rank, runner, stage, context);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int64_t LargestIn(Dock& dock, RowId row) {
  const auto rows = dock.Fetch({.partition = kReplicated, .rows = {row}, .columns = {"largest"}});
  return rows.ok() ? rows->Get<int64_t>(0, "largest")->front() : -1;
}

const Behaviour kPlain = [](int64_t) { return LargestStage::Behaviour(); };

TEST(ReplicaRunner, ComputesEachRowOnAllRanksOfAReplicaAndPutsItOnce) {
  for (const MeshSizes& sizes : std::vector<MeshSizes>{{.cp = 2, .dp = 2}, {.tp = 2, .cp = 2, .pp = 2}, {.dp = 3}}) {
    for (const ContextSlicing slicing : {ContextSlicing::kContiguous, ContextSlicing::kRing}) {
      const std::unique_ptr<Dock> dock = DockOfTokens(11);
      const Body body = [](int64_t, ReplicaRunner& runner, Stage& stage, StageContext& context) {
        while (!*runner.AllConsumed(stage)) {
          const auto result = runner.Run(stage, {.min = 1, .max = 3}, context);
          ASSERT_TRUE(result.ok()) << result.status();
          if (result->outcome == Replica::Outcome::kNothingReady) absl::SleepFor(absl::Milliseconds(1));
        }
      };
      OnRanks(*dock, sizes, kPlain, body, slicing);
      for (RowId row = 0; row < 11; ++row) EXPECT_EQ(LargestIn(*dock, row), 100 + static_cast<int64_t>(row));
      EXPECT_EQ(dock->GetConsumerStatus(kReplicated, "largest")->completed, 11);
    }
  }
}

// Throws when it is first run. Its ranks do nothing together, so the others are through.
class ThrowingStage final : public Stage {
 public:
  explicit ThrowingStage(bool throws) : throws_(throws) {}
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext&) override {
    if (std::exchange(throws_, false)) throw std::runtime_error("a broken layer");
    StageOutput output;
    TDOCK_RETURN_IF_ERROR(output.columns.Add("y", Column::FromValues(std::vector<float>(rows.size(), 1.0F))));
    return output;
  }

 private:
  const ConsumerOptions consumer_{.name = "throws", .reads = {"tokens"}, .writes = {"y"}};
  bool throws_;
};

TEST(ReplicaRunner, AnExceptionAtOneRankIsTheErrorOfAllAndTheRowsAreReadyAgain) {
  const std::unique_ptr<Dock> dock = DockOfTokens(4);
  OnRanks(*dock, {.tp = 2, .pp = 2}, kPlain, [&](int64_t rank, ReplicaRunner& runner, Stage&, StageContext& context) {
    ThrowingStage stage(rank == 1);
    ASSERT_EQ(runner.Add(stage), absl::OkStatus());
    EXPECT_THAT(runner.Run(stage, {.min = 4, .max = 4}, context).status(),
                Fails(Code::kInternal, {"stage 'throws'", "rank 1 (tp 1, cp 0, pp 0)", "a broken layer"}));
    const auto again = runner.Run(stage, {.min = 4, .max = 4}, context);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->outcome, Replica::Outcome::kDone);
    EXPECT_EQ(runner.Run(stage, {}, context)->outcome, Replica::Outcome::kNothingReady);
  });
  EXPECT_EQ(dock->GetConsumerStatus(kReplicated, "throws")->completed, 4);
}

TEST(ReplicaRunner, DropsGivesBackAndPublishesOnce) {
  const std::unique_ptr<Dock> dock = DockOfTokens(5);
  const auto behaviour = [](int64_t) {
    return LargestStage::Behaviour{.dropped = {2}, .requeued = {3}, .publishes_first = true};
  };
  OnRanks(*dock, {.cp = 2, .pp = 2}, behaviour,
          [](int64_t, ReplicaRunner& runner, Stage& stage, StageContext& context) {
            const auto result = runner.Run(stage, {.min = 5, .max = 5}, context);
            ASSERT_TRUE(result.ok()) << result.status();
            EXPECT_EQ(result->rows.dropped_rows, 1);
            EXPECT_EQ(result->rows.requeued_units, 1);
            EXPECT_EQ(context.published, 1);
          });
  const ConsumerStatus status = *dock->GetConsumerStatus(kReplicated, "largest");
  EXPECT_EQ(status.completed, 3);
  EXPECT_EQ(status.ready, 1);
  EXPECT_EQ(status.done, 4);
  for (const RowId row : {0, 1, 4}) EXPECT_EQ(LargestIn(*dock, row), 100 + static_cast<int64_t>(row));
  EXPECT_EQ(LargestIn(*dock, 3), -1);
}

}  // namespace
}  // namespace tdock::trainer
