// Events of gRPC's completion queues. For this module only.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace tdock::rpc {

// The completion of an operation; its address is the tag that the queue returns.
class Completion {
 public:
  virtual void Done(bool ok) = 0;

 protected:
  ~Completion() = default;
};

enum class Found { kEvent, kNothing, kEnd };

// Takes an event off the queue, if one arrives by then, without handling it. In the meantime it also polls the
// process's connections, unless another thread does.
Found FindEvent(grpc::CompletionQueue& queue, std::chrono::system_clock::time_point until, void** tag, bool* ok);

// Waits for an event. Spins for a while before it sleeps, because waking a thread takes longer than a small call. False
// at the end of a queue that was shut down.
bool AwaitEvent(grpc::CompletionQueue& queue, void** tag, bool* ok);

// Reference counts that keep a call alive: one for each operation in progress, and for each caller about to start one.
// Thread-safe.
class Holds {
 public:
  // False after the last hold was released: nothing may be started any more. There is one hold from the start.
  [[nodiscard]] bool Enter() {
    int64_t holds = holds_.load();
    while (holds > 0) {
      if (holds_.compare_exchange_weak(holds, holds + 1)) return true;
    }
    return false;
  }
  // True if it was the last.
  [[nodiscard]] bool Leave() { return holds_.fetch_sub(1) == 1; }

 private:
  std::atomic<int64_t> holds_{1};
};

// One kind of operation of a call, of which at most one is in progress. Keeps the call, a std::shared_ptr, alive
// meanwhile.
template <class Call>
class Operation final : public Completion {
 public:
  Operation(Call* call, void (Call::*done)(bool)) : call_(call), done_(done) {}

  // The tag for an operation that is being started.
  void* Begin() {
    keep_ = call_->shared_from_this();
    return static_cast<Completion*>(this);
  }
  // The operation was not started: the tag will not be returned.
  void Forget() { keep_ = nullptr; }
  void Done(bool ok) override {
    const std::shared_ptr<Call> keep = std::move(keep_);
    (call_->*done_)(ok);
  }

 private:
  Call* const call_;
  void (Call::*const done_)(bool);
  std::shared_ptr<Call> keep_;
};

}  // namespace tdock::rpc
