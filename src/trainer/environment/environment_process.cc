#include "trainer/environment/environment_process.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"

namespace tdock::environment {
namespace {

constexpr int kMovesAtOnce = 16;      // of 64 KiB: others get their turn then
constexpr size_t kRemembered = 4096;  // episodes that are over
constexpr size_t kMostOpenRequests = 1000;

}  // namespace

EnvironmentProcess::EnvironmentProcess(const ProgramEnvironmentOptions& options,
                                       std::unique_ptr<reward::LineProcess> process)
    : options_(options), process_(std::move(process)), hello_due_{.by = absl::Now() + options.start_timeout} {}

absl::StatusOr<std::unique_ptr<EnvironmentProcess>> EnvironmentProcess::Start(
    const ProgramEnvironmentOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<reward::LineProcess> process,
                         reward::LineProcess::Start({.who = absl::StrCat("environment ", options.name),
                                                     .arguments = options.arguments,
                                                     .script = options.script,
                                                     .memory_bytes = options.memory_bytes,
                                                     .log = options.setup.log}));
  std::unique_ptr<EnvironmentProcess> started(new EnvironmentProcess(options, std::move(process)));
  started->Send(HelloLine(options.setup));
  return started;
}

// At once as far as possible: the program works on it while the caller does something else. What goes wrong, Serve()
// finds.
void EnvironmentProcess::Send(absl::string_view line) {
  process_->Send(absl::StrCat(line, "\n"));
  process_->Move(absl::InfinitePast()).IgnoreError();
}

void EnvironmentProcess::Begin(EpisodeId episode, absl::string_view line) {
  std::erase(over_, episode);
  playing_[episode].due = {.by = absl::Now() + options_.timeout};
  Send(line);
}

void EnvironmentProcess::Step(EpisodeId episode, absl::string_view line) {
  playing_.at(episode).due = {.by = absl::Now() + options_.timeout};
  Send(line);
}

void EnvironmentProcess::Conclude(EpisodeId episode, absl::string_view line) {
  playing_.at(episode).concluding = true;
  Step(episode, line);
}

void EnvironmentProcess::NoteRequest(EpisodeId episode, int64_t request) {
  Playing& playing = playing_.at(episode);
  playing.requests.insert(request);
  playing.due = {};
}

void EnvironmentProcess::Answer(EpisodeId episode, int64_t request, absl::string_view line) {
  Playing& playing = playing_.at(episode);
  if (playing.requests.erase(request) == 0) return;
  if (playing.requests.empty()) playing.due = {.by = absl::Now() + options_.timeout};
  if (!line.empty()) Send(line);
}

void EnvironmentProcess::End(EpisodeId episode) {
  if (playing_.erase(episode) == 0) return;
  over_.push_back(episode);
  if (over_.size() > kRemembered) over_.pop_front();
  Send(EndLine(episode));
}

absl::Status EnvironmentProcess::Serve(std::vector<Event>& events) {
  for (int moves = 0;; ++moves) {
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const std::optional<std::string> line, process_->NextLine());
      if (!line) break;
      const absl::Status taken = TakeLine(*line, events);
      if (!taken.ok()) return process_->Died(taken);
    }
    if (moves == kMovesAtOnce) break;
    const absl::Status moved = process_->Move(absl::InfinitePast());
    if (absl::IsDeadlineExceeded(moved)) break;
    if (!moved.ok()) return process_->Died(moved);
    moved_ = absl::Now();
  }
  const absl::Status due = CheckDue();
  return due.ok() ? due : process_->Died(due);
}

absl::Status EnvironmentProcess::TakeLine(absl::string_view line, std::vector<Event>& events) {
  if (!hello_) {
    TDOCK_ASSIGN_OR_RETURN(hello_, ParseHello(line));
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(Event event, ParseEvent(line, hello_->what.is_agent));
  const auto found = playing_.find(event.episode);
  if (found == playing_.end()) {
    if (std::find(over_.begin(), over_.end(), event.episode) != over_.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("it spoke of episode ", event.episode, ", which it does not play"));
  }
  TDOCK_RETURN_IF_ERROR(Note(event, found->second));
  if (found->second.concluding) Truncate(event);
  if (IsLast(event)) End(event.episode);
  events.push_back(std::move(event));
  return absl::OkStatus();
}

absl::Status EnvironmentProcess::Note(const Event& event, Playing& playing) {
  if (!event.what.ok()) return absl::OkStatus();
  if (hello_->what.is_client) return CheckEndsEpisode(event);  // also while requests are open
  if (const auto* asked = std::get_if<GenerateRequest>(&*event.what)) {
    if (playing.requests.size() == kMostOpenRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat("episode ", event.episode, " has more than ", kMostOpenRequests, " open requests"));
    }
    if (!playing.requests.insert(asked->request).second) {
      return absl::InvalidArgumentError(absl::StrCat("episode ", event.episode, " gave number ", asked->request,
                                                     " to a request while another one of that number was open"));
    }
  } else if (playing.due.by == absl::InfiniteFuture() && std::holds_alternative<Observation>(*event.what)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it gave an observation of episode ", event.episode, ", which it was not asked for"));
  }
  playing.due = {};
  return absl::OkStatus();
}

bool EnvironmentProcess::IsLate(Due& due, absl::Duration again) const {
  const absl::Time now = absl::Now();
  if (now < due.by) return false;
  if (due.extended || moved_ < due.by) return true;
  due = {.by = now + again, .extended = true};
  return false;
}

absl::Status EnvironmentProcess::CheckDue() {
  if (!hello_) {
    if (!IsLate(hello_due_, options_.start_timeout)) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("it said no hello within ",
                                                    absl::FormatDuration(options_.start_timeout),
                                                    " (environment.start_timeout); is it an environment program?"));
  }
  for (auto& [episode, playing] : playing_) {
    if (!IsLate(playing.due, options_.timeout)) continue;
    late_ = episode;
    return absl::DeadlineExceededError(absl::StrCat("it said nothing of episode ", episode, " for ",
                                                    absl::FormatDuration(options_.timeout), " (environment.timeout)"));
  }
  return absl::OkStatus();
}

std::vector<EpisodeId> EnvironmentProcess::episodes() const {
  std::vector<EpisodeId> ids;
  ids.reserve(playing_.size());
  for (const auto& [episode, playing] : playing_) ids.push_back(episode);
  return ids;
}

absl::Time EnvironmentProcess::deadline() const {
  if (!hello_) return hello_due_.by;
  absl::Time first = absl::InfiniteFuture();
  for (const auto& [episode, playing] : playing_) first = std::min(first, playing.due.by);
  return first;
}

}  // namespace tdock::environment
