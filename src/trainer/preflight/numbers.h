// The numbers that follow from a configuration.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/config/spec.h"
#include "trainer/loop/recipe.h"
#include "trainer/preflight/findings.h"
#include "trainer/preflight/run_numbers.h"

namespace tdock::trainer {

// What CheckNumbers() checks. The model's sizes are those of its config.json; if that cannot be read, which a run
// reports when it opens the model, they are not known.
RunNumbers NumbersOf(Recipe& recipe, Env& env = Env::Real());

// Of a recipe configured by LoadRecipe(): its numbers, and those that a file for verl or MindSpeed-RL has for its own
// devices. Reads nothing but config.json.
NumberReport CheckNumbers(Recipe& recipe, Env& env = Env::Real());

// As LoadRecipe(), but the violations that CheckNumbers() finds are reported with the others.
absl::StatusOr<std::unique_ptr<Recipe>> LoadRecipeWithNumbers(Env& env, const std::string& path,
                                                              std::span<const std::string> overrides,
                                                              const config::LoadOptions& options = {});

}  // namespace tdock::trainer
