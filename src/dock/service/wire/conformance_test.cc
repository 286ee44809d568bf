// What every dock must do, done through each kind of connection.
#include "dock/testing/conformance.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {

using dock::DockConformance;
using dock::DockRows;
using dock::DockVersions;
namespace {

template <Over over>
std::unique_ptr<Dock> Connected(Clock& clock) {
  auto server = std::make_shared<TestServer>(over, LocalDockOptions{.clock = &clock});
  auto transport = std::make_unique<Transport>(server->address());
  return ConnectThrough(std::make_unique<OwningTransport>(server, std::move(transport)), clock);
}

INSTANTIATE_TEST_SUITE_P(Socket, DockConformance, testing::Values(Connected<Over::kUnix>));
INSTANTIATE_TEST_SUITE_P(Socket, DockRows, testing::Values(Connected<Over::kUnix>));
INSTANTIATE_TEST_SUITE_P(Socket, DockVersions, testing::Values(Connected<Over::kUnix>));
INSTANTIATE_TEST_SUITE_P(Tcp, DockConformance, testing::Values(Connected<Over::kTcp>));
INSTANTIATE_TEST_SUITE_P(Tcp, DockRows, testing::Values(Connected<Over::kTcp>));
INSTANTIATE_TEST_SUITE_P(Tcp, DockVersions, testing::Values(Connected<Over::kTcp>));
INSTANTIATE_TEST_SUITE_P(Tls, DockConformance, testing::Values(Connected<Over::kTls>));
INSTANTIATE_TEST_SUITE_P(Tls, DockRows, testing::Values(Connected<Over::kTls>));
INSTANTIATE_TEST_SUITE_P(Tls, DockVersions, testing::Values(Connected<Over::kTls>));

}  // namespace
}  // namespace tdock::service
