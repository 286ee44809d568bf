// The examples of docs/batch.md: the last test holds the page to what stands here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "tdock/frame.h"
#include "tdock/mesh_rules.h"
#include "tdock/meta_batch.h"
#include "tdock/packing.h"
#include "tdock/padding.h"
#include "tdock/plans.h"

namespace tdock {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

absl::StatusOr<MetaBatch> Example() {
  Batch columns;
  TDOCK_RETURN_IF_ERROR(columns.Add("id", Column::FromValues<int64_t>({0, 1, 2, 3, 4, 5})));
  TDOCK_RETURN_IF_ERROR(columns.Add("tokens", Column::FromRows<int32_t>({{7}, {7, 8}, {7, 8, 9}, {7}, {}, {8, 9}})));
  const MetaBatch batch(columns, {{"step", 3}, {"metrics", Meta{{"loss", 0.5}}}});
  return batch;
}

std::vector<int64_t> ExampleIds(const MetaBatch& batch) {
  const auto ids = *batch.columns().Values<int64_t>("id");
  return {ids.begin(), ids.end()};
}

std::vector<std::string> Names(const MetaBatch& batch) {
  std::vector<std::string> names;
  for (const NamedColumn& column : batch.columns().columns()) names.push_back(column.name);
  return names;
}

TEST(BatchExamples, Columns) {
  const MetaBatch batch = *Example();
  const MetaBatch ids = *batch.Select({"id"});
  const auto [tokens, rest] = *batch.Pop({"tokens"});        // rest: id
  const MetaBatch renamed = *batch.Rename({{"id", "row"}});  // row, tokens
  const MetaBatch united = *rest.Union(tokens);              // id, tokens
  EXPECT_THAT(Names(ids), ElementsAre("id"));
  EXPECT_EQ(rest, ids);
  EXPECT_THAT(Names(renamed), ElementsAre("row", "tokens"));
  EXPECT_EQ(united, batch);
}

TEST(BatchExamples, Rows) {
  const MetaBatch batch = *Example();
  const MetaBatch ids = *batch.Select({"id"});
  const MetaBatch middle = *batch.Slice(1, 2);                                                             // 1 2
  const MetaBatch chosen = *batch.SelectRows({5, 0, 5});                                                   // 5 0 5
  const MetaBatch masked = *ids.Slice(0, 3)->SelectWhere(*Column::FromValues<bool>({true, false, true}));  // 0 2
  const MetaBatch turned = *middle.Reorder({1, 0});                                                        // 2 1
  const MetaBatch each = *middle.Repeat(2, RepeatOrder::kInterleaved);                                     // 1 1 2 2
  const MetaBatch whole = *middle.Repeat(2, RepeatOrder::kTiled);                                          // 1 2 1 2
  EXPECT_THAT(ExampleIds(middle), ElementsAre(1, 2));
  EXPECT_THAT(ExampleIds(chosen), ElementsAre(5, 0, 5));
  EXPECT_THAT(ExampleIds(masked), ElementsAre(0, 2));
  EXPECT_THAT(ExampleIds(turned), ElementsAre(2, 1));
  EXPECT_THAT(ExampleIds(each), ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(ExampleIds(whole), ElementsAre(1, 2, 1, 2));
}

TEST(BatchExamples, Parts) {
  const MetaBatch batch = *Example();
  const std::vector<MetaBatch> chunks = *batch.Chunk(3);                // 0 1 | 2 3 | 4 5
  const std::vector<MetaBatch> parts = *batch.Split(4);                 // 0 1 2 3 | 4 5
  const MetaBatch joined = *MetaBatch::Concat({chunks[0], chunks[2]});  // 0 1 4 5
  const MetaValue losses = joined.meta().at("metrics");                 // {"loss": [0.5, 0.5]}
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_THAT(ExampleIds(chunks[1]), ElementsAre(2, 3));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_THAT(ExampleIds(parts[1]), ElementsAre(4, 5));
  EXPECT_THAT(ExampleIds(joined), ElementsAre(0, 1, 4, 5));
  EXPECT_EQ(ToString(losses), "{\"loss\": [0.5, 0.5]}");
}

TEST(BatchExamples, MiniBatches) {
  const MetaBatch batch = *Example();
  int64_t rows = 0;
  const auto Train = [&rows](const MetaBatch& mini_batch) {
    rows += mini_batch.rows();
    return absl::OkStatus();
  };
  const auto run = [&]() -> absl::Status {
    const MiniBatches mini_batches = *MiniBatches::Of(batch, {.size = 2, .epochs = 2, .seed = 1});
    for (int64_t i = 0; i < mini_batches.count(); ++i) TDOCK_RETURN_IF_ERROR(Train(*mini_batches.Get(i)));
    return absl::OkStatus();
  };
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(rows, 12);
}

TEST(BatchExamples, RowsForEveryRank) {
  const MetaBatch batch = *Example();
  const PaddedBatch padded = *PaddedBatch::ToDivisor(batch, 4);  // 0 1 2 3 4 5 0 1
  const std::vector<PaddedBatch> shares = *padded.Chunk(4);      // 2, 2, 2 and 0 real rows
  const Column weights = padded.Weights();                       // 1 1 1 1 1 1 0 0
  const MetaBatch real = *padded.Unpad(padded.batch());          // 0 1 2 3 4 5
  EXPECT_THAT(ExampleIds(padded.batch()), ElementsAre(0, 1, 2, 3, 4, 5, 0, 1));
  EXPECT_EQ(shares[2].real_rows(), 2);
  EXPECT_EQ(shares[3].real_rows(), 0);
  EXPECT_THAT(*weights.Values<float>(), ElementsAre(1, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_EQ(real, batch);
}

TEST(BatchExamples, Plans) {
  const std::vector<int64_t> lengths = {100, 900, 200, 800, 300, 700, 400, 600};
  const Plan ranks = *BalanceRanks(lengths, 2);                                 // 0 5 3 6 | 2 7 1 4
  const Plan micro_batches = *PackMicroBatches(lengths, {.max_tokens = 1600});  // 0 4 6 | 1 5 | 2 3 7
  EXPECT_EQ(ranks, (Plan{{0, 5, 3, 6}, {2, 7, 1, 4}}));
  EXPECT_EQ(micro_batches, (Plan{{0, 4, 6}, {1, 5}, {2, 3, 7}}));
}

TEST(BatchExamples, RowsOfOneWidth) {
  const Column responses = Column::FromRows<int64_t>({{1, 2, 3}, {4}});
  const Column dense = *PadRows(responses, {.pad_id = 9, .multiple = 2});  // 1 2 3 9 | 4 9 9 9
  const Column ragged = *UnpadRows(dense, *Lengths(responses));            // 1 2 3 | 4
  const Column cut = *CutAtPad(dense, /*eos_id=*/77, /*pad_id=*/9);        // 1 2 3 | 4
  const PackedRows packed = *PackRows(responses);                          // 1 2 3 4, lengths 3 1
  const Column unpacked = *UnpackAndPad(packed, {.pad_id = 9});            // 1 2 3 | 4 9 9
  EXPECT_THAT(*dense.Values<int64_t>(), ElementsAre(1, 2, 3, 9, 4, 9, 9, 9));
  EXPECT_THAT(*ragged.Row<int64_t>(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(*cut.Row<int64_t>(1), ElementsAre(4));
  EXPECT_THAT(*packed.values.Values<int64_t>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(*packed.lengths.Values<int32_t>(), ElementsAre(3, 1));
  EXPECT_THAT(*unpacked.Values<int64_t>(), ElementsAre(1, 2, 3, 4, 9, 9));
}

TEST(BatchExamples, Meshes) {
  const auto rows = *RowChunksOfRank(3, 8, 1);                                          // 8 9 10 | 11 12 13 | 14 15
  const auto ranges = *ContextSlices(12, /*rank=*/0, /*cp=*/3, ContextSlicing::kRing);  // tokens 0 1 and 10 11
  EXPECT_THAT(rows, ElementsAre(ElementsAre(8, 9, 10), ElementsAre(11, 12, 13), ElementsAre(14, 15)));
  EXPECT_THAT(ranges, ElementsAre(TokenRange{0, 2}, TokenRange{10, 2}));
}

TEST(BatchExamples, Files) {
  Env& env = Env::Real();
  const MetaBatch batch = *Example();
  const std::string path = JoinPath(testing::TempDir(), "batch_examples_test_frame");
  const auto run = [&]() -> absl::Status {
    TDOCK_RETURN_IF_ERROR(SaveBatch(env, path, batch));
    const MetaBatch loaded = *LoadBatch(env, path);
    EXPECT_EQ(loaded, batch);
    return env.Remove(path);
  };
  EXPECT_TRUE(run().ok());
}

// Without the whitespace by which a formatter aligns comments.
std::string Squeezed(absl::string_view line) {
  std::string squeezed(line);
  absl::RemoveExtraAsciiWhitespace(&squeezed);
  return squeezed;
}

TEST(BatchExamples, AreThoseOfTheDocumentation) {
  const auto page = Env::Real().ReadFile("docs/batch.md"),
             file = Env::Real().ReadFile("src/core/tensor/batch_examples_test.cc");
  ASSERT_TRUE(page.ok() && file.ok()) << "run this test in the root of the repository";
  std::vector<std::string> tested;
  for (absl::string_view line : absl::StrSplit(*file, '\n')) tested.push_back(Squeezed(line));
  std::vector<std::string> untested;
  int examples = 0;
  bool in_example = false;
  for (absl::string_view line : absl::StrSplit(*page, '\n')) {
    if (absl::StartsWith(line, "```")) {
      in_example = line == "```cpp";
      continue;
    }
    if (!in_example) continue;
    ++examples;
    if (std::find(tested.begin(), tested.end(), Squeezed(line)) == tested.end()) untested.emplace_back(line);
  }
  EXPECT_GT(examples, 30);
  EXPECT_THAT(untested, IsEmpty());
}

}  // namespace
}  // namespace tdock
