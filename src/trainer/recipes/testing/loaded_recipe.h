// For tests: a recipe configured by a text, with the errors and notes of loading it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/config/spec.h"
#include "trainer/recipes/field_names.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {

struct LoadedRecipe {
  std::unique_ptr<Recipe> recipe;
  config::Spec spec;
  absl::Status status;
  std::vector<std::string> notes;

  std::string Value(absl::string_view key) const { return config::ValueOf(spec, key).value_or("none"); }
  std::vector<std::string> violations() const { return absl::StrSplit(status.message(), '\n', absl::SkipEmpty()); }
};

// As LoadRecipe(), but from a text that is called "run.yaml" in messages.
inline LoadedRecipe LoadAs(absl::string_view name, absl::string_view yaml,
                           const std::vector<std::string>& overrides = {}, bool lenient = false) {
  LoadedRecipe loaded{.recipe = MakeRecipe(name).value(), .spec = {}, .status = {}, .notes = {}};
  loaded.recipe->Bind(loaded.spec);
  BindFieldNames(loaded.spec);
  KeepForeignValues(loaded.spec, loaded.recipe->config().foreign);
  loaded.status =
      config::Load(loaded.spec, yaml, "run.yaml", overrides,
                   {.lenient = lenient, .note = [&loaded](const std::string& line) { loaded.notes.push_back(line); }});
  return loaded;
}

}  // namespace tdock::trainer
