// A thread that steps an engine for requests that arrive at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "engine/engine.h"

namespace tdock::inference {

// Thread-safe.
class Replica {
 public:
  // The engine must outlive it, and nobody else may step it.
  explicit Replica(engine::Engine& engine);
  // Ends the requests in progress, each with kAborted.
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Calls `on_end` for each answer, on the engine's thread and without a lock; with an error if the engine fails.
  // An exception of it ends there.
  // on_token and on_end may call Abort() and nothing else of this class. The errors of Engine::Add(); Unavailable while
  // it ends.
  using OnEnd = std::function<void(engine::Answer answer)>;
  absl::StatusOr<engine::RequestId> Add(engine::Request request, OnEnd on_end) TDOCK_EXCLUDES(mu_);
  // Does nothing if the request has ended.
  void Abort(engine::RequestId id);

  // Calls `work` on the engine's thread between two steps, and returns when it has ended. Throws what it throws.
  void BetweenSteps(const std::function<void()>& work) TDOCK_EXCLUDES(mu_);

  engine::Engine& engine() { return engine_; }
  // Answers that have not ended.
  int64_t open() const { return open_.load(std::memory_order_relaxed); }

  // Why the engine cannot answer; OK while it can. After an answer has failed, the replica asks the engine for one
  // token itself, with which it says whether others would fail, too: then it asks again every kProbeAgain, and at once
  // when something was done between steps. Does not wait for a step.
  absl::Status health() const TDOCK_EXCLUDES(health_mu_);
  static constexpr std::chrono::seconds kProbeAgain{1};

 private:
  struct Waiting {
    OnEnd on_end = {};
    int64_t left = 0;  // answers
  };

  void Run() TDOCK_EXCLUDES(mu_);
  bool Await(std::deque<std::function<void()>>& work) TDOCK_EXCLUDES(mu_);
  void Step() TDOCK_EXCLUDES(mu_);
  void Deliver(engine::Answer answer) TDOCK_EXCLUDES(mu_);
  // After a failure of the engine, for the requests that it has lost.
  void FailLost(const absl::Status& why) TDOCK_EXCLUDES(mu_);
  bool IsProbeDue() const;
  void BeginProbe();
  void EndProbe(const absl::Status& status) TDOCK_EXCLUDES(health_mu_);

  engine::Engine& engine_;
  std::atomic<int64_t> open_ = 0;

  // Used on the engine's thread only.
  std::optional<engine::RequestId> probe_;                 // the replica's own request
  bool is_suspect_ = false;                                // an answer has failed since the last probe
  bool is_failing_ = false;                                // the last probe has failed
  std::chrono::steady_clock::time_point next_probe_ = {};  // while it is failing

  mutable Mutex health_mu_;
  absl::Status health_ TDOCK_GUARDED_BY(health_mu_);

  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<engine::RequestId, Waiting> waiting_ TDOCK_GUARDED_BY(mu_);
  std::deque<std::function<void()>> work_ TDOCK_GUARDED_BY(mu_);
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tdock::inference
