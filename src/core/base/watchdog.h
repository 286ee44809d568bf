// Detects stalled threads and locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace tdock {

// What a thread is doing: written by it, read by others. Thread-safe.
class Heartbeat {
 public:
  explicit Heartbeat(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  // The thread begins to do something. `what` must be a literal.
  void Begin(const char* what, absl::string_view whose = "") TDOCK_EXCLUDES(mu_);
  // What it has begun, in more detail.
  void Describe(const char* what, absl::string_view whose) TDOCK_EXCLUDES(mu_);
  // The thread is idle.
  void End() TDOCK_EXCLUDES(mu_);

  struct Reading {
    // ZeroDuration if the thread is idle.
    absl::Duration since;
    std::string what;
  };
  Reading Read() const TDOCK_EXCLUDES(mu_);

 private:
  const std::string name_;
  mutable Mutex mu_;
  std::optional<std::chrono::steady_clock::time_point> began_ TDOCK_GUARDED_BY(mu_);
  const char* what_ TDOCK_GUARDED_BY(mu_) = "";
  std::string whose_ TDOCK_GUARDED_BY(mu_);
};

// The threads of a server. Thread-safe.
class Heartbeats {
 public:
  // One more thread, which is watched for as long as the result is referenced.
  std::shared_ptr<Heartbeat> Add(std::string name) TDOCK_EXCLUDES(mu_);
  std::vector<std::shared_ptr<Heartbeat>> All() TDOCK_EXCLUDES(mu_);

 private:
  Mutex mu_;
  std::vector<std::weak_ptr<Heartbeat>> all_ TDOCK_GUARDED_BY(mu_);
};

// Something that a client's call would need.
struct Probe {
  std::string name = {};
  // Accesses it, and returns. `say` is called with the part that is accessed next.
  std::function<void(const std::function<void(absl::string_view)>& say)> touch = {};
};

struct WatchdogOptions {
  absl::Duration period = absl::Seconds(1);
  absl::Duration stall_after = absl::Seconds(5);
  // Called with a sentence when something has been stalled for `stall_after`, and when it continues; by a thread of the
  // watchdog.
  std::function<void(const std::string&)> report = {};
};

// One thread periodically touches what the probes name, in turn; another checks whether that thread or a heartbeat is
// stalled, so that no call here waits for what hangs. Thread-safe.
class Watchdog {
 public:
  // The heartbeats must outlive it.
  Watchdog(Heartbeats& heartbeats, std::vector<Probe> probes, WatchdogOptions options = {});
  // Waits for a probe that is in progress.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Has everything touched once more. Unavailable, naming what is stalled, if that takes longer than `within`; at once
  // if it has taken longer already.
  absl::Status Check(absl::Duration within) TDOCK_EXCLUDES(mu_);
  // What has been stalled for `stall_after` or longer, in sentences. Never waits.
  std::vector<std::string> CurrentStalls() TDOCK_EXCLUDES(mu_);
  // The number of stalls found so far.
  int64_t stalls() TDOCK_EXCLUDES(mu_);

 private:
  struct Incident {
    absl::Duration lasted;
    std::string text;
  };

  void TouchAll() TDOCK_EXCLUDES(mu_);
  void Look() TDOCK_EXCLUDES(mu_);
  // What has been stalled for `at_least`, by name.
  std::map<std::string, Incident> FindStalls(absl::Duration at_least);
  void Report(const std::string& text) const;

  Heartbeats& heartbeats_;
  const std::vector<Probe> probes_;
  const WatchdogOptions options_;
  // The heartbeat of the thread that touches.
  const std::shared_ptr<Heartbeat> touching_;

  Mutex mu_;
  CondVar changed_;
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  bool asked_ TDOCK_GUARDED_BY(mu_) = false;
  int64_t begun_ TDOCK_GUARDED_BY(mu_) = 0;  // rounds of probes
  int64_t ended_ TDOCK_GUARDED_BY(mu_) = 0;
  int64_t stalls_ TDOCK_GUARDED_BY(mu_) = 0;
  std::map<std::string, Incident> stalled_ TDOCK_GUARDED_BY(mu_);
  std::thread toucher_, looker_;
};

}  // namespace tdock
