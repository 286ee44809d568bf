// The servers: what state each is in, and what is done about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "core/base/retry.h"
#include "model/decoder/decoder.h"
#include "trainer/rollout_servers/server_client.h"
#include "trainer/rollout_servers/server_engine.h"
#include "trainer/rollout_servers/server_list.h"
#include "trainer/rollout_servers/tasks.h"
#include "trainer/rollout_servers/weight_sender.h"

namespace tdock::trainer {

// Set by one thread, looked at by others.
using Flag = std::shared_ptr<std::atomic<bool>>;

// Thread-safe.
class ServerPool {
 public:
  struct Server;

  // A place at a server for one request.
  struct Lease {
    std::shared_ptr<Server> server;
    ServerClient client;
    ServerCard card;
    int64_t version = 0;  // of the weights that the server has
    int64_t answers = 0;
    Flag cut;  // set when the server is found to be gone
  };

  // `tasks` must end before the pool does. `on_change` is called without a lock when a server may have become ready,
  // or has failed.
  ServerPool(ServerList list, const ServerEngineOptions& options, Env& env, Clock& clock, Tasks& tasks,
             std::function<void()> on_change);
  ~ServerPool();

  // The weights that servers are to have; asks those that were up for their cards. Nothing may be being sent.
  void SetTarget(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool keep_cache) TDOCK_EXCLUDES(mu_);
  // Asks for cards that are due and looks at the list again; with `sends`, sends weights to those that lack them.
  // Quick.
  void Tend(bool sends) TDOCK_EXCLUDES(mu_);
  // Ends what it has begun, as soon as it can.
  void Stop() { *stopped_ = true; }
  // Ends what is being sent, as soon as it can.
  void StopSending() TDOCK_EXCLUDES(mu_);

  // Whether each server that was up when the target was set has its weights, or has failed to take them.
  bool settled() const TDOCK_EXCLUDES(mu_);
  bool sending() const TDOCK_EXCLUDES(mu_);
  int64_t ready() const TDOCK_EXCLUDES(mu_);
  // With the trouble of each: Unavailable when none has been ready for the timeout, FailedPrecondition when all refuse
  // to be used.
  absl::Status Usable() const TDOCK_EXCLUDES(mu_);
  // The trouble of each server.
  std::string Troubles() const TDOCK_EXCLUDES(mu_);

  // The ready server with the fewest answers, if one has room for the request; not `avoided` where another is ready,
  // even if that has no room now.
  std::optional<Lease> Take(const WireRequest& request, const Server* avoided) TDOCK_EXCLUDES(mu_);
  // What became of the request.
  void Release(const Lease& lease, const Sent& sent) TDOCK_EXCLUDES(mu_);
  // Replaces the server's numbers of its weights by our versions. Aborted if the answers are of other weights than were
  // sent to it; then it gets them again.
  absl::Status Stamp(const Lease& lease, WireReply& reply) TDOCK_EXCLUDES(mu_);

  // What has been sent since the last call.
  struct Figures {
    absl::Duration sending = absl::ZeroDuration();
    uint64_t bytes = 0;
  };
  Figures TakeFigures() TDOCK_EXCLUDES(mu_);

 private:
  enum class State { kDown, kBehind, kReady };

  void Refresh(absl::Time now) TDOCK_REQUIRES(mu_);
  void Probe(const std::shared_ptr<Server>& server) TDOCK_REQUIRES(mu_);
  void TakeCard(Server& server, const ServerCard& card, absl::Time now) TDOCK_REQUIRES(mu_);
  void TakeProbe(Server& server, ServerClient::Described described) TDOCK_EXCLUDES(mu_);
  void GoDown(Server& server, const Sent& sent, absl::Time probe_at) TDOCK_REQUIRES(mu_);
  bool MaySend(absl::Time now) const TDOCK_REQUIRES(mu_);
  void StartSending(absl::Time now) TDOCK_REQUIRES(mu_);
  void SendTo(const std::vector<std::shared_ptr<Server>>& servers, const std::vector<Recipient>& recipients)
      TDOCK_EXCLUDES(mu_);
  Deliveries Deliver(const std::vector<Recipient>& recipients, const model::Decoder& decoder, int64_t version,
                     bool keep_cache, const Flag& stop);
  void TakeDelivery(Server& server, const Recipient& recipient, const Delivery& delivery, absl::Time now)
      TDOCK_REQUIRES(mu_);
  // True if each answer must be of weights that we have sent.
  bool ChecksVersions(const ServerCard& card) const {
    return card.answers_say_weights && options_.LabelsWeights(card.kind);
  }
  std::string TroublesLocked() const TDOCK_REQUIRES(mu_);

  const ServerEngineOptions options_;
  Env& env_;
  Clock& clock_;
  Tasks& tasks_;
  const std::function<void()> on_change_;
  const Flag stopped_;
  WeightFolders folders_;  // of the one who sends

  mutable Mutex mu_;
  ServerList list_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Server>> servers_ TDOCK_GUARDED_BY(mu_);
  std::shared_ptr<const model::Decoder> decoder_ TDOCK_GUARDED_BY(mu_);
  std::optional<int64_t> version_ TDOCK_GUARDED_BY(mu_);
  bool keep_cache_ TDOCK_GUARDED_BY(mu_) = false;
  absl::Time target_at_ TDOCK_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time usable_at_ TDOCK_GUARDED_BY(mu_) = absl::InfinitePast();  // when one was last ready
  bool sending_ TDOCK_GUARDED_BY(mu_) = false;
  Flag stop_sending_ TDOCK_GUARDED_BY(mu_);
  Figures figures_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
