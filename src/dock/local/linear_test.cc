// What a call costs grows no faster than what it is about, and small calls cost little however much there is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "dock/local/served_dock.h"
#include "dock/table/limits.h"

namespace tdock::dock {
namespace {

using Code = absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kLinear = 9;

// How much more four times as much costs: 4 where the cost is linear, 16 where it is quadratic.
template <class Cost>
double Growth(int64_t n, Cost cost) {
  return CostRatio([&] { return cost(4 * n); }, [&] { return cost(n); }, kLinear);
}

std::vector<std::string> Names(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat("column ", i));
  return names;
}

PartitionOptions WithColumns(size_t count) {
  PartitionOptions options{.name = "p"};
  for (const std::string& name : Names(count)) options.columns.push_back({name, ColumnType::Dense(DType::kI64)});
  return options;
}

// One row with these columns.
Batch OneRow(size_t columns) {
  Batch batch;
  const std::vector<int64_t> value = {1};
  for (const std::string& name : Names(columns)) {
    EXPECT_EQ(batch.Add(name, Column::FromValues<int64_t>(value)), absl::OkStatus());
  }
  return batch;
}

TEST(Linear, FortyThousandColumnsInOneRequestAreRefusedAtOnce) {
  const PartitionOptions possible = WithColumns(kMaxColumns);
  for (size_t count : {size_t{40'000}, size_t{1'000'000}}) {
    const PartitionOptions options = WithColumns(count);
    absl::Status status;
    const auto refuse = [&] {
      const auto dock = MakeServedDock();
      return ThreadCpuSeconds([&] { status = dock->CreatePartition(options); });
    };
    const auto make = [&] {
      const auto dock = MakeServedDock();
      return ThreadCpuSeconds([&] { EXPECT_EQ(dock->CreatePartition(possible), absl::OkStatus()); });
    };
    // A look at each column would cost more than as many columns as are possible.
    EXPECT_LT(CostRatio(refuse, make, 1), 1);
    EXPECT_THAT(status, Fails(Code::kInvalidArgument, {absl::StrCat(count), "at most 4096"}));
  }
}

TEST(Linear, APartitionIsMadeInTheTimeOfItsColumns) {
  EXPECT_LT(Growth(kMaxColumns / 4,
                   [](int64_t n) {
                     const auto dock = MakeServedDock();
                     const PartitionOptions options = WithColumns(static_cast<size_t>(n));
                     return ThreadCpuSeconds([&] { EXPECT_EQ(dock->CreatePartition(options), absl::OkStatus()); });
                   }),
            kLinear);
}

TEST(Linear, ABatchIsMadeInTheTimeOfItsColumns) {
  EXPECT_LT(Growth(5000, [](int64_t n) { return ThreadCpuSeconds([&] { OneRow(static_cast<size_t>(n)); }); }), kLinear);
}

TEST(Linear, AConsumerIsRegisteredInTheTimeOfItsColumns) {
  EXPECT_LT(
      Growth(kMaxColumns / 4,
             [](int64_t n) {
               const auto dock = MakeServedDock();
               EXPECT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
               const ConsumerOptions consumer{.name = "c",
                                              .reads_optional = Names(static_cast<size_t>(n)),
                                              .writes = Names(static_cast<size_t>(n))};
               return ThreadCpuSeconds([&] { EXPECT_EQ(dock->RegisterConsumer("p", consumer), absl::OkStatus()); });
             }),
      kLinear);
}

TEST(Linear, PutsAndFetchesOfManyColumnsTakeTheTimeOfThem) {
  const auto cost = [](int64_t n, bool partial, bool fetch) {
    const auto dock = MakeServedDock();
    const auto count = static_cast<size_t>(n);
    EXPECT_EQ(dock->CreatePartition(WithColumns(count)), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = "p", .new_rows = 1}).status(), absl::OkStatus());
    const FillRequest put{
        .partition = "p", .batch = OneRow(count), .rows = {0}, .partial = partial, .weights_version = 1};
    const double cost_of_put = ThreadCpuSeconds([&] { EXPECT_EQ(dock->Fill(put), absl::OkStatus()); });
    if (!fetch) return cost_of_put;
    const FetchRequest request{.partition = "p", .rows = {0}, .columns = Names(count)};
    return ThreadCpuSeconds([&] { EXPECT_EQ(dock->Fetch(request).status(), absl::OkStatus()); });
  };
  constexpr auto kMany = static_cast<int64_t>(kMaxColumns / 4);
  EXPECT_LT(Growth(kMany, [&](int64_t n) { return cost(n, false, false); }), kLinear);
  EXPECT_LT(Growth(kMany, [&](int64_t n) { return cost(n, true, false); }), kLinear);
  EXPECT_LT(Growth(kMany, [&](int64_t n) { return cost(n, false, true); }), kLinear);
}

TEST(Linear, AGrowingPartitionGetsNoMoreColumnsThanItMayHave) {
  const auto dock = MakeServedDock();
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = "p", .batch = OneRow(kMaxColumns)}).status(), absl::OkStatus());
  Batch more;
  ASSERT_EQ(more.Add("one more", Column::FromValues<int64_t>(std::vector<int64_t>{1})), absl::OkStatus());
  const absl::Status put = dock->Put({.partition = "p", .batch = more}).status();
  EXPECT_EQ(put.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(put.message()), AllOf(HasSubstr("has 4096 columns"), HasSubstr("1 more")));
  EXPECT_EQ(dock->RegisterConsumer("p", {.name = "c", .reads = {"another"}}).code(), Code::kResourceExhausted);
  EXPECT_EQ(dock->RegisterConsumer("p", {.name = "c", .reads = {"column 7"}}), absl::OkStatus());
}

TEST(Linear, WithTwelveThousandPartitionsEachIsMadeAsWithFew) {
  const auto cost = [](int64_t n) {
    const auto dock = MakeServedDock({.memory_for = [](absl::string_view) { return std::shared_ptr<CellMemory>(); }});
    return ThreadCpuSeconds([&] {
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(dock->CreatePartition({.name = absl::StrCat("p", i), .growing = true}), absl::OkStatus());
      }
    });
  };
  EXPECT_LT(Growth(3000, cost), kLinear);
}

TEST(Linear, AnErrorNamesTheFirstOfManyThings) {
  const auto dock = MakeServedDock();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(dock->CreatePartition({.name = absl::StrCat("p", i), .growing = true}), absl::OkStatus());
  }
  const std::string partitions(dock->GetStatus("x").status().message());
  EXPECT_THAT(partitions, Mentions({"p0, p1, p10", "980 more"}));
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(dock->RegisterConsumer("p0", {.name = absl::StrCat("c", i), .writes = {absl::StrCat("w", i)}}),
              absl::OkStatus());
  }
  EXPECT_THAT(std::string(dock->GetConsumerStatus("p0", "x").status().message()), Mentions({"'c0', 'c1'", "80 more"}));
  EXPECT_THAT(std::string(dock->Fetch({.partition = "p0", .rows = {0}, .columns = {"x"}}).status().message()),
              HasSubstr("and 80 more"));
}

TEST(Linear, WhatThereMayBeIsBounded) {
  const auto dock = MakeServedDock();
  EXPECT_THAT(std::string(dock->CreatePartition({.name = "p", .growing = true, .group_size = 1 << 20}).message()),
              HasSubstr("at most 16384"));
  std::vector<std::string> names = Names(kMaxConsumers + 1);
  EXPECT_THAT(std::string(dock->CreatePartition({.name = "p", .growing = true, .retain_for = names}).message()),
              HasSubstr("at most 4096"));
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  for (size_t i = 0; i < kMaxConsumers; ++i) {
    ASSERT_EQ(dock->RegisterConsumer("p", {.name = names[i]}), absl::OkStatus());
  }
  const absl::Status one_more = dock->RegisterConsumer("p", {.name = "one more"});
  EXPECT_EQ(one_more.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(one_more.message()), HasSubstr("has 4096 consumers"));
  ASSERT_EQ(dock->DropConsumer("p", names[0]), absl::OkStatus());
  EXPECT_EQ(dock->RegisterConsumer("p", {.name = "one more"}), absl::OkStatus());
}

TEST(Linear, FetchesThatWaitForOnePartitionAreBounded) {
  absl::Status last;
  int64_t ended = 0;
  auto dock = MakeServedDock();
  ASSERT_EQ(dock->CreatePartition({.name = "p", .columns = {{"text", {}}}}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = "p", .new_rows = 1}).status(), absl::OkStatus());
  const FetchRequest fetch{.partition = "p", .rows = {0}, .columns = {"text"}, .deadline = absl::InfiniteFuture()};
  for (size_t i = 0; i <= kMaxWaitingFetches; ++i) {
    dock->StartFetch(fetch, [&](const absl::StatusOr<Rows>& rows) {
      last = rows.status();
      ++ended;
    });
  }
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(last.message()), HasSubstr("16384 fetches waiting"));
  dock.reset();
  EXPECT_EQ(ended, static_cast<int64_t>(kMaxWaitingFetches) + 1);
}

TEST(Linear, ARowGetsNoMoreTagsThanItMayHaveFromManyPuts) {
  const auto dock = MakeServedDock();
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = "p", .new_rows = 1}).status(), absl::OkStatus());
  for (size_t i = 0; i < kMaxTags; ++i) {
    ASSERT_EQ(dock->Fill({.partition = "p", .rows = {0}, .tags = {{{absl::StrCat(i), "x"}}}}), absl::OkStatus());
  }
  const absl::Status status = dock->Fill({.partition = "p", .rows = {0}, .tags = {{{"more", "x"}}}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("would have 1025"), HasSubstr("at most 1024")));
  EXPECT_EQ(dock->Fill({.partition = "p", .rows = {0}, .tags = {{{"7", "another"}}}}), absl::OkStatus());
}

TEST(Linear, ManyRowsOfManyGroupsAreClearedInTheTimeOfThem) {
  const auto cost = [](int64_t n) {
    const auto dock = MakeServedDock();
    EXPECT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
    EXPECT_EQ(dock->RegisterConsumer("p", {.name = "c", .unit = Unit::kGroup}), absl::OkStatus());
    PutRequest put{.partition = "p", .new_rows = 4 * n, .group_size = n};
    for (GroupId group = 1; group <= 4; ++group) put.groups.insert(put.groups.end(), static_cast<size_t>(n), group);
    EXPECT_EQ(dock->Put(put).status(), absl::OkStatus());
    return ThreadCpuSeconds([&] {
      EXPECT_EQ(dock->Clear({.partition = "p", .groups = {1, 2, 3, 4}}).status(), absl::OkStatus());
    });
  };
  EXPECT_LT(Growth(kMaxGroupSize / 4, cost), kLinear);
}

TEST(Linear, TheStateOfConsumersWithManyRanksCostsAsThatOfConsumersWithOne) {
  const auto with_ranks = [](int32_t ranks) {
    auto dock = MakeServedDock();
    EXPECT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = "p", .new_rows = 100}).status(), absl::OkStatus());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(dock->RegisterConsumer("p", {.name = absl::StrCat("c", i), .ranks = ranks}), absl::OkStatus());
    }
    return dock;
  };
  const auto cost_of = [](ServedDock& dock) {
    return ThreadCpuSeconds([&] {
      for (int i = 0; i < 100; ++i) EXPECT_EQ(dock.GetStatus("p")->consumers[0].status.takeable, 100);
    });
  };
  const auto many = with_ranks(1 << 16), one = with_ranks(1);
  // A look at each rank would cost 65,536 times as much.
  EXPECT_LT(CostRatio([&] { return cost_of(*many); }, [&] { return cost_of(*one); }, kLinear), kLinear);
}

// A partition "p" with n rows that have everything a row may have, in groups of 8 whose rows alternate with others';
// and a consumer "c", which reads and writes.
class ManyRows {
 public:
  explicit ManyRows(int64_t n) : count_(static_cast<size_t>(n)) {
    EXPECT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
    EXPECT_EQ(dock->RegisterConsumer("p", {.name = "c", .reads = {"n"}, .writes = {"w"}}), absl::OkStatus());
    put_.group_size = 8;
    for (size_t i = 0; i < count_; ++i) {
      rows.push_back(count_ - 1 - i);
      keys.push_back(absl::StrCat("key ", i));
      put_.tags.push_back({{"split", absl::StrCat(i % 7)}, {"number", absl::StrCat(i)}});
      put_.groups.push_back(i % (count_ / 8));
      numbers_.push_back(static_cast<int64_t>(i));
    }
    put_.keys = keys;
    EXPECT_EQ(put_.batch.Add("n", Column::FromValues<int64_t>(numbers_)), absl::OkStatus());
  }

  void Put() { EXPECT_EQ(dock->Put(put_).status(), absl::OkStatus()); }
  void Take() { EXPECT_EQ(dock->Take({.partition = "p", .consumer = "c", .rows = rows}).status(), absl::OkStatus()); }
  FillRequest Results() const {
    FillRequest results{.partition = "p", .rows = rows};
    EXPECT_EQ(results.batch.Add("w", Column::FromValues<int64_t>(numbers_)), absl::OkStatus());
    return results;
  }

  const std::unique_ptr<ServedDock> dock = MakeServedDock();
  // The last comes first.
  std::vector<RowId> rows;
  std::vector<std::string> keys;

 private:
  const size_t count_;
  PutRequest put_{.partition = "p"};
  std::vector<int64_t> numbers_;
};

// A call for as many rows, and what has to be there before, which is not measured.
struct CallForRows {
  const char* name;
  std::function<void(ManyRows&)> prepare;
  std::function<absl::Status(ManyRows&)> call;
  absl::StatusCode code = Code::kOk;
};

std::vector<CallForRows> CallsForRows() {
  const auto put = [](ManyRows& of) { of.Put(); };
  const auto take = [](ManyRows& of) {
    of.Put();
    of.Take();
  };
  const auto of_lease = [](ManyRows& of) { return LeaseRequest{.partition = "p", .lease = 1, .rows = of.rows}; };
  return {
      {"put", [](ManyRows&) {},
       [](ManyRows& of) {
         of.Put();
         return absl::OkStatus();
       }},
      {"put in existing rows", put, [](ManyRows& of) { return of.dock->Fill(of.Results()); }},
      {"put of tags for existing rows", put,
       [](ManyRows& of) {
         return of.dock->Fill({.partition = "p", .rows = of.rows, .tags = {{{"more", "x"}}}});
       }},
      {"keys", put, [](ManyRows& of) { return of.dock->FindRows("p", of.keys).status(); }},
      {"list", put,
       [](ManyRows& of) {
         ListRequest list{.partition = "p", .tags = {{"split", "3"}}, .limit = 100};
         for (absl::StatusOr<ListResult> page = of.dock->List(list);; page = of.dock->List(list)) {
           if (!page.ok() || !page->next.has_value()) return page.status();
           list.from = *page->next;
         }
       }},
      {"take", put,
       [](ManyRows& of) {
         of.Take();
         return absl::OkStatus();
       }},
      {"complete", take, [=](ManyRows& of) { return of.dock->Complete(of_lease(of)); }},
      {"release", take, [=](ManyRows& of) { return of.dock->Release(of_lease(of)); }},
      {"drop", take, [=](ManyRows& of) { return of.dock->Drop(of_lease(of)); }},
      {"fetch of rows named again and again", put,
       [](ManyRows& of) {
         std::vector<RowId> named = of.rows;
         named.insert(named.end(), of.rows.begin(), of.rows.end());
         return of.dock->Fetch({.partition = "p", .rows = named, .columns = {"n"}}).status();
       }},
      {"fetch of what is missing", put,
       [](ManyRows& of) { return of.dock->Fetch({.partition = "p", .rows = of.rows, .columns = {"w"}}).status(); },
       Code::kDeadlineExceeded},
      {"clear", put, [](ManyRows& of) { return of.dock->Clear({.partition = "p", .rows = of.rows}).status(); }},
      {"clear by tags", put,
       [](ManyRows& of) {
         return of.dock->Clear({.partition = "p", .tags = {{"split", "3"}}}).status();
       }},
      {"export and import", put,
       [](ManyRows& of) {
         const absl::StatusOr<std::string> image = of.dock->ExportPartition("p");
         return image.ok() ? MakeServedDock()->ImportPartition(*image) : image.status();
       }},
  };
}

TEST(Linear, EveryCallForManyRowsTakesTheTimeOfThem) {
  constexpr int64_t kFew = 4'000;
  for (const CallForRows& each : CallsForRows()) {
    const auto cost = [&](int64_t n) {
      ManyRows many(n);
      each.prepare(many);
      return ThreadCpuSeconds([&] { EXPECT_EQ(each.call(many).code(), each.code) << each.name; });
    };
    EXPECT_LT(Growth(kFew, cost), kLinear) << each.name;
  }
}

TEST(Linear, ColumnsThatEachAnotherConsumerWritesAreExplainedInTheTimeOfThem) {
  const auto cost = [](int64_t n) {
    const auto dock = MakeServedDock();
    const std::vector<std::string> names = Names(static_cast<size_t>(n));
    EXPECT_EQ(dock->CreatePartition(WithColumns(names.size())), absl::OkStatus());
    for (const std::string& name : names) {
      EXPECT_EQ(dock->RegisterConsumer("p", {.name = name, .writes = {name}}), absl::OkStatus());
    }
    EXPECT_EQ(dock->Put({.partition = "p", .new_rows = 8}).status(), absl::OkStatus());
    const FetchRequest fetch{.partition = "p", .rows = {0, 1, 2, 3, 4, 5, 6, 7}, .columns = names};
    return ThreadCpuSeconds([&] { EXPECT_EQ(dock->Fetch(fetch).status().code(), Code::kDeadlineExceeded); });
  };
  EXPECT_LT(Growth(kMaxConsumers / 4, cost), kLinear);
}

TEST(Linear, AGroupNamedVeryOftenIsRefusedBeforeItsRowsAreCollected) {
  const auto dock = MakeServedDock();
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  PutRequest put{.partition = "p", .new_rows = kMaxGroupSize, .group_size = kMaxGroupSize};
  put.groups.assign(static_cast<size_t>(kMaxGroupSize), 1);
  ASSERT_EQ(dock->Put(put).status(), absl::OkStatus());
  // Their rows together would take a hundred gigabytes.
  const std::vector<GroupId> often(1'000'000, 1);
  EXPECT_THAT(dock->Clear({.partition = "p", .groups = often}).status(), Fails(Code::kInvalidArgument, {"twice"}));
  EXPECT_EQ(dock->GetStatus("p")->rows, kMaxGroupSize);
}

TEST(Linear, AFetchMayHaveSoManyCellsAndNoMore) {
  const auto dock = MakeServedDock();
  ASSERT_EQ(dock->CreatePartition(WithColumns(kMaxColumns)), absl::OkStatus());
  const std::vector<RowId> rows(kMaxFetchedCells / kMaxColumns + 1, 0);
  EXPECT_THAT(dock->Fetch({.partition = "p", .rows = rows, .columns = Names(kMaxColumns)}).status(),
              Fails(Code::kInvalidArgument, {absl::StrCat(kMaxFetchedCells), absl::StrCat(rows.size())}));
}

TEST(Linear, APageOfRowsEndsAfterSoManyBytesOfTags) {
  const auto dock = MakeServedDock();
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  Tags tags;
  for (size_t i = 0; i < kMaxTags; ++i) tags[absl::StrCat(i)] = std::string(1024, 'x');
  ASSERT_EQ(dock->Put({.partition = "p", .new_rows = 40, .tags = {tags}}).status(), absl::OkStatus());
  std::vector<RowId> listed;
  ListRequest list{.partition = "p"};
  for (int pages = 0; pages < 40; ++pages) {
    const absl::StatusOr<ListResult> page = dock->List(list);
    ASSERT_EQ(page.status(), absl::OkStatus());
    EXPECT_LE(page->rows.size(), 9u);
    for (const ListedRow& row : page->rows) listed.push_back(row.row);
    if (!page->next.has_value()) break;
    list.from = *page->next;
  }
  ASSERT_EQ(listed.size(), 40u);
  for (size_t i = 0; i < listed.size(); ++i) EXPECT_EQ(listed[i], i);
}

}  // namespace
}  // namespace tdock::dock
