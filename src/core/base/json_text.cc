#include "core/base/json_text.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace tdock {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxValues = 10'000'000;

// The token at which a text stops being JSON.
struct StrayToken {
  size_t begin;  // its offset in the text
  absl::string_view token;
};

// `position` is the number of bytes read, `read` the last of them, and `reason` why the parser stopped.
StrayToken StrayTokenAt(absl::string_view text, size_t position, absl::string_view read, absl::string_view reason) {
  if (position == 0 || position > text.size()) return {absl::StripTrailingAsciiWhitespace(text).size(), ""};
  size_t begin = position - 1, end = position;
  const auto in_word = [&](size_t i) { return absl::ascii_isalnum(static_cast<unsigned char>(text[i])); };
  if (absl::StartsWith(reason, "unexpected string") || absl::StartsWith(reason, "unexpected number")) {
    begin = end - std::min(read.size(), end);
  } else if (in_word(begin)) {
    while (begin > 0 && in_word(begin - 1)) --begin;
    while (end < text.size() && in_word(end)) ++end;
  } else if (const std::optional<Utf8Char> one = FirstUtf8Char(text.substr(begin))) {
    end = begin + one->bytes;
  }
  return {begin, text.substr(begin, end - begin)};
}

// The place of a byte, as people count.
std::string PlaceOf(absl::string_view text, size_t at) {
  const absl::string_view before = text.substr(0, at);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const absl::string_view line = before.substr(lines == 0 ? 0 : before.rfind('\n') + 1);
  const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto column = 1 + std::count_if(line.begin(), line.end(), begins_character);
  const bool has_lines = absl::StrContains(absl::StripAsciiWhitespace(text), '\n');
  return has_lines ? absl::StrCat("in its line ", lines + 1, ", column ", column) : absl::StrCat("in column ", column);
}

// The tokens that may come in `context`.
absl::string_view ExpectedIn(absl::string_view context) {
  if (context == "object key") return "a name in double quotes";
  if (context == "object separator") return "':' after a name";
  if (context == "array") return "',' or ']'";
  if (context == "object") return "',' or '}'";
  return "a value, which is an object, a list, a text in double quotes, a number, true, false or null";
}

// Goes through a text without making values of it. nlohmann's own watching of what it parses takes quadratic time.
class Watcher final : public nlohmann::json_sax<Json> {
 public:
  Watcher(absl::string_view text, int max_depth) : text_(text), max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(int64_t) override { return Value(); }
  bool number_unsigned(uint64_t) override { return Value(); }
  bool number_float(double, const std::string&) override { return Value(); }
  bool string(std::string&) override { return Value(); }
  bool binary(Json::binary_t&) override { return Value(); }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    if (duplicate_.empty() && !names_.back().insert(name).second) {
      duplicate_ = absl::StrCat("'", EscapeForMessage(name), "'");
    }
    return true;
  }
  bool parse_error(size_t position, const std::string& read, const Json::exception& error) override {
    return End(WhyNotJson(text_, position, read, error));
  }

  // What is wrong with the text as a whole.
  const std::string& problem() const { return problem_; }
  // The first name that an object has twice, in quotes.
  const std::string& duplicate() const { return duplicate_; }

 private:
  bool Value() { return ++values_ <= kMaxValues || End(absl::StrCat("more than ", kMaxValues, " values")); }
  bool Open() {
    if (names_.size() >= max_depth_) {
      return End(absl::StrCat("more than ", max_depth_, " nested objects and lists"));
    }
    names_.emplace_back();
    return Value();
  }
  bool Close() {
    names_.pop_back();
    return true;
  }
  bool End(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  const absl::string_view text_;
  const size_t max_depth_;
  size_t values_ = 0;
  std::vector<absl::flat_hash_set<std::string>> names_;  // of the objects that are open, by depth
  std::string problem_, duplicate_;
};

template <class Any>
Any Read(absl::string_view text) {
  return Any::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

template <class Any>
std::string Text(const Any& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Any::error_handler_t::replace);
}

}  // namespace

std::string WhyNotJson(absl::string_view text, size_t position, absl::string_view read,
                       const nlohmann::detail::exception& error) {
  // "… syntax error while parsing CONTEXT - REASON; last read: '…'; expected …"
  const absl::string_view what = error.what();
  const std::pair<absl::string_view, absl::string_view> of_context =
      absl::StrSplit(what.substr(std::min(what.find("parsing "), what.size())), absl::MaxSplits(" - ", 1));
  const absl::string_view context = absl::StripPrefix(of_context.first, "parsing ");
  const absl::string_view reason = of_context.second.substr(0, of_context.second.find("; last read: "));
  if (dynamic_cast<const Json::parse_error*>(&error) == nullptr) {
    return absl::StrCat("not JSON: ", PlaceOf(text, position - std::min(read.size(), position)), ": the number ",
                        EscapeForMessage(read), " is too large");
  }
  const bool says_it = absl::StartsWith(reason, "invalid string") || absl::StartsWith(reason, "invalid number");
  if (says_it) return absl::StrCat("not JSON: ", PlaceOf(text, position - 1), ": ", reason);
  const StrayToken stray = StrayTokenAt(text, position, read, reason);
  const absl::string_view expected =
      absl::EndsWith(what, "expected end of input") ? "nothing more, as the value is complete" : ExpectedIn(context);
  const std::string found =
      stray.token.empty() ? "the text ends" : absl::StrCat("'", EscapeForMessage(stray.token), "' stands");
  return absl::StrCat("not JSON: ", PlaceOf(text, stray.begin), ": ", found, " where this is expected: ", expected);
}

Json ReadJson(absl::string_view text) { return Read<Json>(text); }
nlohmann::ordered_json ReadOrderedJson(absl::string_view text) { return Read<nlohmann::ordered_json>(text); }
std::string JsonText(const Json& json, int indent) { return Text(json, indent); }
std::string JsonText(const nlohmann::ordered_json& json, int indent) { return Text(json, indent); }

std::string AsciiJsonText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, int max_depth) {
  Watcher watcher(text, max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &watcher)) return absl::InvalidArgumentError(watcher.problem());
  Json json = Json::parse(text.begin(), text.end());
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (!watcher.duplicate().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("has ", watcher.duplicate(), " twice in one object"));
  }
  return json;
}

}  // namespace tdock
