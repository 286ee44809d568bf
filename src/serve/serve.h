// `tdock dock serve`: a dock server until a signal ends it.
#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "console/serve_options.h"

namespace tdock::serve {

// Writes one line for each thing that it serves, and "ready", when clients can connect:
//
//   tcp 127.0.0.1:7077
//   unix:/run/user/1000/tdock.sock
//   status http://127.0.0.1:9077/
//   ready
//
// Returns after SIGTERM or SIGINT, when calls that wait have been told and others have ended, or when the time to drain
// is over; a second signal ends it at once. To be called before other threads are started, because signals are blocked.
absl::Status Serve(const console::ServeOptions& options, std::ostream& out, std::ostream& err);

}  // namespace tdock::serve
