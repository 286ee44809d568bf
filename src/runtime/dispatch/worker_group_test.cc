#include "runtime/dispatch/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/testing/table_links.h"

namespace tdock::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Code = absl::StatusCode;

constexpr Method<MetaBatch(MetaBatch)> kDouble{"double", Mode::kDpComputeProto};
constexpr Method<RowsRef(RowsRef)> kMark{"mark", Mode::kDpComputeProto};
constexpr Method<PerRank<double>(MetaBatch)> kMean{"mean", Dispatch(Mode::kDpComputeMetric, true)};
constexpr Method<PerRank<std::string>()> kWho{"who", Mode::kOneToAll};
constexpr Method<std::string()> kWhoLeads{"who", Mode::kOneToAll, Execute::kRankZero};
constexpr Method<void(PerRank<int64_t>)> kSeedEach{"seed", Mode::kDpCompute};

MetaBatch Floats(const std::vector<float>& values) {
  Batch batch;
  EXPECT_TRUE(batch.Add("x", Column::FromValues(values)).ok());
  return MetaBatch(std::move(batch));
}

std::vector<float> Xs(const MetaBatch& batch) {
  const auto values = batch.columns().Values<float>("x");
  return {values->begin(), values->end()};
}

// ---- Links whose answers the test gives.

class HeldLink : public WorkerLink {
 public:
  struct Invocation {
    std::string method = {};
    std::vector<Value> arguments = {};
    absl::Time deadline = {};
    std::function<void(absl::StatusOr<Value>)> done = {};
  };

  explicit HeldLink(int64_t rank) : rank_(rank) {}
  std::string Describe() const override { return absl::StrCat("rank ", rank_, " (held)"); }
  void Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
              std::function<void(absl::StatusOr<Value>)> done) override {
    invoked.push_back({std::move(method), std::move(arguments), deadline, std::move(done)});
    if (meanwhile) std::exchange(meanwhile, nullptr)();
  }

  std::vector<Invocation> invoked;
  // Called by the next Invoke().
  std::function<void()> meanwhile;

 private:
  const int64_t rank_;
};

class HeldGroup : public testing::Test {
 protected:
  HeldGroup() {
    std::vector<std::shared_ptr<WorkerLink>> workers;
    for (int64_t rank = 0; rank < 4; ++rank) {
      links_.push_back(std::make_shared<HeldLink>(rank));
      workers.push_back(links_.back());
    }
    group_ = std::make_unique<WorkerGroup>(
        *WorkerGroup::Of(workers, {.role = "rollout", .timeout = absl::Seconds(30), .fetch = {}, .clock = &clock_}));
  }

  void Answer(size_t rank, absl::StatusOr<Value> value) {
    ASSERT_FALSE(links_[rank]->invoked.empty());
    const HeldLink::Invocation invocation = links_[rank]->invoked.front();
    links_[rank]->invoked.erase(links_[rank]->invoked.begin());
    invocation.done(std::move(value));
  }

  FakeClock clock_;
  std::vector<std::shared_ptr<HeldLink>> links_;
  std::unique_ptr<WorkerGroup> group_;
};

TEST_F(HeldGroup, EndsWhenAllHaveAnsweredInAnyOrder) {
  const Future<std::vector<std::string>> who = group_->Start(kWho);
  EXPECT_EQ(links_[2]->invoked[0].deadline, clock_.Now() + absl::Seconds(30));
  for (const size_t rank : {3u, 1u, 0u}) Answer(rank, absl::StrCat("r", rank));
  EXPECT_FALSE(who.ready());
  Answer(2, "r2");
  ASSERT_TRUE(who.ready());
  EXPECT_THAT(*who.Get(), ElementsAre("r0", "r1", "r2", "r3"));
}

TEST_F(HeldGroup, FailsWithTheFirstErrorAfterAllHaveAnswered) {
  const Future<std::vector<std::string>> who = group_->Start(kWho);
  Answer(2, absl::ResourceExhaustedError("too little memory"));
  Answer(0, absl::UnavailableError("a peer went away"));
  Answer(1, "r1");
  EXPECT_FALSE(who.ready());
  Answer(3, "r3");
  EXPECT_THAT(who.Get().status(),
              Fails(Code::kResourceExhausted, {"'who' of 'rollout'", "rank 2 (held)", "too little memory"}));
}

TEST_F(HeldGroup, GivesUpWhoHasNotAnsweredByTheDeadline) {
  const Future<std::vector<std::string>> who = group_->Start(kWho);
  Answer(1, "r1");
  clock_.Advance(absl::Seconds(30));
  ASSERT_TRUE(who.ready());
  EXPECT_THAT(who.Get().status(), Fails(Code::kDeadlineExceeded,
                                        {"'who' of 'rollout'", "30s", "rank 0 (held), rank 2 (held), rank 3 (held)"}));
  EXPECT_THAT(who.Get().status().message(), Not(HasSubstr("rank 1")));
  Answer(0, "late");
  EXPECT_FALSE(who.Get().ok());
}

TEST_F(HeldGroup, AnErrorBeforeTheDeadlineIsTheResult) {
  const Future<std::vector<std::string>> who = group_->Start(kWho);
  Answer(1, absl::AbortedError("no"));
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(who.Get().status(), Fails(Code::kAborted, {"'who' of 'rollout'", "rank 1 (held): no", "30s",
                                                         "rank 0 (held), rank 2 (held), rank 3 (held)"}));
}

TEST_F(HeldGroup, CancelsTheAlarmOfACallThatHasEnded) {
  const Future<std::vector<std::string>> who = group_->Start(kWho);
  clock_.AwaitWaiters(1);
  for (size_t rank = 0; rank < 4; ++rank) Answer(rank, "r");
  const std::weak_ptr<HeldLink> link = links_[0];
  links_.clear();
  group_.reset();
  EXPECT_TRUE(link.expired());
  EXPECT_TRUE(who.Get().ok());
}

TEST_F(HeldGroup, RankZeroAloneRuns) {
  const Future<std::string> who = group_->Start(kWhoLeads);
  EXPECT_TRUE(links_[1]->invoked.empty());
  Answer(0, "r0");
  EXPECT_EQ(*who.Get(), "r0");
}

TEST_F(HeldGroup, ACallThatCannotBeDividedReachesNobody) {
  const absl::StatusOr<MetaBatch> result = group_->Call(kDouble, Floats({1, 2, 3}));
  EXPECT_THAT(result.status().message(), HasSubstr("method 'double' (DP_COMPUTE_PROTO): argument 0: 3 rows"));
  EXPECT_THAT(group_->WithTimeout(absl::ZeroDuration()).Call(kWho).status(),
              Fails(Code::kInvalidArgument, {"timeout", "is 0"}));
  EXPECT_TRUE(links_[0]->invoked.empty());
}

TEST_F(HeldGroup, AFutureIsPassedOnWithoutBeingFetched) {
  const RowsRef rows{.partition = "train", .rows = {0, 1, 2, 3}, .columns = {"x"}};
  const Future<RowsRef> marked = group_->Start(kMark, rows);
  const Future<MetaBatch> doubled = group_->Start(kDouble, marked);
  EXPECT_EQ(links_[0]->invoked.size(), 1u);  // the second call waits for the first
  for (size_t rank = 0; rank < 4; ++rank) {
    Answer(rank, RowsRef{.partition = "train", .rows = {rank + 10}, .columns = {"y"}});
  }
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(links_[rank]->invoked.size(), 1u);
    EXPECT_EQ(links_[rank]->invoked[0].arguments[0],
              Value(RowsRef{.partition = "train", .rows = {rank + 10}, .columns = {"y"}}));
    Answer(rank, Floats({static_cast<float>(rank)}));
  }
  EXPECT_THAT(Xs(*doubled.Get()), ElementsAre(0, 1, 2, 3));
}

TEST_F(HeldGroup, ACallFailsWithTheFutureThatItNeeds) {
  const Future<RowsRef> marked = group_->Start(kMark, RowsRef{.partition = "train", .rows = {0, 1, 2, 3}});
  const Future<MetaBatch> doubled = group_->Start(kDouble, marked);
  for (size_t rank = 0; rank < 4; ++rank) Answer(rank, absl::AbortedError("no"));
  EXPECT_THAT(doubled.Get().status(),
              Fails(Code::kAborted, {"'double'", "argument 0", "'mark' of 'rollout'", "rank 0 (held): no"}));
  EXPECT_TRUE(links_[0]->invoked.empty());
}

TEST_F(HeldGroup, ItsTimeBeginsWhenItsArgumentsAreThere) {
  const Future<RowsRef> marked = group_->Start(kMark, RowsRef{.partition = "train", .rows = {0, 1, 2, 3}});
  const Future<MetaBatch> doubled = group_->WithTimeout(absl::Seconds(5)).Start(kDouble, marked);
  clock_.Advance(absl::Seconds(20));
  for (size_t rank = 0; rank < 4; ++rank) Answer(rank, RowsRef{.partition = "train", .rows = {rank}});
  EXPECT_EQ(links_[0]->invoked.at(0).deadline, clock_.Now() + absl::Seconds(5));
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(doubled.Get().status(), Fails(Code::kDeadlineExceeded, {"'double'", "5s"}));
}

TEST_F(HeldGroup, SubgroupsHaveRanksOfTheirOwn) {
  const WorkerGroup odd = *group_->Subgroup(std::vector<int64_t>{3, 1});
  EXPECT_EQ(odd.ranks(), 2);
  const Future<void> seeded = odd.Start(kSeedEach, std::vector<int64_t>{30, 10});
  EXPECT_TRUE(links_[0]->invoked.empty() && links_[2]->invoked.empty());
  EXPECT_EQ(links_[3]->invoked.at(0).arguments, std::vector<Value>{30});
  EXPECT_EQ(links_[1]->invoked.at(0).arguments, std::vector<Value>{10});
  Answer(3, Value());
  Answer(1, absl::AbortedError("no"));
  EXPECT_THAT(seeded.Get().message(), HasSubstr("rank 1 (held)"));
  EXPECT_THAT(group_->Subgroup(std::vector<int64_t>{4}).status(),
              Fails(Code::kOutOfRange, {"rank 4", "'rollout'", "has 4"}));
  EXPECT_THAT(group_->Subgroup(std::vector<int64_t>{1, 1}).status().message(), HasSubstr("named twice"));
  EXPECT_FALSE(group_->Subgroup(std::vector<int64_t>()).ok());
}

TEST_F(HeldGroup, SpawnedGroupsCallTheMethodsOfTheirRole) {
  const auto groups = *group_->Spawn(std::vector<std::string>{"actor", "rollout"});
  const Future<std::vector<std::string>> who = groups.at("actor").Start(kWho);
  EXPECT_EQ(links_[0]->invoked.at(0).method, "actor/who");
  for (size_t rank = 0; rank < 4; ++rank) Answer(rank, absl::AbortedError("no"));
  EXPECT_THAT(who.Get().status(), Fails(Code::kAborted, {"'who' of 'actor'", "rank 0"}));
  EXPECT_THAT(group_->Spawn(std::vector<std::string>{"a", "a"}).status(),
              Fails(Code::kInvalidArgument, {"'a'", "twice"}));
}

TEST_F(HeldGroup, AllWorkersGetCallsInTheSameOrder) {
  const WorkerGroup actor = group_->Spawn(std::vector<std::string>{"actor"})->at("actor");
  const WorkerGroup part = *group_->Subgroup(std::vector<int64_t>{3, 2});
  // What another thread begins while this call has reached rank 0 only.
  links_[0]->meanwhile = [&] {
    actor.Start(kSeedEach, std::vector<int64_t>{0, 1, 2, 3});
    part.Start(kWho);
  };
  group_->Start(kWho);
  for (size_t rank = 0; rank < 4; ++rank) {
    std::vector<std::string> methods;
    for (const HeldLink::Invocation& invocation : links_[rank]->invoked) methods.push_back(invocation.method);
    EXPECT_EQ(methods, rank < 2 ? (std::vector<std::string>{"who", "actor/seed"})
                                : (std::vector<std::string>{"who", "actor/seed", "who"}));
  }
}

TEST_F(HeldGroup, AFutureCanBeWaitedForAWhile) {
  const Future<std::string> who = group_->Start(kWhoLeads);
  EXPECT_EQ(who.Get(clock_.Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  Answer(0, "r0");
  EXPECT_EQ(*who.Get(clock_.Now()), "r0");
}

TEST(WorkerGroup, RefusesWhatDoesNotFit) {
  const auto link = std::make_shared<HeldLink>(0);
  EXPECT_THAT(WorkerGroup::Of({}, {.role = "ref"}).status(), Fails(Code::kInvalidArgument, {"'ref'", "no workers"}));
  EXPECT_THAT(WorkerGroup::Of({link}, {.meshes = {{"actor", *Mesh::Of(2, {{"dp", 2}})}}}).status(),
              Fails(Code::kInvalidArgument, {"'actor' (dp 2)", "2 ranks", "has 1"}));
  EXPECT_THAT(WorkerGroup::Of({link}, {.timeout = absl::InfiniteDuration()}).status(),
              Fails(Code::kInvalidArgument, {"timeout", "inf"}));
}

// ---- Workers that are threads.

MethodTable TableOf(int64_t rank, RowFetcher fetch = {}) {
  MethodTable table(std::move(fetch));
  absl::Status status = table.Serve(kDouble, [](const MetaBatch& batch) {
    std::vector<float> doubled = Xs(batch);
    for (float& x : doubled) x *= 2;
    return Floats(doubled);
  });
  status.Update(table.Serve(kMean, [](const MetaBatch& batch) -> absl::StatusOr<double> {
    const MetaBatch real = *RealRows(batch);
    double sum = 0;
    for (const float x : Xs(real)) sum += x;
    return sum / static_cast<double>(real.rows());
  }));
  status.Update(table.Serve(kWho, [rank] { return absl::StrCat("r", rank); }));
  EXPECT_TRUE(status.ok()) << status;
  return table;
}

std::vector<MethodTable> Tables(int64_t ranks, const RowFetcher& fetch = {}) {
  std::vector<MethodTable> tables;
  for (int64_t rank = 0; rank < ranks; ++rank) tables.push_back(TableOf(rank, fetch));
  return tables;
}

TEST(WorkerGroup, RunsTypedCalls) {
  const auto links = LinksTo(Tables(4));
  const WorkerGroup group = *WorkerGroup::Of(links, {.role = "toy"});
  EXPECT_THAT(Xs(*group.Call(kDouble, Floats({1, 2, 3, 4, 5, 6, 7, 8}))), ElementsAre(2, 4, 6, 8, 10, 12, 14, 16));
  EXPECT_THAT(*group.Call(kMean, Floats({1, 3, 5, 7, 9, 2})), ElementsAre(2, 6, 5.5));  // 8 rows for 4 ranks
  EXPECT_THAT(*group.Call(kWho), ElementsAre("r0", "r1", "r2", "r3"));
  EXPECT_EQ(*group.Call(kWhoLeads), "r0");
  EXPECT_THAT(Xs(*group.Call(kDouble, group.Start(kDouble, Floats({1, 2, 3, 4})))), ElementsAre(4, 8, 12, 16));
}

TEST(WorkerGroup, WorkersFetchOnlyTheirRows) {
  Mutex mu;
  std::multiset<std::vector<uint64_t>> fetched;
  const RowFetcher fetch = [&](const RowsRef& ref, absl::Time) -> absl::StatusOr<MetaBatch> {
    MutexLock lock(mu);
    fetched.insert(ref.rows);
    return Floats(std::vector<float>(ref.rows.begin(), ref.rows.end()));
  };
  const auto links = LinksTo(Tables(2, fetch));
  const WorkerGroup group = *WorkerGroup::Of(links, {.role = "toy"});
  const RowsRef rows{.partition = "train", .rows = {5, 6, 7, 8}, .columns = {"x"}};
  EXPECT_THAT(Xs(*group.Call(kDouble, rows)), ElementsAre(10, 12, 14, 16));
  EXPECT_THAT(fetched, testing::UnorderedElementsAre(std::vector<uint64_t>{5, 6}, std::vector<uint64_t>{7, 8}));
}

TEST(WorkerGroup, TheControllerFetchesWhatItReads) {
  MethodTable table;
  ASSERT_TRUE(
      table.Serve(kDouble, [](const MetaBatch&) { return RowsRef{.partition = "out", .rows = {3}, .columns = {"x"}}; })
          .ok());
  const auto links = LinksTo({table});
  const RowFetcher fetch = [](const RowsRef& ref, absl::Time) -> absl::StatusOr<MetaBatch> {
    return Floats(std::vector<float>(ref.rows.begin(), ref.rows.end()));
  };
  const WorkerGroup with = *WorkerGroup::Of(links, {.role = "toy", .fetch = fetch});
  EXPECT_THAT(Xs(*with.Call(kDouble, Floats({1}))), ElementsAre(3));
  const WorkerGroup without = *WorkerGroup::Of(links, {.role = "toy"});
  EXPECT_THAT(without.Call(kDouble, Floats({1})).status().message(), HasSubstr("no dock"));
}

TEST(WorkerGroup, ServesManyThreadsAtOnce) {
  const auto links = LinksTo(Tables(4));
  const WorkerGroup group = *WorkerGroup::Of(links, {.role = "toy"});
  constexpr int kThreads = 4, kCalls = 50;
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const float base = static_cast<float>(thread * 100);
      for (int call = 0; call < kCalls; ++call) {
        const Future<MetaBatch> once = group.Start(kDouble, Floats({base, base + 1, base + 2, base + 3}));
        const absl::StatusOr<MetaBatch> twice = group.Call(kDouble, once);
        if (twice.ok() && Xs(*twice) == std::vector<float>{4 * base, 4 * base + 4, 4 * base + 8, 4 * base + 12})
          ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kThreads * kCalls);
}

}  // namespace
}  // namespace tdock::runtime
