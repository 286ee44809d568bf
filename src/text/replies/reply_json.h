// JSON in replies: as it arrives, and made from text. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"

namespace tdock::text {

inline bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Says of each byte whether a JSON object (RFC 8259) can go on with it, and where in the object it is. Does not look at
// UTF-8, pairs of escapes and names that come twice: CheckArguments() does, once the object is whole.
class JsonScanner {
 public:
  explicit JsonScanner(int max_depth) : max_depth_(static_cast<size_t>(max_depth)) {}

  // False if the text cannot go on so; then it must not be used any more.
  bool Push(char c);

  bool done() const { return mode_ == Mode::kDone; }
  size_t depth() const { return nested_.size(); }  // of objects and lists that are open
  // The next byte that is no white space begins a value, or ends a list.
  bool wants_value() const { return mode_ == Mode::kValue || mode_ == Mode::kFirstValue; }
  // A value has ended.
  bool after_value() const { return mode_ == Mode::kAfterValue; }
  // The last name in the outermost object, with its escapes, up to 64 bytes.
  const std::string& key() const { return key_; }

 private:
  enum class Mode : uint8_t {
    kStart,
    kFirstKey,  // or the end of the object
    kKey,
    kColon,
    kValue,
    kFirstValue,  // or the end of the list
    kAfterValue,
    kString,
    kEscape,
    kHex,
    kLiteral,
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kDone
  };

  bool PushValue(char c);
  bool PushString(char c);
  bool PushNumber(char c);
  bool PushAfterValue(char c);
  bool Open(char bracket, Mode mode);
  bool Close(char bracket);
  bool To(Mode mode) {
    mode_ = mode;
    return true;
  }

  const size_t max_depth_;
  Mode mode_ = Mode::kStart;
  bool is_key_ = false;       // the string is a name
  int hex_left_ = 0;          // digits of an escape
  const char* literal_ = "";  // what is left of it
  std::string nested_;        // '{' and '['
  std::string key_;
};

// InvalidArgument with the reason if `json` is no object whose text any reader takes in the same way.
absl::Status CheckArguments(absl::string_view json, int max_depth);

// The types of arguments that a list of tools declares, for forms whose arguments are text without types.
class ArgumentTypes {
 public:
  // `tools`: a JSON list of functions, as text::Context has it. What it does not say is not known.
  ArgumentTypes(absl::string_view tools, int max_depth);

  // The JSON of an argument that a model has written as `text`. Where a text is declared, that text; where another
  // type is, the value if the text is one; where nothing is, the value if it is other than a text.
  std::string ValueOf(const std::string& tool, const std::string& key, absl::string_view text) const;

 private:
  // Bits of what a schema allows; 0: all.
  static constexpr unsigned kText = 1, kNumber = 2, kBoolean = 4, kNull = 8, kObject = 16, kList = 32;
  static unsigned BitOfName(const nlohmann::json& type);
  static unsigned BitOf(const nlohmann::json& value);
  // 0 if there are too many.
  static unsigned TypesOfAll(const nlohmann::json& values, unsigned (*bit_of)(const nlohmann::json&));
  // `steps`: schemas that may still be looked at.
  static unsigned TypesOf(const nlohmann::json& schema, const nlohmann::json& root, int& steps);

  const int max_depth_;
  std::map<std::string, std::map<std::string, unsigned>> types_;  // by tool and argument
};

// The JSON of a text: "…" with its escapes.
std::string JsonString(absl::string_view text);
// The JSON value that `text` is, white space around it aside; discarded if it is none, or if an object with it as a
// member is nested too deep.
nlohmann::json JsonValue(absl::string_view text, int max_depth);

}  // namespace tdock::text
