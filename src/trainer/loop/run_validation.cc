#include "trainer/loop/run_validation.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

constexpr absl::string_view kFirst = "first/", kLast = "last/";
constexpr char kLane[] = "validation";  // of the timeline

void SetNumbers(State& state, absl::string_view prefix, const Metrics& numbers) {
  for (const auto& [name, value] : numbers) state.SetNumber(absl::StrCat(prefix, name), value);
}

absl::StatusOr<Metrics> NumbersUnder(const State& state, absl::string_view prefix) {
  Metrics numbers;
  for (const auto& [name, text] : state.texts()) {
    if (!absl::StartsWith(name, prefix)) continue;
    TDOCK_ASSIGN_OR_RETURN(numbers[name.substr(prefix.size())], state.Number(name));
  }
  return numbers;
}

std::vector<std::string> NamesOf(const Metrics& metrics) {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  return names;
}

}  // namespace

RunValidation::RunValidation(const TrainerSection& section, PhaseMeter& meter, Timeline& timeline)
    : section_(section), meter_(meter), timeline_(timeline), stop_rule_(*ParseStopRule(section.stop_when)) {}

bool RunValidation::IsDueAfter(int64_t step) const {
  if (step == 0) return section_.val_before_train || section_.val_only;
  return section_.test_freq > 0 && step % section_.test_freq == 0;
}

absl::StatusOr<std::vector<Answer>> RunValidation::Run(int64_t step,
                                                       std::span<const std::unique_ptr<Evaluation>> evaluations,
                                                       StepMetrics& metrics) {
  meter_.Begin();
  timeline_.Work(kLane, 0);
  StepMetrics measured;
  std::vector<Answer> answers;
  for (const auto& evaluation : evaluations) TDOCK_RETURN_IF_ERROR(evaluation->Run(measured, answers));
  last_ = measured.Values();
  if (step == 0) first_ = last_;
  if (stop_rule_.has_value() && step == 0 && absl::StartsWith(stop_rule_->metric, "val/") &&
      !last_.contains(stop_rule_->metric)) {
    return absl::InvalidArgumentError(absl::StrCat("trainer.stop_when waits for ", stop_rule_->metric,
                                                   ", which these validations do not measure; they measure ",
                                                   absl::StrJoin(NamesOf(last_), ", "), " (trainer.evaluations)"));
  }
  metrics.Add(measured);
  timeline_.End(kLane);
  meter_.End("testing", metrics);
  return answers;
}

void RunValidation::Save(State& state) const {
  SetNumbers(state, kFirst, first_);
  SetNumbers(state, kLast, last_);
}

absl::Status RunValidation::Load(const State& state) {
  TDOCK_ASSIGN_OR_RETURN(first_, NumbersUnder(state, kFirst));
  TDOCK_ASSIGN_OR_RETURN(last_, NumbersUnder(state, kLast));
  return absl::OkStatus();
}

}  // namespace tdock::trainer
