#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/builder.h"
#include "text/jinja/compare.h"
#include "text/jinja/filter_lists.h"
#include "text/jinja/format.h"
#include "text/jinja/node.h"
#include "text/jinja/numbers.h"
#include "text/jinja/repr.h"
#include "text/jinja/text_operations.h"

namespace tdock::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <Text (*map)(const Text&)>
Result MapFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
  machine.meter().SpendBytes(text.size());
  return machine.String(map(text));
}

// Jinja's own: each word begins behind a blank, a hyphen or an opening bracket.
Text TitleWords(const Text& text) {
  const absl::string_view bytes = text.bytes();
  Text titled;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    if (begin == end) return;
    const size_t second = begin + CharacterAt(bytes, begin).bytes;
    titled.Append(Upper(text.Substr(begin, second)));
    titled.Append(Lower(text.Substr(second, end)));
    begin = end;
  };
  bool is_in_word = false;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = CharacterAt(bytes, at);
    const bool separates =
        IsSpace(c.code) || c.code == '-' || c.code == '(' || c.code == '{' || c.code == '[' || c.code == '<';
    if (separates == is_in_word) add(at);
    is_in_word = !separates;
    at += c.bytes;
  }
  add(bytes.size());
  return titled;
}

Result Trim(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"chars"}));
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
  std::optional<absl::string_view> characters;
  if (IsGivenAndNotNone(bound[0])) {
    TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "chars"));
    characters = bound[0].AsText().bytes();
  }
  if (!machine.meter().SpendBytes(text.size() * (1 + characters.value_or("").size() / 8)))
    return machine.meter().status();
  return machine.String(Strip(text, characters, {true, true}));
}

Result ReplaceFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"old", "new", "count"}, 2));
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
  TDOCK_ASSIGN_OR_RETURN(const Text old, Str(machine, bound[0]));
  TDOCK_ASSIGN_OR_RETURN(const Text replacement, Str(machine, bound[1]));
  int64_t limit = -1;
  if (IsGivenAndNotNone(bound[2])) {
    TDOCK_ASSIGN_OR_RETURN(limit, IntOf(bound[2], "count"));
  }
  return machine.String(Replace(machine.meter(), text, old.bytes(), replacement, limit));
}

absl::StatusOr<JsonForm> JsonFormOf(Machine& machine, const Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonForm form;
  form.ensure_ascii = IsTrue(bound[0]);
  form.sort_keys = IsTrue(bound[3]);
  if (IsGivenAndNotNone(bound[1])) {
    form.item_separator = Text(std::string(","));
    if (bound[1].is_text()) {
      form.indent = bound[1].AsText();
    } else {
      TDOCK_ASSIGN_OR_RETURN(const int64_t width, IntOf(bound[1], "indent"));
      TextBuilder indent(machine.meter());
      indent.AppendTimes(" ", width);
      form.indent = indent.Take();
    }
  }
  if (IsGivenAndNotNone(bound[2])) {
    TDOCK_ASSIGN_OR_RETURN(const auto separators, ItemsOf(machine, bound[2]));
    if (separators.size() != 2) return absl::InvalidArgumentError("separators must be two strings");
    for (const Value& separator : separators) TDOCK_RETURN_IF_ERROR(CheckText(separator, "a separator"));
    form.item_separator = separators[0].AsText();
    form.key_separator = separators[1].AsText();
  }
  return form;
}

Result JsonFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const JsonForm form, JsonFormOf(machine, arguments));
  TDOCK_ASSIGN_OR_RETURN(Text text, ToJson(machine, input, form));
  return machine.String(std::move(text));
}

Result StringFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.is_text()) return input;
  TDOCK_ASSIGN_OR_RETURN(Text text, Str(machine, input));
  return machine.String(std::move(text));
}

template <bool again>
Result EscapeFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.is_markup() && !again) return input;
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
  return Value::Markup(EscapeHtml(machine.meter(), text), &machine.meter());
}

Result SafeFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  if (input.is_markup()) return input;
  TDOCK_ASSIGN_OR_RETURN(Text text, Str(machine, input));
  return Value::Markup(std::move(text), &machine.meter());
}

Result Indent(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"width", "first", "blank"}));
  TDOCK_RETURN_IF_ERROR(CheckText(input, "what is indented"));
  Text indent(std::string(4, ' '));
  if (IsGiven(bound[0]) && bound[0].is_text()) {
    indent = bound[0].AsText();
  } else if (IsGiven(bound[0])) {
    TDOCK_ASSIGN_OR_RETURN(const int64_t width, IntOf(bound[0], "width"));
    TextBuilder spaces(machine.meter());
    spaces.AppendTimes(" ", width);
    indent = spaces.Take();
  }
  Text text = input.AsText();
  text.Append("\n");
  const std::vector<Text> lines = SplitLines(machine.meter(), text, /*keeps_ends=*/false);
  TextBuilder out(machine.meter());
  if (IsTrue(bound[1])) out.Append(indent);
  for (size_t i = 0; i < lines.size() && out.ok(); ++i) {
    if (i > 0) out.Append("\n");
    if (i > 0 && (IsTrue(bound[2]) || !lines[i].empty())) out.Append(indent);
    out.Append(lines[i]);
  }
  return machine.String(out.Take());
}

Result Center(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"width"}));
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
  int64_t width = 80;
  if (IsGiven(bound[0])) {
    TDOCK_ASSIGN_OR_RETURN(width, IntOf(bound[0], "width"));
  }
  return machine.String(Pad(machine.meter(), text, width, " ", Alignment::kCenter));
}

Result Truncate(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"length", "killwords", "end", "leeway"}));
  TDOCK_RETURN_IF_ERROR(CheckText(input, "what is truncated"));
  int64_t length = 255;
  int64_t leeway = 5;
  if (IsGiven(bound[0])) {
    TDOCK_ASSIGN_OR_RETURN(length, IntOf(bound[0], "length"));
  }
  if (IsGivenAndNotNone(bound[3])) {
    TDOCK_ASSIGN_OR_RETURN(leeway, IntOf(bound[3], "leeway"));
  }
  Text end(std::string("..."));
  if (IsGiven(bound[2])) {
    TDOCK_RETURN_IF_ERROR(CheckText(bound[2], "end"));
    end = bound[2].AsText();
  }
  if (!machine.meter().SpendBytes(end.size())) return machine.meter().status();
  const int64_t end_length = CountCharacters(end.bytes());
  if (length < end_length)
    return absl::InvalidArgumentError(absl::StrCat("length must be ", end_length, " or more, not ", length));
  if (leeway < 0) return absl::InvalidArgumentError("leeway must not be negative");
  const Text& text = input.AsText();
  machine.meter().SpendBytes(text.size());
  const int64_t count = CountCharacters(text.bytes());
  if (count <= length || count - length <= leeway) return input;
  size_t bytes = OffsetOf(text.bytes(), length - end_length);
  if (!IsTrue(bound[1])) bytes = std::min(bytes, text.bytes().substr(0, bytes).rfind(' '));
  Text truncated = text.Substr(0, bytes);
  truncated.Append(end);
  return machine.String(std::move(truncated));
}

Result WordCount(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
  int64_t count = 0;
  bool is_in_word = false;
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text.bytes(), at);
    if (IsWord(c.code) && !is_in_word) ++count;
    is_in_word = IsWord(c.code);
    at += c.bytes;
  }
  machine.meter().SpendBytes(text.size());
  return Value::Int(count);
}

Result FormatFilter(Machine& machine, const Value& input, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return absl::InvalidArgumentError("arguments must be all with names or all without");
  }
  TDOCK_ASSIGN_OR_RETURN(const Text format, Str(machine, input));
  const Value values = arguments.named.empty() ? machine.Tuple(arguments.positional)
                                               : machine.Dict({arguments.named.begin(), arguments.named.end()});
  TDOCK_ASSIGN_OR_RETURN(Text text, FormatPercent(machine, format, values));
  return machine.String(std::move(text));
}

void AppendUrlQuoted(const Text& text, bool is_query, TextBuilder& out) {
  for (size_t at = 0; at < text.size() && out.ok(); ++at) {
    const char c = text.bytes()[at];
    const auto byte = static_cast<unsigned char>(c);
    const bool is_safe =
        absl::ascii_isalnum(byte) || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !is_query);
    if (is_safe) {
      out.Append(text, at, at + 1);
    } else if (c == ' ' && is_query) {
      out.Append("+", text.SourceAt(at));
    } else {
      out.Append(absl::StrFormat("%%%02X", byte), text.SourceAt(at));
    }
  }
}

Result UrlEncode(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  TextBuilder out(machine.meter());
  if (input.is_text() || !Iteration::Over(input).ok()) {
    TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, input));
    AppendUrlQuoted(text, /*is_query=*/false, out);
    return machine.String(out.Take());
  }
  const Value pairs = input.is_dict() ? machine.NewValue<DictView>(input, DictView::Part::kItems) : input;
  TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, pairs));
  for (size_t i = 0; i < items.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(const auto pair, ItemsOf(machine, items[i]));
    if (pair.size() != 2) return absl::InvalidArgumentError("urlencode needs pairs of names and values");
    if (i > 0) out.Append("&");
    for (size_t part = 0; part < 2; ++part) {
      if (part == 1) out.Append("=");
      TDOCK_ASSIGN_OR_RETURN(const Text text, Str(machine, pair[part]));
      AppendUrlQuoted(text, /*is_query=*/true, out);
    }
  }
  return machine.String(out.Take());
}

Result IntFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"default", "base"}));
  int64_t base = 10;
  if (IsGiven(bound[1])) {
    TDOCK_ASSIGN_OR_RETURN(base, IntOf(bound[1], "base"));
  }
  if (input.is_undefined()) return absl::InvalidArgumentError(input.undefined_message());
  machine.meter().SpendBytes(input.is_text() ? input.AsText().size() : 0);
  const Value otherwise = IsGiven(bound[0]) ? bound[0] : Value::Int(0);
  TDOCK_ASSIGN_OR_RETURN(std::optional<Value> parsed, ParseInt(input, base));
  if (parsed) return *parsed;
  const std::optional<double> real = ParseFloat(input);
  if (!real || !std::isfinite(*real)) return otherwise;
  return TruncatedFloat(*real);
}

Result FloatFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"default"}));
  if (input.is_undefined()) return absl::InvalidArgumentError(input.undefined_message());
  machine.meter().SpendBytes(input.is_text() ? input.AsText().size() : 0);
  const std::optional<double> real = ParseFloat(input);
  if (real) return Value::Float(*real);
  return IsGiven(bound[0]) ? bound[0] : Value::Float(0);
}

constexpr Filter kTextFilters[] = {{"trim", Trim},
                                   {"tojson", JsonFilter},
                                   {"replace", ReplaceFilter},
                                   {"string", StringFilter},
                                   {"upper", MapFilter<Upper>},
                                   {"lower", MapFilter<Lower>},
                                   {"capitalize", MapFilter<Capitalize>},
                                   {"title", MapFilter<TitleWords>},
                                   {"indent", Indent},
                                   {"safe", SafeFilter},
                                   {"escape", EscapeFilter<false>},
                                   {"e", EscapeFilter<false>},
                                   {"forceescape", EscapeFilter<true>},
                                   {"center", Center},
                                   {"truncate", Truncate},
                                   {"wordcount", WordCount},
                                   {"format", FormatFilter},
                                   {"urlencode", UrlEncode},
                                   {"int", IntFilter},
                                   {"float", FloatFilter}};

}  // namespace

absl::Span<const Filter> FiltersOfText() { return kTextFilters; }

}  // namespace tdock::jinja
