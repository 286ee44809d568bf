// What completion queues of gRPC's hand back. For this module only.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace tdock::rpc {

// The end of an operation; its address is the tag that the queue hands back.
class Completion {
 public:
  virtual void Done(bool ok) = 0;

 protected:
  ~Completion() = default;
};

enum class Found { kEvent, kNothing, kEnd };

// Takes an event off the queue, if there is one by then, without handling it. Sees to the process's connections
// meanwhile, unless another thread does.
Found FindEvent(grpc::CompletionQueue& queue, std::chrono::system_clock::time_point until, void** tag, bool* ok);

// Waits for an event. Looks for a while before it sleeps, because waking a thread takes longer than a small call. False
// at the end of a queue that was shut down.
bool AwaitEvent(grpc::CompletionQueue& queue, void** tag, bool* ok);

// What keeps a call there: each operation under way, and whoever is about to start one. Thread-safe.
class Holds {
 public:
  // False after the last hold has ended: nothing may be started any more. One hold is there from the start.
  [[nodiscard]] bool Enter() {
    int64_t holds = holds_.load();
    while (holds > 0) {
      if (holds_.compare_exchange_weak(holds, holds + 1)) return true;
    }
    return false;
  }
  // Whether it was the last.
  [[nodiscard]] bool Leave() { return holds_.fetch_sub(1) == 1; }

 private:
  std::atomic<int64_t> holds_{1};
};

// One kind of operation of a call, of which at most one is under way. Keeps the call, a std::shared_ptr, meanwhile.
template <class Call>
class Operation final : public Completion {
 public:
  Operation(Call* call, void (Call::*done)(bool)) : call_(call), done_(done) {}

  // The tag for an operation that begins.
  void* Begin() {
    keep_ = call_->shared_from_this();
    return static_cast<Completion*>(this);
  }
  // It will not be handed back.
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
