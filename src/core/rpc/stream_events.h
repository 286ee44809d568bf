// What happens to the open streams of this process's clients. For this module only.
#pragma once

#include <grpcpp/completion_queue.h>

#include <chrono>
#include <memory>
#include <thread>

#include "core/base/mutex.h"

namespace tdock::rpc {

// A thread that looks at its queue now and then, and sleeps on it only while something is expected: gRPC lets a thread
// that sleeps on a queue see to all connections and hand to the others what comes for them, so that each of their calls
// would wake two threads. Thread-safe.
class StreamEvents {
 public:
  // Those of this process, which are there for as long as somebody has them.
  static std::shared_ptr<StreamEvents> Get();

  StreamEvents();
  // After the streams.
  ~StreamEvents();

  grpc::CompletionQueue& queue() { return queue_; }

  // Something is to come at once: a stream begins or ends.
  void Expect() TDOCK_EXCLUDES(mu_);

 private:
  using Time = std::chrono::steady_clock::time_point;

  void Run() TDOCK_EXCLUDES(mu_);
  // Handles what comes within this time. False at the end of the queue.
  bool HandleFor(std::chrono::steady_clock::duration time, bool* handled);

  grpc::CompletionQueue queue_;
  Mutex mu_;
  CondVar expected_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  Time awake_until_ TDOCK_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tdock::rpc
