// YAML text as a flat list of dotted keys with their lines. Internal to this module.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/config/spec.h"
#include "core/config/value.h"

namespace tdock::config {

struct YamlEntry : Value {
  std::string key;  // dotted, from the root
  int line = 0;     // of the key, from 1
};

struct YamlKeys {
  // A section comes before its contents. The contents of nested lists are left out.
  std::vector<YamlEntry> entries;
  // Keys given twice, one line each: "name:line: …".
  std::vector<std::string> duplicates;
};

// InvalidArgument, as "name:line:column: …", for text that is not YAML, whose root is not a map, that holds more than
// one document, that uses anchors, aliases or tags, or that exceeds the limits. An empty text has no keys.
absl::StatusOr<YamlKeys> ReadYaml(absl::string_view text, absl::string_view name, const Limits& limits);

}  // namespace tdock::config
