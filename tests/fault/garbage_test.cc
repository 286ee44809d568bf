// Bytes that no client sends: the server refuses them, lives, and serves others.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/socket_address.h"
#include "fault_fixture.h"
#include "raw_rpc.h"
#include "raw_socket.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

class Garbage : public OverBoth {
 protected:
  // A connection without anything said over it.
  int Dial() {
    int fd = -1;
    if (GetParam() == Via::kSocket) {
      const sockaddr_un to = service::SocketAddress(socket_path()).value();
      fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    } else {
      int port = 0;
      EXPECT_TRUE(absl::SimpleAtoi(address().substr(address().rfind(':') + 1), &port));
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(port));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    }
    const timeval patience{.tv_sec = 1, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    return fd;
  }

  void SendAndHangUp(const std::string& bytes) {
    const int fd = Dial();
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) break;
      at += static_cast<size_t>(sent);
    }
    close(fd);
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
      service::AppendHeader(static_cast<service::SocketMessage>(1 + rng.Below(4)), rng.Below(3), rng.Below(100),
                            &framed);
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
  const service::message::Hello hello{.protocol = 1};
  const std::string right = ControlMessage(service::SocketMessage::kHello, 0, hello);
  for (size_t length = 1; length < right.size(); ++length) all.push_back(right.substr(0, length));
  for (uint32_t length : {0u, 1u, 65'537u, 0x7fffffffu, 0xffffffffu}) {
    for (int type : {0, 1, 2, 3, 4, 5, 16, 17, 21, 255}) {
      std::string header;
      service::AppendHeader(static_cast<service::SocketMessage>(type), 1, length, &header);
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

class GarbageOverTcp : public Garbage {};

TEST_P(GarbageOverTcp, InsideOfACallIsRefusedAsWhatItIs) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  RawRpc rpc(address());
  const Batch batch = MakeBatch(3, 3000);
  Rng rng(5);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = RawRpc::BytesOf(rpc.Numbered(PutWithFrame()), batch);
    const size_t at = rng.Below(bytes.size());
    if (i % 3 == 0) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.Below(8)));
    }
    const absl::StatusOr<std::string> answer = rpc.CallWith(bytes, kPatience);
    // A flip in the request may make another request, whose answer is a reply.
    if (answer.ok()) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(answer.status()) || absl::IsDataLoss(answer.status()) ||
                absl::IsAborted(answer.status()) || absl::IsFailedPrecondition(answer.status()) ||
                absl::IsResourceExhausted(answer.status()))
        << answer.status() << " at " << at;
  }
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff"), std::string("\x05\0\0\0abcde", 9),
                                   std::string("\x02\0\0\0ab", 6) + "more", std::string(4, '\0') + "more"}) {
    const absl::Status status = rpc.CallWith(bytes, kPatience).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsAborted(status)) << status;
  }
  const absl::Status cut = rpc.CallWith("\x05", kPatience).status();
  EXPECT_TRUE(absl::IsInvalidArgument(cut)) << cut;
  EXPECT_TRUE(HasWholeRowsOnly(dock->GetStatus(kPartition).value()));
  const absl::StatusOr<service::message::Reply> reply = rpc.Call(rpc.Numbered(PutWithFrame()), batch);
  ASSERT_EQ(reply.status(), absl::OkStatus());
  EXPECT_EQ(std::get<service::message::PutResult>(reply->body).rows.size(), 3u) << reply->message;
}

class GarbageOverSocket : public Garbage {};

TEST_P(GarbageOverSocket, InAFrameFailsThatPutAndNoOther) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  const std::string right = FrameOf(MakeBatch(3, 3000));
  RawSocket raw(socket_path());
  raw.Hello();
  Rng rng(9);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string frame = right;
    const size_t at = rng.Below(i % 2 == 0 ? 300 : frame.size());
    frame[at] = static_cast<char>(frame[at] ^ (1 << rng.Below(8)));
    const service::message::Request put = raw.Numbered(PutWithFrame());
    ASSERT_TRUE(raw.SendCall(put) && raw.Send(DataMessage(put.call, frame)));
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

TEST_P(GarbageOverSocket, EndsTheConnectionWithAGoodbyeThatSaysWhy) {
  const auto goodbye_to = [&](const std::string& bytes, bool hello) {
    RawSocket raw(socket_path());
    if (hello) raw.Hello();
    EXPECT_TRUE(raw.Send(bytes));
    return raw.Receive().status();
  };
  std::string call, hello, data, reply, slot;
  service::AppendHeader(service::SocketMessage::kCall, 1, 4, &call);
  service::AppendHeader(service::SocketMessage::kHello, 0, 3, &hello);
  service::AppendHeader(service::SocketMessage::kData, 1, (1 << 20) + 1, &data);
  service::AppendHeader(service::SocketMessage::kReply, 1, 0, &reply);
  service::AppendHeader(service::SocketMessage::kSlot, 1, 3, &slot);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kFailed = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(goodbye_to(call + "\xff\xff\xff\xff", true), Fails(kInvalid, {"request 1"}));
  EXPECT_THAT(goodbye_to(call + "\xff\xff\xff\xff", false), Fails(kFailed, {"hello"}));
  EXPECT_THAT(goodbye_to(hello + "\xff\xff\xff", false), Fails(kInvalid, {"hello"}));
  EXPECT_THAT(goodbye_to(data, true), Fails(kInvalid, {"1048577", "1048576"}));
  EXPECT_THAT(goodbye_to(reply, true), Fails(kInvalid, {"type 17"}));
  EXPECT_THAT(goodbye_to(slot + "abc", true), Fails(kInvalid, {"slot", "8 bytes"}));
  const service::message::Hello other{.protocol = 2};
  EXPECT_THAT(goodbye_to(ControlMessage(service::SocketMessage::kHello, 0, other), false),
              Fails(kFailed, {"protocol 2"}));
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(Both, Garbage, testing::Values(Via::kTcp, Via::kSocket), NameOf);
INSTANTIATE_TEST_SUITE_P(One, GarbageOverTcp, testing::Values(Via::kTcp), NameOf);
INSTANTIATE_TEST_SUITE_P(One, GarbageOverSocket, testing::Values(Via::kSocket), NameOf);

}  // namespace
}  // namespace tdock::fault
