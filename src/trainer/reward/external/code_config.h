// How programs in answers are scored, as the configuration says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/spec.h"
#include "trainer/reward/external/code_source.h"

namespace tdock::reward {

struct CodeRewardConfig {
  double weight = 0;  // 0: not used
  std::string sources;
  bool all_or_nothing = false;
  std::string python = "python3";
  double test_timeout = 10;  // seconds
  double timeout = 60;
  double memory_gb = 1;
  double file_mb = 16;
  double output_mb = 1;
  std::vector<std::string> allow_unisolated;
};

// Binds the keys reward.code.…, with their checks. `config` must outlive `spec`.
void BindCodeReward(config::Spec& spec, CodeRewardConfig& config);

// InvalidArgument for data sources that make no sense.
absl::StatusOr<CodeOptions> CodeOptionsOf(const CodeRewardConfig& config, int64_t processes);

}  // namespace tdock::reward
