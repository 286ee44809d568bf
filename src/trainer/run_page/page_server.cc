#include "trainer/run_page/page_server.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/http/server.h"
#include "trainer/executor/explain_socket.h"
#include "trainer/run_page/machine_load.h"
#include "trainer/run_page/page_text.h"
#include "trainer/run_page/run_follower.h"

namespace tdock::trainer {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr size_t kPieceBytes = size_t{1} << 20;               // of a log, before others have their turn
constexpr auto kMostReading = std::chrono::milliseconds(50);  // before requests have their turn
constexpr int kIntervalsWhileReading = 4;                     // from one telling to the next, as long as much is unread
constexpr size_t kMostRuns = 500;
constexpr size_t kMostClients = 64;
constexpr size_t kMostTagsAsked = 12;
constexpr size_t kMostUnreadBytes = 4096;  // of a client that gets more
constexpr auto kFindRuns = std::chrono::seconds(2);
constexpr auto kAskMoment = std::chrono::seconds(1);
constexpr auto kKeepAlive = std::chrono::seconds(15);
constexpr absl::Duration kMomentPatience = absl::Milliseconds(500);

// A folder that is a run, or has some.
struct Folder {
  std::string path;
  bool single = false;

  // By the names that the page has for them.
  std::map<std::string, std::string> Find(Env& env) const {
    std::filesystem::path root = std::filesystem::path(path).lexically_normal();
    if (root.filename().empty()) root = root.parent_path();
    if (path.empty()) return {};
    if (single) return {{root.filename().string(), path}};
    std::map<std::string, std::string> runs;
    const absl::StatusOr<std::vector<std::string>> found = FindRuns(env, path);
    for (const std::string& run : found.ok() ? *found : std::vector<std::string>()) {
      if (runs.size() < kMostRuns) runs.emplace(std::filesystem::path(run).lexically_relative(root).string(), run);
    }
    return runs;
  }
};

// Someone who listens to events.
struct Client {
  std::shared_ptr<http::Exchange> exchange = {};
  std::string run = {};                // empty: all of them
  std::vector<std::string> tags = {};  // whose curves it shows of all
  uint64_t seen = 0;
  uint64_t machine = 0, moment = 0;  // which ones it has got
  SteadyTime heard = {};
};

// All that one thread does; handlers only hand requests to it.
class RunPages {
 public:
  RunPages(Env& env, Folder folder, std::chrono::milliseconds interval)
      : env_(env), folder_(std::move(folder)), interval_(interval), machine_load_(env), epoch_(NewEpoch()) {
    FindNewRuns();
    thread_ = std::thread([this] { Work(); });
  }
  ~RunPages() { Finish(); }

  // Tells all clients what is left to tell, and ends what they listen to.
  void Finish() TDOCK_EXCLUDES(mu_) {
    {
      const MutexLock lock(mu_);
      ending_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  void Follow(const std::string& run_dir) TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    next_folder_ = Folder{run_dir, true};
    changed_.NotifyAll();
  }
  void Post(std::shared_ptr<http::Exchange> exchange) TDOCK_EXCLUDES(mu_) {
    {
      const MutexLock lock(mu_);
      if (!ending_) asked_.push_back(std::exchange(exchange, nullptr));
      changed_.NotifyAll();
    }
    if (exchange != nullptr) exchange->Send(ErrorResponse(503, "this page ends"));
  }

 private:
  struct Moment {
    LogRecord data;
    uint64_t number = 0;
    SteadyTime next = {};
  };

  static std::string NewEpoch() {
    std::random_device random;
    return absl::StrFormat("%08x", random());
  }

  void Work() {
    bool more = true;
    for (;;) {
      std::vector<std::shared_ptr<http::Exchange>> asked;
      {
        const MutexLock lock(mu_);
        if (!more && asked_.empty() && !ending_) {
          changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + interval_);
        }
        if (ending_) break;
        asked.swap(asked_);
        if (next_folder_) {
          folder_ = *std::exchange(next_folder_, std::nullopt);
          next_find_ = {};
        }
      }
      now_ = std::chrono::steady_clock::now();
      if (now_ >= next_find_) FindNewRuns();
      for (const auto& exchange : asked) Answer(exchange);
      more = PollSome();
      if (more && asked.empty() && now_ < next_tell_) continue;
      next_tell_ = now_ + kIntervalsWhileReading * interval_;
      Tell();
    }
    TellTheEnd();
  }

  // Reads the runs in turn, from the one on that was to be next, until all have been looked at or time is up. True if
  // there is more to read at once.
  bool PollSome() {
    bool more = false;
    auto run = runs_.lower_bound(next_run_);
    for (size_t i = 0; i < runs_.size(); ++i, ++run) {
      if (run == runs_.end()) run = runs_.begin();
      if (i > 0 && std::chrono::steady_clock::now() - now_ > kMostReading) {
        next_run_ = run->first;
        return true;
      }
      more |= run->second->Poll(kPieceBytes);
    }
    return more;
  }

  // What a run has written last, before this program ends with it.
  void TellTheEnd() {
    now_ = std::chrono::steady_clock::now();
    FindNewRuns();
    const SteadyTime limit = now_ + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < limit && PollSome()) now_ = std::chrono::steady_clock::now();
    Tell();
    for (const Client& client : clients_) {
      if (client.exchange != nullptr) client.exchange->End();
    }
    clients_.clear();
    std::vector<std::shared_ptr<http::Exchange>> unanswered;  // dropped without the lock
    const MutexLock lock(mu_);
    unanswered.swap(asked_);
  }

  void FindNewRuns() {
    next_find_ = now_ + kFindRuns;
    const std::map<std::string, std::string> found = folder_.Find(env_);
    const size_t before = runs_.size();
    const size_t gone = std::erase_if(runs_, [&](const auto& run) { return !found.contains(run.first); });
    for (const auto& [name, path] : found) {
      if (!runs_.contains(name)) runs_.emplace(name, std::make_unique<RunFollower>(env_, path, name, sequence_));
    }
    if (gone > 0 || runs_.size() != before) names_changed_ = sequence_.Next();
  }

  void Answer(const std::shared_ptr<http::Exchange>& exchange) {
    const http::Request& request = exchange->request();
    std::map<std::string, std::string> query = QueryOf(request.query);
    const bool names_run = query.contains("run");
    const std::string& name = query["run"];
    const bool is_api = request.path == "/api/run" || (request.path == "/events" && names_run);
    if (is_api && !runs_.contains(name)) {
      return exchange->Send(ErrorResponse(
          404, absl::StrCat("there is no run ", Quoted(name), " in ", EscapeForMessage(folder_.path, 1000),
                            "; GET /api/runs lists those that are there")));
    }
    if (request.path == "/api/run") return exchange->Send(JsonResponse(runs_.at(name)->Since(0)));
    if (request.path == "/api/runs")
      return exchange->Send(JsonResponse({{"single", folder_.single}, {"runs", Summaries(0)}}));
    if (clients_.size() >= kMostClients) {
      http::Response busy = ErrorResponse(503, absl::StrCat("more than ", kMostClients, " pages are open; close some"));
      busy.headers.emplace_back("Retry-After", "5");
      return exchange->Send(std::move(busy));
    }
    Client client{.exchange = exchange, .run = names_run ? name : "", .heard = now_};
    client.tags = absl::StrSplit(query["tags"], ',', absl::SkipEmpty());
    if (client.tags.size() > kMostTagsAsked) client.tags.resize(kMostTagsAsked);
    client.seen = SeenOf(request.Header("last-event-id"), epoch_);
    if (client.seen > sequence_.last) client.seen = 0;
    exchange->Begin({.content_type = "text/event-stream",
                     .headers = {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}});
    clients_.push_back(std::move(client));
  }

  LogRecord Summaries(uint64_t seen) const {
    LogRecord all = LogRecord::array();
    for (const auto& [name, run] : runs_) {
      if (run->HasNewsSince(seen)) all.push_back(run->Summary());
    }
    return all;
  }

  void Tell() {
    std::erase_if(clients_, [](const Client& client) { return client.exchange == nullptr || client.exchange->gone(); });
    if (clients_.empty()) return;
    if (now_ >= next_machine_) {
      machine_ = machine_load_.Now();
      next_machine_ = now_ + kAskMoment;
      ++machine_number_;
    }
    std::set<std::string> asked;
    for (const Client& client : clients_) {
      if (!client.run.empty() && asked.insert(client.run).second) AskMoment(client.run);
    }
    for (Client& client : clients_) TellClient(client);
  }

  // What the run does at this moment, if it is at work.
  void AskMoment(const std::string& name) {
    const auto found = runs_.find(name);
    Moment& moment = moments_[name];
    if (found == runs_.end() || now_ < moment.next) return;
    moment.next = now_ + kAskMoment;
    LogRecord data = {{"stages", LogRecord::array()}};
    if (found->second->state() == RunState::kRunning) {
      const absl::StatusOr<std::string> said = AskRun(found->second->path(), ExplainForm::kJson, kMomentPatience);
      LogRecord read = said.ok() ? LogRecord::parse(*said, nullptr, /*allow_exceptions=*/false) : LogRecord();
      if (read.is_object()) {
        data = std::move(read);
      } else {
        data["problem"] = said.ok() ? "the run's answer cannot be read" : std::string(said.status().message());
        moment.next = now_ + 5 * kAskMoment;
      }
    }
    if (moment.number > 0 && moment.data == data) return;
    moment.data = std::move(data);
    ++moment.number;
  }

  // All that is new for it, unless it has not taken what it got before.
  void TellClient(Client& client) {
    if (client.exchange->unread_bytes() > kMostUnreadBytes) return;
    std::string text;
    const uint64_t now = sequence_.last;
    if (client.run.empty()) {
      if (std::optional<LogRecord> news = NewsOfAll(client)) text = EventText("runs", *news, Id(now));
    } else if (const auto run = runs_.find(client.run); run == runs_.end()) {
      client.exchange->End();  // it was removed: who asks again is told so
      client.exchange = nullptr;
      return;
    } else if (run->second->HasNewsSince(client.seen)) {
      text = EventText("run", run->second->Since(client.seen), Id(now));
    }
    client.seen = now;
    const Moment& moment = moments_[client.run];
    if (moment.number > client.moment) {
      client.moment = moment.number;
      text += EventText("moment", moment.data);
    }
    if (machine_number_ > client.machine) {
      client.machine = machine_number_;
      text += EventText("machine", machine_);
    }
    if (text.empty() && now_ - client.heard > kKeepAlive) text = ": still here\n\n";
    if (text.empty()) return;
    client.heard = now_;
    client.exchange->Write(text);
  }

  std::string Id(uint64_t number) const { return absl::StrCat(epoch_, ".", number); }

  std::optional<LogRecord> NewsOfAll(const Client& client) const {
    LogRecord changed = Summaries(client.seen);
    if (changed.empty() && names_changed_ <= client.seen) return std::nullopt;
    LogRecord names = LogRecord::array(), series = LogRecord::array();
    std::set<std::string> tags;
    for (const auto& [name, run] : runs_) {
      names.push_back(name);
      for (std::string& tag : run->Tags()) tags.insert(std::move(tag));
      if (!run->HasNewsSince(client.seen)) continue;
      for (const std::string& tag : client.tags) {
        if (std::optional<LogRecord> lines = run->MetricSince(tag, client.seen)) series.push_back(*std::move(lines));
      }
    }
    return LogRecord{
        {"names", std::move(names)}, {"runs", std::move(changed)}, {"tags", tags}, {"series", std::move(series)}};
  }

  Env& env_;
  Folder folder_;
  const std::chrono::milliseconds interval_;
  Sequence sequence_;
  std::map<std::string, std::unique_ptr<RunFollower>> runs_;
  uint64_t names_changed_ = 0;
  std::vector<Client> clients_;
  std::map<std::string, Moment> moments_;
  MachineLoad machine_load_;
  LogRecord machine_;
  uint64_t machine_number_ = 0;
  SteadyTime now_ = std::chrono::steady_clock::now(), next_find_ = {}, next_machine_ = {}, next_tell_ = {};
  std::string next_run_;  // whose turn it is to be read
  const std::string epoch_;

  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<http::Exchange>> asked_ TDOCK_GUARDED_BY(mu_);
  std::optional<Folder> next_folder_ TDOCK_GUARDED_BY(mu_);
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

class PageServerOfRuns final : public PageServer {
 public:
  PageServerOfRuns(Env& env, const PageOptions& options, Folder folder)
      : host_(options.host), pages_(env, std::move(folder), absl::ToChronoMilliseconds(options.interval)) {}

  ~PageServerOfRuns() override {
    pages_.Finish();
    if (server_ != nullptr) server_->Drain(absl::Seconds(2));
  }

  absl::Status Listen(int port) {
    http::ServerOptions options{
        .host = host_, .port = port, .limits = {.max_connections = 256, .max_body_bytes = 1024}};
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
  std::string url() const override {
    const std::string host = host_ == "0.0.0.0" || host_ == "::" ? "localhost" : host_;
    return absl::StrCat("http://", absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host, ":", port(),
                        "/");
  }

 private:
  const std::string host_;
  RunPages pages_;
  std::unique_ptr<http::Server> server_;  // ends first: its handlers use the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(Env& env, PageOptions options) {
  const bool single = options.folder.empty() || IsRun(env, options.folder);
  if (!single) TDOCK_RETURN_IF_ERROR(FindRuns(env, options.folder).status());
  auto server = std::make_unique<PageServerOfRuns>(env, options, Folder{options.folder, single});
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
      PageServer::Start(Env::Real(), {.folder = folder, .host = parsed.host, .port = parsed.port});
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
