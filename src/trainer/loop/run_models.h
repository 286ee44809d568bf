// The models that a run trains with.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "core/base/env.h"
#include "text/tokenizer.h"
#include "trainer/loop/recipe.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/policy.h"

namespace tdock::trainer {

// Not thread-safe.
struct RunModels {
  Policy policy;
  std::map<std::string, RoleModel> others;  // Recipe::models(), by their names

  // Makes the weights that are trained trainable.
  void BeginTraining();

  // Leaves each model that was trained for use: the policy, read with `tokenizer`, in `folder`, the others and the
  // average of its weights beside it in `folder`-NAME and `folder`-ema. `swap_average` exchanges the weights for their
  // average, and back; null: none was kept. The policy comes last: it says that the run has ended. May throw.
  absl::Status SaveForUse(Env& env, const std::string& folder, const text::Tokenizer& tokenizer,
                          const ModelSection& section, const std::function<absl::Status()>& swap_average) const;
  // Removes what SaveForUse() has written before it failed, as far as it can.
  void RemoveSaved(Env& env, const std::string& folder) const;
};

}  // namespace tdock::trainer
