// A weighted sum of rules, each for some data sources. Internal to this module.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/reward/rules.h"

namespace tdock::reward {

// Names of data sources. Immutable.
class SourceSet {
 public:
  // From names separated by commas, of which a last '*' stands for any ending; an empty text is all sources.
  // InvalidArgument for an empty name, or a '*' elsewhere.
  static absl::StatusOr<SourceSet> Parse(absl::string_view names);

  bool Contains(absl::string_view source) const;

 private:
  std::vector<std::string> names_;  // empty: all
};

struct WeightedRule {
  std::string name;  // of its part; those with the same name must be for different sources
  double weight = 1;
  SourceSet sources;
  std::unique_ptr<const Rule> rule;
};

// What scores an answer that none of the rules is for.
struct Otherwise {
  std::string name;
  std::unique_ptr<const Rule> rule;  // null: nothing does, which is an error
  SourceSet refused;                 // sources for which that is an error all the same
};

std::unique_ptr<Reward> MakeRuleReward(std::vector<WeightedRule> rules, Otherwise otherwise);

}  // namespace tdock::reward
