// Scores that other programs compute.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/reward/reward.h"

namespace tdock::reward {

// What a source says about an answer.
struct SourceScore {
  std::optional<float> score;                             // nothing: the source is not for this answer
  bool undecided = false;                                 // it is, but could not judge it; then the score is 0
  std::vector<std::pair<std::string, float>> parts = {};  // further numbers, which are only logged
  std::string message = {};                               // for people; only logged
  double seconds = 0;                                     // from the question to the answer
};

// Gets the score of answer `index`, or why there is none after all tries. May be called by several threads at once.
using SourceSink = std::function<void(size_t index, absl::StatusOr<SourceScore> score)>;

// One place where scores come from. Implementations must be thread-safe: several batches may be scored concurrently.
class ScoreSource {
 public:
  virtual ~ScoreSource() = default;

  // In names of metrics and in messages; unique in a run.
  virtual const std::string& name() const = 0;

  // Passes on each score when it is known, each answer once, in any order; blocks until all are. Every wait inside has
  // a deadline, and ends some 200 ms after `check_stop` fails. An error is that of `check_stop`, or one because of
  // which the source can score nothing more; the answers that were not passed on by then have no score.
  virtual absl::Status Score(std::span<const Answer> answers, const StopCheck& check_stop, const SourceSink& sink) = 0;
};

}  // namespace tdock::reward
