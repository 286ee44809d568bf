#include "dock/service/wire/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "core/base/testing/patience.h"
#include "core/net/endpoint.h"
#include "dock/service/wire/dock_message.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/testing/serve.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

// A connection at a server that does what the test says.
class Served {
 public:
  explicit Served(int fd) : fd_(fd) { EXPECT_GE(fd, 0); }
  ~Served() { close(fd_); }
  Served(Served&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Served& operator=(Served&&) = delete;

  bool AnythingToRead(absl::Duration within) const {
    pollfd watched{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(within))) > 0;
  }
  // The next message, which must be of this type.
  std::string Read(uint8_t type) {
    net::MessageHeader header;
    ReadInto(&header, sizeof(header));
    EXPECT_EQ(header.type, type);
    std::string body(header.length, '\0');
    ReadInto(body.data(), body.size());
    return body;
  }
  uint32_t ReadSlot() { return net::NumberAt<uint32_t>(Read(kSlot), 0); }
  void Write(const std::string& bytes) {
    ASSERT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void WriteConsumed(uint64_t call, uint32_t slot) { Write(net::NumbersMessage(kConsumed, call, slot)); }
  void WriteReply(uint64_t call) { Write(ControlMessage(kReply, call, message::Reply())); }
  void Welcome(const dock::UploadArea& area) {
    Read(net::kHello);
    const message::Welcome welcome{.session = "s",
                                   .upload_slots = static_cast<uint32_t>(area.slots()),
                                   .upload_slot_bytes = static_cast<uint32_t>(area.slot_bytes())};
    WriteWithFile(net::MessageOf(net::kWelcome, 0, std::string(net::kConnectionIdBytes, '\0') + Serialize(welcome)),
                  area.file()->fd());
  }

 private:
  void ReadInto(void* to, size_t size) {
    auto* at = static_cast<char*>(to);
    for (size_t got = 0; got < size;) {
      ASSERT_TRUE(AnythingToRead(kPatience));
      const ssize_t step = recv(fd_, at + got, size - got, 0);
      ASSERT_GT(step, 0);
      got += static_cast<size_t>(step);
    }
  }
  void WriteWithFile(std::string bytes, int file) {
    iovec piece{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &file, sizeof(file));
    ASSERT_EQ(sendmsg(fd_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  int fd_;
};

class TransportTest : public testing::Test {
 protected:
  TransportTest() {
    const sockaddr_un address = net::UnixAddress(path_).value();
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
  }
  ~TransportTest() override {
    close(listener_);
    unlink(path_.c_str());
  }

  Served Accept() {
    pollfd watched{.fd = listener_, .events = POLLIN, .revents = 0};
    EXPECT_GT(poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 0);
    return Served(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  }
  void Connect() { EXPECT_EQ(transport_.Connect({}, absl::Now() + kPatience).status(), absl::OkStatus()); }
  // A put of so many bytes.
  absl::Status Put(uint64_t call, size_t bytes, absl::Duration within = kPatience) {
    message::Request request{.call = call, .verb = verbs::Put::kNumber};
    AppendNumber(request.body, NumberOf(&PutRequest::batch), 1);
    Batch batch;
    EXPECT_EQ(batch.Add("text", Column::FromStrings(std::vector<std::string>{std::string(bytes, 'x')})),
              absl::OkStatus());
    return transport_.Call("s", request, batch, absl::Now() + within).status;
  }
  ScratchFolder folder_;
  const std::string path_ = folder_.File("dock.sock");
  int listener_ = -1;
  Transport transport_{net::ServerAddress{.address = "unix:" + path_}};
};

TEST_F(TransportTest, WhatTheServerCopiedForACallBeforeFreesNoSlotOfTheNext) {
  const dock::UploadArea area = dock::UploadArea::Make(2, 32 << 10).value();
  std::thread client([&] {
    Connect();
    // Each takes three slots, and there are two.
    EXPECT_EQ(Put(1, 80 << 10), absl::OkStatus());
    EXPECT_EQ(Put(2, 80 << 10), absl::OkStatus());
  });
  Served served = Accept();
  served.Welcome(area);
  served.Read(kCall);
  const uint32_t first = served.ReadSlot();
  served.ReadSlot();
  served.WriteConsumed(1, first);
  served.ReadSlot();
  // It is answered before it is said that the last slots were copied, as a server may.
  served.WriteReply(1);
  served.Read(kCall);
  const uint32_t third = served.ReadSlot(), fourth = served.ReadSlot();
  served.WriteConsumed(1, third);
  served.WriteConsumed(2, fourth);
  EXPECT_EQ(served.ReadSlot(), fourth) << "the other one is not copied yet";
  served.WriteReply(2);
  client.join();
}

TEST_F(TransportTest, SlotsOfACallThatWasGivenUpAreNotWrittenBeforeTheServerHasCopiedThem) {
  const dock::UploadArea area = dock::UploadArea::Make(1, 128 << 10).value();
  std::thread client([&] {
    Connect();
    EXPECT_EQ(Put(1, 80 << 10, absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(Put(2, 80 << 10), absl::OkStatus());
  });
  Served slow = Accept();
  slow.Welcome(area);
  slow.Read(kCall);
  slow.ReadSlot();
  Served next = Accept();
  next.Welcome(area);
  next.Read(kCall);
  EXPECT_FALSE(next.AnythingToRead(absl::Milliseconds(50)));
  slow.WriteConsumed(1, 0);
  EXPECT_EQ(next.ReadSlot(), 0u);
  next.WriteReply(2);
  client.join();
}

TEST_F(TransportTest, SlotsOfACallThatWasGivenUpAreFreeOnceItsConnectionIsClosed) {
  const dock::UploadArea area = dock::UploadArea::Make(1, 128 << 10).value();
  std::thread client([&] {
    Connect();
    EXPECT_EQ(Put(1, 80 << 10).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Put(2, 80 << 10), absl::OkStatus());
  });
  {
    Served gone = Accept();
    gone.Welcome(area);
    gone.Read(kCall);
    gone.ReadSlot();
  }
  Served next = Accept();
  next.Welcome(area);
  next.Read(kCall);
  EXPECT_EQ(next.ReadSlot(), 0u);
  next.WriteReply(2);
  client.join();
}

TEST(Transport, ClientsReadCellsThatTheProcessOfTheServerHasImported) {
  TestServer served;
  const std::unique_ptr<Dock> client = ConnectThrough(std::make_unique<Transport>(served.address()), Clock::Real());
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(client->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  std::vector<int64_t> values(200'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * i);
  PutRequest request{.partition = "p"};
  ASSERT_EQ(request.batch.Add("n", Column::FromValues(values, {100})), absl::OkStatus());
  const std::vector<RowId> rows = client->Put(request)->rows;
  // An image of 160 MB, which is more than a message may have.
  const std::string image = *client->ExportPartition("p");
  EXPECT_TRUE(image == *served.dock->ExportPartition("p"));
  ASSERT_EQ(client->DropPartition("p"), absl::OkStatus());
  ASSERT_EQ(client->ImportPartition(image), absl::OkStatus());
  const absl::StatusOr<Rows> read = client->Fetch({.partition = "p", .rows = rows, .columns = {"n"}});
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_THAT(*read->ToBatch()->Values<int64_t>("n"), testing::ElementsAreArray(values));
}

// How many sockets this process has.
int CountSockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += absl::StartsWith(std::filesystem::read_symlink(entry.path(), gone).string(), "socket:") ? 1 : 0;
  }
  return count;
}

TEST(Transport, LargePayloadsGoOverSeveralSocketsBothWays) {
  for (const Over over : {Over::kTcp, Over::kTls}) {
    TestServer server(over);
    const std::unique_ptr<Dock> client = ConnectThrough(std::make_unique<Transport>(server.address()), Clock::Real());
    ASSERT_NE(client, nullptr);
    ASSERT_EQ(client->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
    const int before = CountSockets();
    std::vector<int64_t> values(5'000'000);
    std::vector<std::string> texts(1000);
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) * (round + 1);
      for (size_t i = 0; i < texts.size(); ++i) texts[i] = std::string(i % 97, static_cast<char>('a' + round));
      PutRequest request{.partition = "p"};
      ASSERT_EQ(request.batch.Add("n", Column::FromValues(values, {5000})), absl::OkStatus());
      ASSERT_EQ(request.batch.Add("text", Column::FromStrings(texts)), absl::OkStatus());
      const absl::StatusOr<PutResult> put = client->Put(request);
      ASSERT_EQ(put.status(), absl::OkStatus());
      const absl::StatusOr<Rows> read = client->Fetch({.partition = "p", .rows = put->rows, .columns = {"n", "text"}});
      ASSERT_EQ(read.status(), absl::OkStatus());
      const Batch batch = *read->ToBatch();
      EXPECT_TRUE(std::ranges::equal(*batch.Values<int64_t>("n"), values));
      for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(read->Text(i, "text").value(), texts[i]);
    }
    EXPECT_EQ(CountSockets(), before + 2 * 3) << "three more, with two ends each";
  }
}

}  // namespace
}  // namespace tdock::service
