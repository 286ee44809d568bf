// References in values: ${a.b} and ${oc.select:a.b,x}. Internal to this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/config/names.h"
#include "core/config/spec.h"
#include "core/config/value.h"

namespace tdock::config {

// The values of the keys of one configuration, with the references in them replaced by what they refer to. What
// following them costs is bounded by the limits, over its life. Not thread-safe.
class References {
 public:
  // `names` must outlive it.
  References(const Names& names, const Limits& limits) : names_(names), limits_(limits) {}

  // `value` was given to the key `key`, by the name `written`, which relative references start from. Once for each
  // key, and before the first ValueOf().
  void Add(std::string key, std::string written, Value value);

  // The value of a key that was added. The message of an error is one sentence that quotes a reference that cannot be
  // followed: it leads nowhere, round in a circle or through too many keys, it is not closed, or it asks for something
  // else than a key.
  absl::StatusOr<Value> ValueOf(const std::string& key);

 private:
  struct Node {
    std::string written;
    Value given;
    std::optional<absl::StatusOr<Value>> value = std::nullopt;  // once it has been followed
  };

  const absl::StatusOr<Value>& Follow(Node& node);
  absl::StatusOr<Value> Expand(const Value& value);
  absl::StatusOr<Value> ExpandScalar(const Given& given);
  absl::StatusOr<Value> ExpandReference(absl::string_view body);
  absl::StatusOr<Value> Select(absl::string_view body, absl::string_view arguments);
  absl::StatusOr<Value> LookUp(absl::string_view body, absl::string_view name);
  std::string Absolute(absl::string_view name) const;
  absl::Status Charge(absl::string_view body, const Value& value);
  std::string NoSuchKey(absl::string_view name);

  const Names& names_;
  const Limits limits_;
  absl::flat_hash_map<std::string, Node> nodes_;
  std::vector<const Node*> path_;  // those that are being followed, each because of the one before
  int depth_ = 0;                  // references that are being expanded, each because of the one before
  int64_t added_bytes_ = 0;
  int advised_ = 0;
};

}  // namespace tdock::config
