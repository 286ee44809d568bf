// JSON as it arrives.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock::serve {

// Says of each byte whether a JSON object (RFC 8259) can go on with it. The text is UTF-8; escapes of surrogates are
// not accepted. Bounded, so that a model cannot fill an answer with them: kMostSpaces white space in a row, kMostNested
// objects and lists in one another. Cheap to copy. Not thread-safe.
class JsonAcceptor {
 public:
  static constexpr int kMostSpaces = 40;
  static constexpr size_t kMostNested = 32;

  // False if the text cannot go on so; then it must not be used any more.
  bool Push(char byte);
  bool Push(absl::string_view bytes);

  // The object has been closed: nothing may follow.
  bool complete() const { return mode_ == Mode::kDone; }

  // Equal for two that will accept the same.
  std::string Key() const;

 private:
  enum class Mode : uint8_t {
    kStart,
    kFirstKey,  // or the end of the object
    kNextKey,   // behind a comma
    kColon,
    kValue,
    kFirstValue,  // of a list, or its end
    kAfterValue,  // a comma, or the end of what it is in
    kString,
    kCharacter,  // bytes of a character to come
    kEscape,
    kHex,
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kLiteral,
    kDone,
  };

  bool TakesSpace() const;
  bool PushValue(char byte);
  bool PushString(char byte);
  bool PushCharacter(unsigned char byte);
  bool PushHex(char byte);
  bool PushNumber(char byte);
  bool PushAfterValue(char byte);
  bool Open(char bracket, Mode mode);
  bool Close(char bracket);
  bool To(Mode mode) {
    mode_ = mode;
    return true;
  }

  Mode mode_ = Mode::kStart;
  bool is_key_ = false;               // the string is one
  uint8_t spaces_ = 0;                // in a row
  uint8_t left_ = 0;                  // bytes of a character, digits of an escape, letters of a literal
  uint8_t low_ = 0x80, high_ = 0xBF;  // of the next byte of a character
  bool surrogate_ = false;            // the first digit of the escape is d
  const char* literal_ = "";          // what is left of it
  std::string nested_;                // '{' and '['
};

}  // namespace tdock::serve
