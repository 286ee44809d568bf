#include "serve/grammar/json_acceptor.h"

#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tdock::serve {
namespace {

bool IsSpace(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

}  // namespace

bool JsonAcceptor::Push(absl::string_view bytes) {
  for (const char byte : bytes) {
    if (!Push(byte)) return false;
  }
  return true;
}

bool JsonAcceptor::TakesSpace() const {
  switch (mode_) {
    case Mode::kStart:
    case Mode::kFirstKey:
    case Mode::kNextKey:
    case Mode::kColon:
    case Mode::kValue:
    case Mode::kFirstValue:
    case Mode::kAfterValue:
      return true;
    default:
      return false;
  }
}

bool JsonAcceptor::Push(char byte) {
  if (TakesSpace()) {
    if (IsSpace(byte)) return ++spaces_ <= kMostSpaces;
    spaces_ = 0;
  }
  switch (mode_) {
    case Mode::kStart:
      return byte == '{' && Open('{', Mode::kFirstKey);
    case Mode::kFirstKey:
      if (byte == '}') return Close('{');
      [[fallthrough]];
    case Mode::kNextKey:
      is_key_ = true;
      return byte == '"' && To(Mode::kString);
    case Mode::kColon:
      return byte == ':' && To(Mode::kValue);
    case Mode::kFirstValue:
      if (byte == ']') return Close('[');
      [[fallthrough]];
    case Mode::kValue:
      return PushValue(byte);
    case Mode::kAfterValue:
      return PushAfterValue(byte);
    case Mode::kString:
      return PushString(byte);
    case Mode::kCharacter:
      return PushCharacter(static_cast<unsigned char>(byte));
    case Mode::kEscape:
      if (byte == 'u') {
        left_ = 4;
        surrogate_ = false;
        return To(Mode::kHex);
      }
      return std::strchr("\"\\/bfnrt", byte) != nullptr && byte != 0 && To(Mode::kString);
    case Mode::kHex:
      return PushHex(byte);
    case Mode::kLiteral:
      if (byte != *literal_) return false;
      return *++literal_ != 0 || To(Mode::kAfterValue);
    case Mode::kDone:
      return false;
    default:
      return PushNumber(byte);
  }
}

bool JsonAcceptor::PushValue(char byte) {
  is_key_ = false;
  switch (byte) {
    case '{':
      return Open('{', Mode::kFirstKey);
    case '[':
      return Open('[', Mode::kFirstValue);
    case '"':
      return To(Mode::kString);
    case '-':
      return To(Mode::kMinus);
    case '0':
      return To(Mode::kZero);
    case 't':
      literal_ = "rue";
      return To(Mode::kLiteral);
    case 'f':
      literal_ = "alse";
      return To(Mode::kLiteral);
    case 'n':
      literal_ = "ull";
      return To(Mode::kLiteral);
    default:
      return absl::ascii_isdigit(static_cast<unsigned char>(byte)) && To(Mode::kDigits);
  }
}

bool JsonAcceptor::PushString(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  if (byte == '"') return To(is_key_ ? Mode::kColon : Mode::kAfterValue);
  if (byte == '\\') return To(Mode::kEscape);
  if (code < 0x80) return code >= 0x20;
  // The first byte of a character of UTF-8 says how many follow, and what the next can be.
  if (code < 0xC2 || code > 0xF4) return false;
  left_ = code < 0xE0 ? 1 : code < 0xF0 ? 2 : 3;
  low_ = code == 0xE0 ? 0xA0 : code == 0xF0 ? 0x90 : 0x80;
  high_ = code == 0xED ? 0x9F : code == 0xF4 ? 0x8F : 0xBF;
  return To(Mode::kCharacter);
}

bool JsonAcceptor::PushCharacter(unsigned char byte) {
  if (byte < low_ || byte > high_) return false;
  low_ = 0x80;
  high_ = 0xBF;
  return --left_ > 0 || To(Mode::kString);
}

bool JsonAcceptor::PushHex(char byte) {
  if (!absl::ascii_isxdigit(static_cast<unsigned char>(byte))) return false;
  if (left_ == 4) surrogate_ = byte == 'd' || byte == 'D';
  if (left_ == 3 && surrogate_ && byte > '7') return false;  // d800 to dfff
  return --left_ > 0 || To(Mode::kString);
}

bool JsonAcceptor::PushNumber(char byte) {
  const bool digit = absl::ascii_isdigit(static_cast<unsigned char>(byte));
  const bool exponent = byte == 'e' || byte == 'E';
  switch (mode_) {
    case Mode::kMinus:
      return digit && To(byte == '0' ? Mode::kZero : Mode::kDigits);
    case Mode::kPoint:
      return digit && To(Mode::kFraction);
    case Mode::kExponent:
      if (byte == '+' || byte == '-') return To(Mode::kExponentSign);
      [[fallthrough]];
    case Mode::kExponentSign:
      return digit && To(Mode::kExponentDigits);
    case Mode::kDigits:
      if (digit) return true;
      [[fallthrough]];
    case Mode::kZero:
      if (byte == '.') return To(Mode::kPoint);
      if (exponent) return To(Mode::kExponent);
      break;
    case Mode::kFraction:
      if (digit) return true;
      if (exponent) return To(Mode::kExponent);
      break;
    default:
      if (digit) return true;
  }
  // The number has ended.
  mode_ = Mode::kAfterValue;
  return Push(byte);
}

bool JsonAcceptor::PushAfterValue(char byte) {
  if (byte == ',') return To(nested_.back() == '{' ? Mode::kNextKey : Mode::kValue);
  return byte == '}' ? Close('{') : byte == ']' && Close('[');
}

bool JsonAcceptor::Open(char bracket, Mode mode) {
  if (nested_.size() >= kMostNested) return false;
  nested_ += bracket;
  return To(mode);
}

bool JsonAcceptor::Close(char bracket) {
  if (nested_.back() != bracket) return false;
  nested_.pop_back();
  return To(nested_.empty() ? Mode::kDone : Mode::kAfterValue);
}

std::string JsonAcceptor::Key() const {
  const bool in_character = mode_ == Mode::kCharacter;
  const bool in_escape = mode_ == Mode::kHex;
  const bool in_string = mode_ == Mode::kString || mode_ == Mode::kEscape || in_character || in_escape;
  return absl::StrCat(static_cast<int>(mode_), in_string && is_key_ ? "k" : "", ",", TakesSpace() ? spaces_ : 0, ",",
                      in_character || in_escape ? left_ : 0, in_escape && surrogate_ ? "d" : "",
                      in_character ? absl::StrCat(",", low_, "-", high_) : "", ",",
                      mode_ == Mode::kLiteral ? literal_ : "", nested_);
}

}  // namespace tdock::serve
