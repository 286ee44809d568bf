#include "text/jinja/format.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/builder.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/format_spec.h"
#include "text/jinja/lookup.h"
#include "text/jinja/node.h"
#include "text/jinja/numbers.h"
#include "text/jinja/repr.h"

namespace tdock::jinja {
namespace {

bool IsAsciiDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// ascii(): repr() in ASCII.
absl::StatusOr<Text> AsciiRepr(Machine& machine, const Value& value) {
  TDOCK_ASSIGN_OR_RETURN(const Text repr, Repr(machine, value));
  TextBuilder out(machine.meter());
  for (size_t at = 0; at < repr.size();) {
    const Character c = CharacterAt(repr.bytes(), at);
    const auto code = static_cast<uint32_t>(c.code);
    if (code < 0x80) {
      out.Append(repr, at, at + 1);
    } else {
      const std::string escaped = code < 0x100     ? absl::StrFormat("\\x%02x", code)
                                  : code < 0x10000 ? absl::StrFormat("\\u%04x", code)
                                                   : absl::StrFormat("\\U%08x", code);
      out.Append(escaped, repr.SourceAt(at));
    }
    at += c.bytes;
  }
  return out.Take();
}

absl::StatusOr<Text> Converted(Machine& machine, const Value& value, char conversion) {
  if (conversion == 'r') return Repr(machine, value);
  if (conversion == 'a') return AsciiRepr(machine, value);
  return Str(machine, value);
}

// "%-5.2f" and the like.
class PercentFormatter {
 public:
  PercentFormatter(Machine& machine, const Text& format, const Value& values)
      : machine_(machine), format_(format), values_(values), out_(machine.meter()) {}

  absl::StatusOr<Text> Run() && {
    const absl::string_view bytes = format_.bytes();
    while (at_ < bytes.size() && out_.ok()) {
      const size_t percent = std::min(bytes.find('%', at_), bytes.size());
      out_.Append(format_, at_, percent);
      at_ = percent;
      if (at_ < bytes.size()) TDOCK_RETURN_IF_ERROR(Field());
    }
    if (has_all_ || used_ >= Count()) return out_.Take();
    return absl::InvalidArgumentError("there are more values than the format has places for");
  }

 private:
  char current() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }
  // Of a single value and of a tuple; what can be asked for names may have more.
  size_t Count() const {
    if (values_.kind() == Value::Kind::kTuple) return values_.AsItems().size();
    const bool is_mapping = values_.is_dict() || values_.kind() == Value::Kind::kList ||
                            As<RangeObject>(values_, Object::Type::kRange) != nullptr;
    return is_mapping ? 0 : 1;
  }

  absl::StatusOr<Value> NextValue() {
    if (values_.kind() != Value::Kind::kTuple) {
      if (used_++ == 0) return values_;
    } else if (used_ < values_.AsItems().size()) {
      return values_.AsItems()[used_++];
    }
    return absl::InvalidArgumentError("there are fewer values than the format has places for");
  }

  absl::StatusOr<int64_t> Number() {
    if (current() == '*') {
      ++at_;
      TDOCK_ASSIGN_OR_RETURN(const Value value, NextValue());
      return IntOf(value, "a width in a format");
    }
    int64_t number = 0;
    for (; IsAsciiDigit(current()); ++at_) {
      number = number * 10 + (current() - '0');
      if (number > (int64_t{1} << 40)) return absl::InvalidArgumentError("a width in a format is too large");
    }
    return number;
  }

  absl::StatusOr<std::optional<Value>> Named() {
    if (current() != '(') return std::nullopt;
    if (!values_.is_dict()) return absl::InvalidArgumentError("a format with names needs a dict");
    const size_t begin = ++at_;
    for (int open = 1; open > 0; ++at_) {
      if (at_ >= format_.size()) return absl::InvalidArgumentError("a name in a format has no end");
      open += current() == '(' ? 1 : current() == ')' ? -1 : 0;
    }
    const absl::string_view name = format_.bytes().substr(begin, at_ - 1 - begin);
    const Value* const found = values_.Find(name);
    if (found == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("a format names ", Quoted(name), ", which is not among the values"));
    has_all_ = true;
    return *found;
  }

  absl::Status Field() {
    if (!machine_.meter().Spend(1)) return machine_.meter().status();
    const size_t percent = at_++;
    TDOCK_ASSIGN_OR_RETURN(std::optional<Value> value, Named());
    FormatSpec spec;
    spec.align = '>';
    bool is_left = false;
    for (;; ++at_) {
      if (current() == '-')
        is_left = true;
      else if (current() == '0')
        spec.zero = true;
      else if (current() == '+')
        spec.sign = '+';
      else if (current() == ' ' && spec.sign != '+')
        spec.sign = ' ';
      else if (current() == '#')
        spec.alternate = true;
      else if (current() != ' ')
        break;
    }
    TDOCK_ASSIGN_OR_RETURN(spec.width, Number());
    if (spec.width < 0) is_left = true, spec.width = -spec.width;
    if (current() == '.') {
      ++at_;
      TDOCK_ASSIGN_OR_RETURN(spec.precision, Number());
      spec.precision = std::max<int64_t>(spec.precision, 0);
    }
    if (current() == 'h' || current() == 'l' || current() == 'L') ++at_;
    if (at_ >= format_.size()) return absl::InvalidArgumentError("a format ends behind a '%'");
    spec.type = current();
    ++at_;
    if (spec.type == '%') {
      out_.Append(format_, percent, percent + 1);
      return absl::OkStatus();
    }
    if (!value) {
      TDOCK_ASSIGN_OR_RETURN(value, NextValue());
    }
    if (is_left) spec.align = '<';
    return Append(*value, spec, is_left);
  }

  absl::Status Append(const Value& value, FormatSpec spec, bool is_left) {
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a' || spec.type == 'c') return AppendText(value, spec);
    constexpr absl::string_view kTypes = "diuoxXeEfFgG";
    if (kTypes.find(spec.type) == absl::string_view::npos)
      return absl::InvalidArgumentError(absl::StrCat("the format '%", std::string(1, spec.type), "' is unknown"));
    if (value.is_undefined()) return absl::InvalidArgumentError(value.undefined_message());
    if (!value.is_number())
      return absl::InvalidArgumentError(absl::StrCat("the format '%", std::string(1, spec.type),
                                                     "' needs a number, not a value of the type ", TypeName(value)));
    if (spec.zero && !is_left) spec.align = '=', spec.fill = "0";
    if (absl::string_view("eEfFgG").find(spec.type) != absl::string_view::npos) {
      TDOCK_ASSIGN_OR_RETURN(const std::string text, FormatFloat(machine_, ToDouble(value), spec));
      out_.Append(text);
      return absl::OkStatus();
    }
    Value integer = value;
    if (!value.is_integer()) {
      if (absl::string_view("oxX").find(spec.type) != absl::string_view::npos)
        return absl::InvalidArgumentError("the formats '%o', '%x' and '%X' need an integer");
      TDOCK_ASSIGN_OR_RETURN(integer, TruncatedFloat(value.AsFloat()));
    }
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (spec.precision >= 0) return AppendPrecise(integer, spec);
    TDOCK_ASSIGN_OR_RETURN(const std::string text, FormatInteger(machine_, integer, spec));
    out_.Append(text);
    return absl::OkStatus();
  }

  // An integer with at least as many digits as the precision says.
  absl::Status AppendPrecise(const Value& integer, const FormatSpec& spec) {
    FormatSpec digits = spec;
    digits.width = 0;
    digits.precision = -1;
    TDOCK_ASSIGN_OR_RETURN(std::string text, FormatInteger(machine_, integer, digits));
    size_t begin = text[0] == '-' || text[0] == '+' || text[0] == ' ' ? 1 : 0;
    if (spec.alternate && spec.type != 'd') begin += 2;
    const int64_t missing = spec.precision - static_cast<int64_t>(text.size() - begin);
    if (missing > 0) {
      const auto bytes = static_cast<size_t>(missing);
      if (!machine_.meter().MayHold(bytes) || !machine_.meter().SpendBytes(bytes)) return machine_.meter().status();
      text.insert(begin, static_cast<size_t>(missing), '0');
    }
    FormatSpec wide = spec;
    wide.precision = -1;
    if (wide.align == '=') {
      const int64_t more = spec.width - static_cast<int64_t>(text.size());
      if (more > 0 && machine_.meter().MayHold(static_cast<size_t>(more)))
        text.insert(begin, static_cast<size_t>(more), '0');
      wide.width = 0;
    }
    out_.Append(FormatText(machine_, Text(std::move(text)), wide));
    return absl::OkStatus();
  }

  absl::Status AppendText(const Value& value, const FormatSpec& spec) {
    FormatSpec text_spec = spec;
    Text text;
    if (spec.type != 'c') {
      TDOCK_ASSIGN_OR_RETURN(text, Converted(machine_, value, spec.type));
    } else if (value.is_integer()) {
      FormatSpec character;
      character.type = 'c';
      TDOCK_ASSIGN_OR_RETURN(std::string made, FormatInteger(machine_, value, character));
      text = Text(std::move(made));
    } else if (value.is_text() && CountCharacters(value.AsText().bytes()) == 1) {
      text = value.AsText();
    } else {
      return absl::InvalidArgumentError("the format '%c' needs one character or its number");
    }
    if (spec.type == 'c') text_spec.precision = -1;
    out_.Append(FormatText(machine_, text, text_spec));
    return absl::OkStatus();
  }

  Machine& machine_;
  const Text& format_;
  const Value& values_;
  TextBuilder out_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool has_all_ = false;
};

// "{0.name!r:>8}" and the like.
class BraceFormatter {
 public:
  BraceFormatter(Machine& machine, const Arguments& arguments) : machine_(machine), arguments_(arguments) {}

  absl::StatusOr<Text> Run(const Text& format, int depth) {
    if (depth < 0) return absl::InvalidArgumentError("formats nest too deep");
    const absl::string_view bytes = format.bytes();
    TextBuilder out(machine_.meter());
    for (size_t at = 0; at < bytes.size() && out.ok();) {
      const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out.Append(format, at, brace);
      at = brace;
      if (at >= bytes.size()) break;
      if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
        out.Append(format, at, at + 1);
        at += 2;
        continue;
      }
      if (bytes[at] == '}') return absl::InvalidArgumentError("a format has a single '}'");
      const size_t end = EndOfField(bytes, at);
      if (end == absl::string_view::npos) return absl::InvalidArgumentError("a format has a '{' without its '}'");
      TDOCK_ASSIGN_OR_RETURN(const Text field, Field(format.Substr(at + 1, end), depth));
      out.Append(field);
      at = end + 1;
    }
    return out.Take();
  }

 private:
  static size_t EndOfField(absl::string_view bytes, size_t begin) {
    int open = 0;
    bool in_index = false;
    for (size_t at = begin; at < bytes.size(); ++at) {
      if (bytes[at] == '[' && open == 1) in_index = true;
      if (bytes[at] == ']') in_index = false;
      if (in_index) continue;
      if (bytes[at] == '{') ++open;
      if (bytes[at] == '}' && --open == 0) return at;
    }
    return absl::string_view::npos;
  }

  absl::StatusOr<Text> Field(const Text& field, int depth) {
    if (!machine_.meter().Spend(1)) return machine_.meter().status();
    const absl::string_view bytes = field.bytes();
    size_t end = 0;  // of the name
    bool in_index = false;
    for (; end < bytes.size(); ++end) {
      if (bytes[end] == '[') in_index = true;
      if (bytes[end] == ']') in_index = false;
      if (bytes[end] == '{' || bytes[end] == '}') return absl::InvalidArgumentError("the name in a format has a brace");
      if (!in_index && (bytes[end] == ':' || bytes[end] == '!')) break;
    }
    TDOCK_ASSIGN_OR_RETURN(const Value value, Lookup(bytes.substr(0, end)));
    char conversion = 0;
    if (end < bytes.size() && bytes[end] == '!') {
      if (end + 1 >= bytes.size()) return absl::InvalidArgumentError("a format ends behind a '!'");
      conversion = bytes[end + 1];
      end += 2;
      if (conversion != 'r' && conversion != 's' && conversion != 'a')
        return absl::InvalidArgumentError("behind '!', a format has 'r', 's' or 'a'");
      if (end < bytes.size() && bytes[end] != ':')
        return absl::InvalidArgumentError("a format has ':' or nothing behind a conversion");
    }
    TDOCK_ASSIGN_OR_RETURN(const Text spec,
                           Run(end < bytes.size() ? field.Substr(end + 1, bytes.size()) : Text(), depth - 1));
    if (conversion == 0) return FormatValue(machine_, value, spec.bytes());
    TDOCK_ASSIGN_OR_RETURN(Text text, Converted(machine_, value, conversion));
    return FormatValue(machine_, machine_.String(std::move(text)), spec.bytes());
  }

  absl::StatusOr<Value> First(absl::string_view name) {
    const bool is_number = !name.empty() && std::all_of(name.begin(), name.end(), IsAsciiDigit);
    if (!name.empty() && !is_number) {
      machine_.SpendItems(arguments_.named.size());
      for (const auto& [key, value] : arguments_.named) {
        if (key.AsText().bytes() == name) return value;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("a format names ", Quoted(name), ", which is not among the arguments"));
    }
    if (is_number ? next_ > 0 : is_numbered_) {
      return absl::InvalidArgumentError("a format has both numbered and automatic fields");
    }
    size_t index = next_;
    if (is_number) {
      is_numbered_ = true;
      if (!absl::SimpleAtoi(name, &index)) index = arguments_.positional.size();
    } else {
      ++next_;
    }
    if (index >= arguments_.positional.size())
      return absl::InvalidArgumentError("a format has more fields than arguments");
    return arguments_.positional[index];
  }

  absl::StatusOr<Value> Lookup(absl::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    TDOCK_ASSIGN_OR_RETURN(Value value, First(name.substr(0, at)));
    while (at < name.size()) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) return absl::InvalidArgumentError("a format has an attribute without a name");
        TDOCK_ASSIGN_OR_RETURN(value,
                               GetAttribute(machine_, value, machine_.String(name.substr(at + 1, end - at - 1))));
        at = end;
        continue;
      }
      const size_t end = name.find(']', at);
      if (name[at] != '[' || end == absl::string_view::npos || end == at + 1)
        return absl::InvalidArgumentError("a format has an index without its brackets");
      const absl::string_view index = name.substr(at + 1, end - at - 1);
      int64_t number = 0;
      const bool is_number = std::all_of(index.begin(), index.end(), IsAsciiDigit) && absl::SimpleAtoi(index, &number);
      TDOCK_ASSIGN_OR_RETURN(value, GetItem(machine_, value, is_number ? Value::Int(number) : machine_.String(index)));
      at = end + 1;
      if (at < name.size() && name[at] != '.' && name[at] != '[')
        return absl::InvalidArgumentError("in a format, only '.' or '[' may follow ']'");
    }
    return value;
  }

  Machine& machine_;
  const Arguments& arguments_;
  size_t next_ = 0;
  bool is_numbered_ = false;
};

}  // namespace

absl::StatusOr<Text> FormatPercent(Machine& machine, const Text& format, const Value& values) {
  return PercentFormatter(machine, format, values).Run();
}

absl::StatusOr<Text> FormatBraces(Machine& machine, const Text& format, const Arguments& arguments) {
  return BraceFormatter(machine, arguments).Run(format, 2);
}

}  // namespace tdock::jinja
