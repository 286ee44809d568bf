// The rules that a RuleReward combines; docs/rewards.md describes them. Internal to this module.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/reward/reward.h"
#include "trainer/reward/reward_config.h"

namespace tdock::reward {

// The place of the truth in a pattern.
inline constexpr absl::string_view kTruthPlace = "{truth}";

// Immutable, and so thread-safe.
class Rule {
 public:
  virtual ~Rule() = default;

  // Nullopt if it cannot be decided: a truth that the rule does not understand, a pattern that takes too long.
  virtual std::optional<float> Score(const Answer& answer) const = 0;

  // The least and the greatest score.
  virtual std::pair<float, float> range() const { return {0.0F, 1.0F}; }
};

std::unique_ptr<const Rule> MakeExactRule(const ExactRuleConfig& config);
std::unique_ptr<const Rule> MakeNumberRule(const NumberRuleConfig& config);
std::unique_ptr<const Rule> MakeMathRule(const MathRuleConfig& config);
std::unique_ptr<const Rule> MakeLengthRule(const LengthRuleConfig& config);
// InvalidArgument for a pattern that does not compile.
absl::StatusOr<std::unique_ptr<const Rule>> MakeRegexRule(const RegexRuleConfig& config);
absl::StatusOr<std::unique_ptr<const Rule>> MakeFormatRule(const FormatRuleConfig& config);

}  // namespace tdock::reward
