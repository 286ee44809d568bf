// `tdock dock serve`: a dock server until a signal ends it.
#pragma once

#include <functional>
#include <memory>
#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dock/service/console/serve_options.h"
#include "tdock/dock_server.h"

namespace tdock::program {

using StartServer = std::function<absl::StatusOr<std::unique_ptr<DockServer>>(const DockServerOptions&)>;

// What has not ended this long after the drain time is considered hung.
inline constexpr absl::Duration kHangs = absl::Milliseconds(1500);

// Writes one line for each address that it serves, and "ready" once clients can connect:
//
//   tcp 127.0.0.1:7077
//   unix:/run/user/1000/tdock.sock
//   status http://127.0.0.1:9077/
//   ready
//
// Returns after SIGTERM or SIGINT, when waiting calls have been told and the others have ended, or the drain time is
// over; a second signal exits the process at once. If something hangs, the process exits kHangs later with exit code 1,
// and writes to `err` what is stalled. Call it before other threads are started, because it blocks signals.
absl::Status Serve(const console::ServeOptions& options, std::ostream& out, std::ostream& err,
                   const StartServer& start = DockServer::Start);

}  // namespace tdock::program
