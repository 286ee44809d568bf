// What a client has at a server, however often its connections break.
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
#include "dock/store/segment_view.h"
#include "tdock.pb.h"
#include "tdock/requests.h"

namespace tdock {

// A lease and where it is from.
struct HeldLease {
  std::string partition = {};
  LeaseId lease = kNoLease;
};

// What a call comes to. The bytes of the rows are apart from the message, because transports differ in how they bring
// them over.
struct Answer {
  v1::Reply reply = {};
  Rows rows = {};
  // Where the bytes of the rows lie.
  std::shared_ptr<const Memory> memory = {};
  // That a take was given.
  HeldLease lease = {};
  // It takes long to go through, as it does to let go of it. Set by whoever made it.
  bool large = false;
};

// Whether it takes long to go through so many rows.
bool IsLarge(const Rows& rows);

// Called once, by whichever thread ends the call, with no lock held.
using ReplyTo = Callback<void(const std::shared_ptr<const Answer>&)>;

// What answers hold: the dock's memory with their cells, and that of their messages, as long as they are on the wire.
struct AnswerBytes {
  int64_t cells = 0;
  int64_t messages = 0;
};

// The calls that are under way or whose answers may not have arrived, the leases, and the pins of views. Thread-safe.
class Session : public std::enable_shared_from_this<Session> {
  struct Call {
    std::vector<ReplyTo> replies;  // none once it is answered
    std::stop_source cancel;
    std::shared_ptr<const Answer> answer;
    AnswerBytes bytes;  // of the answer
  };
  using Calls = absl::btree_map<uint64_t, Call>;

 public:
  // Calls that may be under way, or have answers that were not acknowledged, at once.
  static constexpr size_t kMaxCalls = 4096;
  // With more who wait for one call, the first of them is told that it was asked for again.
  static constexpr size_t kMaxReplies = 16;
  // With more in answers that were not acknowledged, no call is begun.
  static constexpr AnswerBytes kMaxBytes = {.cells = int64_t{16} << 30, .messages = int64_t{256} << 20};

  // Lets go of what is large at `work`, which outlives it, unless that is null. Then it belongs to a shared_ptr.
  Session(std::string id, std::string client, const AnswerBytes& max_bytes = kMaxBytes, WorkQueue* work = nullptr)
      : id_(std::move(id)), client_(std::move(client)), max_bytes_(max_bytes), work_(work) {}

  const std::string& id() const { return id_; }
  // What the client calls itself.
  const std::string& client() const { return client_; }

  struct Begun {
    // False: it is under way, or was answered at once from what is remembered.
    bool is_new = false;
    std::stop_token cancel = {};
  };
  // Answers that have arrived: those of all calls below a number, and of some beyond it.
  struct Acknowledged {
    uint64_t below = 0;
    std::span<const uint64_t> calls = {};
  };
  // Begins a call; or, if it was begun before, lets `reply` have its answer too: which of a call's connections is the
  // one that still lives is not known, because what was sent over a broken one may be read last. Forgets what is
  // acknowledged. FailedPrecondition for a call that was acknowledged or if the session is over, ResourceExhausted for
  // too many, or where what was not acknowledged holds too much.
  absl::StatusOr<Begun> Begin(uint64_t call, const Acknowledged& acknowledged, ReplyTo reply) TDOCK_EXCLUDES(mu_);
  // Ends a call that was begun and not ended, and remembers the answer until it is acknowledged.
  void Finish(uint64_t call, std::shared_ptr<const Answer> answer) TDOCK_EXCLUDES(mu_);
  // Remembers another answer for a call that was ended, if its answer is remembered still.
  void Replace(uint64_t call, std::shared_ptr<const Answer> answer) TDOCK_EXCLUDES(mu_);
  // One that has not come yet is cancelled when it comes.
  void Cancel(uint64_t call) TDOCK_EXCLUDES(mu_);
  // Cancels all that are under way.
  void CancelAll() TDOCK_EXCLUDES(mu_);
  void Acknowledge(const Acknowledged& acknowledged) TDOCK_EXCLUDES(mu_);

  // Keeps views until they are unpinned, under the number of the call that handed them out.
  void Pin(uint64_t call, const Rows& rows) TDOCK_EXCLUDES(mu_);
  void Unpin(std::span<const uint64_t> calls) TDOCK_EXCLUDES(mu_);

  // The number of the last time that much was acknowledged or unpinned, while that is being freed; 0 when it is.
  uint64_t LastDiscard() TDOCK_EXCLUDES(mu_);
  // Returns when all up to this one are freed. By a task of the session's that was posted after them, which have begun.
  void AwaitDiscards(uint64_t last) TDOCK_EXCLUDES(mu_);

  // False if the session is over: the caller has to end the lease.
  bool Hold(HeldLease lease) TDOCK_EXCLUDES(mu_);
  // Once there are many: takes out the two that were asked about longest ago. Those that still hold rows are to be held
  // again. Done with each take, so that there are never many more leases than live.
  std::vector<HeldLease> TakeLeasesToCheck() TDOCK_EXCLUDES(mu_);

  // Where the client writes what it puts through shared memory; made when it is asked for first.
  absl::StatusOr<UploadArea> Upload(uint32_t slots, uint32_t slot_bytes) TDOCK_EXCLUDES(mu_);

  // Connections come and go.
  void Attach() TDOCK_EXCLUDES(mu_);
  // How many connections are left, and how many there have been.
  struct Attachments {
    int now = 0;
    uint64_t ever = 0;
  };
  Attachments Detach() TDOCK_EXCLUDES(mu_);

  // What a session that has ended leaves. Whoever ended it cancels the calls that are under way, which then answer
  // whoever waits for them, and ends the leases. Cancelling runs the calls' callbacks, and destroying this frees
  // answers and views: both are to be done without any lock.
  struct Leftovers {
    std::deque<HeldLease> leases;
    std::vector<std::stop_source> under_way;
    Calls answered;
    absl::btree_map<uint64_t, Rows> pins;
  };
  // Ends the session unless it has connections, or had one after the first `ever` of them; nothing, then.
  std::optional<Leftovers> EndIfAlone(uint64_t ever) TDOCK_EXCLUDES(mu_);

  struct Counts {
    int64_t calls = 0;
    int64_t pins = 0;
    int64_t leases = 0;
  };
  Counts counts() TDOCK_EXCLUDES(mu_);

 private:
  // Takes those out that are answered and acknowledged.
  Calls TakeAcknowledged(const Acknowledged& acknowledged) TDOCK_REQUIRES(mu_);
  bool WasAcknowledged(uint64_t call) const TDOCK_REQUIRES(mu_);
  // False if there are too many that are to be noted one by one.
  bool NoteAcknowledged(uint64_t call) TDOCK_REQUIRES(mu_);
  void Remember(Call& call, std::shared_ptr<const Answer> answer, const AnswerBytes& bytes) TDOCK_REQUIRES(mu_);
  absl::Status CheckRoom() const TDOCK_REQUIRES(mu_);
  // Frees what a client does not need any more. Without the lock.
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
  // And beyond it: ranges, each from its first call to the one behind its last.
  absl::btree_map<uint64_t, uint64_t> acknowledged_ TDOCK_GUARDED_BY(mu_);
  Calls calls_ TDOCK_GUARDED_BY(mu_);
  int64_t under_way_ TDOCK_GUARDED_BY(mu_) = 0;  // of them
  AnswerBytes bytes_ TDOCK_GUARDED_BY(mu_);      // of the answers in them
  absl::btree_set<uint64_t> cancelled_ahead_ TDOCK_GUARDED_BY(mu_);
  absl::btree_map<uint64_t, Rows> pins_ TDOCK_GUARDED_BY(mu_);
  std::deque<HeldLease> leases_ TDOCK_GUARDED_BY(mu_);
  std::optional<UploadArea> area_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
