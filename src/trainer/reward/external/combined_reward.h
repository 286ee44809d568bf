// The sum of rules and other sources of scores.
#pragma once

#include <memory>
#include <vector>

#include "trainer/reward/external/log_lines.h"
#include "trainer/reward/external/score_source.h"
#include "trainer/reward/reward.h"

namespace tdock::reward {

struct WeightedSource {
  std::unique_ptr<ScoreSource> source;
  double weight = 1;
};

// What becomes of a sample that a source has no score for.
enum class OnError {
  kStop,   // it has no reward, but an error that names source and sample
  kScore,  // it counts as ErrorPolicy::score from that source
  kDrop    // it is left out
};

struct ErrorPolicy {
  OnError on_error = OnError::kStop;
  float score = 0;
  // Gets the source, the sample and the reason where the run goes on, of at most 10 samples of a call, and how many
  // others there were. Thread-safe.
  LogSink log = [](const std::string&) {};
};

// weight · score, summed over the sources, plus the total of `rules`, which may be null. The sources work at the same
// time, each on a thread of its own; an answer is passed on when all have scored it. The parts of an answer are those
// of the rules, then NAME and NAME/PART of each source. A source that can score nothing more stops the others.
std::unique_ptr<Reward> MakeCombinedReward(std::unique_ptr<Reward> rules, std::vector<WeightedSource> sources,
                                           const ErrorPolicy& policy);

}  // namespace tdock::reward
