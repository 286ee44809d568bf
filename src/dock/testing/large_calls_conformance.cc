// Calls that are large, empty, or name a thing several times: every dock answers them as one in the same process does.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dock/table/limits.h"
#include "dock/testing/conformance.h"
#include "tdock/local_dock.h"

namespace tdock::dock {
namespace {

constexpr int64_t kManyRows = 20'000;
constexpr size_t kLongestName = 255;

// Two texts are equal if the answers are: the code of an error, or what came.
std::string TextOf(const absl::Status& status) { return absl::StatusCodeToString(status.code()); }

std::string TextOf(const absl::StatusOr<int64_t>& count) {
  return count.ok() ? absl::StrCat("OK: ", *count) : TextOf(count.status());
}

std::string TextOf(const absl::StatusOr<std::vector<RowId>>& rows) {
  if (!rows.ok()) return TextOf(rows.status());
  std::string bytes;
  for (RowId row : *rows) bytes.append(reinterpret_cast<const char*>(&row), sizeof(row));
  return absl::StrCat("OK: ", rows->size(), " ids, ", std::hash<std::string>()(bytes));
}

std::string TextOf(const absl::StatusOr<PutResult>& result) {
  return result.ok() ? TextOf(absl::StatusOr<std::vector<RowId>>(result->rows)) : TextOf(result.status());
}

std::string TextOf(const absl::StatusOr<Rows>& rows) {
  if (!rows.ok()) return TextOf(rows.status());
  std::string bytes;
  for (size_t row = 0; row < rows->size(); ++row) {
    absl::StrAppend(&bytes, rows->ids()[row], " ", rows->groups()[row], " ", rows->key(row));
    for (const auto& [name, value] : rows->tags(row)) absl::StrAppend(&bytes, name, "=", value);
    for (size_t column = 0; column < rows->columns().size(); ++column) {
      const std::span<const std::byte> cell = rows->cell(row, column).bytes;
      absl::StrAppend(&bytes, rows->Has(row, column) ? "+" : "-", cell.size());
      if (!cell.empty()) bytes.append(reinterpret_cast<const char*>(cell.data()), cell.size());
    }
  }
  return absl::StrCat("OK: ", rows->size(), " rows, ", std::hash<std::string>()(bytes));
}

std::string TextOf(const absl::StatusOr<Taken>& taken) {
  return taken.ok() ? TextOf(absl::StatusOr<Rows>(taken->rows)) : TextOf(taken.status());
}

std::string TextOf(const absl::StatusOr<ListResult>& listed) {
  if (!listed.ok()) return TextOf(listed.status());
  std::string bytes;
  for (const ListedRow& row : listed->rows) absl::StrAppend(&bytes, row.row, " ", row.key, " ", row.tags.size(), ";");
  return absl::StrCat("OK: ", listed->rows.size(), " rows, next ", listed->next.value_or(0), ", ",
                      std::hash<std::string>()(bytes));
}

// A dock, and one in this process that is asked the same.
class Twins {
 public:
  Twins(Dock& dock, Clock& clock) : dock_(dock), plain_(MakeLocalDock({.clock = &clock})) {}

  // Returns the answer. It begins with "OK" unless it is an error's code.
  template <class Call>
  std::string Ask(const std::string& what, Call call) {
    const std::string expected = TextOf(call(*plain_));
    EXPECT_EQ(TextOf(call(dock_)), expected) << what;
    return expected;
  }

 private:
  Dock& dock_;
  const std::unique_ptr<Dock> plain_;
};

std::vector<RowId> Ascending(int64_t count) {
  std::vector<RowId> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), RowId{0});
  return rows;
}
std::vector<RowId> Descending(int64_t count) {
  std::vector<RowId> rows = Ascending(count);
  std::reverse(rows.begin(), rows.end());
  return rows;
}

// Numbers "n" and lists "t" of 0 to 6 of them, some of which are empty.
PutRequest NumbersAndLists(int64_t count) {
  std::vector<int64_t> numbers;
  std::vector<std::vector<int64_t>> lists;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(i * i);
    lists.emplace_back(static_cast<size_t>(i % 7), i);
  }
  PutRequest put{.partition = "p"};
  EXPECT_EQ(put.batch.Add("n", Column::FromValues<int64_t>(numbers)), absl::OkStatus());
  EXPECT_EQ(put.batch.Add("t", Column::FromRows(lists)), absl::OkStatus());
  return put;
}

std::vector<std::string> Columns(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat("column ", i));
  return names;
}

// One row.
PutRequest Wide(const std::vector<std::string>& columns) {
  PutRequest put{.partition = "p"};
  for (const std::string& name : columns) {
    EXPECT_EQ(put.batch.Add(name, Column::FromValues<int64_t>({7})), absl::OkStatus());
  }
  return put;
}

absl::Status CreateGrowing(Dock& dock) { return dock.CreatePartition({.name = "p", .growing = true}); }

}  // namespace

TEST_P(DockConformance, AnswersForManyRowsAndForOneRowManyTimesAreThoseOfALocalDock) {
  Twins twins(*dock_, clock_);
  twins.Ask("create", CreateGrowing);
  const PutRequest put = NumbersAndLists(kManyRows);
  twins.Ask("put", [&](Dock& dock) { return dock.Put(put); });
  const auto fetch = [&](const std::string& what, std::vector<RowId> rows, std::vector<std::string> columns) {
    const std::string answer =
        twins.Ask(what, [&](Dock& dock) { return dock.Fetch({.partition = "p", .rows = rows, .columns = columns}); });
    EXPECT_THAT(answer, testing::StartsWith("OK")) << what;
  };
  fetch("all rows", Ascending(kManyRows), {"n", "t"});
  fetch("all rows, backwards", Descending(kManyRows), {"t", "n"});
  fetch("one row many times", std::vector<RowId>(100'000, 3), {"n"});
  fetch("one list many times", std::vector<RowId>(100'000, 6), {"t"});
  std::vector<RowId> mixed;
  for (RowId i = 0; i < 60'000; ++i) mixed.push_back(i * 7919 % kManyRows);
  fetch("rows thrice, shuffled", mixed, {"n", "t"});
  fetch("a row that lies on one side of others", {5, 4, 5, 6, 4, 4}, {"n", "t"});
}

TEST_P(DockConformance, ARowOfASmallPartitionMayBeFetchedManyTimes) {
  Twins twins(*dock_, clock_);
  twins.Ask("create", CreateGrowing);
  const PutRequest put = NumbersAndLists(10);
  twins.Ask("put", [&](Dock& dock) { return dock.Put(put); });
  const std::string answer = twins.Ask("fetch", [&](Dock& dock) {
    return dock.Fetch({.partition = "p", .rows = std::vector<RowId>(500'000, 3), .columns = {"n"}});
  });
  EXPECT_THAT(answer, testing::StartsWith("OK: 500000 rows"));
}

TEST_P(DockConformance, AFetchKeepsLabelsVersionsAndPiecesOfRowsThatItNamesAgain) {
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32)}, {"r", ColumnType::Ragged(DType::kF32)}}, .group_size = 2});
  Register({.name = "rollout", .reads = {"a"}, .reads_optional = {"r"}, .writes = {"r"}});
  PutRequest put = Floats({{"a", {1, 2}}});
  put.groups = {9, 9};
  put.keys = {"first", "second"};
  put.tags = {{{"split", "hard"}}, {}};
  const std::vector<RowId> rows = PutNew(put);
  const auto respond = [&](std::vector<float> values, int64_t version, bool partial) {
    const absl::StatusOr<Taken> taken =
        dock_->Take({.partition = kPartition, .consumer = "rollout", .rows = {rows[0]}});
    ASSERT_EQ(taken.status(), absl::OkStatus());
    FillRequest request{.partition = kPartition,
                        .rows = {rows[0]},
                        .lease = taken->lease,
                        .partial = partial,
                        .weights_version = version};
    ASSERT_EQ(request.batch.Add("r", Column::FromRows<float>({values})), absl::OkStatus());
    ASSERT_EQ(Put(request), absl::OkStatus());
  };
  respond({1, 2}, 7, /*partial=*/true);
  respond({1, 2, 3}, 8, /*partial=*/false);
  FillRequest other{.partition = kPartition, .rows = {rows[1]}, .weights_version = 5};
  ASSERT_EQ(other.batch.Add("r", Column::FromRows<float>({std::vector<float>{4}})), absl::OkStatus());
  ASSERT_EQ(Put(other), absl::OkStatus());

  const absl::StatusOr<Rows> read =
      dock_->Fetch({.partition = kPartition, .rows = {rows[1], rows[0], rows[1], rows[0]}, .columns = {"a", "r"}});
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_THAT(Ids(*read), testing::ElementsAre(rows[1], rows[0], rows[1], rows[0]));
  for (size_t i : {size_t{1}, size_t{3}}) {
    EXPECT_EQ(read->key(i), "first");
    EXPECT_EQ(read->tags(i), (Tags{{"split", "hard"}}));
    EXPECT_EQ(read->groups()[i], 9u);
    EXPECT_EQ(read->age(i), 1);
    EXPECT_EQ(*read->WeightsVersion(i, "r"), 7);
    EXPECT_THAT(*read->Pieces(i, "r"), testing::ElementsAre(Piece{2, 7}, Piece{3, 8}));
  }
  for (size_t i : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(read->key(i), "second");
    EXPECT_TRUE(read->tags(i).empty());
    EXPECT_EQ(read->age(i), 0);
    EXPECT_THAT(*read->Pieces(i, "r"), testing::ElementsAre(Piece{1, 5}));
  }
  EXPECT_THAT(*read->ToBatch()->Values<float>("a"), testing::ElementsAre(2, 1, 2, 1));
}

TEST_P(DockConformance, AnswersForManyColumnsAndLongNamesAreThoseOfALocalDock) {
  Twins twins(*dock_, clock_);
  const std::string longest(kLongestName, 'x'), too_long(kLongestName + 1, 'x');
  twins.Ask("create", CreateGrowing);
  const std::vector<std::string> all = Columns(kMaxColumns);
  const PutRequest wide = Wide(all), too_wide = Wide(Columns(kMaxColumns + 1));
  EXPECT_EQ(twins.Ask("too many columns", [&](Dock& dock) { return dock.Put(too_wide); }), "INVALID_ARGUMENT");
  twins.Ask("a column of too long a name", [&](Dock& dock) { return dock.Put(Wide({too_long})); });
  EXPECT_THAT(twins.Ask("many columns", [&](Dock& dock) { return dock.Put(wide); }), testing::StartsWith("OK"));
  EXPECT_THAT(twins.Ask("fetch of many columns",
                        [&](Dock& dock) {
                          return dock.Fetch({.partition = "p", .rows = {0, 0}, .columns = all});
                        }),
              testing::StartsWith("OK"));
  const std::vector<RowId> many(kMaxFetchedCells / kMaxColumns + 1, 0);
  EXPECT_EQ(twins.Ask("more cells than a fetch may have",
                      [&](Dock& dock) { return dock.Fetch({.partition = "p", .rows = many, .columns = all}); }),
            "INVALID_ARGUMENT");
  for (const std::string& name : {longest, too_long, std::string()}) {
    const auto here = [&](const std::string& what) { return absl::StrCat(what, " of ", name.size(), " bytes"); };
    twins.Ask(here("a partition"), [&](Dock& dock) { return dock.CreatePartition({.name = name, .growing = true}); });
    twins.Ask(here("a column"), [&](Dock& dock) {
      return dock.CreatePartition({.name = "of columns", .columns = {{name, {}}}});
    });
    twins.Ask(here("a consumer"), [&](Dock& dock) { return dock.RegisterConsumer("p", {.name = name}); });
    twins.Ask(here("a key"), [&](Dock& dock) { return dock.Put({.partition = "p", .new_rows = 1, .keys = {name}}); });
    twins.Ask(here("a sought key"), [&](Dock& dock) { return dock.FindRows("p", std::vector<std::string>{name}); });
    twins.Ask(here("a tag's name"), [&](Dock& dock) {
      return dock.Put({.partition = "p", .new_rows = 1, .tags = {{{name, "x"}}}});
    });
  }
  const std::vector<std::string> reads = Columns(250), too_many = Columns(251);
  twins.Ask("many reads", [&](Dock& dock) { return dock.RegisterConsumer("p", {.name = "r", .reads = reads}); });
  twins.Ask("more reads", [&](Dock& dock) { return dock.RegisterConsumer("p", {.name = "s", .reads = too_many}); });
  twins.Ask("many optional columns and writes", [&](Dock& dock) {
    return dock.RegisterConsumer("p", {.name = "o", .reads_optional = all, .writes = all});
  });
  twins.Ask("all columns of a row", [&](Dock& dock) { return dock.Take({.partition = "p", .consumer = "o"}); });
}

TEST_P(DockConformance, AnswersForManyTagsKeysAndGroupsAreThoseOfALocalDock) {
  Twins twins(*dock_, clock_);
  twins.Ask("create", CreateGrowing);
  Tags tags;
  for (size_t i = 0; i < kMaxTags; ++i) tags[absl::StrCat("tag ", i)] = std::string(1024, 'v');
  const auto put_tagged = [&](Dock& dock) { return dock.Put({.partition = "p", .new_rows = 20, .tags = {tags}}); };
  EXPECT_THAT(twins.Ask("many long tags", put_tagged), testing::StartsWith("OK"));
  const Tags one_more = {{"one more", "x"}}, too_long = {{"long", std::string(1025, 'v')}};
  twins.Ask("one more tag", [&](Dock& dock) { return dock.Fill({.partition = "p", .rows = {3}, .tags = {one_more}}); });
  twins.Ask("too long a tag",
            [&](Dock& dock) { return dock.Fill({.partition = "p", .rows = {3}, .tags = {too_long}}); });
  EXPECT_THAT(twins.Ask("a page of long tags", [&](Dock& dock) { return dock.List({.partition = "p", .tags = tags}); }),
              testing::AllOf(testing::StartsWith("OK"), testing::Not(testing::HasSubstr("next 0,"))));

  std::vector<std::string> keys;
  std::vector<GroupId> groups;
  for (int64_t i = 0; i < kManyRows; ++i) {
    keys.push_back(absl::StrCat("key ", i));
    groups.push_back(static_cast<GroupId>(i / 4));
  }
  PutRequest put = NumbersAndLists(kManyRows);
  put.keys = keys;
  put.groups = groups;
  put.group_size = 4;
  twins.Ask("many keys and groups", [&](Dock& dock) { return dock.Put(put); });
  twins.Ask("many sought keys", [&](Dock& dock) { return dock.FindRows("p", keys); });
  twins.Ask("a key sought many times",
            [&](Dock& dock) { return dock.FindRows("p", std::vector<std::string>(100'000, "key 7")); });
  twins.Ask("consumer", [&](Dock& dock) {
    return dock.RegisterConsumer("p", {.name = "c", .reads = {"n"}, .unit = Unit::kGroup});
  });
  twins.Ask("as many groups as there are", [&](Dock& dock) {
    return dock.Take({.partition = "p", .consumer = "c", .max = std::numeric_limits<int64_t>::max()});
  });
  const std::vector<GroupId> all = Ascending(kManyRows / 4);
  twins.Ask("one group many times",
            [&](Dock& dock) { return dock.Clear({.partition = "p", .groups = std::vector<GroupId>(1'000'000, 7)}); });
  twins.Ask("all groups", [&](Dock& dock) { return dock.Clear({.partition = "p", .groups = all}); });
  twins.Ask("a group of the largest size", [&](Dock& dock) {
    return dock.Put({.partition = "p",
                     .new_rows = kMaxGroupSize,
                     .groups = std::vector<GroupId>(static_cast<size_t>(kMaxGroupSize), 1),
                     .group_size = kMaxGroupSize});
  });
  twins.Ask("a larger one", [&](Dock& dock) {
    return dock.Put({.partition = "p", .new_rows = 1, .groups = {2}, .group_size = kMaxGroupSize + 1});
  });
  twins.Ask("more rows than a put may have",
            [&](Dock& dock) { return dock.Put({.partition = "p", .new_rows = kMaxRowsPerPut + 1}); });
}

TEST_P(DockConformance, AnswersForCallsThatNameNothingAreThoseOfALocalDock) {
  Twins twins(*dock_, clock_);
  twins.Ask("create", CreateGrowing);
  twins.Ask("consumer", [](Dock& dock) { return dock.RegisterConsumer("p", {.name = "c", .reads = {"n"}}); });
  twins.Ask("consumer of nothing", [](Dock& dock) { return dock.RegisterConsumer("p", {.name = "d"}); });
  twins.Ask("put", [](Dock& dock) { return dock.Put({.partition = "p"}); });
  twins.Ask("put of columns without rows", [](Dock& dock) { return dock.Put(NumbersAndLists(0)); });
  twins.Ask("put of empty rows", [](Dock& dock) { return dock.Put({.partition = "p", .new_rows = 3}); });
  twins.Ask("fetch of no rows", [](Dock& dock) { return dock.Fetch({.partition = "p", .columns = {"n"}}); });
  twins.Ask("fetch of no columns", [](Dock& dock) { return dock.Fetch({.partition = "p", .rows = {0}}); });
  twins.Ask("fetch of cells that are not there", [](Dock& dock) {
    return dock.Fetch({.partition = "p", .rows = {0, 0}, .columns = {"n"}});
  });
  twins.Ask("take of nothing",
            [](Dock& dock) { return dock.Take({.partition = "p", .consumer = "c", .min = 0, .max = 0}); });
  twins.Ask("take of rows without columns",
            [](Dock& dock) { return dock.Take({.partition = "p", .consumer = "d", .min = 3, .max = 3}); });
  twins.Ask("complete without rows", [](Dock& dock) { return dock.Complete({.partition = "p", .lease = 1}); });
  twins.Ask("drop without rows", [](Dock& dock) { return dock.Drop({.partition = "p"}); });
  twins.Ask("requeue without rows", [](Dock& dock) { return dock.Requeue({.partition = "p", .consumer = "c"}); });
  twins.Ask("clear of nothing", [](Dock& dock) { return dock.Clear({.partition = "p"}); });
  twins.Ask("no keys", [](Dock& dock) { return dock.FindRows("p", {}); });
  twins.Ask("no tags", [](Dock& dock) { return dock.Fill({.partition = "p", .rows = {0}, .tags = {Tags()}}); });
  twins.Ask("list of nothing", [](Dock& dock) { return dock.List({.partition = "p", .limit = 0}); });
  twins.Ask("list without an end",
            [](Dock& dock) { return dock.List({.partition = "p", .limit = std::numeric_limits<int64_t>::max()}); });
  twins.Ask("no partition", [](Dock& dock) { return dock.DropPartition(""); });
}

TEST_P(DockConformance, AnswersForThingsNamedTwiceAreThoseOfALocalDock) {
  Twins twins(*dock_, clock_);
  twins.Ask("create", CreateGrowing);
  const auto register_with = [](ConsumerOptions options) {
    return [options](Dock& dock) { return dock.RegisterConsumer("p", options); };
  };
  twins.Ask("consumer", register_with({.name = "c", .reads = {"n"}, .writes = {"w"}}));
  twins.Ask("reads", register_with({.name = "r", .reads = {"n", "n"}}));
  twins.Ask("optional reads", register_with({.name = "r", .reads_optional = {"n", "n"}}));
  twins.Ask("writes", register_with({.name = "r", .writes = {"n", "n"}}));
  const PutRequest put = NumbersAndLists(8);
  twins.Ask("put", [&](Dock& dock) { return dock.Put(put); });
  const auto take = [](Dock& dock) { return dock.Take({.partition = "p", .consumer = "c", .min = 2, .max = 2}); };
  const LeaseRequest twice{.partition = "p", .lease = 1, .rows = {0, 0}};
  twins.Ask("taken rows", [](Dock& dock) { return dock.Take({.partition = "p", .consumer = "c", .rows = {1, 1}}); });
  twins.Ask("take", take);
  twins.Ask("completed rows", [&](Dock& dock) { return dock.Complete(twice); });
  twins.Ask("released rows", [&](Dock& dock) { return dock.Release(twice); });
  twins.Ask("rows dropped from a lease", [&](Dock& dock) { return dock.Drop(twice); });
  twins.Ask("dropped rows", [](Dock& dock) { return dock.Drop({.partition = "p", .rows = {5, 5}}); });
  twins.Ask("requeued rows", [](Dock& dock) {
    return dock.Requeue({.partition = "p", .consumer = "c", .rows = {5, 5}});
  });
  twins.Ask("cleared rows", [](Dock& dock) { return dock.Clear({.partition = "p", .rows = {5, 5}}); });
  twins.Ask("cleared groups", [](Dock& dock) { return dock.Clear({.partition = "p", .groups = {5, 5}}); });
  const FillRequest fill{.partition = "p", .batch = Wide({"w"}).batch, .rows = {6, 6}};
  twins.Ask("more rows than the batch has", [&](Dock& dock) { return dock.Fill(fill); });
  twins.Ask("rows of a put", [](Dock& dock) {
    return dock.Fill({.partition = "p", .rows = {6, 6}, .tags = {{{"x", "y"}}}});
  });
  twins.Ask("keys", [](Dock& dock) { return dock.Put({.partition = "p", .new_rows = 2, .keys = {"k", "k"}}); });
  twins.Ask("empty keys", [](Dock& dock) { return dock.Put({.partition = "p", .new_rows = 2, .keys = {"", ""}}); });
  twins.Ask("columns of a fetch", [](Dock& dock) {
    return dock.Fetch({.partition = "p", .rows = {0}, .columns = {"n", "n"}});
  });
  twins.Ask("columns of a list", [](Dock& dock) { return dock.List({.partition = "p", .having = {"n", "n"}}); });
  twins.Ask("completed rows that are done", [](Dock& dock) { return dock.Complete({.partition = "p", .lease = 1}); });
  twins.Ask("and again", [](Dock& dock) { return dock.Complete({.partition = "p", .lease = 1}); });
}

TEST_P(DockConformance, ManyRowsAreTakenCompletedReleasedAndClearedInAnyOrder) {
  Twins twins(*dock_, clock_);
  twins.Ask("create", CreateGrowing);
  twins.Ask("consumer", [](Dock& dock) {
    return dock.RegisterConsumer("p", {.name = "c", .reads = {"n"}, .reads_optional = {"t", "w"}});
  });
  const PutRequest put = NumbersAndLists(kManyRows);
  twins.Ask("put", [&](Dock& dock) { return dock.Put(put); });
  std::vector<RowId> rows = Descending(kManyRows);
  const auto take = [&](Dock& dock) { return dock.Take({.partition = "p", .consumer = "c", .rows = rows}); };
  EXPECT_THAT(twins.Ask("take", take), testing::StartsWith("OK"));
  const LeaseRequest first{.partition = "p", .lease = 1, .rows = rows}, second{.partition = "p", .lease = 2};
  EXPECT_EQ(twins.Ask("release", [&](Dock& dock) { return dock.Release(first); }), "OK");
  std::rotate(rows.begin(), rows.begin() + 7'001, rows.end());
  EXPECT_THAT(twins.Ask("take again", take), testing::StartsWith("OK"));
  EXPECT_EQ(twins.Ask("complete", [&](Dock& dock) { return dock.Complete(second); }), "OK");
  const auto clear = [&](Dock& dock) { return dock.Clear({.partition = "p", .rows = rows}); };
  EXPECT_EQ(twins.Ask("clear", clear), absl::StrCat("OK: ", kManyRows));
  EXPECT_EQ(twins.Ask("clear again", clear), "NOT_FOUND");
}

}  // namespace tdock::dock
