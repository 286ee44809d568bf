#include "tdock/meta_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/base/testing/fails.h"
#include "core/tensor/testing/random_batch.h"

namespace tdock {
namespace {

using testing::ElementsAre;

template <class T>
std::vector<T> Values(const MetaBatch& batch, absl::string_view column) {
  const auto values = batch.columns().Values<T>(column);
  EXPECT_TRUE(values.ok()) << values.status();
  return values.ok() ? std::vector<T>(values->begin(), values->end()) : std::vector<T>();
}

std::vector<int64_t> Ids(const MetaBatch& batch) { return Values<int64_t>(batch, "id"); }

// Columns "id" (0, 1, …), "text" ("t0", "t1", …) and "tokens" (as many as the id).
MetaBatch Counted(int64_t rows, Meta meta = {}) {
  std::vector<int64_t> ids;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  for (int64_t i = 0; i < rows; ++i) {
    ids.push_back(i);
    texts.push_back(absl::StrCat("t", i));
    tokens.emplace_back(static_cast<size_t>(i), static_cast<int32_t>(i));
  }
  Batch batch;
  EXPECT_TRUE(batch.Add("id", Column::FromValues(ids)).ok());
  EXPECT_TRUE(batch.Add("text", Column::FromStrings(texts)).ok());
  EXPECT_TRUE(batch.Add("tokens", Column::FromRows(tokens)).ok());
  return MetaBatch(std::move(batch), std::move(meta));
}

MetaBatch OneColumn(absl::string_view name, absl::StatusOr<Column> column, Meta meta = {}) {
  Batch batch;
  EXPECT_TRUE(batch.Add(name, std::move(column)).ok());
  return MetaBatch(std::move(batch), std::move(meta));
}

TEST(MetaBatch, SelectsAndPopsColumns) {
  const MetaBatch batch = Counted(2, {{"step", 7}});
  const MetaBatch selected = *batch.Select({"tokens", "id"});
  EXPECT_EQ(selected.columns().columns()[0].name, "tokens");
  EXPECT_EQ(selected.columns().columns().size(), 2u);
  EXPECT_EQ(selected.meta(), batch.meta());

  const auto [taken, rest] = *batch.Pop({"text"});
  EXPECT_EQ(*taken.columns().Find("text")->Text(1), "t1");
  EXPECT_EQ(rest.columns().Find("text"), nullptr);
  EXPECT_EQ(*rest.Union(taken)->Select({"id", "text", "tokens"}), batch);
  EXPECT_EQ(batch.columns().columns().size(), 3u);
  EXPECT_THAT(batch.Pop({"other"}).status(), Fails(absl::StatusCode::kNotFound, {"'other'", "id, text, tokens"}));
}

TEST(MetaBatch, RenamesAllAtOnce) {
  const MetaBatch renamed = *Counted(2).Rename({{"id", "text"}, {"text", "id"}});
  EXPECT_THAT(Values<int64_t>(renamed, "text"), ElementsAre(0, 1));
  EXPECT_EQ(*renamed.columns().Find("id")->Text(1), "t1");
  EXPECT_EQ(Counted(2).Rename({{"other", "x"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Counted(2).Rename({{"id", "text"}}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Counted(2).Rename({{"id", "x"}, {"id", "y"}}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'id'", "twice"}));
}

TEST(MetaBatch, SelectsRowsByPlaceByIndexAndByMask) {
  const MetaBatch batch = Counted(4);
  EXPECT_THAT(Ids(*batch.Slice(1, 2)), ElementsAre(1, 2));
  EXPECT_EQ(batch.Slice(1, 2)->columns().Find("id")->values().data(),
            batch.columns().Find("id")->values().data() + 8);  // shared
  EXPECT_THAT(Ids(*batch.SelectRows({3, 0, 3})), ElementsAre(3, 0, 3));
  EXPECT_THAT(Ids(*batch.SelectWhere(*Column::FromValues<bool>({true, false, false, true}))), ElementsAre(0, 3));
  EXPECT_THAT(batch.SelectRows({4}).status(), Fails(absl::StatusCode::kOutOfRange, {"'id'", "row 4 of 4"}));
  EXPECT_EQ(batch.Slice(3, 2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(batch.SelectWhere(*Column::FromValues<bool>({true})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"mask", "1 rows", "batch 4"}));
  EXPECT_THAT(batch.SelectWhere(*batch.columns().Get("id")).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"bool[]", "int64[]"}));
}

TEST(MetaBatch, ReordersByPermutationsOnly) {
  const MetaBatch batch = Counted(3);
  EXPECT_THAT(Ids(*batch.Reorder({2, 0, 1})), ElementsAre(2, 0, 1));
  EXPECT_THAT(batch.Reorder({2, 0, 2}).status(), Fails(absl::StatusCode::kInvalidArgument, {"row 2", "twice"}));
  EXPECT_THAT(batch.Reorder({0, 1}).status(), Fails(absl::StatusCode::kInvalidArgument, {"2 rows", "batch of 3"}));
  EXPECT_THAT(batch.Reorder({0, 1, 3}).status(), Fails(absl::StatusCode::kOutOfRange, {"row 3 of 3"}));
}

TEST(MetaBatch, RepeatsRowsInBothOrders) {
  const MetaBatch batch = Counted(2);
  EXPECT_THAT(Ids(*batch.Repeat(2, RepeatOrder::kInterleaved)), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Ids(*batch.Repeat(2, RepeatOrder::kTiled)), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(Ids(*batch.Repeat(0, RepeatOrder::kTiled)), ElementsAre());
  EXPECT_THAT(batch.Repeat(-1, RepeatOrder::kTiled).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"2 rows", "-1 times", "from 0 to 268435456"}));
  EXPECT_THAT(
      batch.Repeat(INT64_MAX, RepeatOrder::kTiled).status(),
      Fails(absl::StatusCode::kInvalidArgument, {"2 rows", "9223372036854775807 times", "from 0 to 268435456"}));
}

// Rows without elements, for which no memory is needed.
MetaBatch Weightless(int64_t rows) { return OneColumn("x", Column::MakeDense(DType::kF32, {0}, rows, Buffer())); }

TEST(MetaBatch, RefusesCountsThatNoMemoryHolds) {
  for (RepeatOrder order : {RepeatOrder::kInterleaved, RepeatOrder::kTiled}) {
    EXPECT_THAT(Counted(1).Repeat((1 << 28) + 1, order).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"1 rows", "268435457 times", "from 0 to 268435456"}));
    const MetaBatch wide = OneColumn("x", Column::FromValues(std::vector<int64_t>(1024), {1024}));
    EXPECT_THAT(wide.Repeat((1 << 23) + 1, order).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"'x'", "1 rows of 8192", "8388609 rows", "68719476736"}));
    EXPECT_EQ(Weightless(0).Repeat(INT64_MAX, order)->rows(), 0);
  }
  for (const MetaBatch& empty : {MetaBatch(), Counted(0), Counted(4)}) {
    EXPECT_THAT(empty.Chunk(int64_t{1} << 62).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"chunks", "4611686018427387904", "at most 1048576"}));
  }
  EXPECT_EQ(Counted(0).Chunk(1000)->size(), 1000u);
  EXPECT_THAT(Weightless(INT64_MAX).Split(1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"parts", "9223372036854775807", "at most 1048576"}));
  EXPECT_EQ(Weightless(INT64_MAX).Split(INT64_MAX)->size(), 1u);
  EXPECT_EQ(Weightless(INT64_MAX), Weightless(INT64_MAX));
  EXPECT_THAT(MetaBatch::Concat({Weightless(INT64_MAX), Weightless(1)}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'x'", "2^63"}));
}

TEST(MetaBatch, UnitesWhatIsEqualInBoth) {
  const MetaBatch scores = OneColumn("score", Column::FromValues<float>({1, 2}), {{"step", 7}, {"tau", 1.0}});
  const MetaBatch united = *Counted(2, {{"step", 7}}).Union(scores);
  EXPECT_EQ(united.columns().columns().size(), 4u);
  EXPECT_EQ(united.meta(), (Meta{{"step", 7}, {"tau", 1.0}}));
  EXPECT_EQ(*united.Union(Counted(2)), united);

  const float nan = std::numeric_limits<float>::quiet_NaN();
  const MetaBatch nans = OneColumn("x", Column::FromValues<float>({nan, 0}), {{"nan", double{nan}}});
  EXPECT_TRUE(nans.Union(nans).ok());
  const MetaBatch minus = OneColumn("x", Column::FromValues<float>({nan, -0.0f}));
  EXPECT_THAT(nans.Union(minus).status(), Fails(absl::StatusCode::kInvalidArgument, {"'x'", "row 1", "rename"}));
}

TEST(MetaBatch, SaysWhatKeepsBatchesFromBeingUnited) {
  const MetaBatch batch = Counted(2, {{"step", 7}});
  EXPECT_THAT(batch.Union(OneColumn("id", Column::FromValues<int32_t>({0, 1}))).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'id'", "int64[]", "int32[]"}));
  EXPECT_THAT(batch.Union(Counted(3)).status(), Fails(absl::StatusCode::kInvalidArgument, {"2 rows", "and 3"}));
  EXPECT_THAT(batch.Union(OneColumn("new", Column::FromValues<float>({1}))).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'new'", "1 rows", "'id'", "has 2"}));
  EXPECT_THAT(batch.Union(Counted(2, {{"step", "seven"}})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'step'", "is 7", "\"seven\""}));
}

TEST(MetaBatch, ConcatenatesRowsAndListsMetrics) {
  const MetaBatch a = OneColumn("x", Column::FromValues<int64_t>({1}), {{"step", 7}, {"metrics", Meta{{"loss", 0.5}}}});
  const MetaBatch b =
      OneColumn("x", Column::FromValues<int64_t>({2}), {{"step", 7}, {"metrics", Meta{{"loss", 0.25}, {"kl", 0.1}}}});
  const MetaBatch joined = *MetaBatch::Concat({a, b});
  EXPECT_THAT(Values<int64_t>(joined, "x"), ElementsAre(1, 2));
  EXPECT_EQ(joined.meta(),
            (Meta{{"step", 7}, {"metrics", Meta{{"kl", MetaValue::List{0.1}}, {"loss", MetaValue::List{0.5, 0.25}}}}}));
  // Whether all at once or one after another.
  EXPECT_EQ(*MetaBatch::Concat({joined, a}), *MetaBatch::Concat({a, b, a}));

  const MetaBatch lists = *MetaBatch::Concat({a, a}, {"metrics", "step"});
  EXPECT_EQ(lists.meta().at("step"), (MetaValue::List{7, 7}));
}

TEST(MetaBatch, SaysWhatKeepsBatchesFromBeingConcatenated) {
  const auto concat = [](Meta a, Meta b) {
    return MetaBatch::Concat({Counted(1, std::move(a)), Counted(1, std::move(b))}).status();
  };
  EXPECT_THAT(concat({{"tau", 1.0}}, {{"tau", 0.5}}),
              Fails(absl::StatusCode::kInvalidArgument, {"'tau'", "is 1.0", "and 0.5"}));
  EXPECT_THAT(concat({{"tau", 1}}, {{"tau", 1.0}}),
              Fails(absl::StatusCode::kInvalidArgument, {"'tau'", "is 1 in", "and 1.0 in"}));
  EXPECT_THAT(concat({{"tau", 1.0}}, {}), Fails(absl::StatusCode::kInvalidArgument, {"'tau'", "1.0", "and not"}));
  EXPECT_THAT(concat({}, {{"tau", 1.0}}), Fails(absl::StatusCode::kInvalidArgument, {"'tau'", "1.0", "and not"}));
  EXPECT_THAT(concat({{"metrics", Meta{{"a", 1}}}}, {{"metrics", Meta{{"a", Meta{}}}}}),
              Fails(absl::StatusCode::kInvalidArgument, {"'metrics.a'", "a map"}));
  EXPECT_THAT(concat({{"metrics", Meta{{"a", 1}}}}, {{"metrics", 3}}),
              Fails(absl::StatusCode::kInvalidArgument, {"'metrics'", "a map"}));
  EXPECT_THAT(MetaBatch::Concat({}).status(), Fails(absl::StatusCode::kInvalidArgument, {"no batches"}));
  EXPECT_THAT(MetaBatch::Concat({Counted(1), *Counted(1).Pop({"id"})->rest.Slice(0, 1)}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"columns id, text, tokens", "and text, tokens"}));
}

TEST(MetaBatch, ChunksEquallyAndSplitsWithARest) {
  const MetaBatch batch = Counted(7);
  EXPECT_THAT(batch.Chunk(2).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"7 rows", "2 equal", "multiple of 2", "parts of 4"}));
  EXPECT_THAT(batch.Chunk(0).status(), Fails(absl::StatusCode::kInvalidArgument, {"chunks", "is 0", "positive"}));
  EXPECT_THAT(batch.Split(0).status(), Fails(absl::StatusCode::kInvalidArgument, {"size", "is 0", "positive"}));
  const auto chunks = *Counted(6).Chunk(3);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_THAT(Ids(chunks[1]), ElementsAre(2, 3));
  const auto parts = *batch.Split(3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(Ids(parts[2]), ElementsAre(6));
  EXPECT_EQ(Counted(0).Split(3)->size(), 1u);
}

TEST(PaddedBatch, RepeatsRowsFromTheFrontAndKnowsWhichAreReal) {
  const MetaBatch batch = Counted(3);
  const PaddedBatch padded = *PaddedBatch::ToDivisor(batch, 8);
  EXPECT_THAT(Ids(padded.batch()), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  EXPECT_EQ(padded.real_rows(), 3);
  const Column weights = padded.Weights();
  EXPECT_THAT(*weights.Values<float>(), ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_EQ(padded.Unpad(), batch);
  EXPECT_EQ(batch, Counted(3));  // nobody else's batch has changed
  EXPECT_EQ(PaddedBatch::ToDivisor(batch, 3)->real_rows(), 3);
  EXPECT_EQ(PaddedBatch::ToDivisor(Counted(0), 4)->batch(), Counted(0));
  EXPECT_THAT(PaddedBatch::ToDivisor(batch, 0).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"divisor", "is 0", "positive"}));
}

TEST(PaddedBatch, RefusesCountsThatNoMemoryHolds) {
  EXPECT_THAT(PaddedBatch::ToDivisor(Counted(1), int64_t{1} << 39).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"1 rows", "multiple of 549755813888", "268435456"}));
  EXPECT_FALSE(PaddedBatch::ToDivisor(Counted(3), INT64_MAX).ok());
  EXPECT_FALSE(PaddedBatch::ToDivisor(Counted(1), (1 << 28) + 1).ok());
  EXPECT_FALSE(PaddedBatch::ToDivisor(Weightless(INT64_MAX), 1).ok());
  const MetaBatch wide = OneColumn("x", Column::FromValues(std::vector<int64_t>(4096), {2048}));
  EXPECT_THAT(PaddedBatch::ToDivisor(wide, (1 << 22) + 1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'x'", "2 rows of 32768", "4194305 rows", "68719476736"}));
  EXPECT_THAT(PaddedBatch::ToDivisor(Counted(0), 4)->Chunk(int64_t{1} << 62).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"chunks", "4611686018427387904", "at most 1048576"}));
}

TEST(PaddedBatch, GivesBackTheRealRowsOfWhatWasComputedInChunks) {
  const PaddedBatch padded = *PaddedBatch::ToDivisor(Counted(5), 4);
  const auto chunks = *padded.Chunk(4);
  std::vector<MetaBatch> results;
  std::vector<int64_t> real;
  for (const PaddedBatch& chunk : chunks) {
    real.push_back(chunk.real_rows());
    results.push_back(*chunk.batch().Select({"id"}));
  }
  EXPECT_THAT(real, ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(Ids(*padded.Unpad(*MetaBatch::Concat(results))), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(padded.Unpad(results[0]).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"2 rows", "has 8", "5 are real"}));
}

TEST(MiniBatches, VisitEveryRowOnceInEachEpoch) {
  const MiniBatches parts = *MiniBatches::Of(Counted(6), {.size = 2, .epochs = 3, .seed = 1});
  EXPECT_EQ(parts.per_epoch(), 3);
  ASSERT_EQ(parts.count(), 9);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t i = 0; i < parts.count(); ++i) {
    if (i % 3 == 0) orders.emplace_back();
    for (int64_t id : Ids(*parts.Get(i))) orders.back().push_back(id);
  }
  EXPECT_NE(orders[0], orders[1]);
  for (auto& order : orders) {
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
  }
  EXPECT_THAT(parts.Get(9).status(), Fails(absl::StatusCode::kOutOfRange, {"mini-batch 9 of 9"}));
}

TEST(MiniBatches, DependOnTheSeedOnly) {
  const auto first = [](uint64_t seed, bool shuffle) {
    return Ids(*MiniBatches::Of(Counted(64), {.size = 64, .seed = seed, .shuffle = shuffle})->Get(0));
  };
  EXPECT_EQ(first(1, true), first(1, true));
  EXPECT_NE(first(1, true), first(2, true));
  EXPECT_EQ(first(1, false), Ids(Counted(64)));
}

TEST(MiniBatches, LeaveNoRowOver) {
  EXPECT_THAT(MiniBatches::Of(Counted(8), {.size = 3}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"8 rows", "mini-batches of 3", "6 or 9"}));
  EXPECT_THAT(MiniBatches::Of(Counted(8), {.size = 0}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"size", "is 0", "positive"}));
  EXPECT_FALSE(MiniBatches::Of(Counted(8), {.size = 2, .epochs = INT64_MAX}).ok());
  EXPECT_EQ(MiniBatches::Of(Counted(0), {.size = 3})->count(), 0);
  EXPECT_THAT(MiniBatches::Of(Weightless(int64_t{1} << 60), {.size = 1}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"rows", "1152921504606846976", "at most 268435456"}));
}

std::vector<int64_t> Shuffled(Rng& rng, int64_t rows) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) order[static_cast<size_t>(i)] = i;
  rng.Shuffle(std::span(order));
  return order;
}

TEST(MetaBatch, RoundTripsOnRandomBatches) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    const int64_t count = 1 + static_cast<int64_t>(rng.Below(4)), size = static_cast<int64_t>(rng.Below(4));
    const MetaBatch batch = RandomBatch(rng, count * size, 1 + static_cast<int>(rng.Below(5)));
    const int64_t rows = batch.rows();
    EXPECT_EQ(batch, batch);
    EXPECT_EQ(*MetaBatch::Concat(*batch.Chunk(count)), batch);
    EXPECT_EQ(*MetaBatch::Concat(*batch.Split(count + 1)), batch);

    const std::vector<int64_t> order = Shuffled(rng, rows);
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); ++i) inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    EXPECT_EQ(*batch.Reorder(order)->Reorder(inverse), batch);
    EXPECT_EQ(*batch.SelectRows(order), *batch.Reorder(order));

    const PaddedBatch padded = *PaddedBatch::ToDivisor(batch, 1 + static_cast<int64_t>(rng.Below(9)));
    EXPECT_EQ(padded.Unpad(), batch);
    EXPECT_EQ(*padded.Unpad(padded.batch()), batch);

    const auto popped = *batch.Pop({"c0"});
    EXPECT_EQ(*popped.taken.Union(popped.rest), batch);
    EXPECT_EQ(*batch.Rename({{"c0", "x"}})->Rename({{"x", "c0"}}), batch);
    EXPECT_EQ(*batch.Union(batch), batch);

    const MetaBatch tiled = *batch.Repeat(count, RepeatOrder::kTiled);
    EXPECT_EQ(tiled, *MetaBatch::Concat(std::vector<MetaBatch>(static_cast<size_t>(count), batch)));
    const std::vector<MetaBatch> single_rows = *batch.Split(1);
    std::vector<MetaBatch> each;
    each.reserve(single_rows.size());
    for (const MetaBatch& row : single_rows) each.push_back(*row.Repeat(count, RepeatOrder::kInterleaved));
    EXPECT_EQ(*batch.Repeat(count, RepeatOrder::kInterleaved), *MetaBatch::Concat(each));
  }
}

}  // namespace
}  // namespace tdock
