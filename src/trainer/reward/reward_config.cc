#include "trainer/reward/reward_config.h"

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/reward/rule_reward.h"
#include "trainer/reward/rules.h"

namespace tdock::reward {

bool HasRule(const RewardConfig& c) {
  return c.exact.weight != 0 || c.number.weight != 0 || c.math.weight != 0 || c.regex.weight != 0 ||
         c.format.weight != 0 || c.length.weight != 0;
}

std::vector<std::string> RulesOfTruth(const RewardConfig& c) {
  if (!HasRule(c)) return {"exact"};
  const bool in_pattern = absl::StrContains(c.regex.pattern, kTruthPlace);
  if (c.format.weight != 0 || c.length.weight != 0 || (c.regex.weight != 0 && !in_pattern)) return {};
  std::vector<std::string> rules;
  for (const auto& [rule, weight] : {std::pair("exact", c.exact.weight), std::pair("number", c.number.weight),
                                     std::pair("math", c.math.weight), std::pair("regex", c.regex.weight)}) {
    if (weight != 0) rules.emplace_back(rule);
  }
  return rules;
}

namespace {

std::vector<std::string> Violations(const absl::Status& status) {
  if (status.ok()) return {};
  return {std::string(status.message())};
}

// The weight and the sources of a rule, and what they mean.
void BindRule(config::Spec& spec, const std::string& rule, double* weight, std::string* sources,
              const std::string& meaning) {
  spec.Float(absl::StrCat("reward.", rule, ".weight"), weight, absl::StrCat("Weight of the rule ", meaning));
  const std::string key = absl::StrCat("reward.", rule, ".sources");
  spec.String(key, sources, "Data sources that the rule is for; `aime*`: all that begin so; empty: all.").OrList();
  spec.Check({key}, [sources] { return Violations(SourceSet::Parse(*sources).status()); });
}

// Options of a rule without weight, in a configuration without any, are a mistake.
void RequireWeight(config::Spec& spec, const RewardConfig& c, const std::string& rule, const std::string& option,
                   const std::function<bool()>& given) {
  spec.Check({absl::StrCat("reward.", rule, ".", option)}, [&c, rule, given]() -> std::vector<std::string> {
    if (HasRule(c) || !given()) return {};
    return {absl::StrCat("this has no effect without a weight; set reward.", rule, ".weight")};
  });
}

void BindPattern(config::Spec& spec, const std::string& rule, const double& weight, std::string& pattern,
                 const std::string& doc, const std::function<absl::Status()>& compile) {
  const std::string key = absl::StrCat("reward.", rule, ".pattern");
  spec.String(key, &pattern, doc);
  spec.Check({key}, [compile] { return Violations(compile()); });
  spec.Check({absl::StrCat("reward.", rule, ".weight"), key}, [&weight, &pattern]() -> std::vector<std::string> {
    if (weight == 0 || !pattern.empty()) return {};
    return {"a rule with a weight needs a pattern"};
  });
}

absl::Status CheckLimits(const LengthRuleConfig& c) {
  if (c.weight == 0 || (c.soft_limit >= 0 && c.hard_limit > c.soft_limit)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the hard limit of the length must be above its soft limit, which is at least 0; they are ",
                   c.hard_limit, " and ", c.soft_limit));
}

void BindLength(config::Spec& spec, LengthRuleConfig& c) {
  spec.Int("reward.length.soft_limit", &c.soft_limit, "Characters up to which `length` is 0.").AtLeast(0);
  spec.Int("reward.length.hard_limit", &c.hard_limit,
           "Characters from which on `length` is −1; between, it falls evenly.")
      .AtLeast(0);
  spec.Check({"reward.length.hard_limit", "reward.length.soft_limit", "reward.length.weight"},
             [&c] { return Violations(CheckLimits(c)); });
}

}  // namespace

void BindReward(config::Spec& spec, RewardConfig& c) {
  BindRule(spec, "exact", &c.exact.weight, &c.exact.sources,
           "`exact`: 1 for exactly the true answer. 0: the rule is not used; if no rule is, each data source has its "
           "own.");
  spec.Bool("reward.exact.strip", &c.exact.strip, "White space around the response and the truth does not count.");
  spec.Bool("reward.exact.require_finished", &c.exact.require_finished,
            "A response that was cut off at the maximum length is wrong.");
  BindRule(spec, "number", &c.number.weight, &c.number.sources,
           "`number`: 1 if the last number of the response is that of the truth.");
  spec.Bool("reward.number.strict", &c.number.strict, "Only a number behind `####` counts, as in GSM8K.");
  BindRule(spec, "math", &c.math.weight, &c.math.sources,
           "`math`: 1 if the answer of the response is mathematically the same as the truth.");
  spec.Choice("reward.math.answer", &c.math.answer,
              {{"boxed", MathRuleConfig::Place::kBoxed},
               {"line", MathRuleConfig::Place::kLine},
               {"boxed_or_line", MathRuleConfig::Place::kBoxedOrLine}},
              "Where the answer is: in the last \\boxed{…}, or behind the last `Answer:`.");
  BindRule(spec, "regex", &c.regex.weight, &c.regex.sources, "`regex`: 1 if a pattern matches in the response.");
  BindPattern(spec, "regex", c.regex.weight, c.regex.pattern,
              "Pattern (PCRE2) of `regex`; {truth} in it stands for the truth itself.",
              [&c] { return MakeRegexRule(c.regex).status(); });
  BindRule(spec, "format", &c.format.weight, &c.format.sources,
           "`format`: 1 if a pattern matches the response as a whole.");
  BindPattern(spec, "format", c.format.weight, c.format.pattern, "Pattern (PCRE2) of `format`.",
              [&c] { return MakeFormatRule(c.format).status(); });
  BindRule(spec, "length", &c.length.weight, &c.length.sources, "`length`: 0 down to −1 for long responses.");
  BindLength(spec, c.length);

  RequireWeight(spec, c, "exact", "sources", [&c] { return !c.exact.sources.empty(); });
  RequireWeight(spec, c, "number", "sources", [&c] { return !c.number.sources.empty(); });
  RequireWeight(spec, c, "number", "strict", [&c] { return c.number.strict; });
  RequireWeight(spec, c, "math", "sources", [&c] { return !c.math.sources.empty(); });
  RequireWeight(spec, c, "math", "answer", [&c] { return c.math.answer != MathRuleConfig::Place::kBoxed; });
  RequireWeight(spec, c, "regex", "sources", [&c] { return !c.regex.sources.empty(); });
  RequireWeight(spec, c, "regex", "pattern", [&c] { return !c.regex.pattern.empty(); });
  RequireWeight(spec, c, "format", "sources", [&c] { return !c.format.sources.empty(); });
  RequireWeight(spec, c, "format", "pattern", [&c] { return !c.format.pattern.empty(); });
  RequireWeight(spec, c, "length", "sources", [&c] { return !c.length.sources.empty(); });
  RequireWeight(spec, c, "length", "hard_limit", [&c] { return c.length.hard_limit != 0; });
}

namespace {

// The rules for the data sources that verl's default_compute_score knows, and that have one here.
absl::StatusOr<std::unique_ptr<Reward>> MakeDefaultReward(const RewardConfig& config) {
  TDOCK_ASSIGN_OR_RETURN(const SourceSet gsm8k, SourceSet::Parse("openai/gsm8k"));
  TDOCK_ASSIGN_OR_RETURN(const SourceSet boxed,
                         SourceSet::Parse("lighteval/MATH, DigitalLearningGmbH/MATH-lighteval, HuggingFaceH4/MATH-500, "
                                          "numina_aops_forum, numina_synthetic_math, numina_amc_aime, "
                                          "numina_synthetic_amc, numina_cn_k12, numina_olympiads"));
  TDOCK_ASSIGN_OR_RETURN(const SourceSet line, SourceSet::Parse("math, math_dapo, math_dapo_reasoning, aime*"));
  std::vector<WeightedRule> rules;
  rules.push_back({.name = "number", .sources = gsm8k, .rule = MakeNumberRule({.strict = true})});
  rules.push_back({.name = "math", .sources = boxed, .rule = MakeMathRule({})});
  rules.push_back(
      {.name = "math", .sources = line, .rule = MakeMathRule({.answer = MathRuleConfig::Place::kBoxedOrLine})});
  // verl runs programs, looks at images, or takes several truths for these; `exact` would give 0 for each response.
  TDOCK_ASSIGN_OR_RETURN(SourceSet refused,
                         SourceSet::Parse("codecontests, apps, codeforces, taco, hiyouga/geometry3k, searchR1_*"));
  return MakeRuleReward(std::move(rules),
                        {.name = "exact", .rule = MakeExactRule(config.exact), .refused = std::move(refused)});
}

class RuleList {
 public:
  // Adds a rule that has a weight. `made` is a status or a rule.
  template <class C, class Make>
  absl::Status Add(const char* name, const C& config, const Make& make) {
    if (config.weight == 0) return absl::OkStatus();
    const std::string key = absl::StrCat("reward.", name);
    if (!std::isfinite(config.weight)) {
      return absl::InvalidArgumentError(absl::StrCat(key, ".weight is ", config.weight, "; it must be finite"));
    }
    absl::StatusOr<SourceSet> sources = SourceSet::Parse(config.sources);
    if (!sources.ok()) return Annotate(sources.status(), absl::StrCat(key, ".sources"));
    absl::StatusOr<std::unique_ptr<const Rule>> rule = make(config);
    if (!rule.ok()) return Annotate(rule.status(), key);
    rules_.push_back({.name = name, .weight = config.weight, .sources = *std::move(sources), .rule = *std::move(rule)});
    return absl::OkStatus();
  }
  std::vector<WeightedRule> Take() { return std::move(rules_); }

 private:
  std::vector<WeightedRule> rules_;
};

absl::Status CheckPattern(double weight, const std::string& pattern) {
  if (weight == 0 || !pattern.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("a rule with a weight needs a pattern");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reward>> MakeReward(const RewardConfig& config) {
  if (!HasRule(config)) return MakeDefaultReward(config);
  TDOCK_RETURN_IF_ERROR(Annotate(CheckPattern(config.regex.weight, config.regex.pattern), "reward.regex"));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckPattern(config.format.weight, config.format.pattern), "reward.format"));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckLimits(config.length), "reward.length"));
  RuleList rules;
  TDOCK_RETURN_IF_ERROR(rules.Add("exact", config.exact, MakeExactRule));
  TDOCK_RETURN_IF_ERROR(rules.Add("number", config.number, MakeNumberRule));
  TDOCK_RETURN_IF_ERROR(rules.Add("math", config.math, MakeMathRule));
  TDOCK_RETURN_IF_ERROR(rules.Add("regex", config.regex, MakeRegexRule));
  TDOCK_RETURN_IF_ERROR(rules.Add("format", config.format, MakeFormatRule));
  TDOCK_RETURN_IF_ERROR(rules.Add("length", config.length, MakeLengthRule));
  return MakeRuleReward(rules.Take(), {});
}

}  // namespace tdock::reward
