// python/transfer_dock/rewards.py and its imports, a reward program, as a text for ScriptReader.
#pragma once

#include "absl/strings/string_view.h"

namespace tdock::reward {

extern const absl::string_view kRewardsModule;

}  // namespace tdock::reward
