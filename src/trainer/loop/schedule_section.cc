#include <initializer_list>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {
namespace {

using algo::LrCurve;
using algo::LrDecay;

void BindCurve(config::Spec& spec, const std::string& key, LrCurve* curve, const std::string& doc) {
  spec.Choice(key, curve,
              {{"linear", LrCurve::kLinear}, {"cosine", LrCurve::kCosine}, {"1-sqrt", LrCurve::kOneMinusSqrt}}, doc);
}

// The names that transformers' users know and that another key here stands for.
void BindOtherNames(config::Spec& spec, const std::string& prefix, const std::string& more) {
  const std::string type = prefix + ".lr_scheduler_type", ratio = prefix + ".min_lr_ratio";
  spec.AliasValue(type, "constant_with_warmup", "constant");
  spec.AliasValue(type, "cosine_with_min_lr", "cosine");
  for (const char* follows : {"reduce_lr_on_plateau", "greedy"}) {
    spec.RefuseValue(type, follows,
                     absl::StrCat(follows,
                                  " follows a metric, and here the rate depends on the number of the step alone, "
                                  "so that a run that goes on has the same ones"));
  }
  for (const char* name : {"min_lr_rate", "min_lr_ratio"}) spec.Alias(more + name, ratio);
  for (const char* name : {"min_lr", "lr_end"}) {
    spec.Refuse(more + name, absl::StrCat("set ", ratio, ", which is this as a fraction of ", prefix, ".lr"));
  }
  spec.Refuse(
      more + "num_stable_steps",
      absl::StrCat("set ", more, "num_decay_steps: the steps between the warm-up and these are the stable ones"));
}

}  // namespace

void BindSchedule(config::Spec& spec, const std::string& prefix, algo::LrSchedule& s) {
  const std::string type = prefix + ".lr_scheduler_type", more = prefix + ".lr_scheduler_kwargs.";
  spec.Int(prefix + ".lr_warmup_steps", &s.warmup_steps, "Steps over which the learning rate rises to its peak.")
      .AtLeast(0);
  spec.Choice(type, &s.decay,
              {{"constant", LrDecay::kConstant},
               {"linear", LrDecay::kLinear},
               {"cosine", LrDecay::kCosine},
               {"cosine_with_restarts", LrDecay::kCosineWithRestarts},
               {"cosine_warmup_with_min_lr", LrDecay::kCosineOneAhead},
               {"polynomial", LrDecay::kPolynomial},
               {"inverse_sqrt", LrDecay::kInverseSqrt},
               {"warmup_stable_decay", LrDecay::kWarmupStableDecay}},
              "How the learning rate decays after its peak; docs/algorithms.md has the formulas.");
  spec.Float(prefix + ".min_lr_ratio", &s.floor, "Final learning rate as a fraction of the peak.").AtLeast(0).AtMost(1);
  spec.Float(more + "num_cycles", &s.cycles,
             "Waves of a cosine; half a wave falls once; cycles of cosine_with_restarts, at least one.")
      .AtLeast(0);
  spec.Float(more + "power", &s.power, "Power of polynomial.").AtLeast(0);
  spec.Int(more + "timescale", &s.timescale, "Time scale of inverse_sqrt in steps; 0: the warm-up, or 10,000.")
      .AtLeast(0);
  spec.Int(more + "num_decay_steps", &s.decay_steps, "Last steps of warmup_stable_decay, in which it falls.")
      .AtLeast(0);
  BindCurve(spec, more + "warmup_type", &s.warmup_curve, "How warmup_stable_decay rises.");
  BindCurve(spec, more + "decay_type", &s.decay_curve, "How warmup_stable_decay falls.");
  spec.Float(more + "warmup_lr_rate", &s.warmup_start,
             "Beginning of cosine_warmup_with_min_lr, as a fraction of the peak; 0: 1 / lr_warmup_steps.")
      .AtLeast(0)
      .LessThan(1);
  BindOtherNames(spec, prefix, more);
  spec.Check({type, more + "num_decay_steps"}, [&s]() -> std::vector<std::string> {
    if (s.decay != LrDecay::kWarmupStableDecay || s.decay_steps > 0) return {};
    return {"warmup_stable_decay falls in the last steps: set how many these are"};
  });
  const auto without = [&s](std::initializer_list<LrDecay> decays) {
    return [&s, decays = std::vector<LrDecay>(decays)] { return !absl::c_linear_search(decays, s.decay); };
  };
  spec.Unused(
      {more + "num_cycles"},
      without({LrDecay::kCosine, LrDecay::kCosineWithRestarts, LrDecay::kCosineOneAhead, LrDecay::kWarmupStableDecay}),
      "this schedule has no cosine");
  spec.Unused({more + "power"}, without({LrDecay::kPolynomial}), "only polynomial has it");
  spec.Unused({more + "timescale"}, without({LrDecay::kInverseSqrt}), "only inverse_sqrt has it");
  spec.Unused({more + "num_decay_steps", more + "warmup_type", more + "decay_type"},
              without({LrDecay::kWarmupStableDecay}), "only warmup_stable_decay has it");
  spec.Unused({more + "warmup_lr_rate"}, without({LrDecay::kCosineOneAhead}), "only cosine_warmup_with_min_lr has it");
}

}  // namespace tdock::trainer
