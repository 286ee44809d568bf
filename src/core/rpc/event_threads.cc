#include "core/rpc/event_threads.h"

#include <utility>

#include "core/rpc/completion.h"
#include "core/rpc/stream_server.h"

namespace tdock::rpc {
namespace {

// Those for which this thread waits for events.
thread_local EventThreads* waits_for = nullptr;

}  // namespace

EventThreads::EventThreads(grpc::CompletionQueue& queue, int threads, std::shared_ptr<Heartbeat> heartbeat)
    : queue_(queue), heartbeat_(std::move(heartbeat)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

EventThreads::~EventThreads() {
  for (std::thread& thread : threads_) thread.join();
}

void EventThreads::HandOver() {
  waits_for = nullptr;
  MutexLock lock(mu_);
  if (heartbeat_ != nullptr) heartbeat_->Begin("has no free thread");
  waited_for_ = false;
  free_.NotifyOne();
}

void EventThreads::Run() {
  for (;;) {
    {
      MutexLock lock(mu_);
      while (waited_for_) free_.Wait(mu_);
      waited_for_ = true;
      if (heartbeat_ != nullptr) heartbeat_->End();
    }
    waits_for = this;
    while (waits_for == this) {
      void* tag = nullptr;
      bool ok = false;
      if (!AwaitEvent(queue_, &tag, &ok)) {
        HandOver();
        if (heartbeat_ != nullptr) heartbeat_->End();
        return;
      }
      if (heartbeat_ != nullptr) heartbeat_->Begin("handles the messages of a call");
      static_cast<Completion*>(tag)->Done(ok);
      if (heartbeat_ != nullptr && waits_for == this) heartbeat_->End();
    }
  }
}

void HandWaitingOver() {
  if (waits_for != nullptr) waits_for->HandOver();
}

}  // namespace tdock::rpc
