#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/net/endpoint.h"
#include "dock/service/wire/client_session.h"
#include "dock/service/wire/remote_dock.h"
#include "dock/service/wire/transport.h"
#include "tdock/remote_dock.h"

namespace tdock {
namespace {

std::string NameOfThisProcess() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return absl::StrCat(host.data(), " process ", getpid());
}

absl::StatusOr<net::ServerAddress> AddressIn(const ConnectOptions& options) {
  net::ServerAddress server{.address = options.address};
  if (absl::StartsWith(options.address, "unix:")) return server;
  if (!absl::StrContains(options.address, ':')) {
    return absl::InvalidArgumentError(absl::StrCat("the address of a dock server is 'host:port' or 'unix:/path', not '",
                                                   EscapeForMessage(options.address), "'"));
  }
  TDOCK_RETURN_IF_ERROR(net::ParseEndpoint(options.address, "the address of the server").status());
  TDOCK_ASSIGN_OR_RETURN(server.credentials,
                         net::Credentials::Load({.tls = {options.tls_certificate, options.tls_key, options.tls_ca},
                                                 .token = options.token,
                                                 .token_file = options.token_file},
                                                net::Tls::Side::kClient));
  return server;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dock>> ConnectDock(const ConnectOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(net::ServerAddress server, AddressIn(options));
  auto session = std::make_shared<service::ClientSession>(
      std::make_unique<service::Transport>(std::move(server)),
      service::ClientSessionOptions{.address = options.address,
                                    .client = options.name.empty() ? NameOfThisProcess() : options.name,
                                    .reconnect_for = options.reconnect_for,
                                    .answer_within = options.answer_within});
  TDOCK_RETURN_IF_ERROR(session->Connect());
  return service::MakeRemoteDock(std::move(session), options.clock == nullptr ? Clock::Real() : *options.clock);
}

}  // namespace tdock
