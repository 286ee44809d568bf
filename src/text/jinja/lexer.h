// A template as tokens. Internal to this module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

struct Token {
  enum class Type : uint8_t {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEof
  };

  Type type;
  int32_t line;
  std::string text;  // of kString: what it stands for
  Value number = {};

  bool Is(absl::string_view op) const { return type == Type::kOperator && text == op; }
  bool IsName(absl::string_view name) const { return type == Type::kName && text == name; }
  std::string Describe() const;  // for messages
};

// Line ends become "\n", of which one at the end is dropped; blocks are trimmed as trim_blocks and lstrip_blocks say.
// `source` is UTF-8. The last token is kEof. InvalidArgument with the line.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

absl::Status ErrorAtLine(int32_t line, absl::string_view message);

}  // namespace tdock::jinja
