// An update stage that is run again and again over the same samples. Internal to this module.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/harness/benchmark.h"
#include "tdock/dock.h"
#include "trainer/stages/stage.h"

namespace tdock::bench {

// Each run puts the samples to a dock of its own and then, timed, the stage takes and trains on them, as in a step of
// training. Not thread-safe.
class UpdateRun {
 public:
  struct Samples {
    Batch batch;  // the columns that the stage reads
    std::vector<GroupId> groups;
    int64_t group_size = 1;
    int64_t tokens = 0;  // of prompts and responses
  };
  static absl::StatusOr<std::unique_ptr<UpdateRun>> Create(Clock& clock, std::unique_ptr<trainer::Stage> stage,
                                                           std::vector<ColumnSpec> columns, Samples samples);

  // Tokens of prompts and responses in a second. Fails if the gradients were not finite.
  absl::StatusOr<double> TokensPerSecond();

 private:
  UpdateRun(Clock& clock, std::unique_ptr<trainer::Stage> stage, Samples samples);

  Clock& clock_;
  const std::unique_ptr<trainer::Stage> stage_;
  const Samples samples_;
  const std::unique_ptr<Dock> dock_;
  trainer::StageRunner runner_;
};

}  // namespace tdock::bench
