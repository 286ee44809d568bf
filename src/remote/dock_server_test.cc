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
