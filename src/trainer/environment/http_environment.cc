#include "trainer/environment/http_environment.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/retry.h"
#include "core/base/status.h"
#include "trainer/environment/protocol.h"
#include "trainer/reward/external/http_post.h"
#include "trainer/reward/external/http_source.h"
#include "trainer/reward/external/patience.h"

namespace tdock::environment {
namespace {

constexpr absl::Duration kMostWait = absl::Seconds(30);   // that a server may ask for
constexpr absl::Duration kMostForEnd = absl::Seconds(5);  // for an answer that is not used
constexpr BackoffPolicy kBackoff = {.initial = absl::Milliseconds(100), .max = absl::Milliseconds(500)};
constexpr int kRunBits = 21, kEpisodeBits = 32;  // of a number, which JavaScript reads exactly up to 53 bits

// The numbers of this run's episodes begin here.
uint64_t FirstNumber() {
  std::random_device source;
  return static_cast<uint64_t>(source() & ((1U << kRunBits) - 1)) << kEpisodeBits;
}

class HttpEnvironment final : public Environment {
 public:
  HttpEnvironment(HttpEnvironmentOptions options, std::string name, reward::HttpServer server)
      : options_(std::move(options)), name_(std::move(name)), server_(std::move(server)) {}

  ~HttpEnvironment() override {
    {
      MutexLock lock(mu_);
      closing_ = true;
      work_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  const std::string& name() const override { return name_; }

  absl::StatusOr<Description> Start() override {
    if (!description_) {
      absl::StatusOr<Hello> hello = SayHello();
      if (!hello.ok()) return Annotate(hello.status(), "the environment's server did not start");
      if (hello->what.is_client) {
        if (!options_.setup.endpoints) {
          return absl::FailedPreconditionError("the server is an agent of a URL, and nothing serves endpoints here");
        }
        TDOCK_ASSIGN_OR_RETURN(endpoints_, options_.setup.endpoints());
      }
      description_ = std::move(hello->what);
      for (int64_t i = 0; i < options_.connections; ++i) threads_.emplace_back([this] { Work(); });
    }
    return *description_;
  }

  void Reset(EpisodeId episode, uint64_t seed, const EpisodeRow& row) override {
    TDOCK_CHECK(description_.has_value(), "Start() comes before the first Reset()");
    const uint64_t number = next_number_++;
    std::string line;
    if (endpoints_ != nullptr) {
      const Endpoint endpoint = endpoints_->Open(episode);
      line = RunLine(number, seed, row, options_.setup, &endpoint);
    } else {
      line = ResetLine(number, seed, row);
    }
    MutexLock lock(mu_);
    playing_[episode].number = number;
    Add({.episode = episode, .number = number, .kind = Job::Kind::kReset, .line = std::move(line)});
  }

  void Step(EpisodeId episode, const text::Turn& message) override {
    MutexLock lock(mu_);
    const auto found = playing_.find(episode);
    if (found == playing_.end()) return;
    const uint64_t number = found->second.number;
    Add({.episode = episode, .number = number, .kind = Job::Kind::kStep, .line = StepLine(number, message)});
  }

  void Conclude(EpisodeId episode) override {
    MutexLock lock(mu_);
    const auto found = playing_.find(episode);
    if (found == playing_.end()) return;
    const uint64_t number = found->second.number;
    Add({.episode = episode, .number = number, .kind = Job::Kind::kConclude, .line = ConcludeLine(number)});
  }

  void Answer(EpisodeId episode, int64_t request, const absl::StatusOr<Generated>& generated) override {
    if (endpoints_ == nullptr) return;  // it asks for nothing
    endpoints_->Answer(episode, request, generated);
    MutexLock lock(mu_);
    const auto found = playing_.find(episode);
    if (found == playing_.end()) return;
    found->second.requests.erase(request);
    if (found->second.requests.empty()) found->second.due = options_.clock.Now() + options_.timeout;
  }

  void End(EpisodeId episode) override {
    MutexLock lock(mu_);
    std::erase_if(events_, [&](const Event& event) { return event.episode == episode; });
    Forget(episode);
  }

  absl::StatusOr<std::vector<Event>> Wait(absl::Time deadline) override {
    for (;;) {
      {
        MutexLock lock(mu_);
        TakeRequests();
        if (!events_.empty()) return std::exchange(events_, {});
        TDOCK_RETURN_IF_ERROR(failed_);
        if (options_.clock.Now() >= deadline) {
          return absl::DeadlineExceededError(
              absl::StrCat("the environment ", name_, " said nothing in time of its ", playing_.size(), " episodes"));
        }
        if (endpoints_ == nullptr) {
          options_.clock.Wait(happened_, mu_, deadline);
          continue;
        }
      }
      const absl::Duration left = std::clamp(deadline - options_.clock.Now(), absl::ZeroDuration(), absl::Hours(1));
      pollfd watched{.fd = endpoints_->descriptor(), .events = POLLIN, .revents = 0};
      poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
    }
  }

 private:
  // Something to be posted.
  struct Job {
    enum class Kind { kReset, kStep, kConclude, kEnd };
    EpisodeId episode = 0;
    uint64_t number = 0;  // the server's name for it
    Kind kind = Kind::kEnd;
    std::string line = {};
  };

  // An episode that is not over.
  struct Playing {
    uint64_t number = 0;  // the server's name for it
    // Of an agent of a URL: its requests without a reply, and when it must have said more if it has none.
    std::set<int64_t> requests = {};
    absl::Time due = absl::InfiniteFuture();
  };

  void TakeRequests() TDOCK_REQUIRES(mu_) {
    if (endpoints_ == nullptr) return;
    for (Event& event : endpoints_->Take()) {
      const auto found = playing_.find(event.episode);
      if (found == playing_.end()) continue;  // it is over
      found->second.requests.insert(std::get<ChatRequest>(*event.what).request);
      found->second.due = absl::InfiniteFuture();
      events_.push_back(std::move(event));
      failures_ = 0;
    }
  }

  void Add(Job job) TDOCK_REQUIRES(mu_) {
    jobs_.push_back(std::move(job));
    work_.NotifyOne();
  }
  // The episode is over.
  void Forget(EpisodeId episode) TDOCK_REQUIRES(mu_) {
    const auto found = playing_.find(episode);
    if (found == playing_.end()) return;
    const uint64_t number = found->second.number;
    playing_.erase(found);
    if (endpoints_ != nullptr) endpoints_->Close(episode);
    Add({.episode = episode, .number = number, .line = EndLine(number)});
  }

  absl::StatusOr<Hello> SayHello() {
    TDOCK_ASSIGN_OR_RETURN(const std::string body,
                           Ask(HelloLine(options_.setup), options_.start_timeout, /*repeatable=*/true));
    absl::StatusOr<Hello> hello = ParseHello(body);
    if (!hello.ok()) return reward::OfServer(server_, hello.status());
    if (!hello->what.is_agent) return hello;
    return reward::OfServer(
        server_, absl::InvalidArgumentError("it is an agent, which only programs are; use environment.program"));
  }

  void Work() TDOCK_EXCLUDES(mu_) {
    for (;;) {
      Job job;
      {
        MutexLock lock(mu_);
        while (jobs_.empty() && !closing_) work_.Wait(mu_);
        if (closing_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        // Says only that the episode has ended; looking for its jobs then would take long if many wait.
        if (job.kind != Job::Kind::kEnd && !IsOpen(job)) continue;
      }
      if (job.kind == Job::Kind::kEnd) {
        Ask(job.line, std::min(options_.timeout, kMostForEnd), /*repeatable=*/false).IgnoreError();
        continue;
      }
      absl::StatusOr<Event> event = Play(job);
      MutexLock lock(mu_);
      Note(job, std::move(event));
    }
  }

  // An error of the server is none that it says itself.
  absl::StatusOr<Event> Play(const Job& job) {
    TDOCK_ASSIGN_OR_RETURN(
        const std::string body,
        endpoints_ != nullptr ? AskAgent(job) : Ask(job.line, options_.timeout, job.kind == Job::Kind::kReset));
    absl::StatusOr<Event> event = ParseEvent(body, /*is_agent=*/false);
    if (event.ok() && event->episode != job.number) {
      event = absl::InvalidArgumentError(
          absl::StrCat("it spoke of episode ", event->episode, " where ", job.number, " was asked for"));
    }
    if (event.ok() && endpoints_ != nullptr) {
      const absl::Status ends = CheckEndsEpisode(*event);
      if (!ends.ok()) event = ends;
    }
    if (!event.ok()) return reward::OfServer(server_, event.status());
    event->episode = job.episode;
    return event;
  }

  // True if the job's episode has not ended.
  bool IsOpen(const Job& job) const TDOCK_REQUIRES(mu_) {
    const auto found = playing_.find(job.episode);
    return found != playing_.end() && found->second.number == job.number;
  }

  // The answer to the run of an agent of a URL, which comes when it is done: the time in which it waits for replies
  // does not count.
  absl::StatusOr<std::string> AskAgent(const Job& job) TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      const auto found = playing_.find(job.episode);
      if (found != playing_.end() && found->second.requests.empty()) {
        found->second.due = options_.clock.Now() + options_.timeout;
      }
    }
    return Ask(job.line, absl::InfiniteDuration(), /*repeatable=*/false, [this, &job]() -> absl::Status {
      MutexLock lock(mu_);
      if (!IsOpen(job)) return absl::CancelledError("the episode is over");
      const absl::Time now = options_.clock.Now();
      if (now < playing_.find(job.episode)->second.due) return absl::OkStatus();
      TakeRequests();  // Wait() may not have been called since they came
      endpoints_->Wake();
      if (now < playing_.find(job.episode)->second.due) return absl::OkStatus();
      return absl::DeadlineExceededError(absl::StrCat(
          "it said nothing of the episode for ", absl::FormatDuration(options_.timeout), " (environment.timeout)"));
    });
  }

  void Note(const Job& job, absl::StatusOr<Event> event) TDOCK_REQUIRES(mu_) {
    if (!IsOpen(job)) return;
    if (event.ok()) {
      failures_ = 0;
    } else if (++failures_ > options_.max_failures && failed_.ok()) {
      failed_ = Annotate(event.status(), absl::StrCat("the environment's server failed ", failures_,
                                                      " times in a row without an event (environment.max_restarts); "
                                                      "the last time"));
    }
    events_.push_back(event.ok() ? *std::move(event) : Event{.episode = job.episode, .what = event.status()});
    if (job.kind == Job::Kind::kConclude) Truncate(events_.back());
    if (IsLast(events_.back())) Forget(job.episode);
    happened_.NotifyAll();
    if (endpoints_ != nullptr) endpoints_->Wake();
  }

  // The body of the server's answer. An error of `check`, where there is one, ends the waiting.
  absl::StatusOr<std::string> Ask(const std::string& line, absl::Duration timeout, bool repeatable,
                                  const std::function<absl::Status()>& check = {}) {
    const reward::Patience patience{.clock = options_.clock,
                                    .deadline = options_.clock.Now() + timeout,
                                    .check_stop = [this, &check]() -> absl::Status {
                                      if (closing_) return absl::CancelledError("the environment is no longer used");
                                      return check ? check() : absl::OkStatus();
                                    }};
    std::string body;
    bool again = false;
    absl::Time not_before = absl::InfinitePast();
    const absl::Status status = Retry(
        options_.clock, patience.deadline, Backoff(kBackoff, ++seed_),
        [&](const absl::Status&) { return again && !closing_; },
        [&]() -> absl::Status {
          TDOCK_RETURN_IF_ERROR(patience.SleepUntil(not_before, "the server to be ready"));
          absl::StatusOr<reward::HttpReply> reply = reward::PostJson(server_, line, patience);
          again = repeatable && absl::IsUnavailable(reply.status());
          TDOCK_RETURN_IF_ERROR(reply.status());
          if (reply->code == 200) {
            body = std::move(reply->body);
            return absl::OkStatus();
          }
          again = reply->code == 429 || reply->code == 503 || (repeatable && reward::IsOverload(reply->code));
          not_before = options_.clock.Now() + std::min(reply->wait.value_or(absl::ZeroDuration()), kMostWait);
          return reward::CodeError(*reply, "environment.url");
        });
    if (!status.ok()) return reward::OfServer(server_, status);
    return body;
  }

  const HttpEnvironmentOptions options_;
  const std::string name_;
  const reward::HttpServer server_;
  std::optional<Description> description_;
  std::unique_ptr<EpisodeEndpoints> endpoints_;  // of agents of a URL
  uint64_t next_number_ = FirstNumber();
  std::atomic<uint64_t> seed_ = 0;
  std::atomic<bool> closing_ = false;
  Mutex mu_;
  CondVar work_, happened_;
  std::deque<Job> jobs_ TDOCK_GUARDED_BY(mu_);
  absl::flat_hash_map<EpisodeId, Playing> playing_ TDOCK_GUARDED_BY(mu_);
  std::vector<Event> events_ TDOCK_GUARDED_BY(mu_);  // that Wait() has not returned yet
  int64_t failures_ TDOCK_GUARDED_BY(mu_) = 0;       // in a row
  absl::Status failed_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Environment>> MakeHttpEnvironment(const HttpEnvironmentOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(std::string name, reward::HttpSourceName(options.url));
  TDOCK_ASSIGN_OR_RETURN(reward::HttpServer server, reward::MakeHttpServer({.url = options.url,
                                                                            .token_env = options.token_env,
                                                                            .ca_file = options.ca_file,
                                                                            .verify = options.verify,
                                                                            .key = "environment.url"}));
  return std::make_unique<HttpEnvironment>(options, std::move(name), std::move(server));
}

}  // namespace tdock::environment
