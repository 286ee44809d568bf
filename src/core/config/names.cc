#include "core/config/names.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/nearest.h"

namespace tdock::config {
namespace {

// Empty for a key that is in none.
absl::string_view SectionOf(absl::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == absl::string_view::npos ? absl::string_view() : name.substr(0, dot);
}

// Whether Hydra makes a Python object of a section with this key.
bool MakesPython(absl::string_view key) {
  const absl::string_view section = SectionOf(key);
  const absl::string_view word = section.empty() ? key : key.substr(section.size() + 1);
  return word == "_target_" || word == "_args_" || word == "_partial_" || word == "_convert_" || word == "_recursive_";
}

}  // namespace

bool IsInside(absl::string_view inner, absl::string_view outer) {
  return inner.size() > outer.size() && inner[outer.size()] == '.' && absl::StartsWith(inner, outer);
}

Names::Names(const Spec& spec)
    : spec_(spec), python_{.name = "", .why = "Hydra would make an object of Python of its section", .harmless = {}} {
  for (const auto& binding : spec.bindings()) {
    bindings_[binding->key()] = binding.get();
    known_.push_back(binding->key());
  }
  for (const Spec::OtherName& alias : spec.aliases()) {
    aliases_[alias.other] = alias.name;
    known_.push_back(alias.other);
  }
  for (const Spec::SpreadKeys& spread : spec.spreads()) {
    spreads_.insert(spread.other);
    known_.push_back(spread.other);
  }
  for (const Spec::DerivedKey& derived : spec.derived()) {
    for (const std::string& name : derived.from) {
      if (spec.Find(name) == nullptr) spreads_.insert(name);
    }
  }
  const size_t outside = known_.size();
  for (const Spec::OtherName& alias : spec.section_aliases()) {
    for (size_t i = 0; i < outside; ++i) {
      if (!IsInside(known_[i], alias.name)) continue;
      known_.push_back(absl::StrCat(alias.other, known_[i].substr(alias.name.size())));
    }
  }
  for (const absl::string_view name : known_) {
    for (auto section = SectionOf(name); !section.empty(); section = SectionOf(section)) sections_.emplace(section);
  }
  for (const Spec::Meaningless& meaningless : spec.meaningless()) meaningless_[meaningless.name] = meaningless;
  meaningless_.try_emplace("defaults", Spec::Meaningless{.name = "defaults",
                                                         .why = "Hydra would read the files that it lists; have Hydra "
                                                                "write all keys into one file, with --cfg job",
                                                         .harmless = {}});
  meaningless_.try_emplace("hydra",
                           Spec::Meaningless{.name = "hydra", .why = "it is for Hydra itself", .harmless = {}});
}

std::string Names::OurName(absl::string_view name) const {
  const auto exact = aliases_.find(name);
  if (exact != aliases_.end()) return exact->second;
  if (bindings_.contains(name)) return std::string(name);
  const Spec::OtherName* innermost = nullptr;
  for (const Spec::OtherName& alias : spec_.section_aliases()) {
    if (name != alias.other && !IsInside(name, alias.other)) continue;
    if (innermost == nullptr || alias.other.size() > innermost->other.size()) innermost = &alias;
  }
  if (innermost == nullptr) return std::string(name);
  const std::string key = absl::StrCat(innermost->name, name.substr(innermost->other.size()));
  const auto alias = aliases_.find(key);
  return alias == aliases_.end() ? key : alias->second;
}

Binding* Names::Find(absl::string_view key) const {
  const auto found = bindings_.find(key);
  return found == bindings_.end() ? nullptr : found->second;
}

const Spec::Meaningless* Names::FindMeaningless(absl::string_view key) const {
  for (absl::string_view name = key; !name.empty(); name = SectionOf(name)) {
    const auto found = meaningless_.find(name);
    if (found != meaningless_.end()) return &found->second;
  }
  return MakesPython(key) ? &python_ : nullptr;
}

std::string Names::FirstKeyIn(absl::string_view section) const {
  const auto first = absl::c_find_if(known_, [&](const std::string& key) { return IsInside(key, section); });
  return first == known_.end() ? std::string(section) : *first;
}

std::optional<std::string> Names::Nearest(absl::string_view name) const {
  // Other programs have many names that end in similar words, which are meant only in their own sections.
  std::vector<std::string> candidates;
  const absl::string_view first_word = name.substr(0, name.find('.'));
  for (const std::string& known : known_) {
    if (bindings_.contains(known) || IsInside(known, first_word)) candidates.push_back(known);
  }
  if (auto nearest = NearestKey(name, candidates)) return nearest;
  auto nearest = NearestKey(name, known_);
  return nearest && EditDistance(name, *nearest) <= 2 ? nearest : std::nullopt;
}

std::string Names::Advice(absl::string_view name) const {
  const absl::string_view word = name.substr(name.rfind('.') + 1);  // may be a whole name that another program has
  if (const auto alias = aliases_.find(word); alias != aliases_.end()) {
    return absl::StrCat("did you mean ", alias->second, "?");
  }
  if (const auto foreign = meaningless_.find(word); foreign != meaningless_.end()) return foreign->second.why;
  const std::optional<std::string> nearest = Nearest(name);
  return nearest ? absl::StrCat("did you mean ", *nearest, "?") : Siblings(OurName(name));
}

// What there is in the innermost known section around an unknown key.
std::string Names::Siblings(absl::string_view key) const {
  absl::string_view section = SectionOf(key);
  while (!section.empty() && !sections_.contains(section)) section = SectionOf(section);
  std::vector<absl::string_view> words;
  for (const auto& binding : spec_.bindings()) {
    absl::string_view word = binding->key();
    if (!section.empty()) {
      if (!IsInside(word, section)) continue;
      word.remove_prefix(section.size() + 1);
    }
    word = word.substr(0, word.find('.'));
    if (!absl::c_linear_search(words, word)) words.push_back(word);
  }
  return absl::StrCat("there is ", absl::StrJoin(words, ", "), section.empty() ? "" : " in ", section);
}

}  // namespace tdock::config
