// What was written for a key. Internal to this module.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::config {

// A scalar as it was written.
struct Given {
  std::string text;
  bool quoted = false;  // and therefore text, even if it looks like a number
  bool null = false;    // nothing, or ~
};

struct Value {
  enum class Kind { kScalar, kSection, kList, kNestedList };  // a nested list has lists or sections in it
  Kind kind = Kind::kScalar;
  Given scalar = {};
  std::vector<Given> items = {};  // of a list

  bool null() const { return kind == Kind::kScalar && scalar.null; }
  // ???, with which OmegaConf marks a value that is still to be given.
  bool missing() const { return kind == Kind::kScalar && !scalar.quoted && scalar.text == "???"; }
};

// What a message says was given, such as "a list".
std::string Describe(const Value& value);

// A scalar or a list on one line of YAML, which is read back as the same.
std::string ShowYaml(const Value& value);

// The text that ShowYaml() writes as `text`: one in which no ${ is a reference.
std::string UnescapeReferences(absl::string_view text);

// Whether both are the same text, but for upper and lower case, or the same number.
bool SameScalar(absl::string_view a, absl::string_view b);

}  // namespace tdock::config
