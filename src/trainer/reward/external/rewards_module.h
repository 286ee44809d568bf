// python/transfer_dock/rewards.py and what it imports, a reward program, as a text for `python -c`.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::reward {

extern const absl::string_view kRewardsModule;

}  // namespace tdock::reward
