#include "inference/replica.h"

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "inference/failure.h"

namespace tdock::inference {

Replica::Replica(engine::Engine& engine) : engine_(engine), thread_([this] { Run(); }) {}

Replica::~Replica() {
  std::vector<engine::RequestId> open;
  {
    const MutexLock lock(mu_);
    ending_ = true;
    for (const auto& [id, waiting] : waiting_) open.push_back(id);
    changed_.NotifyAll();
  }
  for (const engine::RequestId id : open) Abort(id);
  thread_.join();
}

absl::StatusOr<engine::RequestId> Replica::Add(engine::Request request, OnEnd on_end) {
  const int64_t answers = request.prompt.samples;
  const MutexLock lock(mu_);  // through both, so that no answer comes before its request is known
  if (ending_) return absl::UnavailableError("the server is ending");
  absl::StatusOr<engine::RequestId> id = engine_.Add(std::move(request));
  if (!id.ok()) return id;
  waiting_[*id] = {.on_end = std::move(on_end), .left = answers};
  open_ += answers;
  changed_.NotifyAll();
  return id;
}

void Replica::Abort(engine::RequestId id) {
  engine_.Abort(id).IgnoreError();  // NotFound: it has ended
}

void Replica::BetweenSteps(const std::function<void()>& work) {
  bool done = false;
  std::exception_ptr failure;
  const MutexLock lock(mu_);
  work_.push_back([&] {
    std::exception_ptr thrown;
    try {
      work();
    } catch (const std::exception&) {  // is the caller's, and no end of the engine's thread
      thrown = std::current_exception();
    }
    const MutexLock ended(mu_);
    failure = std::move(thrown);
    done = true;
    changed_.NotifyAll();
  });
  changed_.NotifyAll();
  while (!done) changed_.Wait(mu_);
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Replica::Run() {
  std::deque<std::function<void()>> work;
  while (Await(work)) {
    for (const std::function<void()>& one : work) one();
    if (!work.empty()) next_probe_ = {};  // other weights may mend it
    work.clear();
    if (IsProbeDue()) BeginProbe();
    Step();
  }
}

// Until there is something to do; false if there is nothing any more.
bool Replica::Await(std::deque<std::function<void()>>& work) {
  const MutexLock lock(mu_);
  while (!ending_ && waiting_.empty() && work_.empty() && !probe_ && !IsProbeDue()) {
    if (is_failing_) {
      changed_.WaitUntil(mu_, next_probe_);
    } else {
      changed_.Wait(mu_);
    }
  }
  work.swap(work_);
  return !ending_ || !waiting_.empty() || !work.empty();
}

void Replica::Step() {
  if (!engine_.HasWork()) return;
  std::vector<engine::Answer> ended;
  try {
    ended = engine_.Step();
  } catch (const std::exception& error) {
    const absl::Status why = absl::InternalError(absl::StrCat("the engine failed: ", WhatOf(error)));
    if (probe_) {
      EndProbe(why);
    } else {
      is_suspect_ = true;
    }
    return FailLost(why);
  }
  for (engine::Answer& answer : ended) {
    if (answer.request == probe_) {
      EndProbe(answer.status);
      continue;
    }
    // An answer that the cache has no room for says nothing about others.
    is_suspect_ = is_suspect_ || !(answer.status.ok() || absl::IsResourceExhausted(answer.status));
    Deliver(std::move(answer));
  }
}

bool Replica::IsProbeDue() const {
  if (probe_) return false;
  return is_suspect_ || (is_failing_ && std::chrono::steady_clock::now() >= next_probe_);
}

void Replica::BeginProbe() {
  is_suspect_ = false;
  engine::Request request{.prompt = {.tokens = {0}, .identity = 0},
                          .sampling = {.temperature = 0, .max_new_tokens = 1}};
  try {
    const absl::StatusOr<engine::RequestId> id = engine_.Add(std::move(request));
    if (!id.ok()) return EndProbe(id.status());
    probe_ = *id;
  } catch (const std::exception& error) {
    EndProbe(absl::InternalError(absl::StrCat("the engine takes no request: ", WhatOf(error))));
  }
}

void Replica::EndProbe(const absl::Status& status) {
  probe_.reset();
  is_failing_ = !status.ok();
  next_probe_ = std::chrono::steady_clock::now() + kProbeAgain;
  const MutexLock lock(health_mu_);
  health_ = status;
}

absl::Status Replica::health() const {
  const MutexLock lock(health_mu_);
  return health_;
}

void Replica::Deliver(engine::Answer answer) {
  OnEnd on_end;
  {
    const MutexLock lock(mu_);
    const auto found = waiting_.find(answer.request);
    if (found == waiting_.end()) return;
    on_end = found->second.on_end;
    if (--found->second.left == 0) waiting_.erase(found);
    --open_;
  }
  try {
    on_end(std::move(answer));
  } catch (const std::exception&) {  // memory is exhausted: others are answered nevertheless
  }
}

void Replica::FailLost(const absl::Status& why) {
  std::vector<std::pair<engine::RequestId, Waiting>> lost;
  {
    const MutexLock lock(mu_);
    for (const auto& [id, waiting] : waiting_) lost.emplace_back(id, waiting);
  }
  for (const auto& [id, waiting] : lost) {
    if (engine_.IsOpen(id)) continue;  // added during the step, and not lost
    for (int64_t left = waiting.left; left > 0; --left) Deliver({.request = id, .sample = -1, .status = why});
  }
}

}  // namespace tdock::inference
