// The cell of a data set, whatever the format of its file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::data {

struct Value;
using List = std::vector<Value>;
using Object = std::vector<std::pair<std::string, Value>>;  // in the order of the file; no name comes twice

struct Value : std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> {
  using variant::variant;

  bool is_nothing() const { return std::holds_alternative<std::monostate>(*this); }
  const std::string* text() const { return std::get_if<std::string>(this); }
  const List* list() const { return std::get_if<List>(this); }
  const Object* object() const { return std::get_if<Object>(this); }
  // Nothing, or a text, a list or an object with nothing in it.
  bool is_empty() const {
    return is_nothing() || (text() != nullptr && text()->empty()) || (list() != nullptr && list()->empty()) ||
           (object() != nullptr && object()->empty());
  }

  // "nothing", "a truth value", "a number", "text", "a list", "an object".
  absl::string_view kind() const {
    static constexpr absl::string_view kKinds[] = {"nothing", "a truth value", "a number", "a number",
                                                   "text",    "a list",        "an object"};
    return kKinds[index()];
  }
};

// The cells of the requested columns, in their order. Missing cells are nothing, as is null.
using Record = std::vector<Value>;

}  // namespace tdock::data
