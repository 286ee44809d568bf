#include "core/config/value.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/utf8.h"

namespace tdock::config {
namespace {

// Words that YAML 1.1 or 1.2 reads as something other than text.
bool IsReservedWord(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (absl::string_view word : {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}) {
    if (lower == word) return true;
  }
  return false;
}

// `text` with its ${ written so that they are no references.
std::string EscapeReferences(absl::string_view text) {
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '{') {
      size_t slashes = 0;
      while (slashes < i && text[i - slashes - 1] == '\\') ++slashes;
      escaped.append(slashes + 1, '\\');
    }
    escaped.push_back(text[i]);
  }
  return escaped;
}

std::string ShowString(const std::string& text) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '/' || c == '.' || c == ':';
  };
  const bool plain = !text.empty() && (absl::ascii_isalpha(text[0]) || text[0] == '_' || text[0] == '/') &&
                     std::all_of(text.begin(), text.end(), is_plain) && text.back() != ':' && !IsReservedWord(text);
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : EscapeReferences(text)) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", absl::string_view(&c, 1));
    } else if (absl::ascii_iscntrl(c)) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

std::string ShowScalar(const Given& given) {
  if (given.null) return "null";
  return given.quoted ? ShowString(given.text) : given.text;
}

std::string DescribeScalar(const Given& given) {
  if (given.null) return "nothing";
  return absl::StrCat(given.quoted ? "the quoted text " : "", "\"", EscapeForMessage(given.text), "\"");
}

std::string DescribeList(const std::vector<Given>& items) {
  if (items.empty()) return "an empty list";
  if (absl::c_any_of(items, [](const Given& item) { return item.null; })) return "a list with a null item";
  if (absl::c_any_of(items, [](const Given& item) { return item.text.empty(); })) return "a list with an empty item";
  return "a list";
}

}  // namespace

std::string Describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kSection:
      return "a section of keys";
    case Value::Kind::kList:
      return DescribeList(value.items);
    case Value::Kind::kNestedList:
      return "a nested list";
    case Value::Kind::kScalar:
      break;
  }
  return DescribeScalar(value.scalar);
}

std::string UnescapeReferences(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "${") {
      size_t slashes = 0;
      while (slashes < plain.size() && plain[plain.size() - slashes - 1] == '\\') ++slashes;
      plain.resize(plain.size() - (slashes + 1) / 2);
    }
    plain.push_back(text[i]);
  }
  return plain;
}

std::string ShowYaml(const Value& value) {
  if (value.kind == Value::Kind::kScalar) return ShowScalar(value.scalar);
  const auto show = [](std::string* out, const Given& item) { absl::StrAppend(out, ShowScalar(item)); };
  return absl::StrCat("[", absl::StrJoin(value.items, ", ", show), "]");
}

bool SameScalar(absl::string_view a, absl::string_view b) {
  double x = 0, y = 0;
  return absl::EqualsIgnoreCase(a, b) || (absl::SimpleAtod(a, &x) && absl::SimpleAtod(b, &y) && x == y);
}

}  // namespace tdock::config
