#include "rpc/stream_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rpc/endpoint.h"
#include "rpc/event_threads.h"
#include "rpc/health.h"
#include "rpc/server_call.h"
#include "rpc/settings.h"
#include "rpc/token_check.h"

namespace tdock::rpc {
namespace {

// Judges calls, and counts them.
class Service final : public ServerCall::Host {
 public:
  Service(std::string token, HandlerFactory factory) : token_(std::move(token)), factory_(std::move(factory)) {}

  grpc::AsyncGenericService& generic() { return generic_; }

  // Waits for so many calls at once.
  void AwaitCalls(int count, grpc::ServerCompletionQueue& queue) TDOCK_EXCLUDES(mu_) {
    queue_ = &queue;
    for (int i = 0; i < count; ++i) AwaitCall();
  }
  void StopAccepting() {
    accepting_ = false;
    health_.StopServing();
  }
  void EndWatches() { health_.EndWatches(); }
  // Returns when every call is over; the server must have been shut down.
  void AwaitEnd() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (calls_ > 0) over_.Wait(mu_);
  }

  absl::StatusOr<std::shared_ptr<CallHandler>> OnCall(const grpc::GenericServerContext& context,
                                                      const std::shared_ptr<CallSink>& sink) override {
    AwaitCall();
    if (auto health = health_.Handle(context.method(), sink)) return health;
    TDOCK_RETURN_IF_ERROR(CheckTokenOf(context));
    if (!accepting_) return absl::UnavailableError("the server is shutting down and takes no further calls");
    return factory_(context.method(), sink);
  }
  void OnOver() override TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (--calls_ == 0) over_.NotifyAll();
  }

 private:
  void AwaitCall() TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      ++calls_;
    }
    std::make_shared<ServerCall>(*this)->Await(generic_, *queue_);
  }

  absl::Status CheckTokenOf(const grpc::GenericServerContext& context) const {
    if (token_.empty()) return absl::OkStatus();  // without a look at the metadata, which takes time
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found == metadata.end()) return CheckToken(token_, std::nullopt);
    return CheckToken(token_, absl::string_view(found->second.data(), found->second.size()));
  }

  const std::string token_;
  const HandlerFactory factory_;
  Health health_;
  grpc::AsyncGenericService generic_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  std::atomic<bool> accepting_{true};
  Mutex mu_;
  CondVar over_;
  int64_t calls_ TDOCK_GUARDED_BY(mu_) = 0;  // those that are waited for included
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
    SetUpProcess();
    grpc::ServerBuilder builder;
    ApplyServerSettings(builder, options);
    builder.RegisterAsyncGenericService(&service_.generic());
    queue_ = builder.AddCompletionQueue();
    builder.AddListeningPort(endpoint.ToString(), std::move(credentials), &port_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ != 0) {
      // Beyond those that are waited for, calls queue up in gRPC.
      constexpr int kAwaited = 64;
      service_.AwaitCalls(kAwaited, *queue_);
      threads_.emplace(*queue_, std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 8),
                       options.heartbeat);
      return absl::OkStatus();
    }
    server_ = nullptr;
    TDOCK_RETURN_IF_ERROR(TryToListen(endpoint));
    return absl::UnavailableError(absl::StrCat("cannot listen on ", endpoint.ToString(), ": gRPC refuses to"));
  }

  int port() const override { return port_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

  void StopAccepting() override { service_.StopAccepting(); }

  void Shutdown(absl::Time drain_deadline) override {
    if (!threads_.has_value()) return;  // never started, or shut down before
    StopAccepting();
    service_.EndWatches();
    server_->Shutdown(ToGrpc(drain_deadline));
    service_.AwaitEnd();
    queue_->Shutdown();
    threads_.reset();
  }

 private:
  Service service_;
  const std::vector<std::string> warnings_;
  int port_ = 0;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<EventThreads> threads_;
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
