// What a model server counts, as Prometheus metrics in the text format 0.0.4. docs/serving.md lists the names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/engine.h"

namespace tdock::inference {

// What is read when somebody asks.
struct Gauges {
  std::vector<engine::EngineStats> engines = {};  // of each replica
  size_t connections = 0;
  size_t waiting_requests = 0;  // for a thread
  int64_t accept_failures = 0;
  int64_t open_answers = 0;
  int64_t weights_version = 0;
};

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void CountRequest(absl::string_view path, int status, bool gone, absl::Duration duration);
  void CountPrompt(int64_t tokens);
  void CountAnswer(absl::string_view finish_reason, int64_t tokens);
  void ObserveFirstToken(absl::Duration since_request);
  void ObserveNextToken(absl::Duration since_last);
  void CountWeightUpdate(absl::Duration duration);

  std::string Text(const Gauges& gauges);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tdock::inference
