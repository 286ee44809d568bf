#include "core/rpc/stream_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/rpc/admitted_sockets.h"
#include "core/rpc/endpoint.h"
#include "core/rpc/event_threads.h"
#include "core/rpc/health.h"
#include "core/rpc/listener.h"
#include "core/rpc/server_call.h"
#include "core/rpc/settings.h"
#include "core/rpc/tls_relays.h"
#include "core/rpc/tls_session.h"
#include "core/rpc/token_check.h"

namespace tdock::rpc {
namespace {

// Admits calls, and counts them.
class Service final : public ServerCall::Host {
 public:
  Service(std::string token, HandlerFactory factory) : token_(std::move(token)), factory_(std::move(factory)) {}

  grpc::AsyncGenericService& generic() { return generic_; }
  AdmissionRules rules() const {
    return {.token = token_, .check_health = [this](absl::string_view request) { return health_.Check(request); }};
  }

  // Waits for this many calls at once.
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
    if (!accepting_) return absl::UnavailableError("the server is shutting down and accepts no more calls");
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
    if (token_.empty()) return absl::OkStatus();  // without looking at the metadata, which takes time
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
  int64_t calls_ TDOCK_GUARDED_BY(mu_) = 0;  // including those that are waited for
};

absl::StatusOr<std::vector<std::string>> CheckExposure(const StreamServerOptions& options, const Endpoint& endpoint) {
  std::vector<std::string> warnings;
  TDOCK_ASSIGN_OR_RETURN(const bool is_loopback, IsLoopback(endpoint));
  if (is_loopback) return warnings;
  const bool mutual = !options.tls.ca.empty();
  if (options.token.empty() && !mutual) {
    if (!options.insecure) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", EscapeForMessage(options.listen),
                       "' can be reached from other machines: give a token, or a certificate, its key and a CA that "
                       "clients' certificates are verified with (mutual TLS); or set insecure"));
    }
    warnings.push_back(absl::StrCat("anyone who can reach ", options.listen, " can read and write everything"));
  }
  if (options.tls.empty()) {
    warnings.push_back(absl::StrCat(
        "traffic to and from ", options.listen, ", ", options.token.empty() ? "" : "including the token, ",
        "can be read by others on the network, as it is plain TCP; give a certificate and its key to use TLS"));
  }
  return warnings;
}

class StreamServerImpl final : public StreamServer {
 public:
  StreamServerImpl(std::string token, HandlerFactory factory, std::vector<std::string> warnings)
      : service_(std::move(token), std::move(factory)), warnings_(std::move(warnings)) {}

  ~StreamServerImpl() override { Shutdown(absl::InfinitePast()); }

  absl::Status Listen(const StreamServerOptions& options, const Endpoint& endpoint) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    failures_ = options.failures;
    ListenerOptions listening{.rules = service_.rules(), .failures = options.failures};
    if (!options.tls.empty()) {
      TDOCK_ASSIGN_OR_RETURN(listening.identity, TlsIdentity::Load(options.tls));
      TDOCK_ASSIGN_OR_RETURN(relays_, TlsRelays::Start(std::clamp(cores / 2, 1, 4)));
    }
    TDOCK_ASSIGN_OR_RETURN(listener_, Listener::Make(endpoint, std::move(listening)));
    SetUpProcess();
    grpc::ServerBuilder builder;
    ApplyServerSettings(builder, options);
    builder.RegisterAsyncGenericService(&service_.generic());
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    TDOCK_CHECK(server_ != nullptr, "a server of gRPC's that listens nowhere starts");
    // Beyond those that are waited for, calls queue up in gRPC.
    constexpr int kAwaited = 64;
    service_.AwaitCalls(kAwaited, *queue_);
    threads_.emplace(*queue_, std::clamp(cores, 2, 8), options.heartbeat);
    listener_->Start([this](Admitted admitted) { Serve(std::move(admitted)); });
    return absl::OkStatus();
  }

  int port() const override { return listener_->port(); }
  const std::vector<std::string>& warnings() const override { return warnings_; }

  void StopAccepting() override { service_.StopAccepting(); }

  void Shutdown(absl::Time drain_deadline) override {
    if (!threads_.has_value()) return;  // never started, or shut down before
    StopAccepting();
    listener_->Stop();
    service_.EndWatches();
    Alarm cut(Clock::Real());
    cut.Set(std::max(drain_deadline, Clock::Real().Now()) + absl::Milliseconds(500),
            [sockets = sockets_] { sockets->CutAll(); });
    server_->Shutdown(ToGrpc(drain_deadline));
    service_.AwaitEnd();
    queue_->Shutdown();
    threads_.reset();
    relays_.reset();
  }

 private:
  // gRPC reads peeked bytes from the socket again.
  void Serve(Admitted admitted) {
    Socket socket = std::move(admitted.socket);
    if (admitted.tls != nullptr) {
      absl::StatusOr<Socket> relayed = relays_->Add(std::move(admitted));
      if (!relayed.ok()) {  // the connection is closed
        if (failures_ != nullptr && absl::IsResourceExhausted(relayed.status())) failures_->Add(EMFILE);
        return;
      }
      socket = *std::move(relayed);
    }
    sockets_->Add(socket.get());
    grpc::AddInsecureChannelFromFd(server_.get(), socket.Release());
  }

  Service service_;
  const std::vector<std::string> warnings_;
  AcceptFailures* failures_ = nullptr;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<EventThreads> threads_;
  const std::shared_ptr<AdmittedSockets> sockets_ = std::make_shared<AdmittedSockets>();
  std::unique_ptr<TlsRelays> relays_;  // null: plain TCP
  std::unique_ptr<Listener> listener_;
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
