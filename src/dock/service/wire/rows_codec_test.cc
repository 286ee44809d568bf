#include "dock/service/wire/rows_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "dock/store/warm_memory.h"
#include "dock/table/rows_data.h"

namespace tdock::service {
namespace {

using testing::HasSubstr;

// Rows of one column of texts that lie in `memory` at these places and have so many bytes.
Rows TextsAt(const std::string& memory, const std::vector<std::pair<size_t, size_t>>& places) {
  const auto columns = std::make_shared<std::vector<ColumnSpec>>();
  columns->push_back({"a", ColumnType::Bytes()});
  Rows::Data data;
  for (const auto& [offset, bytes] : places) {
    data.ids.push_back(data.ids.size());
    data.groups.push_back(kNoGroup);
    data.cells.push_back({std::as_bytes(std::span(memory)).subspan(offset, bytes), 0, false});
  }
  data.columns = columns;
  return std::move(data).ToRows();
}

absl::StatusOr<std::vector<std::string>> Decoded(const Rows& rows, const message::Rows& views, const Look& look) {
  message::Rows message = Encode(rows);
  message.views = views.views;
  message.inline_bytes = views.inline_bytes;
  absl::StatusOr<CellBytes> cells = CellsIn(message, look);
  if (!cells.ok()) return cells.status();
  const absl::StatusOr<Rows> decoded = Decode(message, *std::move(cells));
  if (!decoded.ok()) return decoded.status();
  std::vector<std::string> texts;
  for (size_t i = 0; i < decoded->size(); ++i) texts.emplace_back(*decoded->Text(i, "a"));
  return texts;
}

TEST(Views, CellsThatLieInNoSegmentGoIntoTheMessage) {
  const std::string heap = "one, two, three";
  const Rows rows = TextsAt(heap, {{0, 3}, {3, 2}, {5, 0}, {10, 5}});
  message::Rows message;
  ASSERT_EQ(EncodeViews(
                rows, [](const std::byte*) { return std::nullopt; }, &message),
            absl::OkStatus());
  ASSERT_EQ(message.views.size(), 2u);
  EXPECT_TRUE(message.views[0].is_inline);
  EXPECT_EQ(message.views[1].offset % Buffer::kAlignment, 0u) << "as blocks begin";
  const auto look = [](uint64_t, uint64_t, uint64_t) { return absl::NotFoundError("there are no segments"); };
  EXPECT_THAT(*Decoded(rows, message, look), testing::ElementsAre("one", ", ", "", "three"));

  // Nothing is read beyond what came.
  message.views[1].offset = message.inline_bytes.size() - 4;
  EXPECT_THAT(Decoded(rows, message, look).status().ToString(), HasSubstr("INVALID_ARGUMENT: 5 bytes at 65 of"));
  message.views[1].offset = ~uint64_t{0};
  EXPECT_EQ(Decoded(rows, message, look).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Views, MoreThanAMessageMayHaveIsRefused) {
  const std::string large(kMaxInlineBytes, 'x');
  const auto nowhere = [](const std::byte*) { return std::nullopt; };
  message::Rows message;
  EXPECT_EQ(EncodeViews(TextsAt(large, {{0, large.size()}}), nowhere, &message), absl::OkStatus());
  for (const auto& rows : {TextsAt(large, {{0, large.size() - 1}, {large.size() - 1, 1}, {0, 1}}),
                           TextsAt(large, {{5, large.size() - 5}, {0, 100}})}) {
    message = {};
    EXPECT_THAT(EncodeViews(rows, nowhere, &message),
                Fails(absl::StatusCode::kResourceExhausted, {absl::StrCat(kMaxInlineBytes), "fewer rows"}));
  }
}

TEST(Views, ACellThatIsNamedManyTimesLiesInTheMessageOnce) {
  const std::string heap(4096, 'x');
  std::vector<std::pair<size_t, size_t>> places(300'000, {16, 8});
  places[1] = {24, 8};
  message::Rows message;
  ASSERT_EQ(EncodeViews(
                TextsAt(heap, places), [](const std::byte*) { return std::nullopt; }, &message),
            absl::OkStatus());
  EXPECT_LT(message.inline_bytes.size(), 256u);
  const auto look = [](uint64_t, uint64_t, uint64_t) { return absl::NotFoundError("there are no segments"); };
  EXPECT_THAT(*Decoded(TextsAt(heap, places), message, look), testing::Each("xxxxxxxx"));
  for (const message::ViewRun& run : message.views) ASSERT_EQ(run.offset % Buffer::kAlignment, 0u);
}

TEST(Views, CellsWithoutBytesBreakNoRun) {
  const std::string heap = "one, two";
  message::Rows message;
  ASSERT_EQ(EncodeViews(
                TextsAt(heap, {{0, 3}, {7, 0}, {3, 2}, {0, 0}, {0, 0}, {5, 3}}),
                [](const std::byte*) { return SharedPlace{.segment = 1, .offset = 64, .bytes = 8}; }, &message),
            absl::OkStatus());
  ASSERT_EQ(message.views.size(), 1u);
  EXPECT_THAT(message.views[0].each_bytes, testing::ElementsAre(3u, 0u, 2u, 0u, 0u, 3u));
}

TEST(Views, ScatteredCellsAreOneRunOnceTheyAreGathered) {
  const std::string heap = "abcdefghijklmnop";
  Rows rows = TextsAt(heap, {{14, 2}, {8, 1}, {0, 0}, {2, 3}, {8, 1}, {0, 2}});
  const auto locate = [](const std::byte*) { return SharedPlace{.segment = 1, .offset = 0, .bytes = 1 << 20}; };
  message::Rows message;
  EXPECT_THAT(EncodeViews(rows, locate, &message, /*max_runs=*/4), Fails(absl::StatusCode::kOutOfRange, {"4 runs"}));
  dock::WarmMemory memory;
  const Rows gathered = Gathered(rows, memory);
  message = {};
  ASSERT_EQ(EncodeViews(gathered, locate, &message, /*max_runs=*/1), absl::OkStatus());
  EXPECT_EQ(message.views.size(), 1u);
  rows = Rows();
  std::vector<std::string> texts;
  for (size_t i = 0; i < gathered.size(); ++i) texts.emplace_back(*gathered.Text(i, "a"));
  EXPECT_THAT(texts, testing::ElementsAre("op", "i", "", "cde", "i", "ab"));
}

TEST(Views, ARunEndsWhereItsSegmentDoesThoughAnotherIsMappedRightBehind) {
  const std::string memory = "abcdefgh";
  const Rows rows = TextsAt(memory, {{0, 2}, {2, 2}, {4, 2}, {6, 2}});
  const auto* const begin = reinterpret_cast<const std::byte*>(memory.data());
  const auto locate = [&](const std::byte* data) -> std::optional<SharedPlace> {
    const auto at = static_cast<uint64_t>(data - begin);
    return SharedPlace{.segment = at / 4 + 1, .offset = at % 4, .bytes = 4 - at % 4};
  };
  message::Rows message;
  ASSERT_EQ(EncodeViews(rows, locate, &message), absl::OkStatus());
  ASSERT_EQ(message.views.size(), 2u);
  const auto look = [&](uint64_t segment, uint64_t offset, uint64_t bytes) -> absl::StatusOr<const std::byte*> {
    if (offset + bytes > 4) return absl::InvalidArgumentError("beyond the end");
    return begin + 4 * (segment - 1) + offset;
  };
  EXPECT_THAT(*Decoded(rows, message, look), testing::ElementsAre("ab", "cd", "ef", "gh"));
}

}  // namespace
}  // namespace tdock::service
