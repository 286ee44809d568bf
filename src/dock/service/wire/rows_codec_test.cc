#include "dock/service/wire/rows_codec.h"
#include "dock/table/rows_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

absl::StatusOr<std::vector<std::string>> Decoded(const Rows& rows, const v1::Rows& views, const Look& look) {
  v1::Rows message = views;
  Encode(rows, &message);
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
  v1::Rows message;
  ASSERT_EQ(EncodeViews(
                rows, [](const std::byte*) { return std::nullopt; }, &message),
            absl::OkStatus());
  ASSERT_EQ(message.views_size(), 2);
  EXPECT_TRUE(message.views(0).is_inline());
  EXPECT_EQ(message.views(1).offset() % Buffer::kAlignment, 0u) << "as blocks begin";
  const auto look = [](uint64_t, uint64_t, uint64_t) { return absl::NotFoundError("there are no segments"); };
  EXPECT_THAT(*Decoded(rows, message, look), testing::ElementsAre("one", ", ", "", "three"));

  // Nothing is read beyond what came.
  message.mutable_views(1)->set_offset(message.inline_bytes().size() - 4);
  EXPECT_THAT(Decoded(rows, message, look).status().ToString(), HasSubstr("INVALID_ARGUMENT: 5 bytes at 65 of"));
  message.mutable_views(1)->set_offset(~uint64_t{0});
  EXPECT_EQ(Decoded(rows, message, look).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Views, MoreThanAMessageMayHaveIsRefused) {
  const std::string large(kMaxInlineBytes, 'x');
  const auto nowhere = [](const std::byte*) { return std::nullopt; };
  v1::Rows message;
  EXPECT_EQ(EncodeViews(TextsAt(large, {{0, large.size()}}), nowhere, &message), absl::OkStatus());
  for (const auto& rows : {TextsAt(large, {{0, large.size() - 1}, {large.size() - 1, 1}, {0, 1}}),
                           TextsAt(large, {{5, large.size() - 5}, {0, 100}})}) {
    message.Clear();
    EXPECT_EQ(EncodeViews(rows, nowhere, &message).code(), absl::StatusCode::kAborted);
  }
}

TEST(Views, ARunEndsWhereItsSegmentDoesThoughAnotherIsMappedRightBehind) {
  const std::string memory = "abcdefgh";
  const Rows rows = TextsAt(memory, {{0, 2}, {2, 2}, {4, 2}, {6, 2}});
  const auto* const begin = reinterpret_cast<const std::byte*>(memory.data());
  const auto locate = [&](const std::byte* data) -> std::optional<SharedPlace> {
    const auto at = static_cast<uint64_t>(data - begin);
    return SharedPlace{.segment = at / 4 + 1, .offset = at % 4, .bytes = 4 - at % 4};
  };
  v1::Rows message;
  ASSERT_EQ(EncodeViews(rows, locate, &message), absl::OkStatus());
  ASSERT_EQ(message.views_size(), 2);
  const auto look = [&](uint64_t segment, uint64_t offset, uint64_t bytes) -> absl::StatusOr<const std::byte*> {
    if (offset + bytes > 4) return absl::InvalidArgumentError("beyond the end");
    return begin + 4 * (segment - 1) + offset;
  };
  EXPECT_THAT(*Decoded(rows, message, look), testing::ElementsAre("ab", "cd", "ef", "gh"));
}

}  // namespace
}  // namespace tdock::service
