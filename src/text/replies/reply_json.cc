#include "text/replies/reply_json.h"

#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxKeyBytes = 64;
constexpr int kMaxToolsDepth = 64;
constexpr int kMaxSchemas = 64;  // that are looked at for one argument, by unions and references
// In an enumeration, which many arguments may refer to.
constexpr size_t kMaxValues = 1024;

bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// The member of an object; null: there is none.
const Json* MemberOf(const Json& object, absl::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(name));
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

bool JsonScanner::Push(char c) {
  const bool in_key = is_key_ && nested_.size() == 1;
  switch (mode_) {
    case Mode::kStart:
      return IsJsonSpace(c) || (c == '{' && Open('{', Mode::kFirstKey));
    case Mode::kFirstKey:
      if (c == '}') return Close('{');
      [[fallthrough]];
    case Mode::kKey:
      if (IsJsonSpace(c)) return true;
      is_key_ = true;
      if (nested_.size() == 1) key_.clear();
      return c == '"' && To(Mode::kString);
    case Mode::kColon:
      return IsJsonSpace(c) || (c == ':' && To(Mode::kValue));
    case Mode::kFirstValue:
      if (c == ']') return Close('[');
      [[fallthrough]];
    case Mode::kValue:
      return IsJsonSpace(c) || PushValue(c);
    case Mode::kAfterValue:
      return IsJsonSpace(c) || PushAfterValue(c);
    case Mode::kString:
      if (in_key && c != '"' && key_.size() < kMaxKeyBytes) key_.push_back(c);
      return PushString(c);
    case Mode::kEscape:
      if (in_key && key_.size() < kMaxKeyBytes) key_.push_back(c);
      hex_left_ = 4;
      if (c == 'u') return To(Mode::kHex);
      return c != 0 && std::strchr("\"\\/bfnrt", c) != nullptr && To(Mode::kString);
    case Mode::kHex:
      if (in_key && key_.size() < kMaxKeyBytes) key_.push_back(c);
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
      return --hex_left_ > 0 || To(Mode::kString);
    case Mode::kLiteral:
      if (c != *literal_) return false;
      return *++literal_ != 0 || To(Mode::kAfterValue);
    case Mode::kDone:
      return false;
    default:
      return PushNumber(c);
  }
}

bool JsonScanner::PushValue(char c) {
  is_key_ = false;
  switch (c) {
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
      return IsDigit(c) && To(Mode::kDigits);
  }
}

bool JsonScanner::PushString(char c) {
  if (c == '\\') return To(Mode::kEscape);
  if (c != '"') return static_cast<unsigned char>(c) >= 0x20;
  return To(std::exchange(is_key_, false) ? Mode::kColon : Mode::kAfterValue);
}

bool JsonScanner::PushNumber(char c) {
  const bool digit = IsDigit(c), exponent = c == 'e' || c == 'E';
  switch (mode_) {
    case Mode::kMinus:
      return digit && To(c == '0' ? Mode::kZero : Mode::kDigits);
    case Mode::kPoint:
      return digit && To(Mode::kFraction);
    case Mode::kExponent:
      if (c == '+' || c == '-') return To(Mode::kExponentSign);
      [[fallthrough]];
    case Mode::kExponentSign:
      return digit && To(Mode::kExponentDigits);
    case Mode::kDigits:
      if (digit) return true;
      [[fallthrough]];
    case Mode::kZero:
      if (c == '.') return To(Mode::kPoint);
      if (exponent) return To(Mode::kExponent);
      break;
    case Mode::kFraction:
      if (digit) return true;
      if (exponent) return To(Mode::kExponent);
      break;
    default:
      if (digit) return true;
  }
  mode_ = Mode::kAfterValue;  // the number has ended
  return Push(c);
}

bool JsonScanner::PushAfterValue(char c) {
  if (c == ',') return To(nested_.back() == '{' ? Mode::kKey : Mode::kValue);
  return c == '}' ? Close('{') : c == ']' && Close('[');
}

bool JsonScanner::Open(char bracket, Mode mode) {
  if (nested_.size() >= max_depth_) return false;
  nested_.push_back(bracket);
  return To(mode);
}

bool JsonScanner::Close(char bracket) {
  if (nested_.back() != bracket) return false;
  nested_.pop_back();
  return To(nested_.empty() ? Mode::kDone : Mode::kAfterValue);
}

absl::Status CheckArguments(absl::string_view json, int max_depth) { return ParseJsonObject(json, max_depth).status(); }

std::string JsonString(absl::string_view text) { return JsonText(Json(std::string(text))); }

Json JsonValue(absl::string_view text, int max_depth) {
  // As a member, so that one check reads values of all kinds.
  const absl::StatusOr<Json> object = ParseJsonObject(absl::StrCat("{\"v\":", text, "}"), max_depth);
  if (!object.ok() || object->size() != 1) return Json(Json::value_t::discarded);
  return object->front();
}

ArgumentTypes::ArgumentTypes(absl::string_view tools, int max_depth) : max_depth_(max_depth) {
  const Json list = JsonValue(tools, kMaxToolsDepth);
  if (!list.is_array()) return;
  for (const Json& tool : list) {
    const Json* const wrapped = MemberOf(tool, "function");
    const Json& function = wrapped == nullptr ? tool : *wrapped;
    const Json *const name = MemberOf(function, "name"), *const schema = MemberOf(function, "parameters");
    if (name == nullptr || !name->is_string() || schema == nullptr) continue;
    const Json* const properties = MemberOf(*schema, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) {
      int steps = kMaxSchemas;
      types_[name->get<std::string>()][key] = TypesOf(property, *schema, steps);
    }
  }
}

unsigned ArgumentTypes::BitOfName(const Json& type) {
  if (type == "string") return kText;
  if (type == "integer" || type == "number") return kNumber;
  if (type == "boolean") return kBoolean;
  if (type == "null") return kNull;
  if (type == "object") return kObject;
  return type == "array" ? kList : 0;
}

unsigned ArgumentTypes::BitOf(const Json& value) {
  if (value.is_string()) return kText;
  if (value.is_number()) return kNumber;
  if (value.is_boolean()) return kBoolean;
  if (value.is_null()) return kNull;
  return value.is_object() ? kObject : kList;
}

unsigned ArgumentTypes::TypesOfAll(const Json& values, unsigned (*bit_of)(const Json&)) {
  if (values.size() > kMaxValues) return 0;
  unsigned types = 0;
  for (const Json& value : values) types |= bit_of(value);
  return types;
}

unsigned ArgumentTypes::TypesOf(const Json& schema, const Json& root, int& steps) {
  if (--steps < 0) return 0;
  // Unknown words add nothing.
  if (const Json* const type = MemberOf(schema, "type")) {
    return type->is_array() ? TypesOfAll(*type, BitOfName) : BitOfName(*type);
  }
  if (const Json* const value = MemberOf(schema, "const")) return BitOf(*value);
  if (const Json* const values = MemberOf(schema, "enum"); values != nullptr && values->is_array()) {
    return TypesOfAll(*values, BitOf);
  }
  if (const Json* const ref = MemberOf(schema, "$ref"); ref != nullptr && ref->is_string()) {
    for (const char* const place : {"$defs", "definitions"}) {
      absl::string_view name = ref->get_ref<const std::string&>();
      const Json* const schemas = MemberOf(root, place);
      if (schemas == nullptr || !absl::ConsumePrefix(&name, absl::StrCat("#/", place, "/"))) continue;
      if (const Json* const found = MemberOf(*schemas, name)) return TypesOf(*found, root, steps);
    }
    return 0;
  }
  for (const char* const of : {"anyOf", "oneOf"}) {
    const Json* const branches = MemberOf(schema, of);
    if (branches == nullptr || !branches->is_array()) continue;
    unsigned types = 0;
    for (const Json& branch : *branches) {
      const unsigned more = TypesOf(branch, root, steps);
      if (more == 0) return 0;
      types |= more;
    }
    return types;
  }
  return MemberOf(schema, "properties") == nullptr ? 0 : kObject;
}

std::string ArgumentTypes::ValueOf(const std::string& tool, const std::string& key, absl::string_view text) const {
  unsigned types = 0;
  if (const auto of_tool = types_.find(tool); of_tool != types_.end()) {
    if (const auto found = of_tool->second.find(key); found != of_tool->second.end()) types = found->second;
  }
  const absl::string_view bare = absl::StripAsciiWhitespace(text);
  // Templates that write values as Python prints them.
  if ((types & kNull) != 0 && (bare == "null" || bare == "None")) return "null";
  if ((types & kText) != 0) return JsonString(text);
  if ((types & kBoolean) != 0 && bare == "True") return "true";
  if ((types & kBoolean) != 0 && bare == "False") return "false";
  const Json value = JsonValue(bare, max_depth_);
  return value.is_discarded() || value.is_string() ? JsonString(text) : std::string(bare);
}

}  // namespace tdock::text
