#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/node.h"
#include "text/jinja/text_operations.h"

namespace tdock::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <Text (*map)(const Text&)>
Result MapMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  machine.meter().SpendBytes(self.AsText().size());
  return machine.String(map(self.AsText()));
}

template <bool (*holds)(char32_t)>
Result AllMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  const absl::string_view bytes = self.AsText().bytes();
  machine.meter().SpendBytes(bytes.size());
  bool all = !bytes.empty();
  for (size_t at = 0; all && at < bytes.size();) {
    const Character c = CharacterAt(bytes, at);
    all = holds(c.code);
    at += c.bytes;
  }
  return Value::Bool(all);
}

bool IsAlphanumeric(char32_t code) { return IsLetter(code) || IsNumeric(code); }

// islower and isupper: some character is cased, and none the other way.
template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
Result CaseMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  const absl::string_view bytes = self.AsText().bytes();
  machine.meter().SpendBytes(bytes.size());
  bool is_any = false;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = CharacterAt(bytes, at);
    if (other(c.code) || IsTitle(c.code)) return Value::Bool(false);
    is_any = is_any || wanted(c.code);
    at += c.bytes;
  }
  return Value::Bool(is_any);
}

Result IsTitleCased(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  machine.meter().SpendBytes(self.AsText().size());
  const absl::string_view bytes = self.AsText().bytes();
  bool is_any = false;
  bool is_after_cased = false;
  for (size_t at = 0; at < bytes.size();) {
    const Character c = CharacterAt(bytes, at);
    at += c.bytes;
    const bool begins = IsUpper(c.code) || IsTitle(c.code);
    if ((begins && is_after_cased) || (IsLower(c.code) && !is_after_cased)) return Value::Bool(false);
    is_after_cased = begins || IsLower(c.code);
    is_any = is_any || is_after_cased;
  }
  return Value::Bool(is_any);
}

Result IsAscii(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  machine.meter().SpendBytes(self.AsText().size());
  const absl::string_view bytes = self.AsText().bytes();
  return Value::Bool(
      std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

Result IsPrintableText(Machine& machine, const Value& self, Arguments& arguments) {
  if (self.AsText().empty()) return Value::Bool(true);
  return AllMethod<IsPrintable>(machine, self, arguments);
}

Result IsIdentifier(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  machine.meter().SpendBytes(self.AsText().size());
  const absl::string_view bytes = self.AsText().bytes();
  if (bytes.empty() || !IsIdentifierStart(CharacterAt(bytes, 0).code)) return Value::Bool(false);
  for (size_t at = 0; at < bytes.size(); at += CharacterAt(bytes, at).bytes) {
    if (!IsWord(CharacterAt(bytes, at).code)) return Value::Bool(false);
  }
  return Value::Bool(true);
}

template <bool left, bool right>
Result StripMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}));
  std::optional<absl::string_view> characters;
  if (IsGivenAndNotNone(bound[0])) {
    TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "what is stripped"));
    characters = bound[0].AsText().bytes();
  }
  const size_t size = self.AsText().size() * (1 + characters.value_or("").size() / 8);
  if (!machine.meter().SpendBytes(size)) return machine.meter().status();
  return machine.String(Strip(self.AsText(), characters, {left, right}));
}

template <bool from_right>
Result SplitMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"sep", "maxsplit"}));
  std::optional<absl::string_view> separator;
  if (IsGivenAndNotNone(bound[0])) {
    TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "a separator"));
    separator = bound[0].AsText().bytes();
    if (separator->empty()) return absl::InvalidArgumentError("a separator must not be empty");
  }
  int64_t limit = -1;
  if (IsGiven(bound[1])) {
    TDOCK_ASSIGN_OR_RETURN(limit, IntOf(bound[1], "maxsplit"));
  }
  return machine.List(ToValues(machine, Split(machine.meter(), self.AsText(), separator, limit, from_right)));
}

Result SplitLinesMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"keepends"}));
  return machine.List(ToValues(machine, SplitLines(machine.meter(), self.AsText(), IsTrue(bound[0]))));
}

template <bool from_right>
Result PartitionMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "a separator"));
  const Text& text = self.AsText();
  const Text& separator = bound[0].AsText();
  if (separator.empty()) return absl::InvalidArgumentError("a separator must not be empty");
  machine.meter().SpendBytes(text.size());
  const size_t found = from_right ? FindLastBytes(machine.meter(), text.bytes(), separator.bytes())
                                  : FindBytes(text.bytes(), separator.bytes());
  if (found == absl::string_view::npos) {
    const Value empty = machine.String("");
    return from_right ? machine.Tuple({empty, empty, self}) : machine.Tuple({self, empty, empty});
  }
  return machine.Tuple({machine.String(text.Substr(0, found)), bound[0],
                        machine.String(text.Substr(found + separator.size(), text.size()))});
}

Result ReplaceMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", "", ""}, 2));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "what is replaced"));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[1], "a replacement"));
  int64_t limit = -1;
  if (IsGiven(bound[2])) {
    TDOCK_ASSIGN_OR_RETURN(limit, IntOf(bound[2], "the number of replacements"));
  }
  return machine.String(Replace(machine.meter(), self.AsText(), bound[0].AsText().bytes(), bound[1].AsText(), limit));
}

// The bytes of a text between two characters, as find() and the like take them, and the number of the first character.
// Of an empty range that lies behind the text, `is_valid` is false: even an empty string is not found there.
struct Part {
  absl::string_view bytes;
  int64_t first;
  bool is_valid;
};

absl::StatusOr<Part> PartOf(Machine& machine, const Text& text, const Value& begin, const Value& end) {
  machine.meter().SpendBytes(text.size());
  const int64_t length = CountCharacters(text.bytes());
  int64_t first = 0;
  int64_t last = length;
  if (IsGivenAndNotNone(begin)) {
    TDOCK_ASSIGN_OR_RETURN(first, IntOf(begin, "the beginning of a search"));
    if (first < 0) first = std::max<int64_t>(0, first + length);
  }
  if (IsGivenAndNotNone(end)) {
    TDOCK_ASSIGN_OR_RETURN(last, IntOf(end, "the end of a search"));
    if (last < 0) last = std::max<int64_t>(0, last + length);
    last = std::min(last, length);
  }
  if (first > last) return Part{{}, first, false};
  const size_t offset = OffsetOf(text.bytes(), first);
  return Part{text.bytes().substr(offset, OffsetOf(text.bytes(), last) - offset), first, true};
}

template <bool from_right, bool must_exist>
Result FindMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", "", ""}, 1));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "what is searched"));
  TDOCK_ASSIGN_OR_RETURN(const Part part, PartOf(machine, self.AsText(), bound[1], bound[2]));
  const absl::string_view wanted = bound[0].AsText().bytes();
  const size_t found = !part.is_valid ? absl::string_view::npos
                       : from_right   ? FindLastBytes(machine.meter(), part.bytes, wanted)
                                      : FindBytes(part.bytes, wanted);
  if (found != absl::string_view::npos) return Value::Int(part.first + CountCharacters(part.bytes.substr(0, found)));
  if (must_exist) return absl::InvalidArgumentError("the string that index() searches is not there");
  return Value::Int(-1);
}

Result CountMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", "", ""}, 1));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "what is counted"));
  TDOCK_ASSIGN_OR_RETURN(const Part part, PartOf(machine, self.AsText(), bound[1], bound[2]));
  const absl::string_view wanted = bound[0].AsText().bytes();
  if (!part.is_valid) return Value::Int(0);
  if (wanted.empty()) return Value::Int(CountCharacters(part.bytes) + 1);
  int64_t count = 0;
  for (size_t at = FindBytes(part.bytes, wanted); at != absl::string_view::npos;
       at = FindBytes(part.bytes, wanted, at + wanted.size()))
    ++count;
  return Value::Int(count);
}

template <bool at_end>
Result AffixMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", "", ""}, 1));
  Value::Items wanted = {bound[0]};
  if (bound[0].kind() == Value::Kind::kTuple) wanted = bound[0].AsItems();
  for (const Value& affix : wanted)
    TDOCK_RETURN_IF_ERROR(CheckText(affix, at_end ? "what a string ends with" : "what a string starts with"));
  TDOCK_ASSIGN_OR_RETURN(const Part part, PartOf(machine, self.AsText(), bound[1], bound[2]));
  return Value::Bool(part.is_valid && std::any_of(wanted.begin(), wanted.end(), [&](const Value& affix) {
                       const absl::string_view bytes = affix.AsText().bytes();
                       if (!machine.meter().Spend(1) || !machine.meter().SpendBytes(bytes.size())) return false;
                       return at_end ? absl::EndsWith(part.bytes, bytes) : absl::StartsWith(part.bytes, bytes);
                     }));
}

template <bool at_end>
Result RemoveAffixMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "what is removed"));
  const Text& text = self.AsText();
  const absl::string_view affix = bound[0].AsText().bytes();
  machine.meter().SpendBytes(affix.size());
  if (at_end)
    return absl::EndsWith(text.bytes(), affix) ? machine.String(text.Substr(0, text.size() - affix.size())) : self;
  return absl::StartsWith(text.bytes(), affix) ? machine.String(text.Substr(affix.size(), text.size())) : self;
}

template <Alignment alignment>
Result PadMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", ""}, 1));
  TDOCK_ASSIGN_OR_RETURN(const int64_t width, IntOf(bound[0], "a width"));
  absl::string_view fill = " ";
  if (IsGiven(bound[1])) {
    TDOCK_RETURN_IF_ERROR(CheckText(bound[1], "what a string is filled with"));
    fill = bound[1].AsText().bytes();
    if (fill.size() > 4 || CountCharacters(fill) != 1)
      return absl::InvalidArgumentError("a string is filled with one character");
  }
  return machine.String(Pad(machine.meter(), self.AsText(), width, fill, alignment));
}

Result ZeroFill(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  TDOCK_ASSIGN_OR_RETURN(const int64_t width, IntOf(bound[0], "a width"));
  const Text& text = self.AsText();
  const bool has_sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  TextBuilder out(machine.meter());
  if (has_sign) out.Append(text, 0, 1);
  out.AppendTimes("0", width - CountCharacters(text.bytes()));
  out.Append(text, has_sign ? 1 : 0, text.size());
  return machine.String(out.Take());
}

Result ExpandTabs(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"tabsize"}));
  int64_t size = 8;
  if (IsGiven(bound[0])) {
    TDOCK_ASSIGN_OR_RETURN(size, IntOf(bound[0], "tabsize"));
  }
  const Text& text = self.AsText();
  TextBuilder out(machine.meter());
  int64_t column = 0;
  for (size_t at = 0; at < text.size() && out.ok();) {
    const Character c = CharacterAt(text.bytes(), at);
    if (c.code == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      out.AppendTimes(" ", spaces, text.SourceAt(at));
      column += spaces;
    } else {
      out.Append(text, at, at + c.bytes);
      column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
    }
    at += c.bytes;
  }
  return machine.String(out.Take());
}

Result JoinMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, bound[0]));
  TextBuilder out(machine.meter());
  for (size_t i = 0; i < items.size(); ++i) {
    TDOCK_RETURN_IF_ERROR(CheckText(items[i], "what join() joins"));
    if (i > 0) out.Append(self.AsText());
    out.Append(items[i].AsText());
  }
  return machine.String(out.Take());
}

Result FormatMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(Text text, FormatBraces(machine, self.AsText(), arguments));
  return machine.String(std::move(text));
}

Result FormatMapMethod(Machine& machine, const Value& self, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {""}, 1));
  if (!bound[0].is_dict()) return absl::InvalidArgumentError("format_map() takes a dict");
  Arguments named;
  machine.SpendItems(bound[0].AsDict().pairs.size());
  for (const auto& [name, value] : bound[0].AsDict().pairs) {
    if (name.is_text()) named.named.emplace_back(name, value);
  }
  return FormatMethod(machine, self, named);
}

constexpr NamedMethod kTextMethods[] = {
    {"strip", StripMethod<true, true>},
    {"split", SplitMethod<false>},
    {"startswith", AffixMethod<false>},
    {"endswith", AffixMethod<true>},
    {"replace", ReplaceMethod},
    {"lstrip", StripMethod<true, false>},
    {"rstrip", StripMethod<false, true>},
    {"upper", MapMethod<Upper>},
    {"lower", MapMethod<Lower>},
    {"join", JoinMethod},
    {"format", FormatMethod},
    {"format_map", FormatMapMethod},
    {"capitalize", MapMethod<Capitalize>},
    {"title", MapMethod<Title>},
    {"swapcase", MapMethod<SwapCase>},
    {"casefold", MapMethod<CaseFold>},
    {"rsplit", SplitMethod<true>},
    {"splitlines", SplitLinesMethod},
    {"partition", PartitionMethod<false>},
    {"rpartition", PartitionMethod<true>},
    {"find", FindMethod<false, false>},
    {"rfind", FindMethod<true, false>},
    {"index", FindMethod<false, true>},
    {"rindex", FindMethod<true, true>},
    {"count", CountMethod},
    {"removeprefix", RemoveAffixMethod<false>},
    {"removesuffix", RemoveAffixMethod<true>},
    {"ljust", PadMethod<Alignment::kLeft>},
    {"rjust", PadMethod<Alignment::kRight>},
    {"center", PadMethod<Alignment::kCenter>},
    {"zfill", ZeroFill},
    {"expandtabs", ExpandTabs},
    {"isalpha", AllMethod<IsLetter>},
    {"isalnum", AllMethod<IsAlphanumeric>},
    {"isascii", IsAscii},
    {"isdecimal", AllMethod<IsDecimal>},
    {"isdigit", AllMethod<IsDigit>},
    {"isnumeric", AllMethod<IsNumeric>},
    {"isspace", AllMethod<IsSpace>},
    {"isprintable", IsPrintableText},
    {"isidentifier", IsIdentifier},
    {"islower", CaseMethod<IsLower, IsUpper>},
    {"isupper", CaseMethod<IsUpper, IsLower>},
    {"istitle", IsTitleCased},
};

}  // namespace

const NamedMethod* FindTextMethod(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kTextMethods), std::end(kTextMethods),
                                         [&](const NamedMethod& m) { return m.name == name; });
  return found == std::end(kTextMethods) ? nullptr : found;
}

}  // namespace tdock::jinja
