#include "trainer/reward/rule_reward.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

// The parts of a batch, in the order in which their rules first score an answer of it.
class Parts {
 public:
  explicit Parts(size_t answers) : answers_(answers) {}

  // Returns the score in use.
  double Add(const std::string& rule, size_t i, std::optional<float> score) {
    auto part = std::find_if(parts_.begin(), parts_.end(), [&](const auto& known) { return known.rule == rule; });
    if (part == parts_.end()) {
      const std::vector<float> none(answers_, std::numeric_limits<float>::quiet_NaN());
      part = parts_.insert(part, {.rule = rule, .scores = none});
    }
    if (!score) ++part->undecided;
    part->scores[i] = score.value_or(0.0F);
    return part->scores[i];
  }

  std::vector<Scores::Part> Take() { return std::move(parts_); }

 private:
  const size_t answers_;
  std::vector<Scores::Part> parts_;
};

class RuleReward final : public Reward {
 public:
  RuleReward(std::vector<WeightedRule> rules, Otherwise otherwise)
      : rules_(std::move(rules)), otherwise_(std::move(otherwise)) {}

  absl::StatusOr<Scores> Score(std::span<const Answer> answers) override {
    Parts parts(answers.size());
    Scores scores;
    for (size_t i = 0; i < answers.size(); ++i) {
      double total = 0;
      bool scored = false;
      for (const WeightedRule& rule : rules_) {
        if (!rule.sources.Contains(answers[i].source)) continue;
        total += rule.weight * parts.Add(rule.name, i, rule.rule->Score(answers[i]));
        scored = true;
      }
      if (!scored) {
        if (otherwise_.rule == nullptr || otherwise_.refused.Contains(answers[i].source)) return NoRule(answers, i);
        total += parts.Add(otherwise_.name, i, otherwise_.rule->Score(answers[i]));
      }
      scores.totals.push_back(static_cast<float>(total));
    }
    scores.parts = parts.Take();
    return scores;
  }

 private:
  absl::Status NoRule(std::span<const Answer> answers, size_t i) const {
    const absl::string_view advice =
        otherwise_.rule == nullptr
            ? "add it to reward.RULE.sources of one of the rules, or leave these empty, which means all sources"
            : "none is right for it by default; configure one, such as reward.regex";
    return absl::InvalidArgumentError(absl::StrCat("no rule scores the data source ", Quoted(answers[i].source), " of ",
                                                   ShowAnswer(answers, i), ": ", advice));
  }

  const std::vector<WeightedRule> rules_;
  const Otherwise otherwise_;
};

}  // namespace

absl::StatusOr<SourceSet> SourceSet::Parse(absl::string_view names) {
  SourceSet set;
  if (absl::StripAsciiWhitespace(names).empty()) return set;
  for (absl::string_view name : absl::StrSplit(names, ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the data sources ", Quoted(names), " have an empty name"));
    }
    const size_t star = name.find('*');
    if (star != absl::string_view::npos && star + 1 != name.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the data source ", Quoted(name), " has a '*' that is not its last character"));
    }
    set.names_.emplace_back(name);
  }
  return set;
}

bool SourceSet::Contains(absl::string_view source) const {
  return names_.empty() || std::any_of(names_.begin(), names_.end(), [&](absl::string_view name) {
           return absl::ConsumeSuffix(&name, "*") ? absl::StartsWith(source, name) : source == name;
         });
}

std::unique_ptr<Reward> MakeRuleReward(std::vector<WeightedRule> rules, Otherwise otherwise) {
  return std::make_unique<RuleReward>(std::move(rules), std::move(otherwise));
}

}  // namespace tdock::reward
