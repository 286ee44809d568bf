#include "core/rpc/completion.h"

#include <sched.h>

namespace tdock::rpc {

Found FindEvent(grpc::CompletionQueue& queue, std::chrono::system_clock::time_point until, void** tag, bool* ok) {
  switch (queue.AsyncNext(tag, ok, until)) {
    case grpc::CompletionQueue::GOT_EVENT:
      return Found::kEvent;
    case grpc::CompletionQueue::TIMEOUT:
      return Found::kNothing;
    case grpc::CompletionQueue::SHUTDOWN:
      break;
  }
  return Found::kEnd;
}

bool AwaitEvent(grpc::CompletionQueue& queue, void** tag, bool* ok) {
  constexpr auto kLookFor = std::chrono::microseconds(200);
  const auto sleep_at = std::chrono::steady_clock::now() + kLookFor;
  do {
    const Found found = FindEvent(queue, std::chrono::system_clock::time_point(), tag, ok);
    if (found != Found::kNothing) return found == Found::kEvent;
    // Another thread may need this processor in order to answer.
    sched_yield();
  } while (std::chrono::steady_clock::now() < sleep_at);
  return queue.Next(tag, ok);
}

}  // namespace tdock::rpc
