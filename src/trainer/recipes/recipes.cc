#include "trainer/recipes/recipes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/spec.h"
#include "core/config/yaml_reader.h"
#include "data/missing_file.h"
#include "trainer/recipes/field_names.h"

namespace tdock::trainer {
namespace {

constexpr RecipeEntry kRecipes[] = {
    {"sft", "supervised fine-tuning on conversations, or on prompts with answers", MakeSftRecipe},
    {"rm", "a reward model from preferences: prompts with a chosen and a rejected answer", MakeRewardModelRecipe},
    {"dpo", "direct preference optimization on the same preferences", MakeDpoRecipe},
    {"ppo", "reinforcement learning with a critic, often towards a reward model", MakePpoRecipe},
    {"grpo", "reinforcement learning on prompts, with rewards by rule", MakeGrpoRecipe},
    {"dapo", "reinforcement learning on prompts whose answers have different rewards", MakeDapoRecipe},
};

struct SharedKeyRow {
  config::KeyRow row;
  std::vector<std::string> recipes;
};

// "`actor.optim.lr`" is in the section "actor", and "`seed`" in "run".
std::string SectionOf(const config::KeyRow& row) {
  const size_t dot = row.key.find('.');
  return dot == std::string::npos ? "run" : row.key.substr(1, dot - 1);
}

// {section: its place}, as they first appear.
std::map<std::string, size_t> SectionsOf(const std::vector<SharedKeyRow>& rows) {
  std::map<std::string, size_t> order;
  for (const SharedKeyRow& each : rows) order.emplace(SectionOf(each.row), order.size());
  return order;
}

// What the key `recipe` says: the last of the overrides counts, as everywhere. An error has one sentence, or none if
// the file cannot be parsed, which loading it reports.
absl::StatusOr<std::string> RecipeName(const std::string& yaml, const std::string& path,
                                       std::span<const std::string> overrides) {
  for (size_t i = overrides.size(); i > 0; --i) {
    absl::string_view given = overrides[i - 1];
    while (absl::ConsumePrefix(&given, "+")) continue;
    if (absl::ConsumePrefix(&given, "recipe=")) return std::string(given);
  }
  const absl::StatusOr<config::YamlKeys> keys = config::ReadYaml(yaml, path, {});
  if (!keys.ok()) return absl::InvalidArgumentError("");
  for (const config::YamlEntry& entry : keys->entries) {
    if (entry.key == "recipe") return entry.scalar.text;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": \"recipe\" is missing; write \"recipe: sft\", or another one's name, at its top"));
}

absl::Status Configure(Recipe& recipe, const std::string& yaml, const std::string& path,
                       std::span<const std::string> overrides, config::LoadOptions options,
                       const LaterConflicts& later) {
  config::Spec spec;
  recipe.Bind(spec);
  BindFieldNames(spec);
  KeepForeignValues(spec, recipe.config().foreign);
  if (later) options.later = [&] { return later(recipe); };
  return config::Load(spec, yaml, path, overrides, options);
}

// The recipes that have a key, for the message of one that has not; empty: none.
std::string RecipesWith(absl::string_view key) {
  std::vector<absl::string_view> names;
  for (const RecipeEntry& entry : kRecipes) {
    config::Spec spec;
    const std::unique_ptr<Recipe> recipe = entry.make();
    recipe->Bind(spec);
    if (spec.Find(key) != nullptr) names.emplace_back(entry.name);
  }
  return names.empty() ? "" : absl::StrCat("recipes with this key: ", absl::StrJoin(names, ", "));
}

// The error for a configuration that cannot be read, with what may have been meant.
absl::Status Unreadable(Env& env, const std::string& path, const absl::Status& error) {
  const std::string shown = EscapeForMessage(path, 500);
  if (env.List(path).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(shown, " is a folder; name the file with a configuration, such as ",
                                                   JoinPath(shown, "config.yaml")));
  }
  if (!absl::IsNotFound(error)) return error;
  if (absl::StrContains(path, '=')) {
    return absl::NotFoundError(absl::StrCat("there is no file ", shown, "; name the file with a configuration first, ",
                                            "such as sft.yaml, and key=value after it"));
  }
  const size_t slash = path.rfind('/');
  const bool has_folder = slash == std::string::npos || env.List(path.substr(0, slash + 1)).ok();
  return has_folder ? data::MissingFile(env, path) : error;
}

// The one that has most of the keys that are given.
const RecipeEntry& BestFit(const std::string& yaml, const std::string& path, std::span<const std::string> overrides,
                           const config::Limits& limits) {
  const RecipeEntry* best = nullptr;
  std::pair<size_t, size_t> fewest;  // unknown keys, violations
  for (const RecipeEntry& entry : kRecipes) {
    const absl::Status status = Configure(*entry.make(), yaml, path, overrides, {.limits = limits}, nullptr);
    const std::vector<absl::string_view> lines = absl::StrSplit(status.message(), '\n', absl::SkipEmpty());
    const auto is_unknown = [](absl::string_view line) { return absl::StrContains(line, ": unknown key"); };
    const std::pair<size_t, size_t> wrong(std::count_if(lines.begin(), lines.end(), is_unknown), lines.size());
    if (best != nullptr && wrong >= fewest) continue;
    best = &entry;
    fewest = wrong;
  }
  return *best;
}

// `problem`, if any, and what else is wrong with the file as that of the recipe that it fits best.
absl::Status WithoutRecipe(absl::string_view problem, const std::string& yaml, const std::string& path,
                           std::span<const std::string> overrides, const config::LoadOptions& options,
                           const LaterConflicts& later) {
  const RecipeEntry& best = BestFit(yaml, path, overrides, options.limits);
  std::vector<std::string> all(overrides.begin(), overrides.end());
  all.push_back(absl::StrCat("recipe=", best.name));
  const absl::Status rest =
      Configure(*best.make(), yaml, path, all,
                {.limits = options.limits, .lenient = options.lenient, .elsewhere = RecipesWith}, later);
  if (problem.empty()) return rest;
  if (rest.ok()) return absl::InvalidArgumentError(problem);
  return absl::InvalidArgumentError(absl::StrCat(problem, "\nas for ", best.name, ":\n", rest.message()));
}

}  // namespace

std::string KeyReference() {
  std::vector<SharedKeyRow> rows;
  for (const RecipeEntry& entry : kRecipes) {
    config::Spec spec;
    const std::unique_ptr<Recipe> recipe = entry.make();
    recipe->Bind(spec);
    // New rows go behind those of the key, or of the key before.
    size_t end = 0;
    for (config::KeyRow& row : config::KeyRows(spec)) {
      const auto same =
          std::find_if(rows.begin(), rows.end(), [&](const SharedKeyRow& each) { return each.row == row; });
      if (same != rows.end()) {
        same->recipes.emplace_back(entry.name);
        end = static_cast<size_t>(same - rows.begin()) + 1;
        continue;
      }
      const auto last =
          std::find_if(rows.rbegin(), rows.rend(), [&](const SharedKeyRow& each) { return each.row.key == row.key; });
      if (last != rows.rend()) end = static_cast<size_t>(last.base() - rows.begin());
      rows.insert(rows.begin() + static_cast<ptrdiff_t>(end++), {std::move(row), {entry.name}});
    }
  }
  std::string text, section;
  std::stable_sort(rows.begin(), rows.end(), [order = SectionsOf(rows)](const SharedKeyRow& a, const SharedKeyRow& b) {
    return order.at(SectionOf(a.row)) < order.at(SectionOf(b.row));
  });
  for (const auto& [row, recipes] : rows) {
    if (SectionOf(row) != section) {
      section = SectionOf(row);
      absl::StrAppend(&text, text.empty() ? "" : "\n", "### ", section,
                      "\n\n| key | recipes | type | default | meaning |\n|---|---|---|---|---|\n");
    }
    const std::string in = recipes.size() == std::size(kRecipes) ? "all" : absl::StrJoin(recipes, ", ");
    absl::StrAppend(&text, "| ", row.key, " | ", in, " | ", row.type, " | ", row.default_value, " | ", row.meaning,
                    " |\n");
  }
  return text;
}

std::span<const RecipeEntry> Recipes() { return kRecipes; }

absl::StatusOr<std::unique_ptr<Recipe>> MakeRecipe(absl::string_view name) {
  std::vector<std::string> names;
  for (const RecipeEntry& entry : kRecipes) {
    if (entry.name == name) return entry.make();
    names.push_back(entry.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no recipe \"", EscapeForMessage(name), "\"; there are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::unique_ptr<Recipe>> LoadRecipe(Env& env, const std::string& path,
                                                   std::span<const std::string> overrides,
                                                   const config::LoadOptions& options, const LaterConflicts& later) {
  const absl::StatusOr<std::string> yaml = ReadFileUpTo(env, path, static_cast<uint64_t>(options.limits.max_bytes));
  if (!yaml.ok()) return Unreadable(env, path, yaml.status());
  const absl::StatusOr<std::string> name = RecipeName(*yaml, path, overrides);
  if (!name.ok()) return WithoutRecipe(name.status().message(), *yaml, path, overrides, options, later);
  absl::StatusOr<std::unique_ptr<Recipe>> recipe = MakeRecipe(*name);
  if (!recipe.ok()) return WithoutRecipe(recipe.status().message(), *yaml, path, overrides, options, later);
  config::LoadOptions own = options;
  own.elsewhere = RecipesWith;
  TDOCK_RETURN_IF_ERROR(Configure(**recipe, *yaml, path, overrides, std::move(own), later));
  return recipe;
}

}  // namespace tdock::trainer
