// A client's session: numbers its calls, reconnects when a connection breaks, and makes sure that a call that is sent
// twice is carried out once.
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
#include "core/base/process_generation.h"
#include "dock/service/wire/client_transport.h"

namespace tdock::service {

struct ClientSessionOptions {
  // For messages: the address of the server.
  std::string address = {};
  // The client's own name.
  std::string client = {};
  // How long to try to reach the server before a call fails with Unavailable.
  absl::Duration reconnect_for = absl::Seconds(5);
  // How long the server may take to answer, on top of the time that the call itself may wait.
  absl::Duration answer_within = absl::Seconds(30);
};

// Thread-safe.
class ClientSession : public std::enable_shared_from_this<ClientSession> {
 public:
  ClientSession(std::unique_ptr<ClientTransport> transport, const ClientSessionOptions& options)
      : options_(options), transport_(std::move(transport)), generation_(ProcessGeneration()) {}

  // Connects to the server. Unavailable if there is none.
  absl::Status Connect() { return Reconnect(std::nullopt); }

  struct Wait {
    // How long the call may wait at the server.
    absl::Duration wait = absl::ZeroDuration();
    std::stop_token cancel = {};
    // Carrying it out twice is harmless: the effects of the first attempt are gone with the session.
    bool repeatable = false;
  };
  // The response, or the server's error, or FailedPrecondition in a child of the process that connected, or
  // Unavailable: the server is gone, and the message says whether the call may have had an effect.
  absl::StatusOr<ClientAnswer> Call(message::Request request, const Batch& batch, const Wait& wait);

  // Tells the server that the views returned by a call are no longer used.
  void Unpin(uint64_t call) TDOCK_EXCLUDES(mu_);

 private:
  // Returns once there is a connection; does nothing if the current one is not the one that broke. Fails after
  // reconnect_for; callers that arrive while one reconnects share its result.
  absl::Status Reconnect(std::optional<uint64_t> broken) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<message::Welcome> Hello(const std::string& session);
  void End(uint64_t call) TDOCK_EXCLUDES(mu_);
  // Which responses have arrived.
  void Acknowledge(message::Request& request) TDOCK_REQUIRES(mu_);

  const ClientSessionOptions options_;
  const std::unique_ptr<ClientTransport> transport_;
  // A child has the same connections, whose server knows one client: it must not use them.
  const uint64_t generation_;

  Mutex mu_;
  CondVar changed_;
  bool connecting_ TDOCK_GUARDED_BY(mu_) = false;
  // The number of failed attempts to reconnect, and the last error.
  uint64_t failures_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::Status failure_ TDOCK_GUARDED_BY(mu_);
  // Counts the connections made, to identify the one that broke.
  uint64_t connection_ TDOCK_GUARDED_BY(mu_) = 0;
  std::string session_ TDOCK_GUARDED_BY(mu_);
  uint64_t next_call_ TDOCK_GUARDED_BY(mu_) = 1;
  absl::btree_set<uint64_t> outstanding_ TDOCK_GUARDED_BY(mu_);
  // Calls that have ended since the last call, while earlier ones are outstanding.
  std::vector<uint64_t> answered_ TDOCK_GUARDED_BY(mu_);
  // Views released since the last call. The server is told at once, but the next call may overtake that message, so it
  // repeats it.
  std::vector<uint64_t> unpinned_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::service
