#include "tdock/dock_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "remote/rpc_service.h"
#include "remote/rpc_transport.h"
#include "tdock/remote_dock.h"
#include "wire/serve_for_test.h"

namespace tdock {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

// A server, and a client over each transport.
class DockServerTest : public testing::Test {
 protected:
  void Start(DockServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.socket = folder_.File("dock.sock");
    absl::StatusOr<std::unique_ptr<DockServer>> server = DockServer::Start(options);
    ASSERT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    for (const std::string& address : {server_->tcp_address(), server_->address()}) {
      absl::StatusOr<std::unique_ptr<Dock>> client = ConnectDock({.address = address});
      ASSERT_EQ(client.status(), absl::OkStatus());
      clients_.push_back(*std::move(client));
    }
  }

  ScratchFolder folder_;
  std::unique_ptr<DockServer> server_;
  std::vector<std::unique_ptr<Dock>> clients_;
};

TEST_F(DockServerTest, SaysThatTheMemoryOfItsOptionIsUsedUp) {
  Start({.memory_bytes = uint64_t{4} << 20});
  ASSERT_EQ(server_->dock().CreatePartition({.name = "p", .columns = {{"text", {}}}}), absl::OkStatus());
  PutRequest put{.partition = "p"};
  const Column text = Column::FromStrings(std::vector<std::string>{std::string(6 << 20, 'x')});
  ASSERT_EQ(put.batch.Add("text", text), absl::OkStatus());
  for (const auto& client : clients_) {
    const absl::Status status = client->Put(put).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("of 4194304 bytes are taken, the limit that --memory"));
    EXPECT_EQ(client->ListPartitions().status(), absl::OkStatus());
  }
}

TEST_F(DockServerTest, LeavesTheSocketOfAnotherServerWhereItIs) {
  Start();
  const std::string path = folder_.File("dock.sock");
  ASSERT_EQ(unlink(path.c_str()), 0);
  const auto other = DockServer::Start({.socket = path});
  ASSERT_EQ(other.status(), absl::OkStatus());
  clients_.clear();
  server_.reset();
  const auto client = ConnectDock({.address = (*other)->address()});
  ASSERT_EQ(client.status(), absl::OkStatus());
  EXPECT_EQ((*client)->ListPartitions().status(), absl::OkStatus());
}

TEST_F(DockServerTest, TakesTokensWithLineEndsAndRefusesWhatHttpCannotCarry) {
  DockServerOptions options{.listen = "127.0.0.1:0", .token = "a-secret\n"};
  const auto server = DockServer::Start(options);
  ASSERT_EQ(server.status(), absl::OkStatus());
  const std::string address = (*server)->tcp_address();
  for (const std::string token : {"a-secret", "a-secret\n", "a-secret\r\n\n"}) {
    EXPECT_EQ(ConnectDock({.address = address, .token = token}).status(), absl::OkStatus());
  }
  const std::vector<std::string> wrong = {"a-secret\nb", std::string("a-secret\0b", 10), "a-secr\xc3\xa9t", "a secret",
                                          "\n",          std::string(5000, 'x')};
  for (const std::string& token : wrong) {
    options.token = token;
    for (const absl::Status& status :
         {ConnectDock({.address = address, .token = token}).status(), DockServer::Start(options).status()}) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("token"));
      EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("secr")));
    }
  }
}

TEST_F(DockServerTest, RefusesNamesAndPathsThatHoldZerosOrLineEnds) {
  for (const std::string address : {"127.0.0.1\n:7", "local host:7", "h\xc3\xb6st:7", "a/b:7"}) {
    EXPECT_EQ(ConnectDock({.address = address}).status().code(), Code::kInvalidArgument) << address;
    EXPECT_EQ(DockServer::Start({.listen = address}).status().code(), Code::kInvalidArgument) << address;
  }
  const std::string zero("/tmp/a\0b", 8);
  EXPECT_EQ(ConnectDock({.address = "unix:" + zero}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(DockServer::Start({.socket = zero}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ConnectDock({.address = "127.0.0.1:7", .token_file = zero}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ConnectDock({.address = "127.0.0.1:7", .tls_ca = zero}).status().code(), Code::kInvalidArgument);
}

// An answer of a row without a cell in a column whose cells have 64 TiB, which are zeros in a frame.
class ImmenseAnswer : public testing::Test {
 protected:
  void Prepare(Dock& dock) {
    ASSERT_EQ(dock.CreatePartition(
                  {.name = "p", .columns = {{"text", {}}, {"immense", ColumnType::Dense(DType::kF32, {1l << 44})}}}),
              absl::OkStatus());
    ASSERT_EQ(dock.RegisterConsumer("p", {.name = "c", .reads = {"text"}, .reads_optional = {"immense"}}),
              absl::OkStatus());
    PutRequest put{.partition = "p"};
    ASSERT_EQ(put.batch.Add("text", Column::FromStrings(std::vector<std::string>{"seven"})), absl::OkStatus());
    ASSERT_EQ(dock.Put(put).status(), absl::OkStatus());
  }
  // Takes in vain, over TCP; the message of the error.
  std::string Refusal(uint64_t max_frame_bytes) {
    TestService test({}, {.max_frame_bytes = max_frame_bytes});
    Prepare(*test.dock);
    const auto server = rpc::StreamServer::Start({}, ServeOverRpc(test.service)).value();
    rpc::StreamClientOptions options;
    options.target = absl::StrCat("127.0.0.1:", server->port());
    const auto client = ConnectThrough(std::make_unique<RpcTransport>(options), Clock::Real());
    const absl::Status status = client->Take({.partition = "p", .consumer = "c"}).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    // Others may have the row at once.
    const ConsumerStatus consumer = client->GetConsumerStatus("p", "c").value();
    EXPECT_EQ(consumer.leased, 0);
    EXPECT_EQ(consumer.ready, 1);
    return std::string(status.message());
  }
};

TEST_F(ImmenseAnswer, IsRefusedIfItIsLongerThanAFrame) {
  EXPECT_THAT(Refusal(uint64_t{16} << 30), HasSubstr("70368744177669 bytes together; the limit is 17179869184"));
}

TEST_F(ImmenseAnswer, IsRefusedIfThereIsNoMemoryForIt) {
  EXPECT_EQ(Refusal(uint64_t{1} << 62), "there is no memory for the answer");
}

TEST_F(ImmenseAnswer, GoesThroughSharedMemoryAsWhatItIs) {
  TestSocketServer server;
  Prepare(*server.dock);
  const auto client = ConnectThrough(std::make_unique<SocketTransport>(server.path()), Clock::Real());
  const absl::StatusOr<Taken> taken = client->Take({.partition = "p", .consumer = "c"});
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_FALSE(taken->rows.Has(0, 1));
}

}  // namespace
}  // namespace tdock
