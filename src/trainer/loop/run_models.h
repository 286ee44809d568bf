// The models that a run trains with.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/base/env.h"
#include "text/tokenizer.h"
#include "trainer/loop/recipe.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {

// Not thread-safe.
struct RunModels {
  Policy policy;
  std::map<std::string, RoleModel> others;  // Recipe::models(), by their names
  // Of the policy's weights; nothing: none is kept. Refers to the policy.
  std::optional<WeightAverage> average = {};

  // Makes the weights that are trained trainable, and begins the average where `ema_decay` is not 0.
  void BeginTraining(double ema_decay);

  // Leaves each model that was trained for use: the policy, read with `tokenizer`, in `folder`, the others and the
  // average beside it in `folder`-NAME and `folder`-ema. The policy comes last: it says that the run has ended. May
  // throw.
  absl::Status SaveForUse(Env& env, const std::string& folder, const text::Tokenizer& tokenizer,
                          const ModelSection& section);
};

}  // namespace tdock::trainer
