// Waiting calls from Python: without the GIL, and ended by Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/callback.h"
#include "python/gil.h"
#include "python/process.h"

namespace tdock::python {

template <class Answer>  // an absl::StatusOr
struct WaitingCall {
  // Must own what it uses: it continues in a thread of its own after Python's thread has left it.
  std::function<Answer(absl::Time deadline, std::stop_token cancel)> run;
  // What to do with a result that no caller waits for.
  std::function<void(const Answer&)> give_back = [](const Answer&) {};
  absl::Time deadline = absl::InfinitePast();
  // Whether to try once without waiting before a thread is started to wait: not if trying is expensive.
  bool ask_first = true;
  // Each of these ends the call.
  std::vector<std::stop_token> ended_by = {};
};

// Forwards what ends a call, for its lifetime.
class EndedBy {
 public:
  EndedBy(const std::vector<std::stop_token>& tokens, const std::stop_source& call) {
    for (const std::stop_token& token : tokens) links_.emplace_back(token, [call] { RequestStop(call); });
  }

 private:
  std::list<std::stop_callback<std::function<void()>>> links_;
};

// Shared by the calling thread and the one that waits.
template <class Answer>
struct Waiting {
  WaitingCall<Answer> call;
  std::stop_source cancel;
  std::mutex mu;
  std::condition_variable changed;
  std::optional<Answer> answer;
  bool abandoned = false;
};

// Python runs its signal handlers in the main thread, between two bytecodes. So this does not wait in that thread
// itself, but checks for signals 20 times a second while another thread waits. An exception of a handler ends the call.
// Needs the GIL, and holds it only for the handlers.
template <class Answer>
Answer Wait(WaitingCall<Answer> call) {
  namespace nb = nanobind;
  {
    const GilRelease release;
    const std::stop_source cancel;
    const EndedBy ended_by(call.ended_by, cancel);
    if (call.deadline == absl::InfinitePast() || !IsMainThread()) return call.run(call.deadline, cancel.get_token());
    if (call.ask_first) {
      Answer answer = call.run(absl::InfinitePast(), cancel.get_token());
      if (!absl::IsDeadlineExceeded(answer.status())) return answer;
    }
  }
  auto waiting = std::make_shared<Waiting<Answer>>();
  waiting->call = std::move(call);
  std::thread([waiting] {
    const EndedBy ended_by(waiting->call.ended_by, waiting->cancel);
    Answer answer = waiting->call.run(waiting->call.deadline, waiting->cancel.get_token());
    std::unique_lock lock(waiting->mu);
    const bool abandoned = waiting->abandoned;
    waiting->answer = std::move(answer);
    waiting->changed.notify_all();
    lock.unlock();
    if (abandoned) waiting->call.give_back(*waiting->answer);
  }).detach();
  for (;;) {
    {
      const GilRelease release;
      std::unique_lock lock(waiting->mu);
      waiting->changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return waiting->answer.has_value(); });
      if (waiting->answer.has_value()) return *std::move(waiting->answer);
    }
    if (PyErr_CheckSignals() == 0) continue;
    {
      const GilRelease release;
      RequestStop(waiting->cancel);
      std::unique_lock lock(waiting->mu);
      // A cancelled call ends soon, unless its server hangs.
      waiting->changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return waiting->answer.has_value(); });
      waiting->abandoned = true;
      const bool answered = waiting->answer.has_value();
      lock.unlock();
      if (answered) waiting->call.give_back(*waiting->answer);
    }
    throw nb::python_error();
  }
}

}  // namespace tdock::python
