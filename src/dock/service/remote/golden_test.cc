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
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/service/wire/socket_message.h"
#include "dock/table/rows_data.h"
#include "tdock/frame.h"
#include "tdock/verbs.h"

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

message::Request Numbered(uint64_t call) { return {.session = kSession, .call = call, .answered_below = call}; }

// A request of each kind, with its name.
std::vector<std::pair<std::string, message::Request>> Requests() {
  std::vector<std::pair<std::string, message::Request>> all;
  const auto add_body = [&](const std::string& name, int verb, const std::string& body) -> message::Request& {
    message::Request& request = all.emplace_back(name, Numbered(all.size() + 1)).second;
    request.verb = verb;
    request.body = body;
    return request;
  };
  const auto add = [&]<class V>(V, const typename V::Request& asked, const std::string& more = "") {
    add_body(V::kName + more, V::kNumber, RequestOf<V>(asked, kNow).body);
  };
  add(verbs::CreatePartition(), {.name = "train",
                                 .columns = {{"mask", ColumnType::Dense(DType::kBool, {2, 3})}, {"text", {}}},
                                 .growing = true,
                                 .group_size = 4,
                                 .retain_for = {"actor"},
                                 .max_rows = 100,
                                 .max_bytes = 1 << 20,
                                 .row_bytes = 1000,
                                 .refuse_nan = true});
  add(verbs::RegisterConsumer(), {.partition = "train",
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
                                              .checkpointed = true}});
  add(verbs::Put(), {.partition = "train", .new_rows = 3}, "_without_frame");
  add(verbs::Take(),
      {.partition = "train", .consumer = "actor", .min = 2, .max = 8, .rank = 1, .deadline = absl::InfiniteFuture()});
  add(verbs::Fetch(), {.partition = "train", .rows = {1, 300}, .columns = {"text"}, .deadline = kNow});
  const LeaseRequest lease{.partition = "train", .lease = 9, .rows = {1, 2}, .step = 4};
  add(verbs::Complete(), lease);
  add(verbs::Release(), lease);
  add(verbs::Renew(), lease);
  add(verbs::Drop(), lease);
  add(verbs::Requeue(), {.partition = "train", .consumer = "actor", .rows = {5}});
  const StepRequest step{.partition = "train", .consumer = "actor", .step = 4, .weights_version = 2};
  add(verbs::Commit(), step);
  add(verbs::Rollback(), step);
  add(verbs::List(), {.partition = "train",
                      .tags = {{"split", "train"}},
                      .ready_for = "actor",
                      .having = {"text"},
                      .from = 3,
                      .limit = 10});
  add(verbs::Clear(), {.partition = "train", .groups = {7}});
  add(verbs::DropPartition(), {"train"});
  add(verbs::ListPartitions(), {});
  add(verbs::DropConsumer(), {"train", "actor"});
  add(verbs::GetConsumerStatus(), {"train", "actor"});
  add(verbs::Explain(), {"train", "actor"});
  add(verbs::PublishWeights(), {"train", 12});
  add(verbs::FindRows(), {"train", {"a"}});
  add(verbs::Seal(), {"train"});
  add(verbs::GetStatus(), {"train"});
  add_body("ping", message::kPing, "");
  add_body("cancel", message::kCancel, Serialize(message::Cancel{4})).call = 0;
  add_body("acknowledge", message::kAcknowledge, Serialize(message::Release{{4}})).call = 0;
  add(verbs::Fill(),
      {.partition = "train",
       .rows = {1, 300},
       .lease = 9,
       .keep = true,
       .step = 4,
       .tags = {{{"split", "train"}}},
       .partial = true,
       .epochs = {0, 2},
       .overwrite = true,
       .weights_version = 3},
      "_without_frame");
  return all;
}

// Rows with all that they can have, and the batch of their cells.
message::Rows RowsMessage() {
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
  message::Rows message = Encode(std::move(data).ToRows());
  message.has_frame = true;
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
  const message::Hello hello{.protocol = 1, .session = kSession, .client = "golden"};
  ExpectGolden("hello", ControlMessage(SocketMessage::kHello, 0, hello));
  const message::Welcome welcome{.protocol = 1,
                                 .session = kSession,
                                 .instance = 0x0123456789abcdef,
                                 .resumed = true,
                                 .units = {""},
                                 .upload_slots = 16,
                                 .upload_slot_bytes = 1 << 20,
                                 .max_frame_bytes = uint64_t{16} << 30};
  ExpectGolden("welcome", ControlMessage(SocketMessage::kWelcome, 0, welcome));
}

TEST(GoldenMessages, OfEveryRequestAreAsTheyWere) {
  for (const auto& [name, request] : Requests()) {
    const std::string bytes = ControlMessage(SocketMessage::kCall, request.call, request);
    ExpectGolden("request_" + name, bytes);
    const absl::StatusOr<message::Request> read = Parse<message::Request>(bytes.substr(sizeof(SocketHeader)));
    ASSERT_EQ(read.status(), absl::OkStatus()) << name;
    EXPECT_EQ(Serialize(*read), Serialize(request)) << name;
    EXPECT_EQ(ByteSize(request), Serialize(request).size()) << name;
  }
}

TEST(GoldenMessages, OfRequestsMeanWhatWasAsked) {
  const auto body = [](const std::string& name) {
    for (const auto& [each, request] : Requests()) {
      if (each == name) return request.body;
    }
    return std::string();
  };
  const auto partition = Decode<PartitionOptions>(body("create_partition"));
  ASSERT_EQ(partition.status(), absl::OkStatus());
  EXPECT_EQ(partition->columns.front().type, ColumnType::Dense(DType::kBool, {2, 3}));
  EXPECT_EQ(partition->max_bytes, 1 << 20);
  const auto consumer = Decode<RegisterRequest>(body("register_consumer"));
  ASSERT_EQ(consumer.status(), absl::OkStatus());
  EXPECT_EQ(consumer->options.sampler, Sampler::kLengthBalanced);
  EXPECT_EQ(consumer->options.lease_duration, absl::Seconds(30));
  EXPECT_EQ(consumer->options.max_version_lag, INT64_MAX);
  const TakeRequest take = Decode<TakeRequest>(body("take"), kNow).value();
  EXPECT_EQ(take.max, 8);
  EXPECT_EQ(take.deadline, absl::InfiniteFuture());
  const FetchRequest fetch = Decode<FetchRequest>(body("fetch"), kNow).value();
  EXPECT_EQ(fetch.rows, (std::vector<RowId>{1, 300}));
  EXPECT_EQ(fetch.deadline, kNow);
  EXPECT_EQ(Decode<LeaseRequest>(body("complete"))->step, 4);
  EXPECT_EQ(Decode<ClearRequest>(body("clear"))->groups, std::vector<GroupId>{7});
}

TEST(GoldenMessages, OfAPutWithItsFrameAreAsTheyWere) {
  message::Request request = Numbered(5);
  request.verb = verbs::Put::kNumber;
  request.body = Encode(SmallPut(), kNow);
  ASSERT_TRUE(HasFrame(request));
  const absl::StatusOr<std::vector<rpc::Message>> messages = ToMessages(Serialize(request), SmallBatch());
  ASSERT_EQ(messages.status(), absl::OkStatus());
  const std::string envelope = Joined(*messages);
  ExpectGolden("put_over_grpc", envelope);

  EnvelopeReader reader([&](const std::string& control) -> absl::StatusOr<std::unique_ptr<FrameReader>> {
    EXPECT_EQ(control, Serialize(request));
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
  message::Reply error;
  Encode(absl::NotFoundError("there is no partition 'train'"), &error);
  ExpectGolden("reply_error", ControlMessage(SocketMessage::kReply, 6, error));
  ExpectGolden("goodbye", ControlMessage(SocketMessage::kGoodbye, 0, error));
  const message::Reply put{.body = message::PutResult{.rows = {4, 300}}};
  ExpectGolden("reply_put", ControlMessage(SocketMessage::kReply, 6, put));
  const message::Reply range{.body = message::PutResult{.first = 300, .count = 5}};
  ExpectGolden("reply_put_range", ControlMessage(SocketMessage::kReply, 6, range));
  const message::Reply status{
      .body = message::Encoded{message::Encoded::kStatus,
                               Encode(PartitionStatus{.sealed = true,
                                                      .weights_version = 3,
                                                      .rows = 2,
                                                      .held_bytes = 128,
                                                      .columns = {{"text", true, ColumnType::Bytes(), 2}},
                                                      .consumers = {{"actor", {.ready = 1, .leased = 1}}}})}};
  ExpectGolden("reply_status", ControlMessage(SocketMessage::kReply, 6, status));
  ExpectGolden("consumed", NumbersMessage(SocketMessage::kConsumed, 6, uint32_t{3}));
  ExpectGolden("segment", NumbersMessage(SocketMessage::kSegment, 0, uint64_t{12}, uint64_t{64} << 20));
  ExpectGolden("gone", NumbersMessage(SocketMessage::kGone, 0, uint64_t{12}));
}

TEST(GoldenMessages, OfRowsAreAsTheyWereAndMeanTheSame) {
  message::Reply reply{.body = message::Taken{9, 1'000'000'000, RowsMessage()}};
  const absl::StatusOr<std::vector<rpc::Message>> messages = ToMessages(Serialize(reply), SmallBatch());
  ASSERT_EQ(messages.status(), absl::OkStatus());
  ExpectGolden("reply_taken_over_grpc", Joined(*messages));
  EXPECT_EQ(Serialize(*Parse<message::Reply>(Serialize(reply))), Serialize(reply));
  message::Rows& message = *RowsIn(reply);
  const Batch batch = SmallBatch();
  absl::StatusOr<CellBytes> cells = CellsIn(message, batch);
  ASSERT_EQ(cells.status(), absl::OkStatus());
  const absl::StatusOr<Rows> rows = Decode(message, *std::move(cells));
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(rows->Text(1, "text").value(), "11");
  EXPECT_EQ(rows->redeliveries(1), 1);
  EXPECT_EQ(rows->tags(0), (Tags{{"split", "train"}}));

  message.has_frame = false;
  message.pin = 6;
  message.views = {{.segment = 12, .offset = 64, .count = 2, .cell_bytes = 4},
                   {.segment = 12, .offset = 128, .each_bytes = {12, 0}}};
  ExpectGolden("reply_taken_as_views", ControlMessage(SocketMessage::kReply, 6, reply));
}

}  // namespace
}  // namespace tdock::service
