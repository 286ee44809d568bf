// Messages as they travel, byte for byte, against those in tests/wire/golden. With TDOCK_WRITE_GOLDEN=1 in the
// environment, they are written instead: for a change of the protocol, which then needs another number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "dock/service/remote/envelope.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/fields.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/service/wire/socket_message.h"
#include "dock/table/rows_data.h"
#include "tdock/frame.h"

namespace tdock::service {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);
const std::string kSession = "0123456789abcdef";

std::string PathOf(const std::string& name) { return "tests/wire/golden/" + name + ".bin"; }

// The bytes of the file, which were these when it was written.
void ExpectGolden(const std::string& name, const std::string& bytes) {
  if (std::getenv("TDOCK_WRITE_GOLDEN") != nullptr) {
    std::ofstream file(PathOf(name), std::ios::binary);
    ASSERT_TRUE(file << bytes) << PathOf(name);
    return;
  }
  std::ifstream file(PathOf(name), std::ios::binary);
  ASSERT_TRUE(file) << "missing " << PathOf(name) << ": TDOCK_WRITE_GOLDEN=1 writes it";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_TRUE(golden.str() == bytes) << name << " has changed: " << golden.str().size() << " bytes were "
                                     << bytes.size();
}

Batch SmallBatch() {
  Batch batch;
  EXPECT_EQ(batch.Add("reward", Column::FromValues<float>(std::vector<float>{0.5f, -1.0f})), absl::OkStatus());
  EXPECT_EQ(batch.Add("tokens", Column::FromRows<int32_t>({{1, 2, 3}, {}})), absl::OkStatus());
  EXPECT_EQ(batch.Add("text", Column::FromStrings(std::vector<std::string>{"seven", "11"})), absl::OkStatus());
  return batch;
}

PutRequest SmallPut() {
  return {.partition = "train",
          .batch = SmallBatch(),
          .groups = {7, 7},
          .group_size = 2,
          .keys = {"a", "b"},
          .tags = {{{"split", "train"}}},
          .weights_version = 3,
          .deadline = kNow + absl::Seconds(2)};
}

v1::Request Numbered(uint64_t call) {
  v1::Request request;
  request.set_session(kSession);
  request.set_call(call);
  request.set_answered_below(call);
  return request;
}

// A request of each kind, with its name.
std::vector<std::pair<std::string, v1::Request>> Requests() {
  std::vector<std::pair<std::string, v1::Request>> all;
  const auto add = [&](const std::string& name) -> v1::Request& {
    return all.emplace_back(name, Numbered(all.size() + 1)).second;
  };
  add("create_partition")
      .set_create_partition(
          Encode(PartitionOptions{.name = "train",
                                  .columns = {{"mask", ColumnType::Dense(DType::kBool, {2, 3})}, {"text", {}}},
                                  .growing = true,
                                  .group_size = 4,
                                  .retain_for = {"actor"},
                                  .max_rows = 100,
                                  .max_bytes = 1 << 20,
                                  .row_bytes = 1000,
                                  .refuse_nan = true}));
  add("register_consumer")
      .set_register_consumer(Encode(RegisterRequest{.partition = "train",
                                                    .options = {.name = "actor",
                                                                .reads = {"tokens"},
                                                                .reads_optional = {"reward"},
                                                                .writes = {"text"},
                                                                .unit = Unit::kGroup,
                                                                .sampler = Sampler::kLengthBalanced,
                                                                .seed = 5,
                                                                .length_column = "tokens",
                                                                .ranks = 2,
                                                                .lease_duration = absl::Seconds(30),
                                                                .max_deliveries = 3,
                                                                .checkpointed = true}}));
  add("put_without_frame").set_put(Encode(PutRequest{.partition = "train", .new_rows = 3}, kNow));
  add("take").set_take(Encode(
      TakeRequest{
          .partition = "train", .consumer = "actor", .min = 2, .max = 8, .rank = 1, .deadline = absl::InfiniteFuture()},
      kNow));
  add("fetch").set_fetch(
      Encode(FetchRequest{.partition = "train", .rows = {1, 300}, .columns = {"text"}, .deadline = kNow}, kNow));
  const std::string lease = Encode(LeaseRequest{.partition = "train", .lease = 9, .rows = {1, 2}, .step = 4});
  add("complete").set_complete(lease);
  add("release").set_release(lease);
  add("renew").set_renew(lease);
  add("drop").set_drop(lease);
  add("requeue").set_requeue(Encode(RequeueRequest{.partition = "train", .consumer = "actor", .rows = {5}}));
  const std::string step =
      Encode(StepRequest{.partition = "train", .consumer = "actor", .step = 4, .weights_version = 2});
  add("commit").set_commit(step);
  add("rollback").set_rollback(step);
  add("list").set_list(Encode(ListRequest{.partition = "train",
                                          .tags = {{"split", "train"}},
                                          .ready_for = "actor",
                                          .having = {"text"},
                                          .from = 3,
                                          .limit = 10}));
  add("clear").set_clear(Encode(ClearRequest{.partition = "train", .groups = {7}}));
  const std::string partition = Encode(PartitionRequest{"train"}), consumer = Encode(ConsumerRequest{"train", "actor"});
  add("drop_partition").set_drop_partition(partition);
  add("list_partitions").set_list_partitions("");
  add("drop_consumer").set_drop_consumer(consumer);
  add("get_consumer_status").set_get_consumer_status(consumer);
  add("explain").set_explain(consumer);
  add("publish_weights").set_publish_weights(Encode(PublishRequest{"train", 12}));
  add("find_rows").set_find_rows(Encode(FindRequest{"train", {"a"}}));
  add("seal").set_seal(partition);
  add("get_status").set_get_status(partition);
  add("ping").set_ping("");
  v1::Request& cancel = add("cancel");
  cancel.set_call(0);
  cancel.mutable_cancel()->set_call(4);
  v1::Request& acknowledge = add("acknowledge");
  acknowledge.set_call(0);
  acknowledge.mutable_acknowledge()->add_pins(4);
  add("fill_without_frame")
      .set_fill(Encode(FillRequest{.partition = "train",
                                   .rows = {1, 300},
                                   .lease = 9,
                                   .keep = true,
                                   .step = 4,
                                   .tags = {{{"split", "train"}}},
                                   .partial = true,
                                   .epochs = {0, 2},
                                   .overwrite = true,
                                   .weights_version = 3}));
  return all;
}

// Rows with all that they can have, and the batch of their cells.
v1::Rows RowsMessage() {
  const auto columns = std::make_shared<std::vector<ColumnSpec>>();
  Rows::Data data{.ids = {4, 300}, .groups = {7, 7}, .redeliveries = {0, 1}, .keys = {"a", ""}};
  data.tags = {std::make_shared<const Tags>(Tags{{"split", "train"}}), nullptr};
  data.ages = {0, 2};
  data.epochs = {1, 0};
  const Batch batch = SmallBatch();
  for (const NamedColumn& named : batch.columns()) {
    columns->push_back({named.name, named.column.type()});
    for (int64_t row = 0; row < 2; ++row) data.cells.push_back({named.column.RowBytes(row), 3 + row, row == 1});
  }
  data.columns = columns;
  data.pieces[2] = {{2, 3}, {3, 4}};
  v1::Rows message;
  Encode(std::move(data).ToRows(), &message);
  message.set_has_frame(true);
  return message;
}

std::string Joined(const std::vector<rpc::Message>& messages) {
  std::string bytes;
  for (const rpc::Message& message : messages) {
    for (const Buffer& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

TEST(GoldenMessages, OfTheBeginningOfAConnectionAreAsTheyWere) {
  v1::Hello hello;
  hello.set_protocol(1);
  hello.set_session(kSession);
  hello.set_client("golden");
  ExpectGolden("hello", ControlMessage(SocketMessage::kHello, 0, hello));
  v1::Welcome welcome;
  welcome.set_protocol(1);
  welcome.set_session(kSession);
  welcome.set_instance(0x0123456789abcdef);
  welcome.set_resumed(true);
  welcome.add_units("");
  welcome.set_upload_slots(16);
  welcome.set_upload_slot_bytes(1 << 20);
  welcome.set_max_frame_bytes(uint64_t{16} << 30);
  ExpectGolden("welcome", ControlMessage(SocketMessage::kWelcome, 0, welcome));
}

TEST(GoldenMessages, OfEveryRequestAreAsTheyWere) {
  for (const auto& [name, request] : Requests()) {
    const std::string bytes = ControlMessage(SocketMessage::kCall, request.call(), request);
    ExpectGolden("request_" + name, bytes);
    v1::Request read;
    ASSERT_TRUE(read.ParseFromString(bytes.substr(sizeof(SocketHeader)))) << name;
    EXPECT_EQ(read.SerializeAsString(), request.SerializeAsString()) << name;
  }
}

TEST(GoldenMessages, OfRequestsMeanWhatWasAsked) {
  const auto body = [](const std::string& name) {
    for (const auto& [each, request] : Requests()) {
      if (each == name) return request;
    }
    return v1::Request();
  };
  const auto partition = Decode<PartitionOptions>(body("create_partition").create_partition());
  ASSERT_EQ(partition.status(), absl::OkStatus());
  EXPECT_EQ(partition->columns.front().type, ColumnType::Dense(DType::kBool, {2, 3}));
  EXPECT_EQ(partition->max_bytes, 1 << 20);
  const auto consumer = Decode<RegisterRequest>(body("register_consumer").register_consumer());
  ASSERT_EQ(consumer.status(), absl::OkStatus());
  EXPECT_EQ(consumer->options.sampler, Sampler::kLengthBalanced);
  EXPECT_EQ(consumer->options.lease_duration, absl::Seconds(30));
  EXPECT_EQ(consumer->options.max_version_lag, INT64_MAX);
  const TakeRequest take = Decode<TakeRequest>(body("take").take(), kNow).value();
  EXPECT_EQ(take.max, 8);
  EXPECT_EQ(take.deadline, absl::InfiniteFuture());
  const FetchRequest fetch = Decode<FetchRequest>(body("fetch").fetch(), kNow).value();
  EXPECT_EQ(fetch.rows, (std::vector<RowId>{1, 300}));
  EXPECT_EQ(fetch.deadline, kNow);
  EXPECT_EQ(Decode<LeaseRequest>(body("complete").complete())->step, 4);
  EXPECT_EQ(Decode<ClearRequest>(body("clear").clear())->groups, std::vector<GroupId>{7});
}

TEST(GoldenMessages, OfAPutWithItsFrameAreAsTheyWere) {
  v1::Request request = Numbered(5);
  request.set_put(Encode(SmallPut(), kNow));
  ASSERT_EQ(NumberIn(request.put(), NumberOf(&PutRequest::batch)), 1u);
  const absl::StatusOr<std::vector<rpc::Message>> messages = ToMessages(request.SerializeAsString(), SmallBatch());
  ASSERT_EQ(messages.status(), absl::OkStatus());
  const std::string envelope = Joined(*messages);
  ExpectGolden("put_over_grpc", envelope);

  EnvelopeReader reader([&](const std::string& control) -> absl::StatusOr<std::unique_ptr<FrameReader>> {
    EXPECT_EQ(control, request.SerializeAsString());
    return std::make_unique<FrameReader>(FrameLimits{}, Buffer::Allocate);
  });
  const std::span<const std::byte> piece = std::as_bytes(std::span(envelope));
  ASSERT_EQ(reader.Feed(std::span(&piece, 1)), absl::OkStatus());
  ASSERT_TRUE(reader.done());
  const absl::StatusOr<Batch> batch = reader.Finish();
  ASSERT_EQ(batch.status(), absl::OkStatus());
  EXPECT_EQ(batch->Get("text")->Text(0).value(), "seven");

  const EncodedFrame frame = EncodeFrame(MetaBatch(SmallBatch()), {}, FrameChecksums::kNone).value();
  std::string data;
  for (absl::string_view part : frame.Pieces()) data.append(part.data(), part.size());
  std::string bytes = ControlMessage(SocketMessage::kCall, 5, request);
  AppendHeader(SocketMessage::kData, 5, data.size(), &bytes);
  ExpectGolden("put_over_the_socket", bytes + data);
  ExpectGolden("put_through_memory",
               ControlMessage(SocketMessage::kCall, 5, request) +
                   NumbersMessage(SocketMessage::kSlot, 5, uint32_t{3}, static_cast<uint32_t>(data.size())));
}

TEST(GoldenMessages, OfRepliesAreAsTheyWere) {
  v1::Reply error;
  Encode(absl::NotFoundError("there is no partition 'train'"), &error);
  ExpectGolden("reply_error", ControlMessage(SocketMessage::kReply, 6, error));
  ExpectGolden("goodbye", ControlMessage(SocketMessage::kGoodbye, 0, error));
  v1::Reply put;
  put.mutable_put()->add_rows(4);
  put.mutable_put()->add_rows(300);
  ExpectGolden("reply_put", ControlMessage(SocketMessage::kReply, 6, put));
  v1::Reply range;
  range.mutable_put()->set_first(300);
  range.mutable_put()->set_count(5);
  ExpectGolden("reply_put_range", ControlMessage(SocketMessage::kReply, 6, range));
  v1::Reply status;
  status.set_status(Encode(PartitionStatus{.sealed = true,
                                           .weights_version = 3,
                                           .rows = 2,
                                           .held_bytes = 128,
                                           .columns = {{"text", true, ColumnType::Bytes(), 2}},
                                           .consumers = {{"actor", {.ready = 1, .leased = 1}}}}));
  ExpectGolden("reply_status", ControlMessage(SocketMessage::kReply, 6, status));
  ExpectGolden("consumed", NumbersMessage(SocketMessage::kConsumed, 6, uint32_t{3}));
  ExpectGolden("segment", NumbersMessage(SocketMessage::kSegment, 0, uint64_t{12}, uint64_t{64} << 20));
  ExpectGolden("gone", NumbersMessage(SocketMessage::kGone, 0, uint64_t{12}));
}

TEST(GoldenMessages, OfRowsAreAsTheyWereAndMeanTheSame) {
  v1::Reply reply;
  reply.mutable_taken()->set_lease(9);
  reply.mutable_taken()->set_remaining(1'000'000'000);
  *reply.mutable_taken()->mutable_rows() = RowsMessage();
  const absl::StatusOr<std::vector<rpc::Message>> messages = ToMessages(reply.SerializeAsString(), SmallBatch());
  ASSERT_EQ(messages.status(), absl::OkStatus());
  ExpectGolden("reply_taken_over_grpc", Joined(*messages));
  const v1::Rows& message = reply.taken().rows();
  const Batch batch = SmallBatch();
  absl::StatusOr<CellBytes> cells = CellsIn(message, batch);
  ASSERT_EQ(cells.status(), absl::OkStatus());
  const absl::StatusOr<Rows> rows = Decode(message, *std::move(cells));
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(rows->Text(1, "text").value(), "11");
  EXPECT_EQ(rows->redeliveries(1), 1);
  EXPECT_EQ(rows->tags(0), (Tags{{"split", "train"}}));

  v1::Rows* const views = reply.mutable_taken()->mutable_rows();
  views->clear_has_frame();
  views->set_pin(6);
  v1::ViewRun* const run = views->add_views();
  run->set_segment(12);
  run->set_offset(64);
  run->set_count(2);
  run->set_cell_bytes(4);
  v1::ViewRun* const varying = views->add_views();
  varying->set_segment(12);
  varying->set_offset(128);
  for (uint64_t bytes : {12, 0}) varying->add_each_bytes(bytes);
  ExpectGolden("reply_taken_as_views", ControlMessage(SocketMessage::kReply, 6, reply));
}

}  // namespace
}  // namespace tdock::service
