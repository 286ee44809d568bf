#include "trainer/environment/program_environment.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "trainer/environment/environment_process.h"
#include "trainer/environment/protocol.h"

namespace tdock::environment {
namespace {

class ProgramEnvironment final : public Environment {
 public:
  explicit ProgramEnvironment(ProgramEnvironmentOptions options)
      : options_(std::move(options)), processes_(static_cast<size_t>(options_.processes)) {}

  ~ProgramEnvironment() override {
    for (const auto& process : processes_) {  // so that they end at the same time
      if (process != nullptr) process->CloseInput();
    }
  }

  const std::string& name() const override { return options_.name; }

  absl::StatusOr<Description> Start() override {
    if (!description_) {
      const absl::Status started = StartFirst();
      if (!started.ok()) {
        processes_[0].reset();
        return Annotate(started, absl::StrCat("the environment program ", name(), " did not start"));
      }
      description_ = processes_[0]->hello()->what;
      episodes_ = processes_[0]->hello()->episodes;
    }
    return *description_;
  }

  void Reset(EpisodeId episode, uint64_t seed, const EpisodeRow& row) override {
    TDOCK_CHECK(description_.has_value(), "Start() comes before the first Reset()");
    std::string line = FirstLine(episode, seed, row);
    if (!Fits(line)) {
      Forget(episode);
      return Refuse(episode, "the row", line);
    }
    queued_.emplace_back(episode, std::move(line));
    Assign();
  }

  void Step(EpisodeId episode, const text::Turn& message) override {
    const auto found = players_.find(episode);
    if (found == players_.end()) return;
    const std::string line = StepLine(episode, message);
    if (Fits(line)) return found->second->Step(episode, line);
    End(episode);
    Refuse(episode, "the message", line);
  }

  void Conclude(EpisodeId episode) override {
    const auto found = players_.find(episode);
    if (found != players_.end()) found->second->Conclude(episode, ConcludeLine(episode));
  }

  void Answer(EpisodeId episode, int64_t request, const absl::StatusOr<Generated>& generated) override {
    const auto found = players_.find(episode);
    if (found == players_.end()) return;
    if (endpoints_ == nullptr)
      return found->second->Answer(episode, request, GeneratedLine(episode, request, generated));
    endpoints_->Answer(episode, request, generated);
    found->second->Answer(episode, request, {});
  }

  void End(EpisodeId episode) override {
    std::erase_if(queued_, [&](const auto& queued) { return queued.first == episode; });
    std::erase_if(events_, [&](const Event& event) { return event.episode == episode; });
    const auto found = players_.find(episode);
    if (found != players_.end()) found->second->End(episode);
    Forget(episode);
  }

  absl::StatusOr<std::vector<Event>> Wait(absl::Time deadline) override {
    for (;;) {
      do {
        ServeAll();
      } while (Assign());  // what came meanwhile has been read, and poll() does not tell
      if (!events_.empty()) return std::exchange(events_, {});
      TDOCK_RETURN_IF_ERROR(failed_);
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("the environment ", name(), " said nothing in time of its ",
                                                        players_.size() + queued_.size(), " episodes"));
      }
      TDOCK_RETURN_IF_ERROR(Poll(deadline));
    }
  }

 private:
  static bool Fits(const std::string& line) { return line.size() < reward::kMostLineBytes; }
  void Refuse(EpisodeId episode, absl::string_view what, const std::string& line) {
    events_.push_back(
        {.episode = episode,
         .what = absl::InvalidArgumentError(absl::StrCat(what, " has ", line.size(), " bytes as JSON; at most ",
                                                         reward::kMostLineBytes, " can be sent"))});
  }

  absl::Status OpenEndpoints() {
    if (!options_.setup.endpoints) {
      return absl::FailedPreconditionError("it is an agent of a URL, and nothing serves endpoints here");
    }
    TDOCK_ASSIGN_OR_RETURN(endpoints_, options_.setup.endpoints());
    return absl::OkStatus();
  }

  std::string FirstLine(EpisodeId episode, uint64_t seed, const EpisodeRow& row) {
    if (endpoints_ != nullptr) {
      const Endpoint endpoint = endpoints_->Open(episode);
      return RunLine(episode, seed, row, options_.setup, &endpoint);
    }
    return description_->is_agent ? RunLine(episode, seed, row, options_.setup) : ResetLine(episode, seed, row);
  }

  // The episode is over.
  void Forget(EpisodeId episode) {
    players_.erase(episode);
    if (endpoints_ != nullptr) endpoints_->Close(episode);
  }

  absl::Status StartFirst() {
    TDOCK_ASSIGN_OR_RETURN(processes_[0], EnvironmentProcess::Start(options_));
    for (;;) {
      TDOCK_RETURN_IF_ERROR(processes_[0]->Serve(events_));
      if (processes_[0]->hello()) return processes_[0]->hello()->what.is_client ? OpenEndpoints() : absl::OkStatus();
      TDOCK_RETURN_IF_ERROR(Poll(absl::InfiniteFuture()));
    }
  }

  // Until a process can be served, the deadline passes or something is due.
  absl::Status Poll(absl::Time deadline) const {
    std::vector<pollfd> watched;
    for (const auto& process : processes_) {
      if (process == nullptr) continue;
      for (const pollfd& descriptor : process->Watched()) watched.push_back(descriptor);
      deadline = std::min(deadline, process->deadline());
    }
    if (endpoints_ != nullptr) watched.push_back({.fd = endpoints_->descriptor(), .events = POLLIN, .revents = 0});
    const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(1));
    const auto milliseconds = static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    if (poll(watched.data(), watched.size(), milliseconds) < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, "cannot wait for the processes of the environment");
    }
    return absl::OkStatus();
  }

  void ServeAll() {
    if (endpoints_ != nullptr) TakeRequests();  // before those that have asked seem to be late
    for (auto& process : processes_) {
      if (process == nullptr) continue;
      const bool was_ready = process->hello().has_value();
      const size_t before = events_.size();
      absl::Status status = process->Serve(events_);
      if (events_.size() > before) failures_ = 0;
      for (size_t i = before; i < events_.size(); ++i) {
        if (IsLast(events_[i])) Forget(events_[i].episode);
      }
      if (status.ok() && !was_ready && process->hello()) status = CheckLikeFirst(*process->hello());
      if (!status.ok()) Lose(std::move(process), status);
    }
  }

  void TakeRequests() {
    for (Event& event : endpoints_->Take()) {
      const auto found = players_.find(event.episode);
      if (found == players_.end()) continue;  // it is over
      found->second->NoteRequest(event.episode, std::get<ChatRequest>(*event.what).request);
      events_.push_back(std::move(event));
      failures_ = 0;
    }
  }

  absl::Status CheckLikeFirst(const Hello& hello) const {
    if (hello.what.is_agent == description_->is_agent && hello.what.is_client == description_->is_client &&
        hello.what.tools == description_->tools) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("it is of another kind than the first process, or has other tools");
  }

  // A process has failed, and so have its episodes.
  void Lose(std::unique_ptr<EnvironmentProcess> process, const absl::Status& why) {
    for (const EpisodeId episode : process->episodes()) {
      const bool blamed = !process->late() || *process->late() == episode;
      Forget(episode);
      events_.push_back({.episode = episode,
                         .what = blamed ? why
                                        : absl::AbortedError(absl::StrCat(
                                              "its process was killed because of another episode: ", why.message()))});
    }
    NoteFailure(why);
  }

  void NoteFailure(const absl::Status& why) {
    options_.setup.log(absl::StrCat("environment ", name(), ": the program failed: ", why.message()));
    if (++failures_ <= options_.max_restarts || !failed_.ok()) return;
    failed_ = Annotate(why, absl::StrCat("the environment program ", name(), " failed ", failures_,
                                         " times in a row without an event (environment.max_restarts); the last time"));
  }

  // Gives queued episodes to processes with room, and starts processes for the others. False: there was nothing to do.
  bool Assign() {
    bool done = false;
    while (!queued_.empty() && failed_.ok()) {
      EnvironmentProcess* best = nullptr;
      int64_t starting = 0;
      std::unique_ptr<EnvironmentProcess>* unused = nullptr;
      for (auto& process : processes_) {
        if (process == nullptr) {
          if (unused == nullptr) unused = &process;
        } else if (!process->hello()) {
          ++starting;
        } else if (process->has_room() && (best == nullptr || process->playing() < best->playing())) {
          best = process.get();
        }
      }
      if (best != nullptr) {
        auto [episode, line] = std::move(queued_.front());
        queued_.pop_front();
        players_[episode] = best;
        best->Begin(episode, line);
        done = true;
        continue;
      }
      if (unused == nullptr || std::cmp_less_equal(queued_.size(), starting * episodes_)) break;
      absl::StatusOr<std::unique_ptr<EnvironmentProcess>> started = EnvironmentProcess::Start(options_);
      if (started.ok()) {
        *unused = *std::move(started);
      } else {
        NoteFailure(started.status());
      }
    }
    return done;
  }

  const ProgramEnvironmentOptions options_;
  std::vector<std::unique_ptr<EnvironmentProcess>> processes_;  // null: does not run
  std::optional<Description> description_;
  std::unique_ptr<EpisodeEndpoints> endpoints_;                  // of agents of a URL
  int64_t episodes_ = 1;                                         // that the first process plays at the same time
  std::deque<std::pair<EpisodeId, std::string>> queued_;         // that no process has room for, with their first line
  absl::flat_hash_map<EpisodeId, EnvironmentProcess*> players_;  // of the episodes that are not over
  std::vector<Event> events_;                                    // that Wait() has not returned yet
  int64_t failures_ = 0;                                         // in a row
  absl::Status failed_;
};

}  // namespace

std::unique_ptr<Environment> MakeProgramEnvironment(ProgramEnvironmentOptions options) {
  return std::make_unique<ProgramEnvironment>(std::move(options));
}

}  // namespace tdock::environment
