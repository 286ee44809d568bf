// How many bytes of answers one session may have on their way. A client that asks for much and reads slowly makes its
// own answers wait, and the server copies cells together only for those that are sent.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/callback.h"
#include "core/base/mutex.h"

namespace tdock {

class Session;

// Of one session. Thread-safe.
class AnswerGate : public std::enable_shared_from_this<AnswerGate> {
 public:
  // An answer that is larger by itself is sent when no other is on its way.
  explicit AnswerGate(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // A call whose answer passes the gate; it must end, or the gate keeps it. Thread-safe.
  class Call {
   public:
    explicit Call(std::shared_ptr<AnswerGate> gate) : gate_(std::move(gate)) {}

    // Calls `send` once: before this returns if there is room for so many bytes, or else by whichever thread makes
    // room, in the order of the answers. Not at all if the call is over before. At most once for a call.
    static void Answer(const std::shared_ptr<Call>& call, int64_t bytes, Callback<void()> send);
    // The answer has left, or nobody waits for it any more.
    void End();

   private:
    friend class AnswerGate;
    enum class State { kAsked, kWaiting, kSending, kOver };

    const std::shared_ptr<AnswerGate> gate_;
    // Guarded by the gate's lock.
    State state_ = State::kAsked;
    int64_t bytes_ = 0;
    Callback<void()> send_;
  };

 private:
  using Sends = std::deque<Callback<void()>>;

  // Those of the answers that wait for which there is room; to be called without the lock.
  Sends TakeAdmitted() TDOCK_REQUIRES(mu_);

  const int64_t limit_bytes_;
  Mutex mu_;
  int64_t sending_bytes_ TDOCK_GUARDED_BY(mu_) = 0;
  std::deque<std::shared_ptr<Call>> waiting_ TDOCK_GUARDED_BY(mu_);
};

// The gates of all sessions. Thread-safe.
class AnswerGates {
 public:
  explicit AnswerGates(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // The session must outlive its gate.
  std::shared_ptr<AnswerGate> For(const Session* session) TDOCK_EXCLUDES(mu_);

 private:
  const int64_t limit_bytes_;
  Mutex mu_;
  absl::flat_hash_map<const Session*, std::weak_ptr<AnswerGate>> gates_ TDOCK_GUARDED_BY(mu_);
  // Gates that are gone are looked for when there are so many.
  size_t sweep_at_ TDOCK_GUARDED_BY(mu_) = 64;
};

}  // namespace tdock
