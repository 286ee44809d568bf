// What every dock must do, done over a Unix socket and shared memory.
#include "dock/service/wire/testing/serve.h"
#include "dock/testing/conformance.h"

namespace tdock::service {

using dock::DockConformance;
using dock::DockRows;
using dock::DockVersions;
namespace {

std::unique_ptr<Dock> OverSocket(Clock& clock) {
  auto server = std::make_shared<TestSocketServer>(LocalDockOptions{.clock = &clock});
  auto transport = std::make_unique<SocketTransport>(server->path());
  return ConnectThrough(std::make_unique<OwningTransport>(server, std::move(transport)), clock);
}

INSTANTIATE_TEST_SUITE_P(Socket, DockConformance, testing::Values(OverSocket));
INSTANTIATE_TEST_SUITE_P(Socket, DockRows, testing::Values(OverSocket));
INSTANTIATE_TEST_SUITE_P(Socket, DockVersions, testing::Values(OverSocket));

}  // namespace
}  // namespace tdock::service
