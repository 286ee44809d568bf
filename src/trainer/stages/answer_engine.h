// What answers the prompts of a rollout: an engine in this process, or servers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// Used by one thread at a time; Abort() and what only reads figures from any.
class AnswerEngine {
 public:
  virtual ~AnswerEngine() = default;

  // From the next Add() on, answers are those of these weights. `in_flight`: answers in progress may go on with them,
  // too. The decoder must not change meanwhile, except while no answer is in progress: a policy that trains in place is
  // served again, under its next version, before anything is asked.
  virtual absl::Status Serve(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool in_flight,
                             const std::function<absl::Status()>& check_stop) = 0;

  virtual absl::StatusOr<engine::RequestId> Add(engine::Request request) = 0;
  virtual bool HasWork() const = 0;
  // The answers that have ended; waits for some for at most about 50 ms (an engine of this process: computes a step).
  // May throw what Engine::Step() throws.
  virtual absl::StatusOr<std::vector<engine::Answer>> Step() = 0;
  virtual absl::Status Abort(engine::RequestId request) = 0;

  // All of these requests: calls `after_step` after each Step() with the answers that have ended, in which `request` is
  // the number in `requests`, until all have, or it returns an error, which is then returned. Nothing is open
  // afterwards, nor may anything be before.
  using AfterStep = engine::Engine::AfterStep;
  virtual absl::Status AnswerAll(std::vector<engine::Request> requests, const AfterStep& after_step);

  // Aborts what is open of these requests, and waits until nothing is.
  void GiveUp(std::span<const engine::RequestId> requests);

  virtual int64_t open() const = 0;  // answers
  // As EngineStats::computing; of servers: the time in which answers were in progress.
  virtual absl::Duration computing() const = 0;
  // Figures of its own since the last call.
  virtual void Report(StepMetrics& metrics) { (void)metrics; }
};

// An engine in this process. Serves `decoder`, which must outlive it, as version 0 until it is told otherwise. If
// Serve() is given that very decoder, its weights are taken to have changed in place.
std::unique_ptr<AnswerEngine> MakeLocalEngine(const model::Decoder& decoder, const engine::EngineOptions& options);

// An engine that is made when Serve() is first called; until then nothing may be added.
std::unique_ptr<AnswerEngine> MakeLateEngine(std::function<absl::StatusOr<std::unique_ptr<AnswerEngine>>()> make);

// A decoder that outlives the engines which serve it.
inline std::shared_ptr<const model::Decoder> Unowned(const model::Decoder& decoder) {
  return {std::shared_ptr<void>(), &decoder};
}

}  // namespace tdock::trainer
