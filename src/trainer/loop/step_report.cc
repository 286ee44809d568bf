#include "trainer/loop/step_report.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

std::optional<double> Find(const Metrics& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

bool Is(const Metrics& metrics, const std::string& name, double value) { return Find(metrics, name) == value; }

bool IsPowerOfTwo(int64_t number) { return (number & (number - 1)) == 0; }

}  // namespace

Progress::Figures StepReport::Take(const std::vector<ShownFigure>& shown, int64_t step, const Metrics& metrics) {
  if (step > 0) Note(step, metrics);
  if (step > 0) NoteServers(step, metrics);
  Progress::Figures figures;
  for (const ShownFigure& one : shown) {
    const auto found = metrics.find(one.metric);
    const bool measured = found != metrics.end();
    if (!absl::StartsWith(one.metric, "val/")) {
      if (measured && !(one.hides_zero && found->second == 0)) figures.push_back({one.label, found->second});
      continue;
    }
    if (measured) validated_[one.metric] = {one.label, found->second, absl::StrCat(" (step ", step, ")")};
    const auto last = validated_.find(one.metric);
    if (last != validated_.end()) figures.push_back(last->second);
  }
  return figures;
}

void StepReport::Note(int64_t step, const Metrics& metrics) {
  const bool no_gradient = Is(metrics, "critic/rewards/equal_share", 1) || Is(metrics, "actor/grad_norm", 0);
  const bool no_reward = Is(metrics, "critic/score/min", 0) && Is(metrics, "critic/score/max", 0);
  at_max_ = Is(metrics, "critic/score/at_max", 1);
  ++steps_;
  without_gradient_ += no_gradient ? 1 : 0;
  without_reward_ += no_reward ? 1 : 0;
  const bool never_a_reward = without_reward_ == steps_;
  if (no_gradient && IsPowerOfTwo(without_gradient_)) {
    log_(absl::StrCat("warning: step ", step,
                      " had no gradient from rewards, since no prompt has answers with different ones (",
                      without_gradient_, " of ", steps_, " steps so far)",
                      never_a_reward ? "; every reward so far was 0" : "", ". ", Advice()));
  } else if (!no_gradient && never_a_reward && IsPowerOfTwo(steps_)) {
    log_(absl::StrCat("warning: every reward so far was 0, in ", steps_, steps_ == 1 ? " step. " : " steps. ",
                      Advice()));
  }
}

void StepReport::NoteServers(int64_t step, const Metrics& metrics) {
  constexpr double kRounding = 1e-3, kFar = 0.2, kGrowth = 10;
  const std::optional<double> difference = Find(metrics, "rollout_corr/mean_abs_diff");
  // Without servers, without new weights, or with those of earlier steps, the difference says nothing of servers.
  if (!difference.has_value() || Find(metrics, "rollout/server_weights_s").value_or(0) == 0 ||
      Find(metrics, "async/staleness/mean").value_or(0) > 0) {
    return;
  }
  const double most = first_difference_ ? std::min(kFar, std::max(kRounding, kGrowth * *first_difference_)) : kFar;
  if (!first_difference_.has_value()) first_difference_ = difference;
  if (*difference <= most || !IsPowerOfTwo(++by_other_weights_)) return;
  log_(absl::StrCat("warning: in step ", step, " training finds log-probabilities that differ by ", *difference,
                    " on average from the servers' (", *first_difference_, " in the first step; ", by_other_weights_,
                    " such steps so far): rollout.servers may answer with other weights than they were sent. See "
                    "docs/rollout-servers.md; algorithm.rollout_correction.rollout_is weights such answers"));
}

std::string StepReport::Advice() const {
  return absl::StrCat(
      "Remedies: more samples per prompt (rollout.n), a higher rollout.temperature, another rule or function for "
      "the reward (docs/rewards.md), or ",
      at_max_ ? "harder prompts, since all answers have the greatest reward" : "easier prompts");
}

void StepReport::End() const {
  if (steps_ == 0) return;
  if (without_gradient_ == steps_) {
    log_(absl::StrCat("warning: the run has learned nothing from its rewards: none of its ", steps_,
                      " steps had a gradient from them", without_reward_ == steps_ ? ", and every reward was 0" : "",
                      ". ", Advice()));
  } else if (without_reward_ == steps_) {
    log_(absl::StrCat("warning: every reward of the run was 0, in ", steps_, " steps. ", Advice()));
  }
}

void StepReport::Save(State& state) const {
  state.SetInteger("steps", steps_);
  state.SetInteger("without_gradient", without_gradient_);
  state.SetInteger("without_reward", without_reward_);
  state.SetInteger("by_other_weights", by_other_weights_);
  state.SetNumber("first_difference", first_difference_.value_or(-1));
}

absl::Status StepReport::Load(const State& state) {
  if (state.empty()) return absl::OkStatus();  // a checkpoint from before this was counted
  TDOCK_ASSIGN_OR_RETURN(steps_, state.Integer("steps"));
  TDOCK_ASSIGN_OR_RETURN(without_gradient_, state.Integer("without_gradient"));
  TDOCK_ASSIGN_OR_RETURN(without_reward_, state.Integer("without_reward"));
  TDOCK_ASSIGN_OR_RETURN(by_other_weights_, state.Integer("by_other_weights"));
  TDOCK_ASSIGN_OR_RETURN(const double first, state.Number("first_difference"));
  if (first >= 0) first_difference_ = first;
  return absl::OkStatus();
}

}  // namespace tdock::trainer
