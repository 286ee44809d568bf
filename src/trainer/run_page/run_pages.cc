#include "trainer/run_page/run_pages.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"
#include "trainer/run_page/page_text.h"

namespace tdock::trainer {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;           // of a log, before others have their turn
constexpr auto kMaxTurn = std::chrono::milliseconds(50);  // of reading, and of telling, before requests have their turn
constexpr int kIntervalsWhileReading = 4;                 // from one telling to the next, as long as much is unread
constexpr size_t kMaxRuns = 500;
constexpr size_t kMaxTagsAsked = 12;
constexpr size_t kMaxUnreadBytes = 4096;  // of a client that gets more
// Of all clients, if any is to get more; below the limit of the server, which cuts slow readers off.
constexpr size_t kMaxAllUnreadBytes = size_t{16} << 20;
constexpr size_t kMaxSharedBytes = size_t{64} << 20;
constexpr auto kFindRuns = std::chrono::seconds(2);
constexpr auto kLookAtMachine = std::chrono::seconds(1);
constexpr auto kKeepAlive = std::chrono::seconds(15);

// Kinds of shared texts.
constexpr char kSummaries = 's', kWholeRun = 'w', kRunEvent = 'r', kAllEvent = 'a', kNames = 'n', kTags = 't',
               kSeries = 'c';

}  // namespace

std::map<std::string, std::string> RunFolder::Find(Env& env) const {
  std::filesystem::path root = std::filesystem::path(path).lexically_normal();
  if (root.filename().empty()) root = root.parent_path();
  if (path.empty()) return {};
  if (single) return {{root.filename().string(), path}};
  std::map<std::string, std::string> runs;
  const absl::StatusOr<std::vector<std::string>> found = FindRuns(env, path);
  for (const std::string& run : found.ok() ? *found : std::vector<std::string>()) {
    if (runs.size() < kMaxRuns) runs.emplace(std::filesystem::path(run).lexically_relative(root).string(), run);
  }
  return runs;
}

SharedTexts::Text SharedTexts::Get(Key key, const std::function<std::string()>& make) {
  if (const auto found = texts_.find(key); found != texts_.end()) return found->second;
  auto text = std::make_shared<const std::string>(make());
  ++made_;
  if (bytes_ > kMaxSharedBytes) {
    texts_.clear();
    bytes_ = 0;
  }
  bytes_ += text->size() + std::get<std::string>(key).size();
  texts_.emplace(std::move(key), text);
  return text;
}

void SharedTexts::BeOf(uint64_t version) {
  if (std::exchange(version_, version) == version) return;
  texts_.clear();
  bytes_ = 0;
}

RunPages::RunPages(Env& env, RunFolder folder, std::chrono::milliseconds interval, size_t max_clients)
    : env_(env),
      folder_(std::move(folder)),
      interval_(interval),
      max_clients_(max_clients),
      machine_load_(env),
      epoch_(absl::StrFormat("%08x", std::random_device()())) {
  FindNewRuns();
  thread_ = std::thread([this] { Work(); });
}

void RunPages::Finish() {
  {
    const MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RunPages::Follow(const std::string& run_dir) {
  const MutexLock lock(mu_);
  next_folder_ = RunFolder{run_dir, true};
  changed_.NotifyAll();
}

void RunPages::Post(std::shared_ptr<http::Exchange> exchange) {
  {
    const MutexLock lock(mu_);
    if (!ending_) asked_.push_back(std::exchange(exchange, nullptr));
    changed_.NotifyAll();
  }
  if (exchange != nullptr) exchange->Send(ErrorResponse(503, "this page ends"));
}

bool RunPages::TakeAsked(bool wait, std::vector<std::shared_ptr<http::Exchange>>& asked) {
  const MutexLock lock(mu_);
  if (wait && asked_.empty() && !ending_) changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + interval_);
  if (ending_) return false;
  asked.swap(asked_);
  if (next_folder_) {
    folder_ = *std::exchange(next_folder_, std::nullopt);
    next_find_ = {};
  }
  return true;
}

void RunPages::Work() {
  bool more = true;
  std::vector<std::shared_ptr<http::Exchange>> asked;
  while (TakeAsked(!more, asked)) {
    now_ = std::chrono::steady_clock::now();
    if (now_ >= next_find_) FindNewRuns();
    texts_.BeOf(sequence_.last);
    for (const auto& exchange : asked) Answer(exchange);
    const bool any_asked = !std::exchange(asked, {}).empty();
    more = AnswerDear();
    if (more_to_read_ || now_ >= next_poll_) {
      next_poll_ = now_ + interval_;
      more_to_read_ = PollSome();
    }
    more |= more_to_read_;
    if (more_to_read_ && !any_asked && next_client_ == 0 && now_ < next_tell_) continue;
    next_tell_ = now_ + kIntervalsWhileReading * interval_;
    more |= TellSome();
  }
  TellTheEnd();
}

bool RunPages::PollSome() {
  bool more = false;
  const SteadyTime begin = std::chrono::steady_clock::now();
  auto run = runs_.lower_bound(next_run_);
  for (size_t i = 0; i < runs_.size(); ++i, ++run) {
    if (run == runs_.end()) run = runs_.begin();
    if (i > 0 && std::chrono::steady_clock::now() - begin > kMaxTurn) {
      next_run_ = run->first;
      return true;
    }
    more |= run->second->Poll(kPieceBytes);
  }
  return more;
}

// Tells what runs have written last, before this program ends with them.
void RunPages::TellTheEnd() {
  now_ = std::chrono::steady_clock::now();
  FindNewRuns();
  const SteadyTime limit = now_ + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < limit && PollSome()) {
  }
  now_ = std::chrono::steady_clock::now();
  next_client_ = 0;
  next_round_ = now_;
  while (std::chrono::steady_clock::now() < limit && TellSome()) {
  }
  while (std::chrono::steady_clock::now() < limit && AnswerDear()) {
  }
  for (const Client& client : clients_) {
    if (client.exchange != nullptr) client.exchange->End();
  }
  clients_.clear();
  dear_.clear();
  std::vector<std::shared_ptr<http::Exchange>> unanswered;  // dropped without the lock
  const MutexLock lock(mu_);
  unanswered.swap(asked_);
}

void RunPages::FindNewRuns() {
  next_find_ = now_ + kFindRuns;
  const std::map<std::string, std::string> found = folder_.Find(env_);
  const size_t before = runs_.size();
  const size_t gone = std::erase_if(runs_, [&](const auto& run) { return !found.contains(run.first); });
  for (const auto& [name, path] : found) {
    if (!runs_.contains(name)) runs_.emplace(name, std::make_unique<RunFollower>(env_, path, name, sequence_));
  }
  if (gone > 0 || runs_.size() != before) names_changed_ = sequence_.Next();
}

void RunPages::Answer(const std::shared_ptr<http::Exchange>& exchange) {
  const http::Request& request = exchange->request();
  std::map<std::string, std::string> query = http::QueryOf(request.query);
  const bool names_run = query.contains("run");
  const std::string& name = query["run"];
  if (request.path == "/api/runs") {
    return exchange->Send(JsonResponse(
        absl::StrCat("{\"single\":", folder_.single ? "true" : "false", ",\"runs\":", *Summaries(0), "}")));
  }
  if ((request.path == "/api/run" || names_run) && !runs_.contains(name)) {
    return exchange->Send(
        ErrorResponse(404, absl::StrCat("there is no run ", Quoted(name), " in ", EscapeForMessage(folder_.path, 1000),
                                        "; GET /api/runs lists those that are there")));
  }
  if (request.path == "/api/run") {
    dear_.push_back(exchange);
  } else {
    Listen(exchange, names_run ? name : "", query["tags"]);
  }
}

void RunPages::Listen(const std::shared_ptr<http::Exchange>& exchange, std::string run, const std::string& tags) {
  if (clients_.size() >= max_clients_) RemoveClientsThatAreGone();
  if (clients_.size() >= max_clients_) {
    http::Response busy = ErrorResponse(503, absl::StrCat(max_clients_, " pages are open already; close some"));
    busy.headers.emplace_back("Retry-After", "5");
    return exchange->Send(std::move(busy));
  }
  Client client{.exchange = exchange, .run = std::move(run), .heard = now_};
  client.tags = absl::StrSplit(tags, ',', absl::SkipEmpty());
  if (client.tags.size() > kMaxTagsAsked) client.tags.resize(kMaxTagsAsked);
  client.seen = SeenOf(exchange->request().Header("last-event-id"), epoch_);
  if (client.seen > sequence_.last) client.seen = 0;
  exchange->Begin({.content_type = "text/event-stream",
                   .headers = {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}});
  clients_.push_back(std::move(client));
  next_round_ = now_;
}

bool RunPages::AnswerDear() {
  const SteadyTime begin = std::chrono::steady_clock::now();
  while (!dear_.empty() && std::chrono::steady_clock::now() - begin < kMaxTurn) {
    const std::shared_ptr<http::Exchange> exchange = std::move(dear_.front());
    dear_.pop_front();
    if (exchange->gone()) continue;
    const std::string name = http::QueryOf(exchange->request().query)["run"];
    if (runs_.contains(name)) {
      exchange->Send(JsonResponse(*WholeRun(name)));
    } else {
      exchange->Send(ErrorResponse(404, absl::StrCat("the run ", Quoted(name), " has been removed")));
    }
  }
  return !dear_.empty();
}

void RunPages::RemoveClientsThatAreGone() {
  std::erase_if(clients_, [](const Client& client) { return client.exchange == nullptr || client.exchange->gone(); });
}

void RunPages::LookAtMachine() {
  if (now_ < next_machine_) return;
  next_machine_ = now_ + kLookAtMachine;
  machine_ = EventText("machine", JsonText(machine_load_.Now()));
  ++machine_number_;
}

void RunPages::BeginRound() {
  next_round_ = now_ + interval_;
  told_ = sequence_.last;
  RemoveClientsThatAreGone();
  std::map<std::string, RunMoments::Run> watched;
  unread_bytes_ = 0;
  for (const Client& client : clients_) {
    unread_bytes_ += client.exchange->unread_bytes();
    const auto run = runs_.find(client.run);
    if (run == runs_.end() || watched.contains(client.run)) continue;
    watched.emplace(client.run, RunMoments::Run{run->second->path(), run->second->state() == RunState::kRunning});
  }
  if (watched != watched_) moments_.Watch(watched);
  watched_ = std::move(watched);
  if (!clients_.empty()) LookAtMachine();
}

bool RunPages::TellSome() {
  if (next_client_ == 0) {
    if (told_ == sequence_.last && now_ < next_round_) return false;
    BeginRound();
  }
  texts_.BeOf(sequence_.last);
  const SteadyTime begin = std::chrono::steady_clock::now();
  while (next_client_ < clients_.size()) {
    TellClient(clients_[next_client_++]);
    if (std::chrono::steady_clock::now() - begin > kMaxTurn && next_client_ < clients_.size()) return true;
  }
  next_client_ = 0;
  return false;
}

// Tells it all that is new for it, unless it has not taken what it got before, or all together have taken too little.
void RunPages::TellClient(Client& client) {
  if (client.exchange == nullptr || client.exchange->unread_bytes() > kMaxUnreadBytes) return;
  if (unread_bytes_ > kMaxAllUnreadBytes) return;
  const uint64_t now = sequence_.last;
  Text news;
  if (client.seen == now) {
    // Nothing has happened.
  } else if (client.run.empty()) {
    news = NewsOfAll(client.tags, client.seen);
  } else if (const auto run = runs_.find(client.run); run != runs_.end()) {
    news = NewsOfRun(*run->second, client.seen);
  } else {
    client.exchange->End();  // it was removed: who asks again is told so
    client.exchange = nullptr;
    return;
  }
  client.seen = now;
  std::string text = news != nullptr ? *news : "";
  if (const RunMoments::Moment moment = moments_.Last(client.run); moment.number > client.moment) {
    client.moment = moment.number;
    text += *moment.event;
  }
  if (machine_number_ > client.machine) {
    client.machine = machine_number_;
    text += machine_;
  }
  if (text.empty() && now_ - client.heard > kKeepAlive) text = ": still here\n\n";
  if (text.empty()) return;
  // At once: a second Write() behind one that may be as long as it likes would cut the client off.
  client.heard = now_;
  client.exchange->Write(text);
  unread_bytes_ += text.size();
}

std::string RunPages::Id(uint64_t number) const { return absl::StrCat(epoch_, ".", number); }

RunPages::Text RunPages::Summaries(uint64_t seen) {
  return texts_.Get({kSummaries, "", seen}, [&] {
    LogRecord all = LogRecord::array();
    for (const auto& [name, run] : runs_) {
      if (run->HasNewsSince(seen)) all.push_back(run->Summary());
    }
    return JsonText(all);
  });
}

RunPages::Text RunPages::WholeRun(const std::string& name) {
  return texts_.Get({kWholeRun, name, 0}, [&] { return JsonText(runs_.at(name)->Since(0)); });
}

RunPages::Text RunPages::NewsOfRun(const RunFollower& run, uint64_t seen) {
  return texts_.Get({kRunEvent, run.name(), seen}, [&] {
    if (!run.HasNewsSince(seen)) return std::string();
    return EventText("run", JsonText(run.Since(seen)), Id(sequence_.last));
  });
}

RunPages::Text RunPages::NewsOfAll(const std::vector<std::string>& tags, uint64_t seen) {
  return texts_.Get({kAllEvent, absl::StrJoin(tags, ","), seen}, [&] {
    const Text changed = Summaries(seen);
    if (*changed == "[]" && names_changed_ <= seen) return std::string();
    const Text names = texts_.Get({kNames, "", 0}, [&] {
      LogRecord all = LogRecord::array();
      for (const auto& [name, run] : runs_) all.push_back(name);
      return JsonText(all);
    });
    const Text all_tags = texts_.Get({kTags, "", 0}, [&] {
      std::set<std::string> all;
      for (const auto& [name, run] : runs_) {
        for (std::string& tag : run->Tags()) all.insert(std::move(tag));
      }
      return JsonText(LogRecord(all));
    });
    // The series of all runs, metric by metric, with commas between them.
    std::string series;
    for (const std::string& tag : tags) {
      const Text of_tag = texts_.Get({kSeries, tag, seen}, [&] {
        std::string lines;
        for (const auto& [name, run] : runs_) {
          if (!run->HasNewsSince(seen)) continue;
          const std::optional<LogRecord> line = run->MetricSince(tag, seen);
          if (line) absl::StrAppend(&lines, lines.empty() ? "" : ",", JsonText(*line));
        }
        return lines;
      });
      if (!of_tag->empty()) absl::StrAppend(&series, series.empty() ? "" : ",", *of_tag);
    }
    return EventText("runs",
                     absl::StrCat("{\"names\":", *names, ",\"runs\":", *changed, ",\"tags\":", *all_tags,
                                  ",\"series\":[", series, "]}"),
                     Id(sequence_.last));
  });
}

}  // namespace tdock::trainer
