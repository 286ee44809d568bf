// Texts that the decisions of a table share.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/utf8.h"
#include "tdock/fields.h"
#include "tdock/rows.h"

namespace tdock::dock {

inline bool AnyTwice(std::span<const RowId> rows) {
  if (std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end()) return false;
  std::vector<RowId> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
}

// The names of the fields in which two differ; empty: they are equal.
template <HasFields T>
std::string Differences(const T& a, const T& b) {
  std::string names;
  const auto compare = [&](const char* name, const auto& one, const auto& other) {
    if (!(one == other)) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  };
  ForEachField(compare, a, b);
  return names;
}

// The names of things, for people: of many, only the first and the number of the rest.
template <class Things, class NameOf>
std::string Quoted(const Things& things, NameOf name_of) {
  constexpr size_t kMostNamed = 20;
  std::string text;
  size_t named = 0;
  for (const auto& thing : things) {
    if (named == kMostNamed) break;
    absl::StrAppend(&text, named++ == 0 ? "'" : ", '", EscapeUnprintable(name_of(thing)), "'");
  }
  if (things.size() > named) absl::StrAppend(&text, " and ", things.size() - named, " more");
  return text.empty() ? "none" : text;
}
inline std::string Quoted(const std::vector<std::string>& names) {
  return Quoted(names, [](const std::string& name) { return absl::string_view(name); });
}

}  // namespace tdock::dock
