// Bytes that no client sends: the server refuses them, lives, and serves others.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "absl/strings/strip.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/net/endpoint.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "fault_fixture.h"
#include "raw_client.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

class Garbage : public OverEach {
 protected:
  // A connection without anything said over it.
  std::unique_ptr<FileDescriptor> Dial() {
    const std::string address = target().address;
    absl::string_view path = address;
    const absl::Time deadline = absl::Now() + kPatience;
    auto socket = absl::ConsumePrefix(&path, "unix:")
                      ? net::ConnectToPath(std::string(path), deadline)
                      : net::ConnectTo(net::ParseEndpoint(address, "the server").value(), deadline);
    EXPECT_EQ(socket.status(), absl::OkStatus());
    return *std::move(socket);
  }

  // As far as the server reads at once.
  void SendAndHangUp(const std::string& bytes) {
    const std::unique_ptr<FileDescriptor> socket = Dial();
    send(socket->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  static std::string Random(Rng& rng, size_t size) {
    std::string bytes;
    while (bytes.size() < size) bytes.push_back(static_cast<char>(rng.Below(256)));
    return bytes;
  }

  void ExpectServes() {
    const std::unique_ptr<Dock> dock = Connect();
    ASSERT_NE(dock, nullptr);
    EXPECT_EQ(dock->ListPartitions().status(), absl::OkStatus());
  }

  void SendGarbage(int times) {
    Rng rng(3);
    const std::string http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (int i = 0; i < times; ++i) {
      SendAndHangUp(Random(rng, rng.Below(5000)));
      SendAndHangUp(http2 + Random(rng, rng.Below(5000)));
      std::string framed;
      net::AppendHeader(static_cast<uint8_t>(1 + rng.Below(4)), rng.Below(3), rng.Below(100), &framed);
      SendAndHangUp(framed + Random(rng, rng.Below(200)));
    }
    ExpectServes();
  }
};

TEST_P(Garbage, OfRandomBytesHarmsNobody) { SendGarbage(60); }
TEST_P(Garbage, DISABLED_OfManyRandomBytesHarmsNobody) { SendGarbage(10'000); }

TEST_P(Garbage, OfOtherProtocolsAndLengthsThatLieHarmsNobody) {
  std::vector<std::string> all = {"",
                                  "\n",
                                  "GET / HTTP/1.1\r\nHost: dock\r\n\r\n",
                                  "POST /tdock.v1.Dock/Call HTTP/1.0\r\n\r\n",
                                  std::string(100'000, '\0'),
                                  std::string(100'000, '\xff'),
                                  "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"};
  const std::string right = HelloMessage();
  for (size_t length = 1; length < right.size(); ++length) all.push_back(right.substr(0, length));
  for (uint32_t length : {0u, 1u, 65'537u, 0x7fffffffu, 0xffffffffu}) {
    for (int type : {0, 1, 2, 3, 4, 5, 32, 33, 34, 37, 255}) {
      std::string header;
      net::AppendHeader(static_cast<uint8_t>(type), 1, length, &header);
      all.push_back(header);
      all.push_back(right + header + "some");
    }
  }
  for (const std::string& bytes : all) SendAndHangUp(bytes);
  ExpectServes();
}

// A put, as it is sent.
service::message::Request PutWithFrame() {
  service::message::Request request = service::RequestOf<verbs::Put>({.partition = kPartition}, absl::Now());
  service::AppendNumber(request.body, service::NumberOf(&PutRequest::batch), 1);
  return request;
}

TEST_P(Garbage, InsideOfACallIsAnsweredOrRefusedAsWhatItIs) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  const Batch batch = MakeBatch(3, 3000);
  const std::string frame = FrameOf(batch);
  auto raw = std::make_unique<RawClient>(target());
  raw->Hello();
  Rng rng(5);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const service::message::Request put = raw->Numbered(PutWithFrame());
    std::string call = ControlMessage(service::kCall, put.call, put);
    const size_t at = sizeof(net::MessageHeader) + rng.Below(call.size() - sizeof(net::MessageHeader));
    call[at] = static_cast<char>(call[at] ^ (1 << rng.Below(8)));
    // A flip may make another request, which is answered or not.
    raw->Send(call + DataMessages(put.call, frame));
    const absl::Status status = raw->Call(raw->Numbered({.verb = service::message::kPing})).status();
    if (status.ok()) continue;
    ++refused;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status << " at " << at;
    raw = std::make_unique<RawClient>(target());
    raw->Hello();
  }
  EXPECT_GT(refused, 10);
  // A flip may have made a drop of the partition.
  const bool is_there = dock->GetStatus(kPartition).ok();
  ASSERT_TRUE(is_there || CreateAll(*dock).ok());
  EXPECT_TRUE(HasWholeRowsOnly(dock->GetStatus(kPartition).value()));
  // In a session of which nothing wrong was said.
  RawClient other(target());
  other.Hello();
  const service::message::Request put = other.Numbered(PutWithFrame());
  ASSERT_TRUE(other.SendCall(put) && other.Send(DataMessages(put.call, frame)));
  const absl::StatusOr<service::message::Reply> reply = other.ReplyTo(put.call);
  ASSERT_EQ(reply.status(), absl::OkStatus());
  EXPECT_EQ(std::get<service::message::PutResult>(reply->body).rows.size(), 3u) << reply->message;
}

TEST_P(Garbage, InAFrameFailsThatPutAndNoOther) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  const std::string right = FrameOf(MakeBatch(3, 3000));
  RawClient raw(target());
  raw.Hello();
  Rng rng(9);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string frame = right;
    const size_t at = rng.Below(i % 2 == 0 ? 300 : frame.size());
    frame[at] = static_cast<char>(frame[at] ^ (1 << rng.Below(8)));
    const service::message::Request put = raw.Numbered(PutWithFrame());
    ASSERT_TRUE(raw.SendCall(put) && raw.Send(DataMessages(put.call, frame)));
    const absl::StatusOr<service::message::Reply> reply = raw.ReplyTo(put.call);
    ASSERT_EQ(reply.status(), absl::OkStatus());
    const auto code = static_cast<absl::StatusCode>(reply->code);
    // Without checksums of blocks, a cell that is damaged is a cell.
    if (code == absl::StatusCode::kOk) continue;
    ++refused;
    EXPECT_TRUE(code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kDataLoss ||
                code == absl::StatusCode::kFailedPrecondition)
        << reply->message;
  }
  EXPECT_GT(refused, 50);
  EXPECT_TRUE(HasWholeRowsOnly(dock->GetStatus(kPartition).value()));
}

TEST_P(Garbage, EndsTheConnectionWithAGoodbyeThatSaysWhy) {
  const auto goodbye_to = [&](const std::string& bytes, bool hello) {
    RawClient raw(target());
    if (hello) raw.Hello();
    EXPECT_TRUE(raw.Send(bytes));
    return raw.Receive().status();
  };
  using net::MessageOf;
  std::string long_data;
  net::AppendHeader(net::kData, 1, (1 << 20) + 1, &long_data);
  const std::string wrong = net::NumbersMessage(net::kData, 1, ~uint64_t{0}, uint64_t{1});
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kFailed = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(goodbye_to(MessageOf(service::kCall, 1, "\xff\xff\xff\xff"), true), Fails(kInvalid, {"request 1"}));
  EXPECT_THAT(goodbye_to(MessageOf(service::kCall, 1, "\xff\xff\xff\xff"), false), Fails(kInvalid, {"type 32"}));
  EXPECT_THAT(goodbye_to(DataMessages(1, "x"), false), Fails(kFailed, {"hello"}));
  EXPECT_THAT(goodbye_to(MessageOf(net::kHello, 0, "\xff\xff\xff"), false), Fails(kInvalid, {"hello"}));
  EXPECT_THAT(goodbye_to(HelloMessage(), true), Fails(kInvalid, {"type 1"}));
  EXPECT_THAT(goodbye_to(long_data, true), Fails(kInvalid, {"1048577", "1048576"}));
  EXPECT_THAT(goodbye_to(wrong, true), Fails(absl::StatusCode::kUnavailable, {"call 1", "damaged"}));
  EXPECT_THAT(goodbye_to(MessageOf(net::kData, 1, "short"), true), Fails(kInvalid, {"prefix"}));
  EXPECT_THAT(goodbye_to(MessageOf(service::kReply, 1, ""), true), Fails(kInvalid, {"type 34"}));
  const bool is_local = GetParam() == Over::kUnix;
  EXPECT_THAT(goodbye_to(MessageOf(service::kSlot, 1, "abc"), true),
              Fails(kInvalid, {is_local ? "slot" : "type 33", is_local ? "8 bytes" : "3 bytes"}));
  EXPECT_THAT(goodbye_to(HelloMessage("", 1), false), Fails(kFailed, {"protocol 1"}));
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(Each, Garbage, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
