#include "dock/service/wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tdock/verbs.h"

namespace tdock::service {
namespace {

using message::Encoded;

// A field of bytes, with a number and a length that need one byte each.
std::string Bytes(int number, const std::string& bytes) {
  return Serialize(message::Request{.verb = number, .body = bytes});
}

TEST(Messages, RepliesOfEachKindHaveTheirNumberAndComeBack) {
  const message::Rows rows{
      .ids = {1, 300},
      .groups = {7, ~uint64_t{0}},
      .redeliveries = {0, -1},
      .keys = {"a", ""},
      .tag_sets = {"x"},
      .tags = {1, 0},
      .ages = {0, 2},
      .epochs = {1, ~uint32_t{0}},
      .columns = {"c"},
      .cells = {{.count = 1, .weights_version = -1}, {.count = 1, .partial = true, .absent = true}},
      .pieces = {{.cell = 1, .ends = {2, 3}, .weights_versions = {-1, 4}}},
      .views = {{.segment = 1, .offset = 64, .each_bytes = {0, 1 << 20}, .is_inline = true}},
      .pin = 9,
      .inline_bytes = std::string(1000, 'x'),
      .streamed_bytes = 5};
  const std::vector<std::pair<int, message::ReplyBody>> bodies = {
      {10, message::Names{{"a", ""}}},
      {11, message::PutResult{.rows = {1, 300}}},
      {12, message::Taken{.lease = 3, .remaining = INT64_MAX, .rows = rows}},
      {13, rows},
      {14, message::Remaining{-1}},
      {15, message::RowIds{{0, ~uint64_t{0}}}},
      {16, Encoded{Encoded::kList, "list"}},
      {17, int64_t{0}},
      {18, Encoded{Encoded::kStatus, "status"}},
      {19, Encoded{Encoded::kConsumerStatus, ""}},
      {20, Encoded{Encoded::kText, "text"}},
      {21, Encoded{Encoded::kRowStatus, "row"}}};
  for (const auto& [number, body] : bodies) {
    const std::string bytes = Serialize(message::Reply{.body = body});
    EXPECT_EQ(static_cast<uint8_t>(bytes.at(0)) >> 3 | (bytes.at(1) & (number > 15)) << 4, number);
    const absl::StatusOr<message::Reply> read = Parse<message::Reply>(bytes);
    ASSERT_EQ(read.status(), absl::OkStatus()) << number;
    EXPECT_EQ(read->body.index(), body.index());
    EXPECT_EQ(Serialize(*read), bytes) << number;
    EXPECT_EQ(ByteSize(*read), bytes.size()) << number;
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(Parse<message::Reply>(absl::string_view(bytes).substr(0, size)).ok() && size > 0) << size;
    }
  }
}

TEST(Messages, RequestsKeepTheirLastBodyAndSkipFieldsThatAreUnknown) {
  const message::Request request{.call = 300, .released = {1, 2}, .verb = verbs::Put::kNumber};
  const std::string bytes = Serialize(request);
  EXPECT_EQ(Parse<message::Request>(bytes)->verb, verbs::Put::kNumber) << "a body without fields is there";
  const std::string more = bytes + Bytes(verbs::Take::kNumber, "take") + Bytes(99, "new") + "\x90\x02\x01";
  const message::Request read = Parse<message::Request>(more).value();
  EXPECT_EQ(read.verb, verbs::Take::kNumber);
  EXPECT_EQ(read.body, "take");
  EXPECT_EQ(read.call, 300u);
  EXPECT_THAT(read.released, testing::ElementsAre(1u, 2u));
  EXPECT_EQ(Parse<message::Request>(Bytes(99, "new"))->verb, 0);
}

TEST(Messages, ListsOfNumbersAreReadPackedAndOneByOne) {
  const std::string mixed = Bytes(1, "\x01\xac\x02") + "\x08\x05" + Bytes(1, "\x06");
  EXPECT_THAT(Parse<message::Release>(mixed)->pins, testing::ElementsAre(1u, 300u, 5u, 6u));
  std::string groups = "\x11";  // field 2, fixed64
  groups += std::string("\x07\0\0\0\0\0\0\0", 8);
  EXPECT_THAT(Parse<message::Rows>(groups + Bytes(2, groups.substr(1)))->groups, testing::ElementsAre(7u, 7u));
  EXPECT_FALSE(Parse<message::Rows>(Bytes(2, "short")).ok());
}

TEST(Messages, ThatCannotBeAreRefused) {
  for (const std::string& bad :
       {std::string("\x0a\x05p"), std::string("\x0b"), std::string("\x0c"), std::string("\x0a\xff\xff\xff\xff\x0f"),
        std::string("\x00\x01", 2), std::string(11, '\xff'), Bytes(13, "\x0a\x02\x80")}) {
    EXPECT_FALSE(Parse<message::Reply>(bad).ok() && Parse<message::Rows>(bad).ok());
  }
}

}  // namespace
}  // namespace tdock::service
