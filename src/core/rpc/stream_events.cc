#include "core/rpc/stream_events.h"

#include <unistd.h>

#include "core/rpc/completion.h"

namespace tdock::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long to sleep while an event is expected.
constexpr milliseconds kAwake(100);
// The polling intervals: while there are events, such as finished writes that let others go on, and while there are
// none. A lost connection of a stream is noticed after the latter.
constexpr milliseconds kBusy(2), kQuiet(20);

}  // namespace

std::shared_ptr<StreamEvents> StreamEvents::Get() {
  static Mutex& mu = *new Mutex;
  static std::weak_ptr<StreamEvents>& there = *new std::weak_ptr<StreamEvents>;
  // A forked process has none of its parent's threads.
  static pid_t process = 0;
  MutexLock lock(mu);
  std::shared_ptr<StreamEvents> events = process == getpid() ? there.lock() : nullptr;
  if (events != nullptr) return events;
  events = std::make_shared<StreamEvents>();
  there = events;
  process = getpid();
  return events;
}

StreamEvents::StreamEvents() : thread_([this] { Run(); }) {}

StreamEvents::~StreamEvents() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    expected_.NotifyAll();
  }
  queue_.Shutdown();
  thread_.join();
}

void StreamEvents::Expect() {
  MutexLock lock(mu_);
  awake_until_ = steady_clock::now() + kAwake;
  expected_.NotifyAll();
}

void StreamEvents::BeginPrompt() {
  MutexLock lock(mu_);
  ++prompt_;
  expected_.NotifyAll();
}

void StreamEvents::EndPrompt() {
  MutexLock lock(mu_);
  --prompt_;
}

void StreamEvents::Run() {
  for (bool handled = false;;) {
    steady_clock::duration awake;
    {
      MutexLock lock(mu_);
      awake = prompt_ > 0 ? kAwake : awake_until_ - steady_clock::now();
    }
    if (!HandleFor(awake, &handled)) return;
    MutexLock lock(mu_);
    const Time next = steady_clock::now() + (handled ? kBusy : kQuiet);
    while (!stopping_ && prompt_ == 0 && steady_clock::now() < next && awake_until_ <= steady_clock::now()) {
      expected_.WaitUntil(mu_, next);
    }
  }
}

bool StreamEvents::HandleFor(steady_clock::duration time, bool* handled) {
  *handled = false;
  const auto until = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(time);
  for (;;) {
    void* tag = nullptr;
    bool ok = false;
    switch (FindEvent(queue_, until, &tag, &ok)) {
      case Found::kEnd:
        return false;
      case Found::kNothing:
        return true;
      case Found::kEvent:
        static_cast<Completion*>(tag)->Done(ok);
        *handled = true;
    }
  }
}

}  // namespace tdock::rpc
