#include "trainer/reward/rule_reward.h"

#include <algorithm>
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

class RuleReward final : public Reward {
 public:
  RuleReward(std::vector<WeightedRule> rules, Otherwise otherwise)
      : rules_(std::move(rules)), otherwise_(std::move(otherwise)) {}

  absl::StatusOr<Scores> Score(std::span<const Answer> answers) override {
    std::vector<AnswerScore> each;
    for (size_t i = 0; i < answers.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(each.emplace_back(), ScoreOne(answers, i));
    }
    return Gathered(each);
  }

  absl::Status ScoreEach(std::span<const Answer> answers, const StopCheck& check_stop, const ScoreSink& sink) override {
    for (size_t i = 0; i < answers.size(); ++i) {
      TDOCK_RETURN_IF_ERROR(check_stop());
      sink(i, ScoreOne(answers, i));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<AnswerScore> ScoreOne(std::span<const Answer> answers, size_t i) const {
    AnswerScore score;
    double total = 0, least = 0, greatest = 0;
    const auto add = [&](const std::string& name, double weight, const Rule& rule) {
      const std::optional<float> given = rule.Score(answers[i]);
      score.parts.push_back({.name = name, .score = given.value_or(0.0F), .undecided = !given});
      total += weight * given.value_or(0.0F);
      const auto [low, high] = rule.range();
      least += weight * (weight < 0 ? high : low);
      greatest += weight * (weight < 0 ? low : high);
    };
    for (const WeightedRule& rule : rules_) {
      if (rule.sources.Contains(answers[i].source)) add(rule.name, rule.weight, *rule.rule);
    }
    if (score.parts.empty()) {
      if (otherwise_.rule == nullptr || otherwise_.refused.Contains(answers[i].source)) return NoRule(answers, i);
      add(otherwise_.name, 1, *otherwise_.rule);
    }
    score.total = static_cast<float>(total);
    score.bound = total == greatest ? Bound::kGreatest : total == least ? Bound::kLeast : Bound::kBetween;
    return score;
  }

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
