#include "runtime/replica/replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/patience.h"
#include "runtime/collective/thread_collective.h"
#include "runtime/replica/balanced_share.h"
#include "tdock/local_dock.h"

namespace tdock::runtime {
namespace {

using Code = absl::StatusCode;
using testing::ElementsAre;

constexpr char kPartition[] = "train", kConsumer[] = "score";

std::string Text(const MeshSizes& sizes) {
  return absl::StrCat("tp ", sizes.tp, ", cp ", sizes.cp, ", pp ", sizes.pp, ", dp ", sizes.dp);
}

// A dock with rows, whose ragged column x has 1 more element in each row, and the ranks of a mesh as threads.
class World {
 public:
  World(const MeshSizes& sizes, int64_t rows, Clock& clock = Clock::Real())
      : sizes_(sizes), clock_(clock), dock_(MakeLocalDock()) {
    Expect(dock_->CreatePartition({.name = kPartition, .growing = true}));
    std::vector<std::vector<float>> x;
    for (int64_t row = 0; row < rows; ++row) x.emplace_back(static_cast<size_t>(row + 1), static_cast<float>(row));
    Batch batch;
    Expect(batch.Add("x", Column::FromRows(x)));
    Expect(dock_->Put({.partition = kPartition, .batch = batch}).status());
    for (int64_t dp = 0; dp < sizes.dp; ++dp) {
      groups_.push_back(MakeThreadCollectives(static_cast<int>(Ranks()), absl::StrCat("replica ", dp), clock));
    }
  }

  void Register() {
    Expect(
        dock_->RegisterConsumer(kPartition, WithShares({.name = kConsumer, .reads = {"x"}, .writes = {"y"}}, sizes_)));
  }

  Dock& dock() { return *dock_; }
  int64_t Ranks() const { return sizes_.tp * sizes_.cp * sizes_.pp; }  // of a replica
  int64_t AllRanks() const { return Ranks() * sizes_.dp; }
  ConsumerStatus Status() { return *dock_->GetConsumerStatus(kPartition, kConsumer); }

  // Each rank of the mesh, by its number there, on a thread of its own; and of its replica.
  void OnAll(const std::function<void(int64_t rank, Replica& replica)>& body) {
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < AllRanks(); ++rank) {
      threads.emplace_back([this, rank, &body] {
        const MeshCoordinates at = *CoordinatesOf(rank, sizes_);
        const int64_t place = at.tp + sizes_.tp * (at.cp + sizes_.cp * at.pp);
        absl::StatusOr<Replica> replica =
            Replica::Make({.sizes = sizes_,
                           .at = at,
                           .group = *groups_[static_cast<size_t>(at.dp)][static_cast<size_t>(place)],
                           .dock = *dock_,
                           .patience = kPatience,
                           .clock = clock_});
        ASSERT_TRUE(replica.ok()) << replica.status();
        body(rank, *replica);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static void Expect(const absl::Status& status) { ASSERT_EQ(status, absl::OkStatus()); }

  const MeshSizes sizes_;
  Clock& clock_;
  const std::unique_ptr<Dock> dock_;
  std::vector<std::vector<std::unique_ptr<Collective>>> groups_;
};

TakeRequest UpTo(int64_t max) { return {.partition = kPartition, .consumer = kConsumer, .min = 1, .max = max}; }

absl::StatusOr<std::string> PutRows(Dock& dock, const Taken& taken) {
  std::vector<float> y;
  for (size_t row = 0; row < taken.rows.size(); ++row) y.push_back(2 * taken.rows.Get<float>(row, "x")->front());
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add("y", Column::FromValues(y)));
  TDOCK_RETURN_IF_ERROR(dock.Fill({.partition = kPartition,
                                   .batch = batch,
                                   .rows = {taken.rows.ids().begin(), taken.rows.ids().end()},
                                   .lease = taken.lease}));
  return absl::StrCat(taken.rows.size(), " rows");
}

std::vector<MeshSizes> MeshesOfAtMost(int64_t ranks) {
  std::vector<MeshSizes> meshes;
  for (int64_t tp = 1; tp <= ranks; ++tp) {
    for (int64_t cp = 1; tp * cp <= ranks; ++cp) {
      for (int64_t pp = 1; tp * cp * pp <= ranks; ++pp) {
        for (int64_t dp = 1; tp * cp * pp * dp <= ranks; ++dp) meshes.push_back({tp, cp, pp, dp});
      }
    }
  }
  return meshes;
}

// What the ranks of a run have done.
struct Record {
  Mutex mu;
  std::map<RowId, std::multiset<int64_t>> computed TDOCK_GUARDED_BY(mu);      // by row, the ranks
  std::map<RowId, std::vector<int64_t>> put TDOCK_GUARDED_BY(mu);             // by row, the ranks
  std::map<int64_t, std::vector<std::string>> returned TDOCK_GUARDED_BY(mu);  // by rank, what each round came to
};

// Runs every rank until there are no more rows. `fault` is asked at every rank in every round, once before it computes
// and, where results are put, once more before they are.
using Fault = std::function<absl::Status(int64_t rank, int round, bool putting)>;

void RunToTheEnd(World& world, const Fault& fault, Record& record) {
  world.Register();
  ASSERT_EQ(world.dock().Seal(kPartition), absl::OkStatus());
  world.OnAll([&](int64_t rank, Replica& replica) {
    for (int round = 0; round < 1000; ++round) {
      std::vector<RowId> rows;
      const auto result =
          replica.Run(UpTo(3), {.compute = [&](const Taken& taken) -> absl::Status {
                                  TDOCK_RETURN_IF_ERROR(fault(rank, round, false));
                                  rows.assign(taken.rows.ids().begin(), taken.rows.ids().end());
                                  for (size_t i = 0; i < rows.size(); ++i) {
                                    EXPECT_EQ(taken.rows.Get<float>(i, "x")->front(), static_cast<float>(rows[i]));
                                    EXPECT_EQ(taken.rows.Get<float>(i, "x")->size(), rows[i] + 1);
                                  }
                                  return absl::OkStatus();
                                },
                                .put = [&](const Taken& taken) -> absl::StatusOr<std::string> {
                                  EXPECT_TRUE(replica.puts());
                                  TDOCK_RETURN_IF_ERROR(fault(rank, round, true));
                                  TDOCK_ASSIGN_OR_RETURN(const std::string said, PutRows(world.dock(), taken));
                                  MutexLock lock(record.mu);
                                  for (const RowId row : taken.rows.ids()) record.put[row].push_back(rank);
                                  return said;
                                }});
      MutexLock lock(record.mu);
      record.returned[rank].push_back(result.ok() ? result->said : result.status().ToString());
      if (!result.ok()) continue;
      if (result->outcome == Replica::Outcome::kNoMoreRows) return;
      ASSERT_EQ(result->outcome, Replica::Outcome::kDone);
      for (const RowId row : rows) record.computed[row].insert(rank);
    }
    ADD_FAILURE() << "rank " << rank << " did not come to an end";
  });
}

// Every row was computed by each rank of one replica, in a round that did not fail, put by the right one, once, and is
// done; and all ranks of a replica were told the same.
void CheckRecord(World& world, const MeshSizes& sizes, int64_t rows, Record& record) {
  MutexLock lock(record.mu);
  ASSERT_EQ(record.computed.size(), static_cast<size_t>(rows));
  for (const auto& [row, ranks] : record.computed) {
    std::multiset<int64_t> replica;
    for (int64_t rank = 0; rank < world.AllRanks(); ++rank) {
      if (CoordinatesOf(rank, sizes)->dp == static_cast<int64_t>(row) % sizes.dp) replica.insert(rank);
    }
    EXPECT_EQ(ranks, replica) << "row " << row;
    ASSERT_EQ(record.put[row].size(), 1u) << "row " << row;
    EXPECT_TRUE(*PutsResults(*CoordinatesOf(record.put[row].front(), sizes), sizes));
  }
  for (int64_t rank = 0; rank < world.AllRanks(); ++rank) {
    const MeshCoordinates at = *CoordinatesOf(rank, sizes);
    for (int64_t other = 0; other < rank; ++other) {
      if (CoordinatesOf(other, sizes)->dp != at.dp) continue;
      EXPECT_EQ(record.returned[rank], record.returned[other]);
    }
  }
  EXPECT_EQ(world.Status().done, rows);
  EXPECT_EQ(world.Status().expired, 0);
}

TEST(Replica, EveryRankOfOneReplicaComputesEachRowAndOnePutsIt) {
  for (const MeshSizes& sizes : MeshesOfAtMost(8)) {
    SCOPED_TRACE(Text(sizes));
    constexpr int64_t kRows = 17;
    World world(sizes, kRows);
    Record record;
    RunToTheEnd(
        world, [](int64_t, int, bool) { return absl::OkStatus(); }, record);
    CheckRecord(world, sizes, kRows, record);
  }
}

TEST(Replica, LosesNoRowToFaultsAtRandomRanks) {
  std::atomic<int> faults = 0;
  for (const MeshSizes& sizes : MeshesOfAtMost(8)) {
    SCOPED_TRACE(Text(sizes));
    constexpr int64_t kRows = 17;
    World world(sizes, kRows);
    Record record;
    const auto fault = [&](int64_t rank, int round, bool putting) -> absl::Status {
      Rng rng(DeriveSeed(static_cast<uint64_t>(rank), static_cast<uint64_t>(2 * round + (putting ? 1 : 0))));
      const uint64_t drawn = rng.Below(16);
      if (drawn > 1) return absl::OkStatus();
      ++faults;
      if (drawn == 1) throw std::runtime_error("thrown");
      return absl::AbortedError(absl::StrCat("fault at ", rank));
    };
    RunToTheEnd(world, fault, record);
    CheckRecord(world, sizes, kRows, record);
  }
  EXPECT_GT(faults, 100);
}

TEST(Replica, TellsAllRanksTheErrorOfTheLowestAndGivesTheRowsBack) {
  const MeshSizes sizes{.tp = 2, .cp = 2, .pp = 2};
  World world(sizes, 3);
  world.Register();
  world.OnAll([&](int64_t rank, Replica& replica) {
    const auto result = replica.Run(UpTo(3), {.compute = [&](const Taken&) -> absl::Status {
                                                if (rank == 6) return absl::DataLossError("six");
                                                if (rank == 3) throw std::runtime_error("three");
                                                return absl::OkStatus();
                                              },
                                              .put = nullptr});
    EXPECT_THAT(result.status(), Fails(Code::kInternal, {"replica 0, rank 3 (tp 1, cp 1, pp 0): three"}));
  });
  EXPECT_EQ(world.Status().ready, 3);
}

TEST(Replica, TellsAllRanksWhyNothingWasPut) {
  World world({.tp = 2, .pp = 2}, 3);
  world.Register();
  world.OnAll([&](int64_t, Replica& replica) {
    const auto result = replica.Run(
        UpTo(2), {.compute = [](const Taken&) { return absl::OkStatus(); },
                  .put = [](const Taken&) -> absl::StatusOr<std::string> { return absl::DataLossError("refused"); }});
    EXPECT_THAT(result.status(), Fails(Code::kDataLoss, {"rank 2 (tp 0, cp 0, pp 1)", "refused"}));
  });
  EXPECT_EQ(world.Status().ready, 3);
}

TEST(Replica, ReturnsEverywhereWhenNothingIsReady) {
  World world({.tp = 2, .cp = 2, .dp = 2}, 2);
  world.Register();
  world.OnAll([](int64_t, Replica& replica) {
    TakeRequest request = UpTo(2);
    request.min = 2;  // each replica has one row
    const auto result = replica.Run(request, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Replica::Outcome::kNothingReady);
  });
  EXPECT_EQ(world.Status().ready, 2);
}

TEST(Replica, TellsAllRanksWhyTheTakeFailed) {
  World world({.tp = 2}, 1);
  world.OnAll([](int64_t, Replica& replica) {
    EXPECT_THAT(replica.Run(UpTo(1), {}).status(), Fails(Code::kNotFound, {"replica 0, rank 0", kConsumer}));
    EXPECT_THAT(replica.AllConsumed(kPartition, kConsumer).status(), Fails(Code::kNotFound, {kConsumer}));
  });
}

TEST(Replica, AllRanksKnowWhetherAllRowsAreDone) {
  World world({.tp = 2, .pp = 2}, 2);
  world.Register();
  world.OnAll([&](int64_t, Replica& replica) {
    const Replica::Work work{.compute = [](const Taken&) { return absl::OkStatus(); },
                             .put = [&](const Taken& taken) { return PutRows(world.dock(), taken); }};
    for (const bool done : {false, false, true}) {
      EXPECT_EQ(*replica.AllConsumed(kPartition, kConsumer), done);
      EXPECT_EQ(replica.Run(UpTo(1), work).ok(), true);
    }
  });
}

// A rank that does not come back ends the round for the others by the deadline, whichever it is; the rows are given
// back by whoever is left, and what the rank puts later is refused.
TEST(Replica, EndsWithoutARankThatDoesNotComeBack) {
  for (const int64_t lost : {0, 1, 2}) {
    SCOPED_TRACE(lost);
    FakeClock clock;
    World world({.tp = 1, .pp = 3}, 2, clock);
    world.Register();
    Mutex mu;
    CondVar changed;
    int computing = 0, ended = 0;  // ranks
    const auto fails = Fails(Code::kDeadlineExceeded, {absl::StrCat("rank ", lost, " of 3")});
    std::thread time([&] {
      {
        MutexLock lock(mu);
        while (computing < 3) changed.Wait(mu);
      }
      clock.AwaitWaiters(2);
      clock.Advance(kPatience);
    });
    world.OnAll([&](int64_t rank, Replica& replica) {
      const auto result = replica.Run(UpTo(2), {.compute = [&](const Taken& taken) -> absl::Status {
                                                  {
                                                    MutexLock lock(mu);
                                                    ++computing;
                                                    changed.NotifyAll();
                                                    while (rank == lost && ended < 2) changed.Wait(mu);
                                                  }
                                                  if (rank != lost) return absl::OkStatus();
                                                  EXPECT_FALSE(PutRows(world.dock(), taken).ok());
                                                  return absl::OkStatus();
                                                },
                                                .put = nullptr});
      EXPECT_THAT(result.status(), fails) << rank;
      MutexLock lock(mu);
      ++ended;
      changed.NotifyAll();
    });
    time.join();
    EXPECT_EQ(world.Status().ready, 2);
  }
}

TEST(Replica, PutsOnceWithContextParallelRanks) {
  World world({.cp = 4}, 4);
  world.Register();
  std::atomic<int> puts = 0;
  world.OnAll([&](int64_t, Replica& replica) {
    const Replica::Work work{.compute = [](const Taken&) { return absl::OkStatus(); },
                             .put =
                                 [&](const Taken& taken) {
                                   ++puts;
                                   return PutRows(world.dock(), taken);
                                 }};
    const auto result = replica.Run(UpTo(4), work);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->said, "4 rows");
  });
  EXPECT_EQ(puts, 1);
  EXPECT_EQ(world.Status().done, 4);
}

TEST(Replica, DividesSequencesAmongContextParallelRanks) {
  World world({.tp = 2, .cp = 2}, 1);
  world.OnAll([](int64_t, Replica& replica) {
    const bool first = replica.at().cp == 0;
    const ContextPart ulysses = *replica.PartOf(5, ContextSlicing::kContiguous);  // a multiple of 4
    EXPECT_EQ(ulysses.padded_length, 8);
    EXPECT_THAT(ulysses.ranges, ElementsAre(TokenRange{first ? 0 : 4, 4}));
    const ContextPart ring = *replica.PartOf(5, ContextSlicing::kRing);  // of 8
    EXPECT_EQ(ring.padded_length, 8);
    EXPECT_THAT(ring.ranges, ElementsAre(TokenRange{first ? 0 : 2, 2}, TokenRange{first ? 6 : 4, 2}));
    EXPECT_EQ(replica.PartOf(0, ContextSlicing::kRing)->padded_length, 0);
    EXPECT_THAT(replica.PartOf(-1, ContextSlicing::kRing).status(), Fails(Code::kInvalidArgument, {"-1"}));
  });
}

TEST(Replica, RefusesAGroupThatIsNotItsOwn) {
  World world({}, 1);
  auto group = MakeThreadCollectives(4, "g");
  const auto make = [&](const MeshSizes& sizes, const MeshCoordinates& at, size_t rank) {
    return Replica::Make({.sizes = sizes, .at = at, .group = *group[rank], .dock = world.dock()}).status();
  };
  EXPECT_EQ(make({.tp = 2, .pp = 2, .dp = 3}, {.pp = 1, .dp = 2}, 2), absl::OkStatus());
  EXPECT_THAT(make({.tp = 2, .pp = 2}, {.pp = 1}, 1), Fails(Code::kInvalidArgument, {"number 2", "number 1"}));
  EXPECT_THAT(make({.tp = 2}, {}, 0), Fails(Code::kInvalidArgument, {"2 ranks", "has 4"}));
  EXPECT_THAT(make({.tp = 4}, {.tp = 4}, 3), Fails(Code::kOutOfRange));
}

// The figures of verl's balancing (Karmarkar–Karp).
TEST(BalancedShare, GivesReplicasEquallyManyRowsOfNearlyEqualWork) {
  const MeshSizes sizes{.tp = 2, .dp = 2};
  World world(sizes, 1000);  // row r has r + 1 elements
  ASSERT_EQ(world.dock().RegisterConsumer(kPartition, {.name = kConsumer, .reads = {"x"}, .writes = {"y"}}),
            absl::OkStatus());
  const std::vector<RowId> step = {99, 899, 199, 799, 299, 699, 399, 599};
  Mutex mu;
  std::map<int64_t, std::vector<RowId>> computed;  // by rank
  world.OnAll([&](int64_t rank, Replica& replica) {
    TakeRequest request = UpTo(1);
    if (replica.asks()) {
      request.rows =
          *BalancedShare(world.dock(), kPartition, step, "x", replica.at().dp, sizes.dp, absl::InfinitePast());
    }
    const auto result =
        replica.Run(request, {.compute =
                                  [&](const Taken& taken) {
                                    MutexLock lock(mu);
                                    computed[rank].assign(taken.rows.ids().begin(), taken.rows.ids().end());
                                    return absl::OkStatus();
                                  },
                              .put = [&](const Taken& taken) { return PutRows(world.dock(), taken); }});
    EXPECT_TRUE(result.ok()) << result.status();
  });
  MutexLock lock(mu);
  for (const int64_t rank : {0, 1}) EXPECT_THAT(computed[rank], ElementsAre(99, 699, 799, 399));
  for (const int64_t rank : {2, 3}) EXPECT_THAT(computed[rank], ElementsAre(199, 599, 899, 299));
  EXPECT_EQ(world.Status().done, 8);
}

TEST(BalancedShare, SaysWhatIsWrong) {
  World world({}, 3);
  const auto share = [&](const std::vector<RowId>& rows, absl::string_view column, int64_t rank, int64_t dp) {
    return BalancedShare(world.dock(), kPartition, rows, column, rank, dp, absl::InfinitePast()).status();
  };
  EXPECT_THAT(share({0, 1}, "x", 2, 2), Fails(Code::kOutOfRange, {"replica 2 of 2"}));
  EXPECT_THAT(share({0, 1, 2}, "x", 0, 2), Fails(Code::kInvalidArgument));
  EXPECT_THAT(share({0, 1}, "z", 0, 2), Fails(Code::kNotFound, {"z"}));
}

}  // namespace
}  // namespace tdock::runtime
