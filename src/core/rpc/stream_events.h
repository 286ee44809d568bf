// The events of open streams of this process's clients. For this module only.
#pragma once

#include <grpcpp/completion_queue.h>

#include <chrono>
#include <memory>
#include <thread>

#include "core/base/mutex.h"

namespace tdock::rpc {

// A thread that polls its queue now and then, and sleeps on it only while an event is expected, or while some client
// wants its messages at once: gRPC lets a thread that
// sleeps on a queue serve all connections and forward events to others, so that each of their calls would wake two
// threads. Thread-safe.
class StreamEvents {
 public:
  // The instance of this process, which lives as long as it is referenced.
  static std::shared_ptr<StreamEvents> Get();

  StreamEvents();
  // After the streams.
  ~StreamEvents();

  grpc::CompletionQueue& queue() { return queue_; }

  // An event is expected soon: a stream begins or ends.
  void Expect() TDOCK_EXCLUDES(mu_);
  // Between the two, an event is expected at any time. May be nested.
  void BeginPrompt() TDOCK_EXCLUDES(mu_);
  void EndPrompt() TDOCK_EXCLUDES(mu_);

 private:
  using Time = std::chrono::steady_clock::time_point;

  void Run() TDOCK_EXCLUDES(mu_);
  // Handles the events that arrive within this time. False at the end of the queue.
  bool HandleFor(std::chrono::steady_clock::duration time, bool* handled);

  grpc::CompletionQueue queue_;
  Mutex mu_;
  CondVar expected_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  Time awake_until_ TDOCK_GUARDED_BY(mu_);
  int prompt_ TDOCK_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace tdock::rpc
