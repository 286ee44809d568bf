// Which rules score the answers of a run, as its configuration says. docs/rewards.md is the description for users.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/spec.h"
#include "trainer/reward/reward.h"

namespace tdock::reward {

// Of each rule: its weight in the sum, 0 for a rule that is not used; and the data sources whose answers it scores,
// separated by commas, where a last '*' stands for any ending ("openai/gsm8k, aime*"); empty: all.
struct ExactRuleConfig {
  double weight = 0;
  std::string sources = {};
  bool strip = true;
  bool require_finished = true;
};

struct NumberRuleConfig {
  double weight = 0;
  std::string sources = {};
  bool strict = false;
};

struct MathRuleConfig {
  enum class Place { kBoxed, kLine, kBoxedOrLine };
  double weight = 0;
  std::string sources = {};
  Place answer = Place::kBoxed;
};

struct RegexRuleConfig {
  double weight = 0;
  std::string sources = {};
  std::string pattern = {};
};

struct FormatRuleConfig {
  double weight = 0;
  std::string sources = {};
  std::string pattern = {};
};

struct LengthRuleConfig {
  double weight = 0;
  std::string sources = {};
  int64_t soft_limit = 0;
  int64_t hard_limit = 0;
};

struct RewardConfig {
  ExactRuleConfig exact = {};
  NumberRuleConfig number = {};
  MathRuleConfig math = {};
  RegexRuleConfig regex = {};
  FormatRuleConfig format = {};
  LengthRuleConfig length = {};
};

// Whether any rule has a weight.
bool HasRule(const RewardConfig& config);

// The rules of the configuration if all of them compare with a truth, without which each answer gets 0: "number",
// "regex". Without any weight the default, "exact". Nothing if there are rules that need no truth.
std::vector<std::string> RulesOfTruth(const RewardConfig& config);

// Binds the keys reward.RULE.weight, reward.RULE.sources and the options of each rule, with the checks that make
// MakeReward() succeed. `config` must outlive `spec`.
void BindReward(config::Spec& spec, RewardConfig& config);

// The weighted sum of the rules, as a Reward whose parts are those that scored at least one of the answers.
//
// If no rule has a weight, the data source of an answer chooses one: those that verl knows have the rule of its
// default_compute_score, as far as there is one here, and all others `exact`, with its options.
//
// Score() fails with InvalidArgument, naming source and sample, for a source that no rule is for. InvalidArgument here
// for a pattern that does not compile, and limits or weights that make no sense.
absl::StatusOr<std::unique_ptr<Reward>> MakeReward(const RewardConfig& config);

}  // namespace tdock::reward
