// The threads of a server. For this module only.
#pragma once

#include <grpcpp/completion_queue.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/watchdog.h"

namespace tdock::rpc {

// One thread waits for events and handles them itself, so that a small call costs no thread switch. A handler of long
// work first hands the waiting over to another thread (HandWaitingOver, in stream_server.h).
class EventThreads {
 public:
  // Handles the Completions of the queue until it is shut down and empty.
  // Records in the heartbeat, which may be null, events that are handled while no thread waits for others.
  EventThreads(grpc::CompletionQueue& queue, int threads, std::shared_ptr<Heartbeat> heartbeat = nullptr);
  // Returns when the last event is handled; the queue must have been shut down.
  ~EventThreads();

  // Called only by the thread that waits.
  void HandOver() TDOCK_EXCLUDES(mu_);

 private:
  void Run() TDOCK_EXCLUDES(mu_);

  grpc::CompletionQueue& queue_;
  const std::shared_ptr<Heartbeat> heartbeat_;
  Mutex mu_;
  CondVar free_;
  bool waited_for_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tdock::rpc
