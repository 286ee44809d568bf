#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/remote/rpc_transport.h"
#include "dock/service/remote/token.h"
#include "dock/service/wire/client_session.h"
#include "dock/service/wire/remote_dock.h"
#include "dock/service/wire/socket_transport.h"
#include "tdock/remote_dock.h"

namespace tdock {
namespace {

std::string NameOfThisProcess() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return absl::StrCat(host.data(), " process ", getpid());
}

absl::StatusOr<std::unique_ptr<service::ClientTransport>> MakeTransport(const ConnectOptions& options) {
  absl::string_view path = options.address;
  if (absl::ConsumePrefix(&path, "unix:")) return std::make_unique<service::SocketTransport>(std::string(path));
  if (options.address.rfind(':') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the address of a dock server is 'host:port' or 'unix:/path', not '",
                                                   EscapeForMessage(options.address), "'"));
  }
  rpc::StreamClientOptions rpc;
  rpc.target = options.address;
  rpc.tls = {options.tls_certificate, options.tls_key, options.tls_ca};
  if (!options.token_file.empty()) {
    TDOCK_ASSIGN_OR_RETURN(rpc.token, service::ReadTokenFile(options.token_file));
  } else if (!options.token.empty()) {
    TDOCK_ASSIGN_OR_RETURN(rpc.token, service::TokenFrom(options.token, "the token"));
  }
  return std::make_unique<service::RpcTransport>(rpc, options.fork_guard);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dock>> ConnectDock(const ConnectOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<service::ClientTransport> transport, MakeTransport(options));
  auto session = std::make_shared<service::ClientSession>(
      std::move(transport),
      service::ClientSessionOptions{.address = options.address,
                                    .client = options.name.empty() ? NameOfThisProcess() : options.name,
                                    .reconnect_for = options.reconnect_for,
                                    .answer_within = options.answer_within});
  TDOCK_RETURN_IF_ERROR(session->Connect());
  return service::MakeRemoteDock(std::move(session), options.clock == nullptr ? Clock::Real() : *options.clock);
}

}  // namespace tdock
