#include "serve/serve.h"

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "console/status_server.h"
#include "serve/owned_folder.h"
#include "tdock/dock_server.h"

namespace tdock::serve {
namespace {

// Each connection and each segment of memory needs a descriptor.
void AllowManyDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// SIGTERM and SIGINT wait to be asked for, in all threads that are started from now on.
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
    console::Reading calls = gauge("tdock_calls_total", "Calls since the start", counts.calls);
    calls.counter = true;
    return {gauge("tdock_sessions", "Clients", counts.sessions),
            std::move(calls),
            gauge("tdock_calls_under_way", "Calls that wait or are being done", counts.calls_under_way),
            gauge("tdock_session_leases", "Leases that clients may hold", counts.leases),
            gauge("tdock_pinned_answers", "Answers whose views clients may look at", counts.pinned_answers),
            gauge("tdock_memory_bytes", "Bytes that cells occupy: what --memory limits", counts.memory_bytes),
            gauge("tdock_memory_limit_bytes", "What --memory says; 0: no limit", memory_limit),
            gauge("tdock_arena_bytes", "Bytes that cells and the free places between them have", counts.arena_bytes)};
  };
}

int AwaitSignal(const sigset_t& signals) {
  int signal = 0;
  while (sigwait(&signals, &signal) != 0) {
  }
  return signal;
}

}  // namespace

absl::Status Serve(const console::ServeOptions& options, std::ostream& out, std::ostream& err) {
  AllowManyDescriptors();
  const sigset_t signals = BlockSignals();
  const OwnedFolder owned(options);
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<DockServer> server,
                         DockServer::Start({.listen = options.listen,
                                            .socket = options.socket,
                                            .memory_bytes = static_cast<uint64_t>(options.memory_bytes),
                                            .token_file = options.token_file,
                                            .tls_certificate = options.tls_cert,
                                            .tls_key = options.tls_key,
                                            .tls_ca = options.tls_ca,
                                            .insecure = options.insecure,
                                            .session_grace = options.session_grace}));
  std::unique_ptr<console::StatusServer> status;
  if (!options.metrics.empty()) {
    console::StatusServerOptions http{.address = options.metrics};
    http.readings = ReadingsOf(*server, options.memory_bytes);
    TDOCK_ASSIGN_OR_RETURN(status, console::StatusServer::Start(server->dock(), std::move(http)));
  }
  for (const std::string& warning : server->warnings()) err << "warning: " << warning << std::endl;
  if (!options.listen.empty()) out << "tcp " << server->tcp_address() << '\n';
  if (!options.socket.empty()) out << "unix:" << options.socket << '\n';
  if (status != nullptr) {
    out << "status http://" << options.metrics.substr(0, options.metrics.rfind(':')) << ':' << status->port() << "/\n";
  }
  out << "ready" << std::endl;

  const int signal = AwaitSignal(signals);
  // Whoever asked for it waits for it.
  if (owned.none()) {
    err << "signal " << signal << ": ending calls that wait, and closing within " << absl::FormatDuration(options.drain)
        << "; a second signal closes at once" << std::endl;
  }
  std::thread([signals] {
    AwaitSignal(signals);
    _Exit(1);
  }).detach();
  status.reset();
  server->Shutdown(options.drain);
  return absl::OkStatus();
}

}  // namespace tdock::serve
