// Limits how many bytes of responses one session may have in flight. A client that requests much and reads slowly
// delays its own responses, and the server copies cells together only for responses that are sent.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/callback.h"
#include "core/base/mutex.h"

namespace tdock::service {

class Session;

// Of one session. Thread-safe.
class AnswerGate : public std::enable_shared_from_this<AnswerGate> {
 public:
  // A response that exceeds the limit by itself is sent when no other one is in flight.
  explicit AnswerGate(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // A call whose response passes the gate; it must end, or the gate keeps it. Thread-safe.
  class Call {
   public:
    explicit Call(std::shared_ptr<AnswerGate> gate) : gate_(std::move(gate)) {}

    // Calls `send` once: before this returns if there is room for this many bytes, otherwise on the thread that makes
    // room, in the order of the responses. Not at all if the call ends before that. At most once per call.
    static void Answer(const std::shared_ptr<Call>& call, int64_t bytes, Callback<void()> send);
    // The response was sent, or is no longer wanted.
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

  // The waiting responses that have room now; to be called without the lock.
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
  // Expired gates are removed when there are this many.
  size_t sweep_at_ TDOCK_GUARDED_BY(mu_) = 64;
};

}  // namespace tdock::service
