#include "runtime/launch/attempt.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

// How often supervising processes that someone may have stopped are made to go on.
constexpr absl::Duration kResumeEvery = absl::Seconds(1);
// How long the output of a rank that has ended may be kept open by someone else.
constexpr absl::Duration kOutputOutlives = absl::Seconds(1);
// How long killing may take, unless the kernel does not let a process die.
constexpr absl::Duration kKillTakes = absl::Seconds(10);

}  // namespace

void Screen::Say(absl::string_view line) { err.Add(absl::StrCat("tdock launch: ", line, "\n")); }

void Screen::Write() {
  out.Write();
  if (!out.status().ok() && !std::exchange(said_closed_, true)) {
    Say(absl::StrCat("standard output: ", out.status().message(), "; what the ranks write there is dropped"));
  }
  err.Write();
}

absl::StatusOr<std::unique_ptr<SignalQueue>> SignalQueue::Open() {
  sigset_t queued, before;
  sigemptyset(&queued);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&queued, signal);
  pthread_sigmask(SIG_BLOCK, &queued, &before);
  const int descriptor = signalfd(-1, &queued, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return absl::ErrnoToStatus(error, "cannot receive signals");
  }
  std::signal(SIGPIPE, SIG_IGN);
  return std::unique_ptr<SignalQueue>(new SignalQueue(descriptor, before));
}

SignalQueue::~SignalQueue() {
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalQueue::Next() {
  signalfd_siginfo info;
  if (read(descriptor_, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

absl::StatusOr<std::vector<RankEnd>> Attempt::Run(std::vector<RankProgram> programs) {
  TDOCK_RETURN_IF_ERROR(Start(std::move(programs)));
  while (!AllAreDrained()) {
    Wait();
    HandleSignals();
    screen_.Write();
    for (Rank& rank : ranks_) {
      CheckEnd(rank);
      ReadOutput(rank);
    }
    OnTime();
  }
  for (const absl::Time until = absl::Now() + kKillTakes; !KillLeftovers() && absl::Now() < until;) {
    poll(nullptr, 0, 1);
  }
  for (RankEnd& end : ends_) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.rank == end.rank; });
    rank->output->Finish();
    end.last_lines.assign(rank->output->last_lines().begin(), rank->output->last_lines().end());
  }
  return std::move(ends_);
}

absl::Status Attempt::Start(std::vector<RankProgram> programs) {
  for (RankProgram& program : programs) {
    auto process = SupervisedProcess::Start(program.options);
    TDOCK_RETURN_IF_ERROR(process.status());
    (*process)->CloseInput();
    ranks_.push_back({.rank = program.rank,
                      .output = std::move(program.output),
                      .process = *std::move(process),
                      .started = absl::Now()});
  }
  return absl::OkStatus();
}

bool Attempt::AllAreDrained() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.drained; });
}

// Until something can be done.
void Attempt::Wait() const {
  std::vector<pollfd> watched = {signals_.Watched(), screen_.out.Watched(), screen_.err.Watched()};
  absl::Time until = std::min({resume_at_, kill_at_, give_up_at_});
  for (const Rank& rank : ranks_) {
    if (rank.drained) continue;
    watched.push_back(rank.process->WatchedEnd());
    if (!screen_.out.full() && !screen_.err.full()) {
      for (const pollfd& output : rank.process->Watched(/*has_input=*/false)) watched.push_back(output);
    }
    if (rank.ended) until = std::min(until, *rank.ended + kOutputOutlives);
  }
  const absl::Duration left = std::clamp(until - absl::Now(), absl::Milliseconds(1), kResumeEvery);
  poll(watched.data(), watched.size(),
       static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
}

void Attempt::HandleSignals() {
  while (const std::optional<int> signal = signals_.Next()) {
    if (*signal == SIGUSR1 || *signal == SIGUSR2) {
      for (Rank& rank : ranks_) rank.process->Signal(*signal);
      continue;
    }
    const bool kills = stopped_by_ != 0 || failed_;
    stopped_by_ = *signal;
    if (kills) {
      KillAll();
    } else {
      screen_.Say(absl::StrCat("passes signal ", *signal, " (", strsignal(*signal),
                               ") on and waits until all ranks have ended; another one kills them"));
      Tell(*signal);
    }
  }
}

void Attempt::ReadOutput(Rank& rank) {
  // What is not read waits in the pipe, and then in the rank. Of one that has ended, all is read that is there.
  while (!rank.drained && !screen_.out.full() && !screen_.err.full()) {
    const absl::Time now = absl::Now();
    const absl::StatusOr<SupervisedProcess::Moved> moved = rank.process->Move("", now);
    if (moved.ok()) {
      rank.output->AddOut(moved->out, now);
      rank.output->AddErr(moved->err, now);
      if (!rank.ended) return;
    } else {
      const bool closed = !absl::IsDeadlineExceeded(moved.status());
      rank.drained = rank.ended && (closed || now >= *rank.ended + kOutputOutlives);
      return;
    }
  }
}

void Attempt::CheckEnd(Rank& rank) {
  if (rank.ended) return;
  const absl::StatusOr<ProcessEnd> end = rank.process->Wait(absl::InfinitePast());
  if (!end.ok()) return;
  rank.ended = absl::Now();
  ends_.push_back({.rank = rank.rank, .end = *end, .after = *rank.ended - rank.started, .told = rank.told});
  if (failed_ || !HasFailed(ends_.back())) return;
  failed_ = true;
  if (stopped_by_ != 0) return;  // the others are ending already, and may have something to save
  Tell(SIGTERM);
  kill_at_ = absl::Now() + grace_;
}

void Attempt::OnTime() {
  const absl::Time now = absl::Now();
  if (failed_) KillLeftovers();
  if (now >= kill_at_) KillAll();
  if (now >= give_up_at_) {
    for (Rank& rank : ranks_) rank.process->Kill();
  }
  if (now < resume_at_) return;
  for (Rank& rank : ranks_) rank.process->Resume();
  resume_at_ = now + kResumeEvery;
}

void Attempt::Tell(int signal) {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    rank.process->Signal(signal);
    rank.told.push_back(signal);
  }
}

void Attempt::KillAll() {
  kill_at_ = absl::InfiniteFuture();
  if (std::exchange(killed_, true)) return;
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    rank.process->StartKill();
    rank.told.push_back(SIGKILL);
  }
  give_up_at_ = absl::Now() + kKillTakes;
}

bool Attempt::KillLeftovers() const {
  std::vector<pid_t> kept = others_;
  for (const Rank& rank : ranks_) {
    if (!rank.ended) kept.push_back(rank.process->supervisor());
  }
  return !KillAdopted(kept);
}

}  // namespace tdock::runtime
