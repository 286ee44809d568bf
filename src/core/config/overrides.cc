#include "core/config/overrides.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"
#include "core/config/yaml_reader.h"

namespace tdock::config {
namespace {

std::optional<Value> ParseQuoted(absl::string_view text) {
  const char quote = text[0];
  Value value{.scalar = {.text = "", .quoted = true}};
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) return i + 1 == text.size() ? std::optional(std::move(value)) : std::nullopt;
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == quote) ++i;
    value.scalar.text.push_back(text[i]);
  }
  return std::nullopt;
}

std::optional<Value> ParseBracketed(absl::string_view text, const Limits& limits) {
  absl::StatusOr<YamlKeys> read = ReadYaml(absl::StrCat("list: ", text), "", limits);
  if (!read.ok() || read->entries.size() != 1) return std::nullopt;
  Value& value = read->entries[0];
  return std::move(value);
}

}  // namespace

absl::StatusOr<Override> ParseOverride(absl::string_view text, absl::string_view example) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " given, ", what));
  };
  if (absl::StartsWith(text, "~")) {
    return refuse("but a key cannot be removed; key=null leaves it at its default");
  }
  absl::string_view key = text;
  if (!absl::ConsumePrefix(&key, "++")) absl::ConsumePrefix(&key, "+");
  const size_t equals = key.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return refuse(absl::StrCat("expected key=value, such as ", example, "=…"));
  }
  return Override{.key = std::string(key.substr(0, equals)), .value = std::string(key.substr(equals + 1))};
}

std::optional<Value> ParseInlineValue(absl::string_view text, bool takes_list, const Limits& limits) {
  if (text == "null") return Value{.scalar = {.text = "", .null = true}};
  if (absl::StartsWith(text, "'") || absl::StartsWith(text, "\"")) return ParseQuoted(text);
  if (takes_list && absl::StartsWith(text, "[")) return ParseBracketed(text, limits);
  return Value{.scalar = {.text = std::string(text)}};
}

}  // namespace tdock::config
