// Which HTTP servers score answers, as the configuration says.
#pragma once

#include <string>
#include <vector>

#include "core/config/spec.h"

namespace tdock::reward {

struct HttpRewardConfig {
  std::vector<std::string> urls;
  std::vector<std::string> weights;
  std::string token_env;
  std::string ca_file;
  bool verify = true;
};

// Binds the keys that begin with reward.url, with their checks. `config` must outlive `spec`.
void BindHttpReward(config::Spec& spec, HttpRewardConfig& config);

}  // namespace tdock::reward
