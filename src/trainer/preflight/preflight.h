// What can be known of a run before it begins: whether its numbers fit, what its data holds, and what memory it needs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"
#include "trainer/preflight/data_figures.h"
#include "trainer/preflight/findings.h"
#include "trainer/preflight/memory.h"
#include "trainer/preflight/probe.h"
#include "trainer/stages/episode_trial.h"

namespace tdock::trainer {

// What other programs gave for the right answer of a sample.
struct RewardTrial {
  double seconds = 0;                                                // with their start
  std::vector<std::pair<std::string, std::optional<float>>> scores;  // before their weights
  std::string message = {};                                          // what they say of it
};

// The first of an episode with the first prompt.
struct EnvironmentTrial {
  double seconds = 0;  // with the start
  EpisodeTrial episode = {};
};

// Servers that answer the prompts.
struct ServersTrial {
  double seconds = 0;      // that they took to say what they are
  std::string where = {};  // they are listed
};

struct PreflightReport {
  NumberReport numbers;
  DataFigures data;
  MemoryEstimate memory;
  std::vector<std::string> warnings;  // a sentence each
  std::optional<ProbeFigures> probe;
  std::optional<RewardTrial> reward;            // where other programs score
  std::optional<EnvironmentTrial> environment;  // where the model talks with one
  std::optional<ServersTrial> servers;          // where they answer
};

struct PreflightOptions {
  ReadingLimits reading = {};
  int64_t probed_prompts = 0;            // at most 4096; 0: no probe
  std::string probe_option = "--probe";  // the option or key that asks for them
  // The ranks that train together, by the roles "actor" and "critic"; none: one process.
  std::map<std::string, int64_t> ranks = {};
};

// Of a run with these inputs, whose numbers have no violation (see LoadRecipeWithNumbers()). Errors are those of
// ReadFigures(), CheckProbe(), Probe() and other programs that score; what could be better is among the warnings. Does
// not throw.
absl::StatusOr<PreflightReport> Preflight(Recipe& recipe, const RunInputs& inputs, NumberReport numbers, Env& env,
                                          Clock& clock, const PreflightOptions& options);

}  // namespace tdock::trainer
