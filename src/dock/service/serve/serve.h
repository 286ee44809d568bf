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

namespace tdock::serve {

using StartServer = std::function<absl::StatusOr<std::unique_ptr<DockServer>>(const DockServerOptions&)>;

// What has not ended so long after the time to drain hangs.
inline constexpr absl::Duration kHangs = absl::Milliseconds(1500);

// Writes one line for each thing that it serves, and "ready", when clients can connect:
//
//   tcp 127.0.0.1:7077
//   unix:/run/user/1000/tdock.sock
//   status http://127.0.0.1:9077/
//   ready
//
// Returns after SIGTERM or SIGINT, when calls that wait have been told and others have ended, or when the time to drain
// is over; a second signal ends the process at once. So does something that hangs, after kHangs more and with exit code
// 1. What stands still meanwhile is written to `err`. To be called before other threads are started, because signals
// are blocked.
absl::Status Serve(const console::ServeOptions& options, std::ostream& out, std::ostream& err,
                   const StartServer& start = DockServer::Start);

}  // namespace tdock::serve
