#include "dock/service/console/status_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "dock/service/console/connect.h"
#include "dock/service/console/http_connections.h"
#include "dock/service/console/http_exchange.h"
#include "dock/service/console/page.h"

namespace tdock::console {
namespace {

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kMetrics[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";

// Runs tasks at once, since they only hand a connection over.
class AtOnce final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override { task(); }
  void shutdown() override {}
};

// A number that pages of other origins cannot know.
std::string Nonce() {
  std::random_device source;
  return absl::StrCat(absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8),
                      absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8));
}

void Answer(httplib::Response& response, int code, std::string text, const char* type = kPlain) {
  response.status = code;
  response.set_content(std::move(text), type);
}

int HttpCode(const absl::Status& status) {
  return absl::IsNotFound(status) ? 404 : absl::IsInvalidArgument(status) ? 400 : 503;
}

// httplib's server with our connections.
class BoundedServer final : public httplib::Server {
 public:
  BoundedServer() {
    new_task_queue = [] { return new AtOnce; };
    // By default, httplib would share the port with another process that listens on it.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
  }

  ~BoundedServer() override {
    // httplib closes the socket that it was bound to only if it has begun to listen.
    if (const socket_t left = svr_sock_.exchange(INVALID_SOCKET); left != INVALID_SOCKET) ::close(left);
  }

  // Before it listens.
  absl::Status StartConnections(const HttpLimits& limits) {
    TDOCK_ASSIGN_OR_RETURN(connections_, HttpConnections::Start(limits, [this](std::string request) {
                             return AnswerTo(std::move(request));
                           }));
    return absl::OkStatus();
  }

  bool Bind(const std::string& host, int port) {
    if (port == 0 ? bind_to_any_port(host) < 0 : !bind_to_port(host, port)) return false;
    // httplib's backlog is five connections: a sixth would retry only after a second.
    return ::listen(svr_sock_, SOMAXCONN) == 0;
  }

  int BoundPort() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (::getsockname(svr_sock_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(address).sin_port);
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    connections_->Add(socket);
    return true;
  }

  std::string AnswerTo(std::string request) {
    HttpExchange exchange(std::move(request));
    bool closed = false;
    // A range request could multiply the size of the response, so every response is complete.
    process_request(exchange, /*close_connection=*/true, closed,
                    [](httplib::Request& parsed) { parsed.ranges.clear(); });
    return exchange.TakeAnswer();
  }

  std::unique_ptr<HttpConnections> connections_;
};

class HttpStatusServer final : public StatusServer {
 public:
  HttpStatusServer(Dock& dock, StatusServerOptions options, HostPort address)
      : dock_(dock),
        options_(std::move(options)),
        address_(std::move(address)),
        started_(options_.clock.Now()),
        stop_(::eventfd(0, EFD_CLOEXEC)) {
    server_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Route(request, response);
      return httplib::Server::HandlerResponse::Handled;
    });
    server_.set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
      Answer(response, 500, "the page could not be rendered\n");
    });
    server_.set_payload_max_length(0);
  }

  ~HttpStatusServer() override {
    if (stop_ < 0) return;
    const uint64_t one = 1;
    TDOCK_CHECK(::write(stop_, &one, sizeof one) == sizeof one, "an eventfd takes a first count");
    {
      MutexLock lock(mu_);
      stopping_ = true;
      // stop() has no effect before httplib has begun to listen, and does not report that.
      while (listening_) {
        server_.stop();
        ended_.WaitUntil(mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
      }
    }
    if (thread_.joinable()) thread_.join();
    ::close(stop_);
  }

  absl::Status Listen() TDOCK_EXCLUDES(mu_) {
    if (stop_ < 0) return absl::ResourceExhaustedError("no file descriptor is left for the status page");
    TDOCK_RETURN_IF_ERROR(server_.StartConnections({.threads = options_.threads,
                                                    .timeout = absl::ToChronoMilliseconds(options_.request_timeout),
                                                    .max_request_bytes = options_.max_request_bytes}));
    if (!server_.Bind(address_.host, address_.port)) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", ToString(address_),
                       " for the status page: it is not an address of this machine, or another "
                       "process listens there"));
    }
    address_.port = server_.BoundPort();
    // Signals are for threads that handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    {
      MutexLock lock(mu_);
      listening_ = true;
    }
    thread_ = std::thread([this] { Run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return absl::OkStatus();
  }

  int port() const override { return address_.port; }

 private:
  bool stopping() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return stopping_;
  }

  // httplib stops listening if the system cannot accept a connection for any reason: then start again.
  void Run() TDOCK_EXCLUDES(mu_) {
    bool bound = true;
    while (!stopping()) {
      if (bound) server_.listen_after_bind();
      pollfd stop = {.fd = stop_, .events = POLLIN, .revents = 0};
      ::poll(&stop, 1, 100);
      bound = stop.revents == 0 && server_.Bind(address_.host, address_.port);
    }
    MutexLock lock(mu_);
    listening_ = false;
    ended_.NotifyAll();
  }

  void Route(const httplib::Request& request, httplib::Response& response) {
    response.set_header("Cache-Control", "no-store");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("X-Frame-Options", "DENY");
    response.set_header("Referrer-Policy", "no-referrer");
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      return Answer(response, 405, "only GET and HEAD are supported\n");
    }
    if (request.path == "/healthz") return SendHealth(response);
    const bool partition = request.path == "/partition";
    if (request.path != "/metrics" && request.path != "/" && !partition) {
      return Answer(response, 404, "no such page; the pages are /, /partition?name=…, /metrics and /healthz\n");
    }
    const absl::Status status = request.path == "/metrics" ? SendMetrics(response)
                                : partition                ? SendPartition(request.get_param_value("name"), response)
                                                           : SendOverview(response);
    if (!status.ok()) Answer(response, HttpCode(status), absl::StrCat(status.message(), "\n"));
  }

  absl::Status CheckLiveness() const {
    return options_.liveness.check == nullptr ? absl::OkStatus() : options_.liveness.check();
  }

  void SendHealth(httplib::Response& response) {
    const absl::Status status = CheckLiveness();
    Answer(response, status.ok() ? 200 : 503, status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"));
  }

  // Ask nothing of a server that does not answer.
  absl::StatusOr<PageFacts> Facts(const absl::Status& lives = absl::OkStatus()) {
    TDOCK_ASSIGN_OR_RETURN(ProcessFacts process, ReadProcess(options_.env, started_, options_.clock.Now()));
    PageFacts facts{.process = process, .nonce = Nonce()};
    if (options_.readings && lives.ok()) facts.readings = options_.readings();
    if (options_.liveness.current_stalls) facts.stalls = options_.liveness.current_stalls();
    if (!lives.ok() && facts.stalls.empty()) facts.stalls.push_back(std::string(lives.message()));
    if (options_.liveness.stalls) {
      facts.readings.push_back({.name = "tdock_standing_still",
                                .help = "Threads and locks that are stalled",
                                .value = static_cast<double>(facts.stalls.size())});
      facts.readings.push_back({.name = "tdock_stalls_total",
                                .help = "Stalls of threads and locks so far",
                                .counter = true,
                                .value = static_cast<double>(options_.liveness.stalls())});
    }
    return facts;
  }

  absl::Status SendMetrics(httplib::Response& response) {
    std::vector<NamedPartition> partitions;
    const absl::Status lives = CheckLiveness();
    if (lives.ok()) {
      TDOCK_ASSIGN_OR_RETURN(partitions, GetPartitionStatuses(dock_));
    }
    TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts(lives));
    Answer(response, 200, MetricsText(partitions, facts.process, facts.readings), kMetrics);
    return absl::OkStatus();
  }

  absl::Status SendOverview(httplib::Response& response) {
    if (const absl::Status lives = CheckLiveness(); !lives.ok()) {
      TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts(lives));
      SendPage(StalledPage(facts), facts, response);
      return absl::OkStatus();
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<NamedPartition> partitions, GetPartitionStatuses(dock_));
    TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts());
    SendPage(OverviewPage(partitions, facts), facts, response);
    return absl::OkStatus();
  }

  absl::Status SendPartition(const std::string& name, httplib::Response& response) {
    if (name.empty()) return absl::InvalidArgumentError("name the partition: /partition?name=…");
    TDOCK_RETURN_IF_ERROR(CheckLiveness());
    TDOCK_ASSIGN_OR_RETURN(PartitionStatus status, dock_.GetStatus(name));
    std::vector<std::string> explanations;
    for (const NamedConsumerStatus& consumer : status.consumers) {
      const absl::StatusOr<std::string> text = dock_.Explain(name, consumer.name);
      explanations.push_back(text.ok() ? *text : std::string(text.status().message()));
    }
    TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts());
    SendPage(PartitionPage({name, std::move(status)}, explanations, facts), facts, response);
    return absl::OkStatus();
  }

  static void SendPage(std::string page, const PageFacts& facts, httplib::Response& response) {
    response.set_header("Content-Security-Policy",
                        absl::StrCat("default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
                                     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                                     "script-src 'nonce-",
                                     facts.nonce, "'"));
    Answer(response, 200, std::move(page), kHtml);
  }

  Dock& dock_;
  const StatusServerOptions options_;
  HostPort address_;  // set before other threads are there
  const absl::Time started_;
  const int stop_;
  BoundedServer server_;
  Mutex mu_;
  CondVar ended_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  bool listening_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StatusServer>> StatusServer::Start(Dock& dock, StatusServerOptions options) {
  TDOCK_ASSIGN_OR_RETURN(HostPort address, ParseHostPort("the status page's address", options.address));
  auto server = std::make_unique<HttpStatusServer>(dock, std::move(options), std::move(address));
  TDOCK_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<StatusServer>(std::move(server));
}

}  // namespace tdock::console
