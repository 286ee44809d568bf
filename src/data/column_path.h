// Columns that lie inside the objects of others, such as "reward_model.ground_truth". Internal to this module.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/value.h"

namespace tdock::data {

struct ColumnPath {
  std::string column;               // of the file
  std::vector<std::string> inside;  // the names of fields, from the outermost object on; empty: the column itself

  friend bool operator==(const ColumnPath&, const ColumnPath&) = default;
};

// Names of columns, which must outlive it.
using ColumnSet = absl::flat_hash_set<absl::string_view>;

// `name` is a column of the file, or else a dotted path that begins with one, of which the longest counts. Where there
// is neither, the column is `name`.
ColumnPath FindColumn(const ColumnSet& columns, const std::string& name);

// The cell at the end of the path; nothing where an object on the way lacks its field or is null. InvalidArgument where
// something else than an object is on the way.
absl::StatusOr<Value> CellInside(Value cell, std::span<const std::string> inside);

}  // namespace tdock::data
