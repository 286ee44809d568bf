#include "core/base/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tdock {
namespace {

std::string Rounded(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(100)));
}

std::chrono::steady_clock::time_point SteadyAfter(absl::Duration duration) {
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::clamp(duration, absl::ZeroDuration(), absl::Hours(1)));
}

}  // namespace

void Heartbeat::Begin(const char* what, absl::string_view whose) {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mu_);
  began_ = now;
  what_ = what;
  whose_.assign(whose.data(), whose.size());
}

void Heartbeat::Describe(const char* what, absl::string_view whose) {
  MutexLock lock(mu_);
  what_ = what;
  whose_.assign(whose.data(), whose.size());
}

void Heartbeat::End() {
  MutexLock lock(mu_);
  began_.reset();
}

Heartbeat::Reading Heartbeat::Read() const {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mu_);
  if (!began_.has_value()) return {absl::ZeroDuration(), "is idle"};
  return {std::max(absl::FromChrono(now - *began_), absl::Nanoseconds(1)),
          absl::StrCat(what_, whose_.empty() ? "" : " ", whose_)};
}

std::shared_ptr<Heartbeat> Heartbeats::Add(std::string name) {
  auto added = std::make_shared<Heartbeat>(std::move(name));
  MutexLock lock(mu_);
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.push_back(added);
  return added;
}

std::vector<std::shared_ptr<Heartbeat>> Heartbeats::All() {
  std::vector<std::shared_ptr<Heartbeat>> all;
  MutexLock lock(mu_);
  for (const auto& each : all_) {
    if (auto there = each.lock(); there != nullptr) all.push_back(std::move(there));
  }
  return all;
}

Watchdog::Watchdog(Heartbeats& heartbeats, std::vector<Probe> probes, WatchdogOptions options)
    : heartbeats_(heartbeats),
      probes_(std::move(probes)),
      options_(std::move(options)),
      touching_(heartbeats.Add("a call")),
      toucher_([this] { TouchAll(); }),
      looker_([this] { Look(); }) {}

Watchdog::~Watchdog() {
  {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  toucher_.join();
  looker_.join();
}

void Watchdog::TouchAll() {
  for (;;) {
    {
      MutexLock lock(mu_);
      const auto next = SteadyAfter(options_.period);
      while (!ending_ && !asked_ && std::chrono::steady_clock::now() < next) changed_.WaitUntil(mu_, next);
      if (ending_) return;
      asked_ = false;
      ++begun_;
    }
    for (const Probe& probe : probes_) {
      touching_->Begin("waits for", probe.name);
      probe.touch([&](absl::string_view part) { touching_->Describe("waits for", part); });
      touching_->End();
    }
    MutexLock lock(mu_);
    ++ended_;
    changed_.NotifyAll();
  }
}

std::map<std::string, Watchdog::Incident> Watchdog::FindStalls(absl::Duration at_least) {
  std::map<std::string, Incident> stalled;
  for (const auto& heartbeat : heartbeats_.All()) {
    const Heartbeat::Reading reading = heartbeat->Read();
    if (reading.since < at_least || reading.since == absl::ZeroDuration()) continue;
    stalled[heartbeat->name()] = {reading.since, absl::StrCat(heartbeat->name(), " has been stalled for ",
                                                              Rounded(reading.since), ": it ", reading.what)};
  }
  return stalled;
}

void Watchdog::Report(const std::string& text) const {
  if (options_.report != nullptr) options_.report(text);
}

void Watchdog::Look() {
  for (;;) {
    std::map<std::string, Incident> now = FindStalls(options_.stall_after);
    std::vector<std::string> news;
    {
      MutexLock lock(mu_);
      for (const auto& [name, incident] : now) {
        if (stalled_.contains(name)) continue;
        ++stalls_;
        news.push_back(incident.text);
      }
      for (const auto& [name, incident] : stalled_) {
        if (!now.contains(name))
          news.push_back(absl::StrCat(name, " continues, after more than ", Rounded(incident.lasted)));
      }
      stalled_ = std::move(now);
    }
    for (const std::string& text : news) Report(text);
    MutexLock lock(mu_);
    const auto next = SteadyAfter(options_.period);
    while (!ending_ && std::chrono::steady_clock::now() < next) changed_.WaitUntil(mu_, next);
    if (ending_) return;
  }
}

absl::Status Watchdog::Check(absl::Duration within) {
  const auto give_up = [&] {
    std::vector<std::string> texts;
    for (const auto& [name, incident] : FindStalls(absl::ZeroDuration())) {
      // Others are just busy.
      const bool stands = incident.lasted >= std::min(within, options_.stall_after) || name == touching_->name();
      if (stands) texts.push_back(incident.text);
    }
    return absl::UnavailableError(absl::StrCat("the server does not answer within ", absl::FormatDuration(within),
                                               texts.empty() ? "" : ": ", absl::StrJoin(texts, "; ")));
  };
  if (!FindStalls(std::min(within, options_.stall_after)).empty()) return give_up();
  const auto until = SteadyAfter(within);
  bool answered = false;
  {
    MutexLock lock(mu_);
    // A round in progress may already have touched what hangs now.
    const int64_t wanted = begun_ + 1;
    asked_ = true;
    changed_.NotifyAll();
    while (!ending_ && ended_ < wanted && std::chrono::steady_clock::now() < until) changed_.WaitUntil(mu_, until);
    answered = ended_ >= wanted;
  }
  return answered ? absl::OkStatus() : give_up();
}

std::vector<std::string> Watchdog::CurrentStalls() {
  std::vector<std::string> texts;
  for (const auto& [name, incident] : FindStalls(options_.stall_after)) texts.push_back(incident.text);
  return texts;
}

int64_t Watchdog::stalls() {
  MutexLock lock(mu_);
  return stalls_;
}

}  // namespace tdock
