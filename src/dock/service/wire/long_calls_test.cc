// The worst that a client may ask for keeps nobody else waiting: an event loop spends little on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/sanitized.h"
#include "dock/service/wire/testing/loop_cpu.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

// With a sanitizer's checks, fewer rows take as long.
constexpr int64_t kMany = kSanitized ? 50'000 : 200'000;
constexpr int kVeryManyColumns = kSanitized ? 250'000 : 1'000'000;
// CPU time of all loops for one request that is little, whatever the request costs elsewhere.
constexpr double kLittleCpuSeconds = kSanitized ? 0.2 : 0.03;

Batch Sevens(int64_t rows) {
  Batch batch;
  EXPECT_EQ(batch.Add("n", Column::FromValues<int64_t>(std::vector<int64_t>(static_cast<size_t>(rows), 7))),
            absl::OkStatus());
  return batch;
}

// What takes long, with what has to be there before, which is not measured.
struct LongCall {
  std::string name;
  std::function<void(Dock&)> prepare = [](Dock&) {};
  std::function<absl::Status(Dock&)> call;
  absl::StatusCode code = absl::StatusCode::kOk;
};

std::vector<std::string> ManyKeys() {
  std::vector<std::string> keys;
  for (int64_t i = 0; i < kMany; ++i) keys.push_back(absl::StrCat("key ", i));
  return keys;
}

void MakeTable(Dock& dock) {
  EXPECT_EQ(dock.CreatePartition({.name = "p", .columns = {{"n", ColumnType::Dense(DType::kI64)}}}), absl::OkStatus());
  EXPECT_EQ(dock.RegisterConsumer("p", {.name = "c", .reads = {"n"}}), absl::OkStatus());
}

void PutMany(Dock& dock) {
  MakeTable(dock);
  EXPECT_EQ(dock.Put({.partition = "p", .batch = Sevens(kMany), .keys = ManyKeys()}).status(), absl::OkStatus());
}

LeaseId TakeMany(Dock& dock) {
  PutMany(dock);
  const absl::StatusOr<Taken> taken = dock.Take({.partition = "p", .consumer = "c", .min = kMany, .max = kMany});
  EXPECT_EQ(taken.status(), absl::OkStatus());
  return taken.ok() ? taken->lease : kNoLease;
}

std::vector<LongCall> LongCalls() {
  const auto lease = std::make_shared<LeaseId>();
  PartitionOptions columns{.name = "wide"};
  for (int i = 0; i < kVeryManyColumns; ++i) columns.columns.push_back({absl::StrCat("column ", i), {}});
  std::vector<RowId> rows;
  for (int64_t i = 0; i < kMany; ++i) rows.push_back(static_cast<RowId>(i));
  return {
      {.name = "far too many columns",
       .call = [columns](Dock& dock) { return dock.CreatePartition(columns); },
       .code = absl::StatusCode::kInvalidArgument},
      {.name = "a put of new rows without cells",
       .prepare = MakeTable,
       .call = [](Dock& dock) { return dock.Put({.partition = "p", .new_rows = 4 * kMany}).status(); }},
      {.name = "a put of many rows",
       .prepare = MakeTable,
       .call = [](Dock& dock) { return dock.Put({.partition = "p", .batch = Sevens(kMany)}).status(); }},
      {.name = "a fill of many rows",
       .prepare = PutMany,
       .call =
           [rows](Dock& dock) {
             return dock.Fill({.partition = "p", .batch = Sevens(kMany), .rows = rows, .overwrite = true});
           }},
      {.name = "tags of many rows",
       .prepare = PutMany,
       .call =
           [rows](Dock& dock) {
             return dock.Fill({.partition = "p", .rows = rows, .tags = {{{"a", "b"}}}});
           }},
      {.name = "many keys",
       .prepare = PutMany,
       .call = [keys = ManyKeys()](Dock& dock) { return dock.FindRows("p", keys).status(); }},
      {.name = "a take of many rows",
       .prepare = PutMany,
       .call =
           [](Dock& dock) {
             return dock.Take({.partition = "p", .consumer = "c", .min = kMany, .max = kMany}).status();
           }},
      {.name = "a fetch of many rows",
       .prepare = PutMany,
       .call = [rows](Dock& dock) { return dock.Fetch({.partition = "p", .rows = rows, .columns = {"n"}}).status(); }},
      {.name = "a list of many rows",
       .prepare = PutMany,
       .call = [](Dock& dock) { return dock.List({.partition = "p", .limit = kMany}).status(); }},
      {.name = "a lease of many rows is completed",
       .prepare = [lease](Dock& dock) { *lease = TakeMany(dock); },
       .call = [lease](Dock& dock) { return dock.Complete({.partition = "p", .lease = *lease}); }},
      {.name = "everything is cleared",
       .prepare = PutMany,
       .call = [](Dock& dock) { return dock.Clear({.partition = "p", .everything = true}).status(); }},
      {.name = "a consumer of a large table is registered",
       .prepare = PutMany,
       .call = [](Dock& dock) { return dock.RegisterConsumer("p", {.name = "d", .reads = {"n"}}); }},
      {.name = "a large partition is dropped",
       .prepare = PutMany,
       .call = [](Dock& dock) { return dock.DropPartition("p"); }},
  };
}

class LongCallsTest : public testing::Test {
 protected:
  std::unique_ptr<Dock> Connect() {
    return ConnectThrough(std::make_unique<Transport>(server_.address()), Clock::Real());
  }

  TestServer server_;
};

TEST_F(LongCallsTest, NoRequestHoldsAnEventLoop) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_NE(dock, nullptr);
  for (const LongCall& each : LongCalls()) {
    dock->DropPartition("p").IgnoreError();
    each.prepare(*dock);
    LoopCost cost;
    EXPECT_EQ(each.call(*dock).code(), each.code) << each.name;
    cost.Stop();
    EXPECT_TRUE(cost.IsLittle(kLittleCpuSeconds)) << each.name;
    RecordProperty(each.name, absl::StrCat(cost.loop_seconds() * 1e3, " ms"));
  }
}

TEST_F(LongCallsTest, ATakeOfManyRowsThatASmallPutLetsGoOnHoldsNoEventLoop) {
  const std::unique_ptr<Dock> dock = Connect(), other = Connect();
  ASSERT_NE(dock, nullptr);
  PutMany(*dock);
  std::thread taker([&] {
    EXPECT_EQ(other
                  ->Take({.partition = "p",
                          .consumer = "c",
                          .min = kMany + 1,
                          .max = kMany + 1,
                          .deadline = absl::InfiniteFuture()})
                  .status(),
              absl::OkStatus());
  });
  while (server_.service.counts().calls_under_way == 0) std::this_thread::yield();
  LoopCost cost;
  EXPECT_EQ(dock->Put({.partition = "p", .batch = Sevens(1)}).status(), absl::OkStatus());
  taker.join();
  cost.Stop();
  EXPECT_TRUE(cost.IsLittle(kLittleCpuSeconds));
}

// The ninth decile.
absl::Duration NinthDecile(std::vector<absl::Duration> took) {
  std::sort(took.begin(), took.end());
  return took[took.size() * 9 / 10];
}

TEST_F(LongCallsTest, OthersAreAnsweredAsSoonAsByAnIdleServerWhileTheWorstIsAskedFor) {
  TestServer idle_server;
  const std::unique_ptr<Dock> dock = Connect(), other = Connect();
  const std::unique_ptr<Dock> idle = ConnectThrough(std::make_unique<Transport>(idle_server.address()), Clock::Real());
  ASSERT_NE(dock, nullptr);
  for (Dock* each : {other.get(), idle.get()}) {
    ASSERT_EQ(each->CreatePartition({.name = "small", .growing = true}), absl::OkStatus());
  }
  std::atomic<bool> done = false;
  std::thread worst([&] {
    for (const LongCall& each : LongCalls()) {
      dock->DropPartition("p").IgnoreError();
      each.prepare(*dock);
      EXPECT_EQ(each.call(*dock).code(), each.code) << each.name;
    }
    done = true;
  });
  const auto ask = [](Dock& asked) {
    const absl::Time begin = absl::Now();
    EXPECT_EQ(asked.ListPartitions().status(), absl::OkStatus());
    EXPECT_EQ(asked.GetStatus("small").status(), absl::OkStatus());
    return (absl::Now() - begin) / 2;
  };
  std::vector<absl::Duration> busy, control;
  do {
    busy.push_back(ask(*other));
    control.push_back(ask(*idle));
    absl::SleepFor(absl::Milliseconds(1));
  } while (!done);
  worst.join();
  RecordProperty("busy", absl::FormatDuration(NinthDecile(busy)));
  RecordProperty("idle", absl::FormatDuration(NinthDecile(control)));
  // There are not enough processors for all: whoever asks the idle server waits for them, too.
  EXPECT_LT(NinthDecile(busy), 2 * NinthDecile(control) + absl::Milliseconds(kSanitized ? 200 : 30));
}

TEST_F(LongCallsTest, ManyLeasesOfOneSessionAreCheckedAFewAtATime) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_NE(dock, nullptr);
  MakeTable(*dock);
  ASSERT_EQ(dock->Put({.partition = "p", .batch = Sevens(2000)}).status(), absl::OkStatus());
  for (int i = 0; i < 1000; ++i) {
    const absl::StatusOr<Taken> taken = dock->Take({.partition = "p", .consumer = "c"});
    ASSERT_EQ(taken.status(), absl::OkStatus());
    // Every second one lives.
    if (i % 2 == 0) {
      ASSERT_EQ(dock->Complete({.partition = "p", .lease = taken->lease}), absl::OkStatus());
    }
  }
  const int64_t leases = server_.service.counts().leases;
  EXPECT_GE(leases, 500);
  EXPECT_LE(leases, 700);
}

}  // namespace
}  // namespace tdock::service
