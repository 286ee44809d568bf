// A dock in another process, on this machine or another.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/clock.h"
#include "tdock/dock.h"
#include "tdock/fields.h"

namespace tdock {

struct ConnectOptions {
  // "unix:/path" for a server on this machine: rows are views of its memory, and puts go through shared memory too. Or
  // "host:port", with an IPv6 address in brackets.
  std::string address = {};
  // The server's token, over TCP: the text itself, or the file that the server was given.
  std::string token = {};
  std::string token_file = {};
  // Paths of PEM files, over TCP: the CA that signed the server's certificate (then the connection is encrypted), and
  // the client's certificate and key, if the server asks for them.
  std::string tls_ca = {};
  std::string tls_certificate = {};
  std::string tls_key = {};
  // The name of this client in the server's log and status; empty: host and process id.
  std::string name = {};
  // How long to try to connect, at first and after the connection was lost.
  absl::Duration reconnect_for = absl::Seconds(5);
  // How long the server may take to answer, on top of the time that the call itself may wait.
  absl::Duration answer_within = absl::Seconds(30);
  // The clock for deadlines; null: Clock::Real(). Must outlive the dock.
  Clock* clock = nullptr;

  TDOCK_FIELDS(ConnectOptions, address, token, token_file, tls_ca, tls_certificate, tls_key, name, reconnect_for,
               answer_within, clock)
};

// A dock whose calls are executed by the server. Besides a dock's own errors, calls may fail with
//
//   Unavailable       no server answers, or it shuts down; the message says whether the call may have been carried out
//   DeadlineExceeded  the server is reachable but does not answer
//   Unauthenticated   the server requires a token, or a different one
//
// Leases, views and calls under way belong to a session. A broken connection is made again: nothing is lost, and each
// call is carried out and answered once. A session ends when its client has been gone for a second: then its leases
// expire. Rows in shared memory must not be read after the session has ended, which happens to a live client only if
// the server ends its connections; copies (Rows::ToBatch) stay valid.
absl::StatusOr<std::unique_ptr<Dock>> ConnectDock(const ConnectOptions& options);

}  // namespace tdock
