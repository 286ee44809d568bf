// A dock in another process, on this machine or another.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/clock.h"
#include "tdock/dock.h"

namespace tdock {

class ForkGuard;

struct ConnectOptions {
  // "unix:/path" for a server on this machine: rows are views of its memory, and puts go through memory too. Or
  // "host:port", with an IPv6 address in brackets.
  std::string address = {};
  // What the server asks for, over TCP. The file is the one that the server was given.
  std::string token = {};
  std::string token_file = {};
  // Paths of PEM files, over TCP: who vouches for the server (then the connection is encrypted), and what the client
  // shows if the server asks for it.
  std::string tls_ca = {};
  std::string tls_certificate = {};
  std::string tls_key = {};
  // How the server and its log name this client; empty: host and process.
  std::string name = {};
  // How long a server is looked for, at first and when the connection was lost.
  absl::Duration reconnect_for = absl::Seconds(5);
  // How long the server may take to answer, beyond the time that a call may wait.
  absl::Duration answer_within = absl::Seconds(30);
  // Counts deadlines; null: Clock::Real(). Must outlive the dock.
  Clock* clock = nullptr;
  // For a program that forks; null: none. Must outlive the dock.
  ForkGuard* fork_guard = nullptr;
};

// Everything that a dock does, done by the server. Beside a dock's own errors, calls may fail with
//
//   Unavailable       no server answers, or it shuts down; the message says whether the call may have been carried out
//   DeadlineExceeded  the server is there and does not answer
//   Unauthenticated   the server asks for a token, or for another
//
// Leases, views and calls under way belong to a session. A connection that breaks is made again: nothing is lost, and
// what was asked before is answered once. A session ends when its client has been gone for a second: then its leases
// end, as if their time was over. Rows in shared memory must not be looked at after the session has ended, which
// happens to a client that lives only if the server ends its connections; its copies (Rows::ToBatch) stay.
absl::StatusOr<std::unique_ptr<Dock>> ConnectDock(const ConnectOptions& options);

}  // namespace tdock
