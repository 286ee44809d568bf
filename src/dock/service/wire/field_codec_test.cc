#include "dock/service/wire/field_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/testing/fails.h"

namespace tdock::service {
namespace {

using Code = absl::StatusCode;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);

template <class T>
T Again(const T& value) {
  absl::StatusOr<T> decoded = Decode<T>(Encode(value, kNow), kNow);
  EXPECT_EQ(decoded.status(), absl::OkStatus());
  return decoded.ok() ? *std::move(decoded) : T();
}

TEST(FieldCodec, KeepsAllOfARow) {
  const RowStatus row = Again(
      RowStatus{.row = 4,
                .group = 7,
                .key = "k",
                .tags = {{"split", "train"}, {"empty", ""}},
                .age = 1,
                .epoch = 2,
                .cells = {{.column = "a", .state = CellState::kReady, .bytes = 9, .writer = "w"}, {.column = "b"}},
                .consumers = {{.consumer = "c",
                               .state = DeliveryState::kLeased,
                               .missing = {"x", "y"},
                               .redeliveries = 3,
                               .lease = 5,
                               .taken = kNow - absl::Seconds(2),
                               .expires = kNow + absl::Seconds(3)},
                              {.consumer = "d", .state = DeliveryState::kDone, .uncommitted_step = 6}}});
  EXPECT_EQ(row.row, 4u);
  EXPECT_EQ(row.group, 7u);
  EXPECT_EQ(row.tags, (Tags{{"split", "train"}, {"empty", ""}}));
  EXPECT_EQ(row.epoch, 2u);
  ASSERT_EQ(row.cells.size(), 2u);
  EXPECT_EQ(row.cells[0].state, CellState::kReady);
  EXPECT_EQ(row.cells[0].weights_version, kNoWeightsVersion);
  ASSERT_EQ(row.consumers.size(), 2u);
  EXPECT_THAT(row.consumers[0].missing, testing::ElementsAre("x", "y"));
  EXPECT_EQ(row.consumers[0].taken, kNow - absl::Seconds(2));
  EXPECT_EQ(row.consumers[0].expires, kNow + absl::Seconds(3));
  EXPECT_EQ(row.consumers[1].taken, absl::InfinitePast());
  EXPECT_EQ(row.consumers[1].expires, absl::InfiniteFuture());
  EXPECT_EQ(row.consumers[1].uncommitted_step, 6);
}

TEST(FieldCodec, KeepsAllOfAListing) {
  const ListResult list =
      Again(ListResult{.rows = {{.row = 1}, {.row = 2, .group = 3, .tags = {{"a", "b"}}}}, .next = 0});
  ASSERT_EQ(list.rows.size(), 2u);
  EXPECT_EQ(list.rows[0].group, kNoGroup);
  EXPECT_EQ(list.rows[1].tags, (Tags{{"a", "b"}}));
  EXPECT_EQ(list.next, RowId{0});
  EXPECT_EQ(Again(ListResult()).next, std::nullopt);
}

TEST(FieldCodec, KeepsOptionsWhateverTheirDefaults) {
  ConsumerOptions options{.name = "c", .seed = ~uint64_t{0}, .ranks = 0, .max_deliveries = -1, .max_version_lag = 0};
  options.lease_duration = absl::InfiniteDuration();
  EXPECT_EQ(Again(RegisterRequest{.partition = "p", .options = options}).options, options);
  const PartitionOptions partition{
      .name = "p", .columns = {{"a", ColumnType::Ragged(DType::kBF16, {2})}}, .group_size = 0, .retain_for = {"c", ""}};
  EXPECT_EQ(Again(partition), partition);
}

TEST(FieldCodec, KeepsAStatus) {
  const PartitionStatus status = Again(PartitionStatus{
      .groups = -5, .columns = {{"a", false, {}, 0}}, .consumers = {{"c", {.completed = 8}}, {"d", {}}}});
  EXPECT_EQ(status.groups, -5);
  ASSERT_EQ(status.columns.size(), 1u);
  EXPECT_FALSE(status.columns[0].typed);
  ASSERT_EQ(status.consumers.size(), 2u);
  EXPECT_EQ(status.consumers[0].status.completed, 8);
  EXPECT_EQ(status.consumers[1].status.committed_step, kNoStep);
}

TEST(FieldCodec, WhatIsNotSentIsZero) {
  const TakeRequest take = Decode<TakeRequest>("", kNow).value();
  EXPECT_EQ(take.min, 0);
  EXPECT_EQ(take.deadline, kNow);
  EXPECT_EQ(Decode<ConsumerStatus>("")->committed_step, 0);
  EXPECT_EQ(Decode<FillRequest>("")->step, 0);
  EXPECT_EQ(Decode<RegisterRequest>("")->options.max_version_lag, 0);
}

TEST(FieldCodec, SkipsWhatItDoesNotKnow) {
  std::string message = Encode(LeaseRequest{.partition = "p", .lease = 9, .rows = {1, 2}});
  AppendNumber(message, 1, 5);    // not a text
  AppendNumber(message, 100, 7);  // a field of a later release
  message += "\xa2\x06\x03new";
  const LeaseRequest lease = Decode<LeaseRequest>(message).value();
  EXPECT_EQ(lease.partition, "p");
  EXPECT_EQ(lease.lease, 9u);
  EXPECT_THAT(lease.rows, testing::ElementsAre(1u, 2u));
}

TEST(FieldCodec, ReadsNumbersOneByOneToo) {
  std::string message;
  for (const uint64_t row : {3, 300}) AppendNumber(message, NumberOf(&LeaseRequest::rows), row);
  EXPECT_THAT(Decode<LeaseRequest>(message)->rows, testing::ElementsAre(3u, 300u));
  EXPECT_EQ(CountIn(message, &LeaseRequest::rows), 2);
}

TEST(FieldCodec, LooksIntoMessages) {
  std::string message = Encode(PutRequest{.partition = "p", .keys = {"a", ""}}, kNow);
  EXPECT_EQ(FirstText(message), "p");
  EXPECT_EQ(CountIn(message, &PutRequest::keys), 2);
  EXPECT_EQ(CountIn(Encode(FillRequest{.rows = {1, 128, 1u << 20}}), &FillRequest::rows), 3);
  EXPECT_EQ(NumberIn(message, kReadsRange), 0u);
  AppendNumber(message, kReadsRange, 1);
  EXPECT_EQ(NumberIn(message, kReadsRange), 1u);
  AppendNumber(message, NumberOf(&PutRequest::deadline), 5);
  EXPECT_EQ(Decode<PutRequest>(message, kNow)->deadline, kNow + absl::Nanoseconds(5));
  EXPECT_EQ(FirstText(""), "");
  EXPECT_EQ(FirstText("\xff"), "");
}

TEST(FieldCodec, RefusesAPutIntoRowsThatExist) {
  std::string put = Encode(PutRequest{.partition = "p", .new_rows = 1, .keys = {"k"}}, kNow);
  AppendNumber(put, 5, 1);  // once the rows to fill
  EXPECT_THAT(Decode<PutRequest>(put, kNow).status(), Fails(Code::kInvalidArgument, {"field 5", "fill"}));
}

TEST(FieldCodec, RefusesWhatCannotBe) {
  std::string unit = Encode(RegisterRequest{.partition = "p"});
  AppendNumber(unit, NumberOf(&ConsumerOptions::unit) + 1, 7);
  EXPECT_THAT(Decode<RegisterRequest>(unit).status(), Fails(Code::kInvalidArgument, {"unit 7"}));
  EXPECT_THAT(Decode<ListRequest>(absl::string_view("\x12\x02\x0a\x00", 4)).status(),
              Fails(Code::kInvalidArgument, {"1 names", "tags"}));
  const std::string whole =
      Encode(PutRequest{.partition = "p", .groups = {7}, .keys = {"key"}, .tags = {{{"name", "value"}}}}, kNow);
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto cut = Decode<PutRequest>(absl::string_view(whole).substr(0, size), kNow);
    if (cut.ok()) continue;
    EXPECT_THAT(cut.status(), Fails(Code::kInvalidArgument, {"message"})) << size;
  }
  for (const absl::string_view bad :
       {"\x0a\x05p", "\x0b", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x1a\x01\x80"}) {
    EXPECT_FALSE(Decode<PutRequest>(bad).ok() && Decode<FetchRequest>(bad).ok() && Decode<LeaseRequest>(bad).ok());
  }
}

}  // namespace
}  // namespace tdock::service
