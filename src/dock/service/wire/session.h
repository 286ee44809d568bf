// The state of a client at a server, which survives its connections.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "core/base/callback.h"
#include "core/base/mutex.h"
#include "core/base/work_queue.h"
#include "dock/service/wire/messages.h"
#include "dock/store/segment_view.h"
#include "tdock/requests.h"

namespace tdock::service {

// A lease and its partition.
struct HeldLease {
  std::string partition = {};
  LeaseId lease = kNoLease;
};

// The result of a call. The bytes of the rows are separate from the message, because a Unix socket shares them, and TCP
// sends them.
struct Answer {
  message::Reply reply = {};
  Rows rows = {};
  // The memory that holds the bytes of the rows, and has room for copies of them.
  std::shared_ptr<Memory> memory = {};
  // The lease that a take was given.
  HeldLease lease = {};
  // Processing or freeing it takes long. Set by its maker.
  bool large = false;
};

// Whether processing this many rows takes long.
bool IsLarge(const Rows& rows);

// Called once, on the thread that ends the call, with no lock held.
using ReplyTo = Callback<void(const std::shared_ptr<const Answer>&)>;

// The memory that responses hold: the dock's, for their cells, and their messages', in their wire form.
struct AnswerBytes {
  int64_t cells = 0;
  int64_t messages = 0;
};

// The calls that are in progress or whose responses may not have arrived, the leases, and the pinned views.
// Thread-safe.
class Session : public std::enable_shared_from_this<Session> {
  struct Call {
    std::vector<ReplyTo> replies;  // none once the call is answered
    std::stop_source cancel;
    std::shared_ptr<const Answer> answer;
    AnswerBytes bytes;  // of the response
  };
  using Calls = absl::btree_map<uint64_t, Call>;

 public:
  // The limit on calls that are in progress, or have responses that were not acknowledged.
  static constexpr size_t kMaxCalls = 4096;
  // If more callers wait for one call, the first of them is told that the call was repeated.
  static constexpr size_t kMaxReplies = 16;
  // With more bytes in unacknowledged responses, no call can begin.
  static constexpr AnswerBytes kMaxBytes = {.cells = int64_t{16} << 30, .messages = int64_t{256} << 20};

  // Frees large objects on `work`, which must outlive it, unless that is null. Then the session must be owned by a
  // shared_ptr.
  Session(std::string id, std::string client, const AnswerBytes& max_bytes = kMaxBytes, WorkQueue* work = nullptr)
      : id_(std::move(id)), client_(std::move(client)), max_bytes_(max_bytes), work_(work) {}

  const std::string& id() const { return id_; }
  // The name that the client gave itself.
  const std::string& client() const { return client_; }

  struct Begun {
    // False: the call is in progress, or was answered at once from memory.
    bool is_new = false;
    std::stop_token cancel = {};
  };
  // Responses that have arrived: those of all calls below a number, and of some above it.
  struct Acknowledged {
    uint64_t below = 0;
    std::span<const uint64_t> calls = {};
  };
  // Begins a call; or, if it was begun before, also gives its response to `reply`: it is not known which of the call's
  // connections is still alive, because what was sent over a broken one may be read last. Forgets what is acknowledged.
  // FailedPrecondition for a call that was acknowledged or if the session is over, ResourceExhausted for too many
  // calls, or too many unacknowledged bytes.
  absl::StatusOr<Begun> Begin(uint64_t call, const Acknowledged& acknowledged, ReplyTo reply) TDOCK_EXCLUDES(mu_);
  // Ends a call that is in progress, and remembers the response until it is acknowledged.
  void Finish(uint64_t call, std::shared_ptr<const Answer> answer) TDOCK_EXCLUDES(mu_);
  // Replaces the response of a call that has ended, if it is still remembered.
  void Replace(uint64_t call, std::shared_ptr<const Answer> answer) TDOCK_EXCLUDES(mu_);
  // A call that has not arrived yet is cancelled when it does.
  void Cancel(uint64_t call) TDOCK_EXCLUDES(mu_);
  // Cancels all calls in progress.
  void CancelAll() TDOCK_EXCLUDES(mu_);
  void Acknowledge(const Acknowledged& acknowledged) TDOCK_EXCLUDES(mu_);

  // Keeps views until they are unpinned, under the number of the call that handed them out. Returns those that are
  // kept: if the call's response is sent again, the first ones.
  Rows Pin(uint64_t call, const Rows& rows) TDOCK_EXCLUDES(mu_);
  void Unpin(std::span<const uint64_t> calls) TDOCK_EXCLUDES(mu_);

  // The number of the latest large discard (acknowledged or unpinned objects that are still being freed); 0 if there is
  // none.
  uint64_t LastDiscard() TDOCK_EXCLUDES(mu_);
  // Returns when all discards up to this one are freed. To be called by a task of the session that was posted after
  // theirs, which have begun by then.
  void AwaitDiscards(uint64_t last) TDOCK_EXCLUDES(mu_);

  // False if the session is over: then the caller must end the lease.
  bool Hold(HeldLease lease) TDOCK_EXCLUDES(mu_);
  // Once there are many leases: removes the two that were checked longest ago; those that still hold rows must be held
  // again. Called for each take, so that there are never many more leases than live ones.
  std::vector<HeldLease> TakeLeasesToCheck() TDOCK_EXCLUDES(mu_);

  // The area for puts through shared memory; created by the first call.
  absl::StatusOr<dock::UploadArea> Upload(uint32_t slots, uint32_t slot_bytes) TDOCK_EXCLUDES(mu_);

  // Connections come and go.
  void Attach() TDOCK_EXCLUDES(mu_);
  // The number of current connections, and of all there have been.
  struct Attachments {
    int now = 0;
    uint64_t ever = 0;
  };
  Attachments Detach() TDOCK_EXCLUDES(mu_);

  // What a session that has ended leaves. The caller that ended it cancels the calls that are under way, which then
  // reply, and ends the leases. Cancelling runs the calls' callbacks, and destroying this frees answers and views: do
  // both without holding any lock.
  struct Leftovers {
    std::deque<HeldLease> leases;
    std::vector<std::stop_source> under_way;
    Calls answered;
    absl::btree_map<uint64_t, Rows> pins;
  };
  // Ends the session unless it has connections, or has had any after the first `ever`; then returns nothing.
  std::optional<Leftovers> EndIfAlone(uint64_t ever) TDOCK_EXCLUDES(mu_);

  struct Counts {
    int64_t calls = 0;
    int64_t pins = 0;
    int64_t leases = 0;
  };
  Counts counts() TDOCK_EXCLUDES(mu_);

 private:
  // Removes and returns the calls that are answered and acknowledged.
  Calls TakeAcknowledged(const Acknowledged& acknowledged) TDOCK_REQUIRES(mu_);
  bool WasAcknowledged(uint64_t call) const TDOCK_REQUIRES(mu_);
  // False if there are too many to record one by one.
  bool NoteAcknowledged(uint64_t call) TDOCK_REQUIRES(mu_);
  void Remember(Call& call, std::shared_ptr<const Answer> answer, const AnswerBytes& bytes) TDOCK_REQUIRES(mu_);
  absl::Status CheckRoom() const TDOCK_REQUIRES(mu_);
  // Frees objects that the client no longer needs. Without the lock.
  void Discard(Calls calls, std::vector<Rows> pins);

  const std::string id_;
  const std::string client_;
  const AnswerBytes max_bytes_;
  WorkQueue* const work_;

  Mutex mu_;
  CondVar discarded_;
  uint64_t last_discard_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::btree_set<uint64_t> discards_ TDOCK_GUARDED_BY(mu_);
  bool over_ TDOCK_GUARDED_BY(mu_) = false;
  Attachments connections_ TDOCK_GUARDED_BY(mu_);
  uint64_t acknowledged_below_ TDOCK_GUARDED_BY(mu_) = 0;
  // And above it: ranges, each from its first call to the one after its last.
  absl::btree_map<uint64_t, uint64_t> acknowledged_ TDOCK_GUARDED_BY(mu_);
  Calls calls_ TDOCK_GUARDED_BY(mu_);
  int64_t under_way_ TDOCK_GUARDED_BY(mu_) = 0;  // of them
  AnswerBytes bytes_ TDOCK_GUARDED_BY(mu_);      // of the answers in them
  absl::btree_set<uint64_t> cancelled_ahead_ TDOCK_GUARDED_BY(mu_);
  absl::btree_map<uint64_t, Rows> pins_ TDOCK_GUARDED_BY(mu_);
  std::deque<HeldLease> leases_ TDOCK_GUARDED_BY(mu_);
  std::optional<dock::UploadArea> area_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::service
