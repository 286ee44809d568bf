// What the training data of a run holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "data/encode.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"
#include "trainer/run_log/progress.h"

namespace tdock::trainer {

struct ReadingLimits {
  int64_t samples = 20'000;
  absl::Duration time = absl::Seconds(10);
  int64_t kept = 0;  // usable samples that are kept at least, where there are as many; at most 4096
  const std::atomic<bool>* stop = nullptr;  // ends it early
  Progress* progress = nullptr;             // null: it is not shown
};

// Samples that are not used, not as they are, or perhaps not as they should be.
struct DataLoss {
  int64_t samples = 0;
  std::string what;  // "too long, left out"
  std::string keys;  // that would change it
};

struct DataFigures {
  int64_t training = 0, validation = 0;  // records that a run draws from
  int64_t steps = 0;                     // of a run: see TotalSteps()
  // Of the training data. What follows is of these: all of them, or as many as the limits allow, from everywhere.
  int64_t read = 0;
  int64_t usable = 0;
  int64_t tokens = 0;           // of what is usable
  int64_t trained_tokens = 0;   // of these; 0 where a recipe trains on tokens that it generates
  bool trains_on_data = false;  // rather than on tokens that it generates
  std::vector<DataLoss> losses;
  int64_t median_length = 0, long_length = 0, longest = 0;  // tokens; long: 95 % are no longer
  int64_t most_tokens = 0;                                  // as the configuration allows
  std::string most_key;                                     // which key says so
  // Of the usable samples as many as a step takes or more, chosen evenly, in a random order; at least one, and the
  // longest among them.
  std::vector<data::EncodedSample> some;

  bool complete() const { return read == training; }
};

// Reads the training data within the limits, and beyond them until a sample can be used. Cancelled if it is stopped.
// FailedPrecondition if no sample of all can be used: why, and which keys change that; or if none has a truth, and the
// rewards come from rules that all compare with one. Other errors as the loop would give them for the first bad record.
absl::StatusOr<DataFigures> ReadFigures(const Recipe& recipe, const RunConfig& config, const RunInputs& inputs,
                                        Clock& clock, const ReadingLimits& limits);

}  // namespace tdock::trainer
