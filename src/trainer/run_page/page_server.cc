#include "trainer/run_page/page_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/http/server.h"
#include "trainer/run_page/page_text.h"
#include "trainer/run_page/run_pages.h"

namespace tdock::trainer {
namespace {

constexpr size_t kMaxConnections = 1200;
constexpr size_t kMaxUnreadOfServer = size_t{32} << 20;

// A run in the same process needs descriptors, too.
size_t MaxConnections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMaxConnections;
  return std::clamp<size_t>(limit.rlim_cur / 2, 16, kMaxConnections);
}

class PageServerOfRuns final : public PageServer {
 public:
  PageServerOfRuns(Env& env, const PageOptions& options, RunFolder folder)
      : host_(options.host),
        log_(options.log),
        max_connections_(MaxConnections()),
        // A quarter is for others than those who listen all the time.
        pages_(env, std::move(folder), absl::ToChronoMilliseconds(options.interval), max_connections_ * 3 / 4) {}

  ~PageServerOfRuns() override {
    pages_.Finish();
    if (server_ != nullptr) server_->Drain(absl::Seconds(2));
  }

  absl::Status Listen(int port) {
    http::ServerOptions options{.host = host_, .port = port};
    options.limits.max_connections = max_connections_;
    options.limits.max_body_bytes = 1024;
    options.limits.max_all_unread_bytes = kMaxUnreadOfServer;
    options.on_trouble = log_;
    options.admit = [host = host_](const http::Request& request) -> std::optional<http::Response> {
      if (IsOwnHost(request.Header("host"), host)) return std::nullopt;
      return ErrorResponse(403, "this page is not served under that name; use the address that the program printed");
    };
    options.describe = [](int status, absl::string_view message) { return ErrorResponse(status, message); };
    TDOCK_ASSIGN_OR_RETURN(
        server_, http::Server::Start(std::move(options), [this](const auto& exchange) {
          const http::Request& request = exchange->request();
          if (request.method != "GET" && request.method != "HEAD") {
            return exchange->Send(ErrorResponse(405, "only GET is understood here"));
          }
          if (request.path == "/") return exchange->Send(PageResponse());
          const std::set<std::string> known = {"/api/runs", "/api/run", "/events"};
          if (known.contains(request.path) && request.method == "GET") return pages_.Post(exchange);
          exchange->Send(ErrorResponse(404, "there are /, /api/runs, /api/run?run=NAME and /events"));
        }));
    return absl::OkStatus();
  }

  void Follow(const std::string& run_dir) override { pages_.Follow(run_dir); }
  int port() const override { return server_->port(); }
  int64_t texts_made() const override { return pages_.texts_made(); }
  std::string url() const override {
    const std::string host = host_ == "0.0.0.0" || host_ == "::" ? "localhost" : host_;
    return absl::StrCat("http://", absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host, ":", port(),
                        "/");
  }

 private:
  const std::string host_;
  const std::function<void(const std::string&)> log_;
  const size_t max_connections_;
  RunPages pages_;
  std::unique_ptr<http::Server> server_;  // ends first: its handlers use the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(Env& env, PageOptions options) {
  const bool single = options.folder.empty() || IsRun(env, options.folder);
  if (!single) TDOCK_RETURN_IF_ERROR(FindRuns(env, options.folder).status());
  auto server = std::make_unique<PageServerOfRuns>(env, options, RunFolder{options.folder, single});
  TDOCK_RETURN_IF_ERROR(server->Listen(options.port));
  return server;
}

absl::StatusOr<PageAddress> ParsePageAddress(const std::string& text) {
  PageAddress address;
  const size_t colon = text.rfind(':');
  absl::string_view host = colon == std::string::npos ? "" : absl::string_view(text).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) host = "";
  const absl::string_view port = absl::string_view(text).substr(colon == std::string::npos ? 0 : colon + 1);
  if (!host.empty()) address.host = std::string(host);
  if (!absl::SimpleAtoi(port, &address.port) || address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(text),
        " is no address for a page: give PORT, :PORT or HOST:PORT with a port up to 65535, such as :8080"));
  }
  return address;
}

absl::StatusOr<std::unique_ptr<PageServer>> OpenPage(const std::string& folder, const std::string& address,
                                                     const std::function<void(const std::string&)>& log) {
  TDOCK_ASSIGN_OR_RETURN(const PageAddress parsed, ParsePageAddress(address));
  absl::StatusOr<std::unique_ptr<PageServer>> page =
      PageServer::Start(Env::Real(), {.folder = folder, .host = parsed.host, .port = parsed.port, .log = log});
  if (absl::IsUnavailable(page.status())) {
    return absl::UnavailableError(
        absl::StrCat(page.status().message(), "; give the page another port, or :0 for any free one"));
  }
  const bool loopback = absl::StartsWith(parsed.host, "127.") || parsed.host == "::1" || parsed.host == "localhost";
  if (page.ok() && !loopback) {
    log(absl::StrCat("warning: everyone who can reach ", parsed.host, ":", (*page)->port(),
                     " can read the runs, with their configuration and samples; nothing there asks for a password"));
  }
  return page;
}

}  // namespace tdock::trainer
