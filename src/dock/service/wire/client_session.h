// A client's session: numbers its calls, finds the server again when a connection breaks, and sees to it that a call
// that is sent twice happens once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "dock/service/wire/client_transport.h"

namespace tdock {

struct ClientSessionOptions {
  // For messages: where the server is.
  std::string address = {};
  // What the client calls itself.
  std::string client = {};
  // How long a server is looked for before a call fails with Unavailable.
  absl::Duration reconnect_for = absl::Seconds(5);
  // How long the server may take to answer, beyond what the call itself may wait.
  absl::Duration answer_within = absl::Seconds(30);
};

// Thread-safe.
class ClientSession : public std::enable_shared_from_this<ClientSession> {
 public:
  ClientSession(std::unique_ptr<ClientTransport> transport, const ClientSessionOptions& options)
      : options_(options), transport_(std::move(transport)) {}

  // Looks for the server. Unavailable if there is none.
  absl::Status Connect() { return Reconnect(std::nullopt); }

  struct Wait {
    // How long the call may wait at the server.
    absl::Duration wait = absl::ZeroDuration();
    std::stop_token cancel = {};
    // It may happen twice without harm: what came of the first is gone with the session.
    bool repeatable = false;
  };
  // The answer, or the server's error, or Unavailable: the server is gone, and the message says whether the call may
  // have had an effect.
  absl::StatusOr<ClientAnswer> Call(v1::Request request, const Batch& batch, const Wait& wait);

  // Tells the server that nobody looks any more at the views that a call returned.
  void Unpin(uint64_t call) TDOCK_EXCLUDES(mu_);

 private:
  // Returns when the connection stands: nothing to do if it is not the one that broke. Fails after reconnect_for; those
  // who come while one looks for the server share what it finds.
  absl::Status Reconnect(std::optional<uint64_t> broken) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<v1::Welcome> Hello(const std::string& session);
  void End(uint64_t call) TDOCK_EXCLUDES(mu_);
  // Which answers have arrived.
  void Acknowledge(v1::Request& request) TDOCK_REQUIRES(mu_);

  const ClientSessionOptions options_;
  const std::unique_ptr<ClientTransport> transport_;

  Mutex mu_;
  CondVar changed_;
  bool connecting_ TDOCK_GUARDED_BY(mu_) = false;
  // How often nobody was found, and what was said the last time.
  uint64_t failures_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::Status failure_ TDOCK_GUARDED_BY(mu_);
  // Counts connections that were made: names the one that broke.
  uint64_t connection_ TDOCK_GUARDED_BY(mu_) = 0;
  std::string session_ TDOCK_GUARDED_BY(mu_);
  uint64_t next_call_ TDOCK_GUARDED_BY(mu_) = 1;
  absl::btree_set<uint64_t> outstanding_ TDOCK_GUARDED_BY(mu_);
  // Calls that have ended since the last call, while others that began before are outstanding.
  std::vector<uint64_t> answered_ TDOCK_GUARDED_BY(mu_);
  // Views that are gone since the last call. The server is told at once; but what is told may be overtaken by the next
  // call, which therefore says it again.
  std::vector<uint64_t> unpinned_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
