// Stages that other processes of the run carry out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/decoder/decoder.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// A call of a worker method at one rank.
struct RankSpan {
  int rank = 0;
  std::string method = {};
  int64_t began_ns = 0, ended_ns = 0;           // since the epoch
  int64_t memory_before = 0, memory_after = 0;  // bytes of the process that are resident
  int64_t rows = 0;
};

// Run() is thread-safe for different stages.
class RemoteStages {
 public:
  virtual ~RemoteStages() = default;

  // The stages of the run, once they are made, and the policy that it trains. Both outlive what follows. Where the
  // policy trains while answers are sampled (`serves`), others compute with what Serve() gives; otherwise with what it
  // is when they begin.
  virtual absl::Status Attach(std::span<const std::unique_ptr<Stage>> stages, const Policy& policy, bool serves) = 0;

  virtual bool Carries(const Stage& stage) const = 0;
  // Has it carried out on rows that are leased for it: they are put, completed, dropped or given back, and their
  // figures counted, as by StageRunner::RunTaken(). Waits; Cancelled by context.check_stop.
  virtual absl::StatusOr<StageRunner::Round> Run(Stage& stage, const std::string& partition, const Taken& taken,
                                                 StageContext& context) = 0;
  // From now on answers are sampled with these weights, which do not change meanwhile.
  virtual absl::Status Serve(const model::Decoder& decoder, int64_t version) = 0;
  // The calls that have ended since it was last asked.
  virtual std::vector<RankSpan> TakeSpans() = 0;
};

}  // namespace tdock::trainer
