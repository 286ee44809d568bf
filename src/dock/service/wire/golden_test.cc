// Messages as they travel, byte for byte, against those in tests/wire/golden. With TDOCK_WRITE_GOLDEN=1 in the
// environment, they are written instead: for a change of the protocol, which then needs another number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "core/net/outbox.h"
#include "dock/service/wire/dock_message.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/table/rows_data.h"
#include "tdock/frame.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

const absl::Time kWritten = absl::FromUnixSeconds(1'000'000'000);
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
          .deadline = kWritten + absl::Seconds(2)};
}

message::Request Numbered(uint64_t call) { return {.call = call, .answered_below = call}; }

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
    add_body(V::kName + more, V::kNumber, RequestOf<V>(asked, kWritten).body);
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
  add(verbs::Fetch(), {.partition = "train", .rows = {1, 300}, .columns = {"text"}, .deadline = kWritten});
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

// Rows with all that they can have.
Rows SmallRows() {
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
  data.pins.push_back(std::make_shared<Batch>(batch));
  return std::move(data).ToRows();
}

// What an outbox sends of a message and of the bytes that follow it.
std::string Sent(std::string message, std::vector<std::span<const std::byte>> pieces, bool checked) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const auto stream = net::MakePlainStream(std::make_unique<FileDescriptor>(ends[0]), !checked, false);
  const FileDescriptor other(ends[1]);
  net::Outbox outbox;
  outbox.Add(std::move(message));
  outbox.AddData(5, 0, std::move(pieces), nullptr);
  EXPECT_EQ(outbox.Send(*stream), absl::OkStatus());
  std::string bytes(64 << 10, '\0');
  bytes.resize(static_cast<size_t>(recv(other.fd(), bytes.data(), bytes.size(), 0)));
  return bytes;
}

TEST(GoldenMessages, OfTheBeginningOfAConnectionAreAsTheyWere) {
  const message::Hello rest{.session = kSession, .client = "golden"};
  const net::Hello hello{.role = net::Role::kDock, .token = "open sesame", .rest = Serialize(rest)};
  ExpectGolden("hello", net::MessageOf(net::kHello, 0, Encode(hello)));
  const message::Welcome welcome{.session = kSession,
                                 .instance = 0x0123456789abcdef,
                                 .resumed = true,
                                 .upload_slots = 16,
                                 .upload_slot_bytes = 1 << 20,
                                 .max_frame_bytes = uint64_t{16} << 30};
  ExpectGolden("welcome", net::MessageOf(net::kWelcome, 0, "fedcba9876543210" + Serialize(welcome)));
  ExpectGolden("goodbye", net::GoodbyeMessage(absl::NotFoundError("no partition")));
}

TEST(GoldenMessages, OfEveryRequestAreAsTheyWere) {
  for (const auto& [name, request] : Requests()) {
    const std::string bytes = ControlMessage(kCall, request.call, request);
    ExpectGolden("request_" + name, bytes);
    const absl::StatusOr<message::Request> read = Parse<message::Request>(bytes.substr(sizeof(net::MessageHeader)));
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
  const TakeRequest take = Decode<TakeRequest>(body("take"), kWritten).value();
  EXPECT_EQ(take.max, 8);
  EXPECT_EQ(take.deadline, absl::InfiniteFuture());
  const FetchRequest fetch = Decode<FetchRequest>(body("fetch"), kWritten).value();
  EXPECT_EQ(fetch.rows, (std::vector<RowId>{1, 300}));
  EXPECT_EQ(fetch.deadline, kWritten);
  EXPECT_EQ(Decode<LeaseRequest>(body("complete"))->step, 4);
  EXPECT_EQ(Decode<ClearRequest>(body("clear"))->groups, std::vector<GroupId>{7});
}

TEST(GoldenMessages, OfAPutWithItsFrameAreAsTheyWere) {
  message::Request request = Numbered(5);
  request.verb = verbs::Put::kNumber;
  request.body = Encode(SmallPut(), kWritten);
  ASSERT_TRUE(HasFrame(request));
  const EncodedFrame frame = EncodeFrame(MetaBatch(SmallBatch()), {}, FrameChecksums::kNone).value();
  std::vector<std::span<const std::byte>> pieces;
  size_t size = 0;
  for (absl::string_view part : frame.Pieces()) {
    pieces.push_back(net::AsBytes(part));
    size += part.size();
  }
  const std::string call = ControlMessage(kCall, 5, request);
  ExpectGolden("put_over_tcp", Sent(call, pieces, true));
  ExpectGolden("put_over_the_socket", Sent(call, pieces, false));
  ExpectGolden("put_through_memory", call + net::NumbersMessage(kSlot, 5, uint32_t{3}, static_cast<uint32_t>(size)));
}

TEST(GoldenMessages, OfRepliesAreAsTheyWere) {
  message::Reply error;
  Encode(absl::NotFoundError("no partition"), &error);
  ExpectGolden("reply_error", ControlMessage(kReply, 6, error));
  const message::Reply put{.body = message::PutResult{.rows = {4, 300}}};
  ExpectGolden("reply_put", ControlMessage(kReply, 6, put));
  const message::Reply range{.body = message::PutResult{.first = 300, .count = 5}};
  ExpectGolden("reply_put_range", ControlMessage(kReply, 6, range));
  const message::Reply status{
      .body = message::Encoded{message::Encoded::kStatus,
                               Encode(PartitionStatus{.sealed = true,
                                                      .weights_version = 3,
                                                      .rows = 2,
                                                      .held_bytes = 128,
                                                      .columns = {{"text", true, ColumnType::Bytes(), 2}},
                                                      .consumers = {{"actor", {.ready = 1, .leased = 1}}}})}};
  ExpectGolden("reply_status", ControlMessage(kReply, 6, status));
  ExpectGolden("consumed", net::NumbersMessage(kConsumed, 6, uint32_t{3}));
  ExpectGolden("segment", net::NumbersMessage(kSegment, 0, uint64_t{12}, uint64_t{64} << 20));
  ExpectGolden("gone", net::NumbersMessage(kGone, 0, uint64_t{12}));
}

TEST(GoldenMessages, OfRowsAreAsTheyWereAndMeanTheSame) {
  const Rows taken = SmallRows();
  message::Reply reply{.body = message::Taken{9, 1'000'000'000, Encode(taken)}};
  message::Rows& message = *RowsIn(reply);
  const StreamedCells streamed = EncodeStreamed(taken, message, 1 << 20).value();
  message.pin = 6;
  ExpectGolden("reply_taken_over_tcp", Sent(ControlMessage(kReply, 5, reply), streamed.pieces, true));
  EXPECT_EQ(Serialize(*Parse<message::Reply>(Serialize(reply))), Serialize(reply));
  std::string bytes;
  for (const auto& piece : streamed.pieces) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  ASSERT_EQ(bytes.size(), message.streamed_bytes);
  const auto nowhere = [](uint64_t, uint64_t, uint64_t) { return absl::UnknownError("no segment"); };
  const Buffer behind = Buffer::CopyOf(net::AsBytes(bytes));
  absl::StatusOr<CellBytes> cells = CellsIn(message, nowhere, behind);
  ASSERT_EQ(cells.status(), absl::OkStatus());
  const absl::StatusOr<Rows> rows = Decode(message, *std::move(cells));
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(rows->Text(1, "text").value(), "11");
  EXPECT_EQ(rows->redeliveries(1), 1);
  EXPECT_EQ(rows->tags(0), (Tags{{"split", "train"}}));

  message.streamed_bytes = 0;
  message.views = {{.segment = 12, .offset = 64, .count = 2, .cell_bytes = 4},
                   {.segment = 12, .offset = 128, .each_bytes = {12, 0}}};
  ExpectGolden("reply_taken_as_views", ControlMessage(kReply, 6, reply));
}

}  // namespace
}  // namespace tdock::service
