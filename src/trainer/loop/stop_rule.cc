#include "trainer/loop/stop_rule.h"

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/utf8.h"

namespace tdock::trainer {

bool StopRule::IsMet(const Metrics& metrics) const {
  const auto found = metrics.find(metric);
  if (found == metrics.end()) return false;
  return at_least ? found->second >= bound : found->second <= bound;
}

absl::StatusOr<std::optional<StopRule>> ParseStopRule(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.empty()) return std::optional<StopRule>();
  StopRule rule;
  const bool sound = words.size() == 3 && absl::StartsWith(words[0], "val/") &&
                     (words[1] == ">=" || words[1] == "<=") && absl::SimpleAtod(words[2], &rule.bound) &&
                     std::isfinite(rule.bound);
  if (!sound) {
    return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForMessage(text),
                                                   "\" is not a validation metric, >= or <=, and a number, such as "
                                                   "\"val/accuracy >= 0.30\" or \"val/loss <= 1.5\""));
  }
  rule.metric = words[0];
  rule.at_least = words[1] == ">=";
  return std::optional<StopRule>(std::move(rule));
}

}  // namespace tdock::trainer
