// Which other programs score the answers of a run, as its configuration says. docs/rewards.md is the description for
// users.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/spec.h"
#include "trainer/reward/external/code_config.h"
#include "trainer/reward/external/combined_reward.h"
#include "trainer/reward/external/http_config.h"
#include "trainer/reward/external/log_lines.h"
#include "trainer/reward/reward.h"
#include "trainer/reward/reward_config.h"

namespace tdock::reward {

struct ExternalRewardConfig {
  std::vector<std::string> functions;  // FILE.py:NAME
  std::vector<std::string> function_weights;
  std::vector<std::string> programs;  // command lines
  std::vector<std::string> program_weights;
  HttpRewardConfig http;
  CodeRewardConfig code;
  std::string python = "python3";
  int64_t processes = 1;
  int64_t batch_size = 16;
  double timeout = 30;  // seconds
  double start_timeout = 60;
  int64_t retries = 2;
  int64_t max_restarts = 5;
  double memory_gb = 8;
  OnError on_error = OnError::kStop;
  double error_score = 0;

  // Whether another program scores anything.
  bool used() const { return !functions.empty() || !programs.empty() || !http.urls.empty() || code.weight != 0; }
};

// Binds the keys reward.function, reward.program, reward.url, reward.code and what belongs to them, with the checks
// that make MakeRunReward() succeed as far as it looks at the configuration. `config` must outlive `spec`.
void BindExternalReward(config::Spec& spec, ExternalRewardConfig& config);

// The reward of a run: rules, other programs, or both. Where other programs score and no rule has a weight, they alone
// do. `columns` are the names of Answer::columns; `log` gets what programs write to their standard error. No program
// is started before the first answers are scored, but the sandbox of reward.code is tried here. InvalidArgument as
// MakeReward(), and for weights, command lines and URLs that make no sense; otherwise the errors of MakeHttpSource()
// and MakeCodeSource().
absl::StatusOr<std::unique_ptr<Reward>> MakeRunReward(const RewardConfig& rules, const ExternalRewardConfig& external,
                                                      const std::vector<std::string>& columns, const LogSink& log);

// The names of the programs, in the order of the configuration: of a function, its own; of a program, that of its file;
// of a server, its host and path; `code`; a later one of the same name, or of a rule, has its number behind it.
std::vector<std::string> SourceNames(const ExternalRewardConfig& config);

}  // namespace tdock::reward
