#include "runtime/launch/launcher.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/supervised_process.h"
#include "runtime/launch/attempt.h"
#include "runtime/launch/port.h"
#include "runtime/launch/rank_output.h"
#include "runtime/launch/verdict.h"

namespace tdock::runtime {
namespace {

constexpr int kMostRanks = 1 << 20;

absl::Status CheckOptions(const LaunchOptions& options) {
  std::vector<std::string> wrong;
  const auto check = [&](bool right, std::string problem) {
    if (!right) wrong.push_back(std::move(problem));
  };
  check(!options.program.empty(), "there is no program to run");
  check(options.ranks >= 1, absl::StrCat("--nproc is ", options.ranks, ", and must be at least 1"));
  check(options.nodes >= 1, absl::StrCat("--nnodes is ", options.nodes, ", and must be at least 1"));
  check(int64_t{options.ranks} * options.nodes <= kMostRanks, "--nproc times --nnodes is more than 1048576");
  check(options.node_rank >= 0 && options.node_rank < std::max(options.nodes, 1),
        absl::StrCat("--node-rank is ", options.node_rank, ", and must be from 0 to --nnodes - 1, which is ",
                     std::max(options.nodes, 1) - 1));
  check(!options.master_addr.empty(), "--master-addr is empty");
  check(options.master_port >= 0 && options.master_port <= 65535,
        absl::StrCat("--master-port is ", options.master_port, ", and must be from 0 to 65535"));
  check(options.nodes <= 1 || options.master_port != 0,
        "with several nodes, --master-port must name a free port of the first one");
  check(options.restarts >= 0, absl::StrCat("--restarts is ", options.restarts, ", and must be at least 0"));
  check(options.grace >= absl::ZeroDuration(), "--grace must not be negative");
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(wrong, "; "));
}

// That of this process, with these variables, and without those that other launchers set.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view given = *variable;
    const absl::string_view name = given.substr(0, given.find('='));
    const bool is_set = std::any_of(variables.begin(), variables.end(), [&](const std::string& other) {
      return absl::StartsWith(other, name) && other[name.size()] == '=';
    });
    if (!is_set && !absl::StartsWith(name, "TORCHELASTIC_")) environment.emplace_back(given);
  }
  return environment;
}

std::string SignalText(int signal) { return absl::StrCat("signal ", signal, " (", strsignal(signal), ")"); }

class Launcher {
 public:
  Launcher(const LaunchOptions& options, Env& env, std::unique_ptr<SignalQueue> signals)
      : options_(options), env_(env), signals_(std::move(signals)), others_(DescendantsOfThisProcess()) {}

  absl::StatusOr<LaunchEnd> Run() {
    const absl::StatusOr<LaunchEnd> end = RunAttempts();
    Drain();
    return end;
  }

 private:
  absl::StatusOr<LaunchEnd> RunAttempts() {
    absl::Duration longest;
    for (int restart = 0;; ++restart) {
      Attempt attempt(screen_, *signals_, others_, options_.grace);
      const absl::Time started = absl::Now();
      TDOCK_ASSIGN_OR_RETURN(std::vector<RankProgram> programs, Programs(restart));
      TDOCK_ASSIGN_OR_RETURN(const std::vector<RankEnd> ends, attempt.Run(std::move(programs)));
      longest = std::max(longest, absl::Now() - started);
      const RankEnd* const cause = CauseOf(ends);
      if (cause == nullptr) return EndWithout(ends, attempt.stopped_by());
      LaunchEnd end = {.exit_code = ExitCodeOf(cause->end), .message = FailureText(ends, *cause)};
      if (attempt.stopped_by() != 0) {
        absl::StrAppend(&end.message, "\nthe launcher was sent ", SignalText(attempt.stopped_by()));
        return end;
      }
      if (restart == options_.restarts) {
        if (restart > 0) AddRestarts(restart, longest, end.message);
        return end;
      }
      screen_.Say(absl::StrCat(end.message, "\nall ranks start again (", restart + 1, " of ", options_.restarts, ")"));
    }
  }

  // No rank has failed by itself.
  static LaunchEnd EndWithout(const std::vector<RankEnd>& ends, int stopped_by) {
    const auto is_killed = [](const RankEnd& end) {
      return std::find(end.told.begin(), end.told.end(), SIGKILL) != end.told.end();
    };
    const bool well = std::all_of(ends.begin(), ends.end(), [](const RankEnd& e) { return ExitCodeOf(e.end) == 0; });
    if (well) return {};
    return {
        .exit_code = 128 + stopped_by,
        .message = absl::StrCat("stopped by ", SignalText(stopped_by),
                                std::any_of(ends.begin(), ends.end(), is_killed) ? ", and what still ran killed" : "")};
  }

  static void AddRestarts(int restarts, absl::Duration longest, std::string& message) {
    constexpr absl::Duration kStart = absl::Minutes(1);
    absl::StrAppend(&message, "\nall ranks were started again ", restarts, restarts == 1 ? " time" : " times",
                    ", and failed each time");
    if (longest > kStart) return;
    absl::StrAppend(&message, "; no attempt lasted longer than ",
                    absl::StrFormat("%.1f s", absl::ToDoubleSeconds(longest)),
                    ", so that the run fails at its start, which further restarts would not change");
  }

  absl::StatusOr<std::vector<RankProgram>> Programs(int restart) {
    int port = options_.master_port;
    if (port == 0) {
      TDOCK_ASSIGN_OR_RETURN(port, FreePort());
    } else if (options_.node_rank == 0) {
      TDOCK_RETURN_IF_ERROR(Annotate(CheckPort(port), "--master-port"));
    }
    const int world_size = options_.ranks * options_.nodes;
    std::vector<RankProgram> programs;
    for (int local_rank = 0; local_rank < options_.ranks; ++local_rank) {
      const int rank = options_.node_rank * options_.ranks + local_rank;
      const std::vector<std::string> variables = {
          absl::StrCat("RANK=", rank),
          absl::StrCat("WORLD_SIZE=", world_size),
          absl::StrCat("LOCAL_RANK=", local_rank),
          absl::StrCat("LOCAL_WORLD_SIZE=", options_.ranks),
          absl::StrCat("GROUP_RANK=", options_.node_rank),
          absl::StrCat("MASTER_ADDR=", options_.master_addr),
          absl::StrCat("MASTER_PORT=", port),
          absl::StrCat("TDOCK_RESTART_COUNT=", restart),
      };
      TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> log, OpenLog(rank, restart));
      const std::string prefix = world_size > 1 ? absl::StrCat("[rank ", rank, "] ") : "";
      programs.push_back(
          {.rank = rank,
           .options = {.arguments = options_.program, .environment = EnvironmentWith(variables), .core_dumps = true},
           .output = std::make_unique<RankOutput>(prefix, screen_.out, screen_.err, std::move(log))});
    }
    return programs;
  }

  // Null if there is none to be.
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenLog(int rank, int restart) {
    if (options_.log_dir.empty()) return nullptr;
    TDOCK_RETURN_IF_ERROR(env_.CreateFolders(options_.log_dir));
    const std::string path = JoinPath(options_.log_dir, absl::StrCat("rank-", rank, ".log"));
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> log, env_.OpenForWriting(path, WriteMode::kAppend));
    const std::string now = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::LocalTimeZone());
    TDOCK_RETURN_IF_ERROR(log->Append(absl::StrCat("--- rank ", rank, " starts at ", now,
                                                   restart > 0 ? absl::StrCat(", restart ", restart) : "", "\n")));
    return log;
  }

  // Waits until what is left to write is written, or a signal arrives.
  void Drain() {
    screen_.Write();
    while ((!screen_.out.empty() || !screen_.err.empty()) && !signals_->Next()) {
      std::vector<pollfd> watched = {signals_->Watched(), screen_.out.Watched(), screen_.err.Watched()};
      poll(watched.data(), watched.size(), -1);
      screen_.Write();
    }
  }

  const LaunchOptions& options_;
  Env& env_;
  const std::unique_ptr<SignalQueue> signals_;
  const std::vector<pid_t> others_;
  Screen screen_;
};

}  // namespace

absl::StatusOr<LaunchEnd> Launch(const LaunchOptions& options, Env& env) {
  TDOCK_RETURN_IF_ERROR(CheckOptions(options));
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<SignalQueue> signals, SignalQueue::Open());
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return absl::ErrnoToStatus(errno, "cannot adopt orphans");
  return Launcher(options, env, std::move(signals)).Run();
}

}  // namespace tdock::runtime
