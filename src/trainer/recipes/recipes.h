// The recipes by their names, and a run's configuration.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/config/spec.h"
#include "trainer/loop/recipe.h"

namespace tdock::trainer {

struct RecipeEntry {
  const char* name;
  const char* summary;
  std::unique_ptr<Recipe> (*make)();
};

std::span<const RecipeEntry> Recipes();

// The keys of all recipes as Markdown tables, one for each section. A key has a row for each set of recipes in which
// its type, default and meaning are the same.
std::string KeyReference();

// A recipe with its defaults. InvalidArgument, with the names, for an unknown one.
absl::StatusOr<std::unique_ptr<Recipe>> MakeRecipe(absl::string_view name);

using LaterConflicts = std::function<std::vector<config::Conflict>(Recipe&)>;

// The recipe that the key `recipe` of a file (or of an override) names, configured by both. The file may use the names
// of keys that other systems have: see field_names.h; RunConfig::foreign gets their values that a run here does
// without. `later` is LoadOptions::later for the recipe, and may be null. Errors as those of MakeRecipe() and
// config::Load(); where the file names no recipe that there is, they also hold what is wrong for the one that it
// fits best.
absl::StatusOr<std::unique_ptr<Recipe>> LoadRecipe(Env& env, const std::string& path,
                                                   std::span<const std::string> overrides,
                                                   const config::LoadOptions& options = {},
                                                   const LaterConflicts& later = nullptr);

std::unique_ptr<Recipe> MakeSftRecipe();
std::unique_ptr<Recipe> MakeRewardModelRecipe();
std::unique_ptr<Recipe> MakeDpoRecipe();
std::unique_ptr<Recipe> MakePpoRecipe();
std::unique_ptr<Recipe> MakeGrpoRecipe();
std::unique_ptr<Recipe> MakeDapoRecipe();

}  // namespace tdock::trainer
