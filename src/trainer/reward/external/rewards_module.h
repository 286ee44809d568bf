// python/transfer_dock/rewards.py, which makes a reward program of a Python function.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::reward {

extern const absl::string_view kRewardsModule;

}  // namespace tdock::reward
