#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/characters.h"

namespace tdock::jinja {
namespace {

// Longer ones first.
constexpr std::array<absl::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                          "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                          ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

std::string NormalizeLineEnds(absl::string_view source) {
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool IsDigitOf(char c, int base) {
  const unsigned char lower = static_cast<unsigned char>(absl::ascii_tolower(static_cast<unsigned char>(c)));
  if (base == 16 && lower >= 'a' && lower <= 'f') return true;
  return lower >= '0' && lower < '0' + std::min(base, 10);
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(NormalizeLineEnds(source)) {}

  absl::StatusOr<std::vector<Token>> Run() && {
    while (at_ < source_.size()) TDOCK_RETURN_IF_ERROR(Root());
    Add(Token::Type::kEof, "");
    return std::move(tokens_);
  }

 private:
  absl::string_view rest() const { return absl::string_view(source_).substr(at_); }
  bool Sees(absl::string_view text) const { return rest().substr(0, text.size()) == text; }
  void Add(Token::Type type, absl::string_view text) { tokens_.push_back({type, line_, std::string(text)}); }
  absl::Status Error(absl::string_view message) const { return ErrorAtLine(line_, message); }

  void Advance(size_t bytes) {
    const auto passed = rest().substr(0, bytes);
    line_ += static_cast<int32_t>(std::count(passed.begin(), passed.end(), '\n'));
    if (bytes > 0) line_starting_ = passed.back() == '\n';
    at_ += bytes;
  }

  size_t SpaceBytes(size_t from) const {
    size_t at = from;
    while (at < source_.size()) {
      const Character c = CharacterAt(source_, at);
      if (!IsSpace(c.code)) break;
      at += c.bytes;
    }
    return at - from;
  }

  // The bytes of what ends a tag here, such as "-%}\n"; 0: it does not end here.
  size_t EndBytes(absl::string_view end, bool trims_newline, bool allows_plus) const {
    if (Sees("-") && absl::string_view(source_).substr(at_ + 1, 2) == end) return 3 + SpaceBytes(at_ + 3);
    if (allows_plus && Sees("+") && absl::string_view(source_).substr(at_ + 1, 2) == end) return 3;
    if (!Sees(end)) return 0;
    return 2 + (trims_newline && at_ + 2 < source_.size() && source_[at_ + 2] == '\n' ? 1 : 0);
  }

  // The text before a tag as the tag's sign wants it.
  absl::string_view Stripped(absl::string_view text, char sign, bool is_variable) const {
    if (sign == '-') {
      while (!text.empty()) {
        const Character last = CharacterBefore(text, text.size());
        if (!IsSpace(last.code)) break;
        text.remove_suffix(last.bytes);
      }
      return text;
    }
    if (sign == '+' || is_variable) return text;
    const size_t line = text.rfind('\n') + 1;  // 0 where there is none
    if (line == 0 && !line_starting_) return text;
    for (size_t at = line; at < text.size();) {
      const Character c = CharacterAt(text, at);
      if (!IsSpace(c.code)) return text;
      at += c.bytes;
    }
    return text.substr(0, line);
  }

  char SignAt(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : 0;
  }

  // The bytes of "{% raw %}" at `at`; 0: there is none.
  size_t RawBytes(size_t at, absl::string_view word, bool is_end) const {
    const absl::string_view text = source_;
    size_t next = at + 2;
    if (SignAt(next) != 0) ++next;
    next += SpaceBytes(next);
    if (text.substr(next, word.size()) != word) return 0;
    next += word.size();
    next += SpaceBytes(next);
    if (text.substr(next, 3) == "-%}") return next + 3 + SpaceBytes(next + 3) - at;
    if (is_end && text.substr(next, 3) == "+%}") return next + 3 - at;
    if (text.substr(next, 2) != "%}") return 0;
    next += 2;
    if (is_end && next < text.size() && text[next] == '\n') ++next;
    return next - at;
  }

  absl::Status Root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        Add(Token::Type::kData, rest());
        Advance(rest().size());
        return absl::OkStatus();
      }
      const char next = source_[tag + 1];
      if (next == '%' || next == '{' || next == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = SignAt(tag + 2);
    const absl::string_view data = Stripped(rest().substr(0, tag - at_), sign, kind == '{');
    if (!data.empty()) Add(Token::Type::kData, data);
    const size_t raw = kind == '%' ? RawBytes(tag, "raw", /*is_end=*/false) : 0;
    Advance(tag - at_ + (raw > 0 ? raw : 2 + (sign != 0 ? 1 : 0)));
    if (raw > 0) return Raw();
    if (kind == '#') return Comment();
    const bool is_block = kind == '%';
    Add(is_block ? Token::Type::kBlockBegin : Token::Type::kVariableBegin, "");
    return Tag(is_block);
  }

  absl::Status Raw() {
    for (size_t end = source_.find("{%", at_); end != std::string::npos; end = source_.find("{%", end + 1)) {
      const size_t bytes = RawBytes(end, "endraw", /*is_end=*/true);
      if (bytes == 0) continue;
      const absl::string_view data = Stripped(rest().substr(0, end - at_), SignAt(end + 2), /*is_variable=*/false);
      if (!data.empty()) Add(Token::Type::kData, data);
      Advance(end - at_ + bytes);
      return absl::OkStatus();
    }
    if (at_ >= source_.size()) return absl::OkStatus();  // as Jinja has it
    return Error("missing {% endraw %}");
  }

  absl::Status Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos && at_ >= source_.size()) return absl::OkStatus();  // as Jinja has it
    if (end == std::string::npos) return Error("missing end of a comment, '#}'");
    const bool has_sign = end > at_ && SignAt(end - 1) != 0;
    Advance(end - at_ - (has_sign ? 1 : 0));
    Advance(EndBytes("#}", /*trims_newline=*/true, /*allows_plus=*/true));
    return absl::OkStatus();
  }

  absl::Status Tag(bool is_block) {
    std::string open;  // brackets that are not closed yet
    while (at_ < source_.size()) {
      const size_t end = is_block ? EndBytes("%}", true, true) : EndBytes("}}", false, false);
      if (end > 0 && open.empty()) {
        Add(is_block ? Token::Type::kBlockEnd : Token::Type::kVariableEnd, "");
        Advance(end);
        return absl::OkStatus();
      }
      if (const size_t space = SpaceBytes(at_); space > 0) {
        Advance(space);
      } else {
        TDOCK_RETURN_IF_ERROR(TokenHere(open));
      }
    }
    return absl::OkStatus();  // the parser misses the end
  }

  absl::Status TokenHere(std::string& open) {
    const char c = source_[at_];
    if (absl::ascii_isdigit(static_cast<unsigned char>(c))) return Number();
    if (c == '\'' || c == '"') return String(c);
    if (const size_t bytes = NameBytes(); bytes > 0) {
      const absl::string_view name = rest().substr(0, bytes);
      if (!IsIdentifierStart(CharacterAt(name, 0).code)) {
        return Error(absl::StrCat("invalid character in the name ", Quoted(name)));
      }
      Add(Token::Type::kName, name);
      Advance(bytes);
      return absl::OkStatus();
    }
    for (const absl::string_view op : kOperators) {
      if (!Sees(op)) continue;
      TDOCK_RETURN_IF_ERROR(Balance(op, open));
      Add(Token::Type::kOperator, op);
      Advance(op.size());
      return absl::OkStatus();
    }
    return Error(absl::StrCat("unexpected character ", Quoted(rest().substr(0, CharacterAt(source_, at_).bytes))));
  }

  absl::Status Balance(absl::string_view op, std::string& open) const {
    if (op == "(") open.push_back(')');
    if (op == "[") open.push_back(']');
    if (op == "{") open.push_back('}');
    if (op != ")" && op != "]" && op != "}") return absl::OkStatus();
    if (open.empty()) return Error(absl::StrCat("unexpected '", op, "'"));
    const char expected = open.back();
    open.pop_back();
    if (expected == op[0]) return absl::OkStatus();
    return Error(absl::StrCat("unexpected '", op, "', expected '", std::string(1, expected), "'"));
  }

  size_t NameBytes() const {
    size_t at = at_;
    while (at < source_.size()) {
      const Character c = CharacterAt(source_, at);
      if (!IsWord(c.code)) break;
      at += c.bytes;
    }
    return at - at_;
  }

  // Digits with single underscores between, from `at` on.
  size_t DigitBytes(size_t at, int base) const {
    size_t end = at;
    while (end < source_.size()) {
      if (IsDigitOf(source_[end], base)) {
        ++end;
      } else if (source_[end] == '_' && end > at && end + 1 < source_.size() && IsDigitOf(source_[end + 1], base)) {
        ++end;
      } else {
        break;
      }
    }
    return end - at;
  }

  // The bytes of a float here; 0: there is none.
  size_t FloatBytes() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    size_t end = at_ + DigitBytes(at_, 10);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigitOf(source_[end + 1], 10)) {
      end += 1 + DigitBytes(end + 1, 10);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (SignAt(exponent) != 0) ++exponent;
      if (const size_t digits = DigitBytes(exponent, 10); digits > 0) return exponent + digits - at_;
    }
    return is_float ? end - at_ : 0;
  }

  absl::Status Number() {
    if (const size_t bytes = FloatBytes(); bytes > 0) {
      double value = 0;
      if (!absl::SimpleAtod(absl::StrReplaceAll(rest().substr(0, bytes), {{"_", ""}}), &value)) {
        return Error(absl::StrCat(Quoted(rest().substr(0, bytes)), " is no number"));
      }
      Add(Token::Type::kFloat, rest().substr(0, bytes));
      tokens_.back().number = Value::Float(value);
      Advance(bytes);
      return absl::OkStatus();
    }
    int base = 10;
    const char marker = at_ + 1 < source_.size() && source_[at_] == '0'
                            ? absl::ascii_tolower(static_cast<unsigned char>(source_[at_ + 1]))
                            : '\0';
    if (marker == 'b') base = 2;
    if (marker == 'o') base = 8;
    if (marker == 'x') base = 16;
    size_t begin = at_ + (base == 10 ? 0 : 2);
    if (base != 10 && begin < source_.size() && source_[begin] == '_') ++begin;
    size_t digits = DigitBytes(begin, base);
    if (base != 10 && digits == 0) base = 10, begin = at_, digits = 1;
    if (base == 10 && source_[at_] == '0') {  // zeros only
      digits = 1;
      while (at_ + digits < source_.size() &&
             (source_[at_ + digits] == '0' ||
              (source_[at_ + digits] == '_' && at_ + digits + 1 < source_.size() && source_[at_ + digits + 1] == '0')))
        ++digits;
    }
    return Integer(begin + digits - at_, base, begin);
  }

  absl::Status Integer(size_t bytes, int base, size_t begin) {
    uint64_t value = 0;
    for (const char c : absl::string_view(source_).substr(begin, at_ + bytes - begin)) {
      if (c == '_') continue;
      const int digit = absl::ascii_isdigit(static_cast<unsigned char>(c))
                            ? c - '0'
                            : absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10;
      if (value > (std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(digit)) / static_cast<uint64_t>(base)) {
        return Error(absl::StrCat("the integer ", Quoted(rest().substr(0, bytes)), " has more than 64 bits"));
      }
      value = value * static_cast<uint64_t>(base) + static_cast<uint64_t>(digit);
    }
    Add(Token::Type::kInteger, rest().substr(0, bytes));
    tokens_.back().number = Value::Uint(value);
    Advance(bytes);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error(absl::StrCat("missing end of a string, ", std::string(1, quote)));
    auto text = Unescaped(rest().substr(1, end - at_ - 1));
    if (!text.ok()) return Error(text.status().message());
    Add(Token::Type::kString, *text);
    Advance(end + 1 - at_);
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> Unescaped(absl::string_view text);

  const std::string source_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

// The character that `digits` hexadecimal digits name.
absl::StatusOr<char32_t> HexCharacter(absl::string_view text, size_t digits) {
  uint64_t code = 0;
  const bool is_hex =
      text.size() >= digits && std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(digits),
                                           [](char c) { return IsDigitOf(c, 16); });
  if (!is_hex || !absl::SimpleHexAtoi(text.substr(0, digits), &code)) {
    return absl::InvalidArgumentError(absl::StrCat("an escape in a string needs ", digits, " hexadecimal digits"));
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    return absl::InvalidArgumentError("an escape in a string names no character");
  }
  return static_cast<char32_t>(code);
}

// The other half of an escape in a string, by the character behind the backslash; empty: there is none.
absl::string_view PlainEscape(char c) {
  switch (c) {
    case '\\':
      return "\\";
    case '\'':
      return "'";
    case '"':
      return "\"";
    case 'a':
      return "\a";
    case 'b':
      return "\b";
    case 'f':
      return "\f";
    case 'n':
      return "\n";
    case 'r':
      return "\r";
    case 't':
      return "\t";
    case 'v':
      return "\v";
    default:
      return "";
  }
}

// Python's unicode-escape of the string with what is not ASCII written as escapes, which is what a backslash before
// such a character then escapes.
absl::StatusOr<std::string> Lexer::Unescaped(absl::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 >= text.size()) {
      out.push_back(text[at++]);
      continue;
    }
    const char c = text[at + 1];
    at += 2;
    if (c == '\n') continue;
    if (const absl::string_view plain = PlainEscape(c); !plain.empty()) {
      absl::StrAppend(&out, plain);
    } else if (c >= '0' && c <= '7') {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++i) {
        code = code * 8 + static_cast<char32_t>(text[at++] - '0');
      }
      AppendCharacter(code, out);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      TDOCK_ASSIGN_OR_RETURN(const char32_t code, HexCharacter(text.substr(at), digits));
      AppendCharacter(code, out);
      at += digits;
    } else if (c == 'N') {
      return absl::UnimplementedError("characters by name, '\\N{…}', are not supported; write '\\u' and the number");
    } else if (static_cast<unsigned char>(c) < 0x80) {
      out.push_back('\\');
      out.push_back(c);
    } else {
      const Character escaped = CharacterAt(text, at - 1);
      const auto code = static_cast<uint32_t>(escaped.code);
      absl::StrAppend(&out, "\\", code < 0x100 ? "x" : code < 0x10000 ? "u" : "U");
      if (code < 0x100)
        absl::StrAppend(&out, absl::Hex(code, absl::kZeroPad2));
      else if (code < 0x10000)
        absl::StrAppend(&out, absl::Hex(code, absl::kZeroPad4));
      else
        absl::StrAppend(&out, absl::Hex(code, absl::kZeroPad8));
      at += escaped.bytes - 1;
    }
  }
  return out;
}

}  // namespace

std::string Token::Describe() const {
  switch (type) {
    case Type::kData:
      return "text";
    case Type::kVariableBegin:
      return "'{{'";
    case Type::kVariableEnd:
      return "'}}'";
    case Type::kBlockBegin:
      return "'{%'";
    case Type::kBlockEnd:
      return "'%}'";
    case Type::kEof:
      return "the end of the template";
    default:
      return Quoted(text);
  }
}

absl::Status ErrorAtLine(int32_t line, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", message));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) { return Lexer(source).Run(); }

}  // namespace tdock::jinja
