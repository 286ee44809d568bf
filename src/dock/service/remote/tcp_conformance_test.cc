// What every dock must do, done over gRPC.
#include "dock/service/remote/rpc_service.h"
#include "dock/service/remote/rpc_transport.h"
#include "dock/service/wire/testing/serve.h"
#include "dock/testing/conformance.h"

namespace tdock::service {

using dock::DockConformance;
using dock::DockRows;
using dock::DockVersions;
namespace {

struct TcpServer : TestService {
  explicit TcpServer(Clock& clock) : TestService({.clock = &clock}) {
    server = *rpc::StreamServer::Start({}, ServeOverRpc(service));
  }
  std::unique_ptr<rpc::StreamServer> server;
};

std::unique_ptr<Dock> OverTcp(Clock& clock) {
  auto server = std::make_shared<TcpServer>(clock);
  rpc::StreamClientOptions options;
  options.target = absl::StrCat("127.0.0.1:", server->server->port());
  auto transport = std::make_unique<RpcTransport>(options);
  return ConnectThrough(std::make_unique<OwningTransport>(server, std::move(transport)), clock);
}

INSTANTIATE_TEST_SUITE_P(Tcp, DockConformance, testing::Values(OverTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, DockRows, testing::Values(OverTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, DockVersions, testing::Values(OverTcp));

}  // namespace
}  // namespace tdock::service
