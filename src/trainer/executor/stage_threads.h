// Stages that work at the same time, each on a thread of its own.
//
//   a stage's thread:   take what is ready ──► work ──► put ──┐        waiting happens in the dock, with a deadline
//                            ▲                                │
//                            └────────────────────────────────┘
//
// Another thread watches them: it keeps the leases of those that work, says which stage hangs on which rows, and ends
// all of them when the run must end or one has failed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "tdock/dock.h"
#include "trainer/executor/timeline.h"

namespace tdock::trainer {

// "32 rows between 0 and 31".
std::string RowRange(const Rows& rows);
// The error of a stage that hangs.
absl::Status NoProgress(absl::string_view stage, absl::string_view rows, absl::Duration since);

// What a stage that works and those who watch it tell each other. Thread-safe, but for `more`.
struct StageSigns {
  std::function<absl::Status()> check_stop;  // Cancelled, or another error, once it must end
  std::function<void()> progress;            // it is getting on
  // Of a task that takes more: further units that are ready, without waiting; nothing: there are none now.
  std::function<absl::StatusOr<std::optional<Taken>>()> more = nullptr;
};

struct StageTask {
  std::string name;        // of its consumer
  int64_t group_size = 1;  // rows of a unit that it takes
  int64_t most_units = 0;  // of a take; 0: all that are there
  // Takes only once everything that it has not had is ready, in the order of the rows: what it takes together then does
  // not depend on timing.
  bool in_order = false;
  // While it works, it may take more: see StageSigns.
  bool takes_more = false;
  // After an error, it is called again on the same rows.
  bool restartable = false;
  // Puts, completes, drops or gives back everything that was taken; after an error, all of that is given back, and what
  // it has taken meanwhile and left in any case. The time of its thread is its own. Must not throw.
  std::function<absl::Status(const Taken& taken, const StageSigns& signs)> run = {};
};

class StageThreads {
 public:
  struct Options {
    Clock& clock;
    Timeline& timeline;
    // Until every row of the partition is done for each of them; otherwise until Stop(), or with `until_sealed` until
    // no more rows can come. Rows that are too old for another consumer, and are sent back, do come again.
    bool until_done = false;
    bool until_sealed = false;
    std::function<absl::Status()> check_stop = [] { return absl::OkStatus(); };
    // How long a stage may work without a sign of progress, and all of them wait for rows together.
    absl::Duration patience = absl::Minutes(30);
    int most_restarts = 3;  // of a stage, in a row
    std::function<void(const std::string&)> log = [](const std::string&) {};
    std::function<void()> at_start = [] {};  // called first by each thread
    // Called by Join() with the error if a stage does not end although it must. Nothing that the stage uses may be
    // destroyed while it goes on: a program has to end itself.
    std::function<void(const absl::Status&)> give_up = [](const absl::Status&) {};
    absl::Duration grace = absl::Seconds(30);  // before that
  };

  // Starts them. The dock, and what the tasks refer to, must outlive this.
  StageThreads(Dock& dock, std::string partition, std::vector<StageTask> tasks, Options options);
  ~StageThreads();
  StageThreads(const StageThreads&) = delete;
  StageThreads& operator=(const StageThreads&) = delete;

  // Waits until all have ended: by themselves, by Stop(), or because one has failed. The first error, which names the
  // stage and its rows: that of a stage; of check_stop; or DeadlineExceeded, with what the dock says, where nothing
  // gets on.
  absl::Status Join() TDOCK_EXCLUDES(mu_);
  // Asks them to end: those that wait at once, those that work when they next look.
  void Stop() TDOCK_EXCLUDES(mu_);
  // The error so far, without waiting.
  absl::Status status() const TDOCK_EXCLUDES(mu_);
  // How long none of them has worked.
  absl::Duration idle() const TDOCK_EXCLUDES(mu_);
  // What each of them does, a line each: for people.
  std::string Describe() const TDOCK_EXCLUDES(mu_);

 private:
  struct Lease {
    LeaseId id = kNoLease;
    absl::Duration lasts = {};
    absl::Time renewed = {};
  };
  struct Stage {
    StageTask task;
    std::thread thread = {};
    // Guarded by mu_.
    bool ended = false;
    bool works = false;
    std::string rows = {};           // that it works on
    std::vector<Lease> leases = {};  // of them
    absl::Time begun = {};           // working, or waiting
    absl::Time progress = {};        // its last sign of it
    int failures = 0;                // in a row
  };

  void Serve(Stage& stage) TDOCK_EXCLUDES(mu_);
  // Takes and works, until it must end or has failed.
  absl::Status Loop(Stage& stage) TDOCK_EXCLUDES(mu_);
  // What to work on next; nothing: there is none now.
  absl::StatusOr<std::optional<Taken>> Next(const Stage& stage) TDOCK_EXCLUDES(mu_);
  absl::Status Work(Stage& stage, const Taken& taken) TDOCK_EXCLUDES(mu_);
  // Notes what it works on from now on, too.
  void Begin(Stage& stage, const Taken& taken) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<std::optional<Taken>> More(Stage& stage) TDOCK_EXCLUDES(mu_);
  std::string RowsOf(const Stage& stage) const TDOCK_EXCLUDES(mu_);
  // Whether it was an error that the stage may go on after.
  bool MayGoOn(Stage& stage, const absl::Status& error) TDOCK_EXCLUDES(mu_);
  void Watch() TDOCK_EXCLUDES(mu_);
  void Renew(absl::Time now) TDOCK_EXCLUDES(mu_);
  absl::Status LookForHangs(absl::Time now) TDOCK_EXCLUDES(mu_);
  void Fail(const absl::Status& status) TDOCK_EXCLUDES(mu_);
  bool stopping() const TDOCK_EXCLUDES(mu_);
  // False if one has failed and not all end within that.
  bool WaitForAll(absl::Duration grace) TDOCK_EXCLUDES(mu_);
  bool AllEnded() const TDOCK_REQUIRES(mu_);
  absl::Duration IdleAt(absl::Time now) const TDOCK_REQUIRES(mu_);

  Dock& dock_;
  const std::string partition_;
  const Options options_;
  std::stop_source stop_;
  std::vector<std::unique_ptr<Stage>> stages_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  bool closing_ TDOCK_GUARDED_BY(mu_) = false;  // the watching thread ends
  absl::Time last_work_ TDOCK_GUARDED_BY(mu_);  // when a stage has last worked
  absl::Status status_ TDOCK_GUARDED_BY(mu_);
  std::thread watcher_;
};

}  // namespace tdock::trainer
