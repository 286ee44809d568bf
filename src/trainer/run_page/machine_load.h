// How busy this machine is.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/env.h"
#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {

// Not thread-safe.
class MachineLoad {
 public:
  // `env` must outlive it. Loads NVIDIA's management library where there is one.
  explicit MachineLoad(Env& env);
  ~MachineLoad();
  MachineLoad(const MachineLoad&) = delete;
  MachineLoad& operator=(const MachineLoad&) = delete;

  // {"cores", "cpu": busy share of them since the last call, or null, "load": of the last minute, "memory",
  // "memory_total": bytes, "gpus": [{"name", "busy": share, "memory", "memory_total"}, …]}; null for what the system
  // does not tell.
  LogRecord Now();

 private:
  class Gpus;

  Env& env_;
  const std::unique_ptr<Gpus> gpus_;
  uint64_t busy_ = 0, all_ = 0;
};

}  // namespace tdock::trainer
