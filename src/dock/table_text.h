// What the decisions of a table share.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tdock/rows.h"

namespace tdock {

inline bool AnyTwice(std::span<const RowId> rows) {
  if (std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end()) return false;
  std::vector<RowId> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
}

inline std::string Quoted(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrCat("'", absl::StrJoin(names, "', '"), "'");
}

}  // namespace tdock
