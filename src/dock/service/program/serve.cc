#include "dock/service/program/serve.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "dock/service/console/status_server.h"
#include "dock/service/program/owned_folder.h"
#include "tdock/dock_server.h"

namespace tdock::program {
namespace {

// Each connection and each segment of memory needs a descriptor.
void AllowManyDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// SIGTERM and SIGINT stay pending until they are waited for, in all threads that are started from now on.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

console::Readings ReadingsOf(DockServer& server, int64_t memory_limit) {
  return [&server, memory_limit]() -> std::vector<console::Reading> {
    const DockServerCounts counts = server.counts();
    const auto gauge = [](std::string name, std::string help, int64_t value) {
      return console::Reading{.name = std::move(name), .help = std::move(help), .value = static_cast<double>(value)};
    };
    console::Reading calls = gauge("tdock_calls_total", "Calls since the server started", counts.calls);
    calls.counter = true;
    console::Reading failures =
        gauge("tdock_accept_failures_total",
              "Attempts to accept a connection that failed for lack of descriptors or memory", counts.accept_failures);
    failures.counter = true;
    return {gauge("tdock_sessions", "Clients", counts.sessions),
            std::move(calls),
            std::move(failures),
            gauge("tdock_calls_under_way", "Calls in progress, waiting ones included", counts.calls_under_way),
            gauge("tdock_session_leases", "Leases held by clients", counts.leases),
            gauge("tdock_pinned_answers", "Responses still mapped by clients", counts.pinned_answers),
            gauge("tdock_memory_bytes", "Bytes occupied by cells: what --memory limits", counts.memory_bytes),
            gauge("tdock_memory_limit_bytes", "The value of --memory; 0: no limit", memory_limit),
            gauge("tdock_arena_bytes", "Bytes of shared memory, in use and cached", counts.arena_bytes)};
  };
}

// A server that does not answer within this time is unhealthy; /health must answer within two seconds.
constexpr absl::Duration kAnswers = absl::Milliseconds(1500);

console::Liveness LivenessOf(DockServer& server) {
  return {.check = [&server] { return server.CheckHealth(kAnswers); },
          .current_stalls = [&server] { return server.CurrentStalls(); },
          .stalls = [&server] { return server.stalls(); }};
}

// A log of lines, shared by threads. Thread-safe.
class Log {
 public:
  explicit Log(std::ostream& err) : err_(err) {}
  void Write(absl::string_view line) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    err_ << line << std::endl;
  }

 private:
  Mutex mu_;
  std::ostream& err_ TDOCK_GUARDED_BY(mu_);
};

// Exits the process if shutting down takes too long. Thread-safe.
class EndInTime {
 public:
  explicit EndInTime(Log& log) : log_(log) {}
  ~EndInTime() {
    {
      MutexLock lock(mu_);
      ended_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Call it once.
  void Within(absl::Duration time) {
    thread_ = std::thread([this, time] { Wait(time); });
  }
  // Records what is being shut down; `ask`, which may be null, returns what is stalled, without waiting.
  void Note(std::string what, std::function<std::vector<std::string>()> ask) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    what_ = std::move(what);
    ask_ = std::move(ask);
  }

 private:
  void Wait(absl::Duration time) TDOCK_EXCLUDES(mu_) {
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(time, absl::Hours(10000)));
    MutexLock lock(mu_);
    while (!ended_ && std::chrono::steady_clock::now() < until) changed_.WaitUntil(mu_, until);
    if (ended_) return;
    // If the log cannot be written because it is not read, do without it.
    std::signal(SIGALRM, SIG_DFL);
    const itimerval soon{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 300'000}};
    setitimer(ITIMER_REAL, &soon, nullptr);
    std::string text = absl::StrCat("not closed within ", absl::FormatDuration(time), ", because ", what_, " hangs");
    if (ask_ != nullptr) {
      for (const std::string& stall : ask_()) absl::StrAppend(&text, "; ", stall);
    }
    log_.Write(absl::StrCat(text, ". Exiting anyway"));
    _Exit(1);
  }

  Log& log_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  std::string what_ TDOCK_GUARDED_BY(mu_);
  std::function<std::vector<std::string>()> ask_ TDOCK_GUARDED_BY(mu_);
  std::thread thread_;
};

int AwaitSignal(const sigset_t& signals) {
  int signal = 0;
  while (sigwait(&signals, &signal) != 0) {
  }
  return signal;
}

}  // namespace

absl::Status Serve(const console::ServeOptions& options, std::ostream& out, std::ostream& err,
                   const StartServer& start) {
  AllowManyDescriptors();
  const sigset_t signals = BlockSignals();
  const OwnedFolder owned(options);
  Log log(err);
  // Outlives everything that may hang during shutdown.
  EndInTime end(log);
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<DockServer> server,
                         start({.listen = options.listen,
                                .socket = options.socket,
                                .memory_bytes = static_cast<uint64_t>(options.memory_bytes),
                                .token_file = options.token_file,
                                .tls_certificate = options.tls_cert,
                                .tls_key = options.tls_key,
                                .tls_ca = options.tls_ca,
                                .insecure = options.insecure,
                                .session_grace = options.session_grace,
                                .on_stall = [&log](const std::string& text) { log.Write(text); }}));
  std::unique_ptr<console::StatusServer> status;
  if (!options.metrics.empty()) {
    console::StatusServerOptions http{.address = options.metrics,
                                      .log = [&log](const std::string& text) { log.Write(text); }};
    http.readings = ReadingsOf(*server, options.memory_bytes);
    http.liveness = LivenessOf(*server);
    TDOCK_ASSIGN_OR_RETURN(status, console::StatusServer::Start(server->dock(), std::move(http)));
  }
  for (const std::string& warning : server->warnings()) log.Write(absl::StrCat("warning: ", warning));
  if (!options.listen.empty()) out << "tcp " << server->tcp_address() << '\n';
  if (!options.socket.empty()) out << "unix:" << options.socket << '\n';
  if (status != nullptr) {
    out << "status http://" << options.metrics.substr(0, options.metrics.rfind(':')) << ':' << status->port() << "/\n";
  }
  out << "ready" << std::endl;

  const int signal = AwaitSignal(signals);
  std::thread([signals] {
    AwaitSignal(signals);
    _Exit(1);
  }).detach();
  const auto stalls = [&server] { return server->CurrentStalls(); };
  end.Note("the status page", stalls);
  end.Within(options.drain + kHangs);
  // The program that started the server waits for its end, and needs no message.
  if (owned.none()) {
    log.Write(absl::StrCat("signal ", signal, ": ending calls that wait; closing within ",
                           absl::FormatDuration(options.drain), "; a second signal closes at once"));
  }
  status.reset();
  end.Note("a call or a connection", stalls);
  server->Shutdown(options.drain);
  // The server is gone and cannot be asked.
  end.Note("the dock", nullptr);
  return absl::OkStatus();
}

}  // namespace tdock::program
