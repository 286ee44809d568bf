// Stages that other processes of the run carry out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

// What other processes carry stages out for. Everything outlives what follows.
struct StagesOfRun {
  std::span<const std::unique_ptr<Stage>> stages;
  const Policy& policy;
  // The models that are trained, the policy among them, by the roles "actor" and "critic".
  std::map<std::string, const Policy*> trained = {};
  // Whether the policy trains while answers are sampled: then others answer with what Serve() gives; otherwise with
  // what it is when they begin.
  bool serves = false;
  int64_t total_steps = 0;  // for schedules
};

// Run() is thread-safe for different stages.
class RemoteStages {
 public:
  virtual ~RemoteStages() = default;

  // Once they are made.
  virtual absl::Status Attach(const StagesOfRun& run) = 0;
  // The ranks that train with this one go on from the checkpoint in `folder`, as this one does.
  virtual void GoOnFrom(const std::string& folder) = 0;

  virtual bool Carries(const Stage& stage) const = 0;
  // Has it carried out on rows that are leased for it: they are put, completed, dropped or given back, and their
  // figures counted, as by StageRunner::RunTaken(). Waits; Cancelled by context.check_stop.
  virtual absl::StatusOr<StageRunner::Round> Run(Stage& stage, const std::string& partition, const Taken& taken,
                                                 StageContext& context) = 0;
  // From now on answers are sampled with these weights, which do not change meanwhile.
  virtual absl::Status Serve(const model::Decoder& decoder, int64_t version) = 0;

  // The weights that are trained are whole at this rank until they are trained on; all that reads them comes after it.
  // With a stage: those that it reads, if it reads any. Not while a stage trains.
  virtual absl::Status PrepareWeights(const Stage* reader = nullptr) = 0;
  // Stage::SwapAverage() of a stage that it carries, at all of its ranks.
  virtual absl::Status SwapAverage(Stage& stage) = 0;
  // The others take note of the parts of the state that only they have, between two steps, as this rank does of its
  // own: FailedPrecondition names one that is at another step or version of the weights. What is returned writes the
  // parts into a folder, which all of them must see, once, in any thread; null: this rank has everything.
  using WriteParts = std::function<absl::Status(const std::string& folder)>;
  virtual absl::StatusOr<WriteParts> SnapshotParts(int64_t step, int64_t part) = 0;

  // The calls that have ended since it was last asked.
  virtual std::vector<RankSpan> TakeSpans() = 0;
};

}  // namespace tdock::trainer
