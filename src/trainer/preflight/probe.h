// A few rollouts, to see what rewards and lengths a run begins with.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "data/encode.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"
#include "trainer/preflight/data_figures.h"

namespace tdock::trainer {

struct ProbeFigures {
  int64_t prompts = 0, answers = 0;
  int64_t clipped = 0;  // answers that did not end by themselves
  int64_t empty = 0;    // answers without a text
  int64_t tokens = 0;
  double seconds = 0;  // of generation
  // Of one, the one with the highest reward if they are scored.
  std::string prompt, answer, truth;

  bool scored = true;        // false where another process gives the rewards (trainer.external_stages); then no more:
  int64_t unscored = 0;      // answers without a score (reward.on_error=drop)
  int64_t equal_groups = 0;  // prompts with several answers, all of the same reward: nothing is learned from them
  double mean_reward = 0;    // of the totals
  std::vector<std::pair<std::string, double>> mean_by_rule;  // before their weights; of the answers that they are for
  float reward = 0;                                          // the highest
};

// InvalidArgument for a recipe that does not train on what it generates.
absl::Status CheckProbe(const Recipe& recipe, const std::string& name);

// Answers at most `prompts` of `samples` as the recipe's rollout will, with the model as it is, and scores the answers,
// unless that is for another process. Cancelled if `limits` says to stop. May throw.
absl::StatusOr<ProbeFigures> Probe(const Recipe& recipe, const RunConfig& config, const RunInputs& inputs,
                                   const std::vector<data::EncodedSample>& samples, int64_t prompts, Clock& clock,
                                   const ReadingLimits& limits);

}  // namespace tdock::trainer
