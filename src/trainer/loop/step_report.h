// Tells people of the steps of a run while it works: figures on the line of its progress, and warnings where it learns
// nothing, or where servers answer with other weights than they were sent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "trainer/checkpoint/state.h"
#include "trainer/run_log/progress.h"
#include "trainer/run_log/run_directory.h"

namespace tdock::trainer {

// A metric on the line of progress, under a label.
struct ShownFigure {
  std::string label;
  std::string metric;
  bool hides_zero = false;
};

// Its state is what the warnings depend on. Used by one thread at a time.
class StepReport final : public Stateful {
 public:
  // `log` gets the warnings.
  explicit StepReport(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  // The figures to show after a step that has these metrics, in the order of `shown`. Those of a validation, val/…, are
  // shown until the next one, with the step that they are from.
  //
  // Warns after the first step without a gradient, and of later ones when their number has doubled; likewise while the
  // reward was 0 in every step. A step has no gradient if critic/rewards/equal_share is 1 or actor/grad_norm is 0.
  // Likewise of steps whose answers are by servers that were sent this step's weights, if rollout_corr/mean_abs_diff is
  // above 0.2, or above 0.001 and ten times the first such step's: roundings do not grow, other weights do.
  Progress::Figures Take(const std::vector<ShownFigure>& shown, int64_t step, const Metrics& metrics);

  // Warns if no step had a gradient, or a reward. Call it at the end of the run.
  void End() const;

  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

 private:
  void Note(int64_t step, const Metrics& metrics);
  void NoteServers(int64_t step, const Metrics& metrics);
  // Ways out, as far as the metrics of the last step tell.
  std::string Advice() const;

  const std::function<void(const std::string&)> log_;
  std::map<std::string, Progress::Figure> validated_;  // by their metrics
  int64_t steps_ = 0, without_gradient_ = 0, without_reward_ = 0, by_other_weights_ = 0;
  std::optional<double> first_difference_;  // between servers and training
  bool at_max_ = false;                     // the rewards of the last step: none can be greater
};

}  // namespace tdock::trainer
