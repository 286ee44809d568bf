#include "tdock/dock_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tdock
