#include "dock/service/console/status_server.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <csignal>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/http/server.h"
#include "dock/service/console/connect.h"
#include "dock/service/console/page.h"

namespace tdock::console {
namespace {

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kMetrics[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";

constexpr size_t kMaxConnections = 256;
constexpr size_t kMaxUnreadBytes = 64 << 20;  // of all responses
constexpr size_t kMaxHeadBytes = 16 << 10;
constexpr uint64_t kMaxBodyBytes = 1024;  // of a request, which needs none

// A number that pages of other origins cannot know.
std::string Nonce() {
  std::random_device source;
  return absl::StrCat(absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8),
                      absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8));
}

http::Response Text(int status, std::string text, const char* type = kPlain) {
  return {.status = status,
          .body = std::move(text),
          .content_type = type,
          .headers = {{"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"}}};
}

http::Response Failure(const absl::Status& status) {
  const int code = absl::IsNotFound(status) ? 404 : absl::IsInvalidArgument(status) ? 400 : 503;
  return Text(code, absl::StrCat(status.message(), "\n"));
}

std::optional<http::Response> RefuseWriting(const http::Request& request) {
  if (request.method == "GET" || request.method == "HEAD") return std::nullopt;
  http::Response refused = Text(405, "only GET and HEAD are supported\n");
  refused.headers.emplace_back("Allow", "GET, HEAD");
  return refused;
}

// The address of a name, for listening; the name itself if it has none, and for localhost.
std::string NumericHost(const std::string& name) {
  if (name == "localhost") return name;
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &wanted, &found) != 0) return name;
  char numeric[NI_MAXHOST] = {};
  const int error =
      ::getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof numeric, nullptr, 0, NI_NUMERICHOST);
  ::freeaddrinfo(found);
  return error == 0 ? std::string(numeric) : name;
}

class HttpStatusServer final : public StatusServer {
 public:
  HttpStatusServer(Dock& dock, StatusServerOptions options)
      : dock_(dock), options_(std::move(options)), started_(options_.clock.Now()) {}

  absl::Status Listen(const HostPort& address) {
    http::ServerOptions http{.host = NumericHost(address.host), .port = address.port, .threads = options_.threads};
    http.limits = {.max_connections = kMaxConnections,
                   .max_head_bytes = kMaxHeadBytes,
                   .max_body_bytes = kMaxBodyBytes,
                   .max_all_unread_bytes = kMaxUnreadBytes,
                   .request_timeout = options_.request_timeout,
                   .idle_timeout = options_.request_timeout,
                   .write_timeout = options_.request_timeout};
    http.is_quick = [](const http::Request& request) { return request.path == "/health"; };
    http.admit = RefuseWriting;
    http.describe = [](int status, absl::string_view message) { return Text(status, absl::StrCat(message, "\n")); };
    http.on_trouble = options_.log;
    // Signals are for threads that handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto server = http::Server::Start(std::move(http), [this](const std::shared_ptr<http::Exchange>& exchange) {
      exchange->Send(Answer(exchange->request()));
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!server.ok()) {
      return absl::Status(server.status().code(),
                          absl::StrCat("the status page: ", server.status().message(),
                                       "; if another process listens there, give another port"));
    }
    server_ = *std::move(server);
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }

 private:
  http::Response Answer(const http::Request& request) {
    if (request.path == "/health") return Health();
    absl::StatusOr<http::Response> page =
        absl::NotFoundError("no such page; the pages are /, /partition?name=…, /metrics and /health");
    if (request.path == "/metrics") page = Metrics();
    if (request.path == "/partition") page = Partition(http::QueryOf(request.query)["name"]);
    if (request.path == "/") page = Overview();
    return page.ok() ? *std::move(page) : Failure(page.status());
  }

  absl::Status CheckLiveness() const {
    return options_.liveness.check == nullptr ? absl::OkStatus() : options_.liveness.check();
  }

  http::Response Health() const {
    const absl::Status status = CheckLiveness();
    return status.ok() ? Text(200, "ok\n") : Text(503, absl::StrCat(status.message(), "\n"));
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

  absl::StatusOr<http::Response> Metrics() {
    std::vector<NamedPartition> partitions;
    const absl::Status lives = CheckLiveness();
    if (lives.ok()) {
      TDOCK_ASSIGN_OR_RETURN(partitions, GetPartitionStatuses(dock_));
    }
    TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts(lives));
    return Text(200, MetricsText(partitions, facts.process, facts.readings), kMetrics);
  }

  absl::StatusOr<http::Response> Overview() {
    if (const absl::Status lives = CheckLiveness(); !lives.ok()) {
      TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts(lives));
      return Page(StalledPage(facts), facts);
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<NamedPartition> partitions, GetPartitionStatuses(dock_));
    TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts());
    return Page(OverviewPage(partitions, facts), facts);
  }

  absl::StatusOr<http::Response> Partition(const std::string& name) {
    if (name.empty()) return absl::InvalidArgumentError("name the partition: /partition?name=…");
    TDOCK_RETURN_IF_ERROR(CheckLiveness());
    TDOCK_ASSIGN_OR_RETURN(PartitionStatus status, dock_.GetStatus(name));
    std::vector<std::string> explanations;
    for (const NamedConsumerStatus& consumer : status.consumers) {
      const absl::StatusOr<std::string> text = dock_.Explain(name, consumer.name);
      explanations.push_back(text.ok() ? *text : std::string(text.status().message()));
    }
    TDOCK_ASSIGN_OR_RETURN(const PageFacts facts, Facts());
    return Page(PartitionPage({name, std::move(status)}, explanations, facts), facts);
  }

  static http::Response Page(std::string page, const PageFacts& facts) {
    http::Response response = Text(200, std::move(page), kHtml);
    response.headers.emplace_back(
        "Content-Security-Policy",
        absl::StrCat("default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
                     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                     "script-src 'nonce-",
                     facts.nonce, "'"));
    return response;
  }

  Dock& dock_;
  const StatusServerOptions options_;
  const absl::Time started_;
  std::unique_ptr<http::Server> server_;  // ends first: its handlers use the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<StatusServer>> StatusServer::Start(Dock& dock, StatusServerOptions options) {
  TDOCK_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort("the status page's address", options.address));
  auto server = std::make_unique<HttpStatusServer>(dock, std::move(options));
  TDOCK_RETURN_IF_ERROR(server->Listen(address));
  return std::unique_ptr<StatusServer>(std::move(server));
}

}  // namespace tdock::console
