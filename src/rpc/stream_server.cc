#include "rpc/stream_server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/endpoint.h"
#include "rpc/server_call.h"
#include "rpc/settings.h"

namespace tdock::rpc {
namespace {

// Takes the same time wherever the first difference is.
bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

class Service final : public grpc::CallbackGenericService {
 public:
  Service(std::string token, HandlerFactory factory) : token_(std::move(token)), factory_(std::move(factory)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    auto* call = new ServerCall(context);
    auto handler = MakeHandler(*context, call->sink());
    if (handler.ok()) {
      call->Accept(*std::move(handler));
    } else {
      call->Reject(handler.status());
    }
    return call;
  }

  void StopAccepting() { accepting_ = false; }

 private:
  absl::StatusOr<std::shared_ptr<CallHandler>> MakeHandler(const grpc::GenericCallbackServerContext& context,
                                                           const std::shared_ptr<ServerCallSink>& sink) {
    TDOCK_RETURN_IF_ERROR(CheckToken(context));
    if (!accepting_) return absl::UnavailableError("the server is shutting down and takes no further calls");
    return factory_(context.method(), sink);
  }

  absl::Status CheckToken(const grpc::GenericCallbackServerContext& context) const {
    if (token_.empty()) return absl::OkStatus();
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found == metadata.end()) {
      return absl::UnauthenticatedError("this server demands a token, and the call has none");
    }
    const absl::string_view shown(found->second.data(), found->second.size());
    if (!EqualInConstantTime(shown, absl::StrCat("Bearer ", token_))) {
      return absl::UnauthenticatedError("the token of the call is not that of this server");
    }
    return absl::OkStatus();
  }

  const std::string token_;
  const HandlerFactory factory_;
  std::atomic<bool> accepting_{true};
};

absl::StatusOr<std::vector<std::string>> CheckExposure(const StreamServerOptions& options, const Endpoint& endpoint) {
  std::vector<std::string> warnings;
  TDOCK_ASSIGN_OR_RETURN(const bool is_loopback, IsLoopback(endpoint));
  if (is_loopback) return warnings;
  const bool mutual = !options.tls.ca.empty();
  if (options.token.empty() && !mutual) {
    if (!options.insecure) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", options.listen,
                       "' can be reached from other machines: give a token, or a certificate, its key and a ca that "
                       "clients' certificates are checked with (mutual TLS); or say that it is to be insecure"));
    }
    warnings.push_back(absl::StrCat("everybody who reaches ", options.listen, " can read and write everything"));
  }
  if (options.tls.empty()) {
    warnings.push_back(absl::StrCat("what travels to and from ", options.listen, ", ",
                                    options.token.empty() ? "" : "the token included, ",
                                    "can be read on the way: it is plain TCP; TLS needs a certificate and its key"));
  }
  return warnings;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  if (files.certificate.empty()) {
    return absl::InvalidArgumentError("TLS on a server needs a certificate and its private key");
  }
  TDOCK_ASSIGN_OR_RETURN(TlsTexts texts, ReadTlsFiles(files));
  grpc::SslServerCredentialsOptions tls(files.ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                         : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = std::move(texts.ca);
  tls.pem_key_cert_pairs.push_back({std::move(texts.key), std::move(texts.certificate)});
  return grpc::SslServerCredentials(tls);
}

class StreamServerImpl final : public StreamServer {
 public:
  StreamServerImpl(std::string token, HandlerFactory factory, std::vector<std::string> warnings)
      : service_(std::move(token), std::move(factory)), warnings_(std::move(warnings)) {}

  ~StreamServerImpl() override { Shutdown(absl::InfinitePast()); }

  absl::Status Listen(const StreamServerOptions& options, const Endpoint& endpoint) {
    TDOCK_ASSIGN_OR_RETURN(auto credentials, Credentials(options.tls));
    static std::once_flag once;
    std::call_once(once, [] {
      SetUpLog();
      grpc::EnableDefaultHealthCheckService(true);
    });
    grpc::ServerBuilder builder;
    ApplyServerSettings(builder, options);
    builder.RegisterCallbackGenericService(&service_);
    builder.AddListeningPort(endpoint.ToString(), std::move(credentials), &port_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ != 0) return absl::OkStatus();
    server_ = nullptr;
    TDOCK_RETURN_IF_ERROR(TryToListen(endpoint));
    return absl::UnavailableError(absl::StrCat("cannot listen on ", endpoint.ToString(), ": gRPC refuses to"));
  }

  int port() const override { return port_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

  void StopAccepting() override {
    service_.StopAccepting();
    if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(false);
  }

  void Shutdown(absl::Time drain_deadline) override {
    if (server_ == nullptr) return;  // never started
    StopAccepting();
    server_->Shutdown(ToGrpc(drain_deadline));
  }

 private:
  Service service_;
  const std::vector<std::string> warnings_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StreamServer>> StreamServer::Start(const StreamServerOptions& options,
                                                                  HandlerFactory factory) {
  TDOCK_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(options.listen, "the address to listen on"));
  TDOCK_ASSIGN_OR_RETURN(std::vector<std::string> warnings, CheckExposure(options, endpoint));
  auto server = std::make_unique<StreamServerImpl>(options.token, std::move(factory), std::move(warnings));
  TDOCK_RETURN_IF_ERROR(server->Listen(options, endpoint));
  return std::unique_ptr<StreamServer>(std::move(server));
}

}  // namespace tdock::rpc
