#include "runtime/replica/rows_message.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dock/table/rows_data.h"
#include "tdock/local_dock.h"

namespace tdock::runtime {
namespace {

std::span<const std::byte> Bytes(const auto& values) { return std::as_bytes(std::span(values)); }

// Two rows with everything that rows can have.
Rows FullRows() {
  static const std::vector<double> dense = {1.5, -2};
  static const std::vector<int32_t> ragged = {7, 8, 9};
  static const std::vector<char> text = {'h', 'i'};
  static const std::byte none{};
  Rows::Data data;
  data.ids = {3, 1};
  data.groups = {kNoGroup, 12};
  data.redeliveries = {0, 2};
  data.keys = {"first", ""};
  data.tags = {nullptr, std::make_shared<Tags>(Tags{{"a", "b"}, {"c", ""}})};
  data.columns = std::make_shared<std::vector<ColumnSpec>>(
      std::vector<ColumnSpec>{{"dense", ColumnType::Dense(DType::kF64)},
                              {"ragged", ColumnType::Ragged(DType::kI32)},
                              {"text", ColumnType::Text()},
                              {"pairs", ColumnType::Ragged(DType::kI32, {3})}});
  data.cells = {{Bytes(dense).first(8), 4},
                {Bytes(dense).last(8)},
                {Bytes(ragged), 2, true},
                {},
                {Bytes(text), 5},
                {{&none, 0}},
                {},
                {Bytes(ragged)}};
  data.ages = {0, 1};
  data.epochs = {4'000'000'000, 0};
  data.pieces = {{2, {{1, 2}, {3, 6}}}};
  return std::move(data).ToRows();
}

TEST(RowsMessage, HasEverythingThatRowsHave) {
  const Rows rows = FullRows();
  const auto bytes = Encode({.facts = {{"lease", 9}}, .rows = rows});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto message = Decode(*bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->facts, (Meta{{"lease", 9}}));
  const Rows& same = message->rows;
  ASSERT_EQ(same.size(), 2u);
  EXPECT_TRUE(std::equal(rows.columns().begin(), rows.columns().end(), same.columns().begin(), same.columns().end()));
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_EQ(same.ids()[row], rows.ids()[row]);
    EXPECT_EQ(same.groups()[row], rows.groups()[row]);
    EXPECT_EQ(same.redeliveries(row), rows.redeliveries(row));
    EXPECT_EQ(same.key(row), rows.key(row));
    EXPECT_EQ(same.tags(row), rows.tags(row));
    EXPECT_EQ(same.age(row), rows.age(row));
    EXPECT_EQ(same.epoch(row), rows.epoch(row));
    for (size_t column = 0; column < rows.columns().size(); ++column) {
      const Cell &cell = rows.cell(row, column), &copy = same.cell(row, column);
      EXPECT_EQ(same.Has(row, column), rows.Has(row, column)) << row << " " << column;
      EXPECT_TRUE(std::equal(cell.bytes.begin(), cell.bytes.end(), copy.bytes.begin(), copy.bytes.end()));
      EXPECT_EQ(copy.weights_version, cell.weights_version);
      EXPECT_EQ(copy.partial, cell.partial);
    }
  }
  EXPECT_EQ(*same.Pieces(0, "ragged"), (std::vector<Piece>{{1, 2}, {3, 6}}));
}

TEST(RowsMessage, KeepsItsMemoryAndAlignsWhatItHolds) {
  Rows rows;
  {
    const Buffer bytes = *Encode({.rows = FullRows()});
    rows = Decode(bytes)->rows;
  }
  EXPECT_EQ(rows.Get<double>(1, "dense")->front(), -2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.cell(0, 0).bytes.data()) % alignof(double), 0u);
  EXPECT_EQ(rows.Get<int32_t>(1, "pairs")->back(), 9);
}

TEST(RowsMessage, MayHaveNoRows) {
  const auto message = Decode(*Encode({.facts = {{"text", "none"}}}));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(message->rows.empty());
  EXPECT_EQ(message->facts, (Meta{{"text", "none"}}));
}

TEST(RowsMessage, RefusesWhatIsCutOff) {
  const Buffer bytes = *Encode({.rows = FullRows()});
  for (size_t size = 0; size + 64 < bytes.size(); size += 16) {
    EXPECT_FALSE(Decode(Buffer::CopyOf(bytes.bytes().first(size))).ok()) << size;
  }
}

}  // namespace
}  // namespace tdock::runtime
