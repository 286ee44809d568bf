// The ranks of a run on this machine, from their start to the end of the last one.
#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/supervised_process.h"
#include "runtime/launch/rank_output.h"
#include "runtime/launch/verdict.h"

namespace tdock::runtime {

// The standard streams of this process.
class Screen {
 public:
  PatientOutput out{1}, err{2};

  // A line of the launcher.
  void Say(absl::string_view line);
  // Writes what can be written, and says once if nobody can read it.
  void Write();

 private:
  bool said_closed_ = false;
};

// While one lives, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 wait here instead of having their effect, and SIGPIPE has none.
// For a process without other threads. Not thread-safe.
class SignalQueue {
 public:
  static absl::StatusOr<std::unique_ptr<SignalQueue>> Open();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // For poll().
  pollfd Watched() const { return {.fd = descriptor_, .events = POLLIN, .revents = 0}; }
  // The next one, if any has arrived.
  std::optional<int> Next();

 private:
  SignalQueue(int descriptor, const sigset_t& before) : descriptor_(descriptor), before_(before) {}

  const int descriptor_;
  const sigset_t before_;
};

struct RankProgram {
  int rank = 0;
  ProcessOptions options = {};
  std::unique_ptr<RankOutput> output = {};
};

// Not thread-safe. When it is destroyed, nothing of the ranks is left.
class Attempt {
 public:
  // This process must adopt orphans (PR_SET_CHILD_SUBREAPER); of its descendants, `others` have nothing to do with the
  // ranks. After a failure, the other ranks have `grace` to end. `screen` and `signals` must outlive this.
  Attempt(Screen& screen, SignalQueue& signals, std::vector<pid_t> others, absl::Duration grace)
      : screen_(screen), signals_(signals), others_(std::move(others)), grace_(grace) {}

  // Starts the ranks, and waits until all have ended, however long that takes. Returns how they did, in that order.
  //
  // After the first one that fails the others are sent SIGTERM, and killed after the grace. SIGINT and SIGTERM of this
  // process are passed on, once; then, or after a failure, the next one kills the ranks. SIGUSR1 and SIGUSR2 are passed
  // on. Errors are those of SupervisedProcess::Start().
  absl::StatusOr<std::vector<RankEnd>> Run(std::vector<RankProgram> programs);

  // The signal by which it was stopped; 0: none.
  int stopped_by() const { return stopped_by_; }

 private:
  struct Rank {
    int rank = 0;
    std::unique_ptr<RankOutput> output = {};
    std::unique_ptr<SupervisedProcess> process = {};
    absl::Time started = {};
    std::vector<int> told = {};
    std::optional<absl::Time> ended = {};
    bool drained = false;  // nothing of its output is left
  };

  absl::Status Start(std::vector<RankProgram> programs);
  bool AllAreDrained() const;
  void Wait() const;
  void HandleSignals();
  void ReadOutput(Rank& rank);
  void CheckEnd(Rank& rank);
  void OnTime();
  // To all that have not ended, to end them.
  void Tell(int signal);
  void KillAll();
  // What a supervising process has left that was killed. True once nothing is left.
  bool KillLeftovers() const;

  Screen& screen_;
  SignalQueue& signals_;
  const std::vector<pid_t> others_;
  const absl::Duration grace_;
  std::vector<Rank> ranks_;
  std::vector<RankEnd> ends_;
  int stopped_by_ = 0;
  bool failed_ = false, killed_ = false;
  absl::Time kill_at_ = absl::InfiniteFuture();     // what still runs
  absl::Time give_up_at_ = absl::InfiniteFuture();  // on supervising processes that do not report
  absl::Time resume_at_ = absl::InfinitePast();
};

}  // namespace tdock::runtime
