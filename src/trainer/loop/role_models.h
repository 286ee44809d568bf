// The models of a run beside its policy.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"

namespace tdock::trainer {

// Those of Recipe::models(), on the device of the policy, which `inputs` has with its tokenizer. A trained one gets a
// value head if it has none. NotFound for a folder that is not there; InvalidArgument for a model without a value head
// that is not trained, for a trained one with other tokens than the policy, for another vocabulary without a tokenizer
// of its own, and for fewer positions than the recipe's longest sequence. May throw.
absl::StatusOr<std::map<std::string, RoleModel>> LoadRoles(const Recipe& recipe, const RunConfig& config, Env& env,
                                                           const RunInputs& inputs);

}  // namespace tdock::trainer
