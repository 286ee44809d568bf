// Environments behind an HTTP server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"

namespace tdock::environment {

struct HttpEnvironmentOptions {
  std::string url;
  std::string token_env = {};  // the environment variable that has the bearer token; empty: none is sent
  std::string ca_file = {};    // certificates (PEM) that are trusted; empty: the system's
  bool verify = true;          // check the server's certificate
  EnvironmentSetup setup = {};
  int64_t connections = 1;                           // requests at a time
  absl::Duration timeout = absl::Seconds(30);        // for each event, with all that is tried for it
  absl::Duration start_timeout = absl::Seconds(60);  // for the hello
  int64_t max_failures = 5;                          // in a row, without an event
  Clock& clock = Clock::Real();
};

// A POST for each message of the protocol, from a thread for each connection. The server sees numbers of episodes that
// no other run has, so that several may use it. A request is repeated, after a wait, only if the server has not carried
// it out: where it answers 429 or 503, and for the beginning of an episode also where the connection fails. Anything
// else that is no answer in time is an error of the episode; the server is then told that it has ended. Wait() fails
// for good after more than max_failures such errors in a row without an event between them.
//
// InvalidArgument for a URL that is not valid, a token that is not there, or a file without certificates.
absl::StatusOr<std::unique_ptr<Environment>> MakeHttpEnvironment(const HttpEnvironmentOptions& options);

}  // namespace tdock::environment
