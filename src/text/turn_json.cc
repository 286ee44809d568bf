#include "text/turn_json.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr absl::string_view kNamesOfContent = "\"content\" (or \"value\")";

absl::Status Unexpected(absl::string_view key, absl::string_view kind, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(key, " is ", kind, "; ", expected, " is expected"));
}

// "nothing", "a truth value", "a number", "text", "a list" or "an object".
absl::string_view KindOfJson(const OrderedJson& value) {
  if (value.is_discarded()) return "no JSON";
  if (value.is_null()) return "nothing";
  if (value.is_boolean()) return "a truth value";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "text";
  return value.is_array() ? "a list" : "an object";
}

// Adds a member whose name the object does not have; looking for it would take as long as the object has members.
void AddMember(OrderedJson& object, const std::string& name, OrderedJson value) {
  object.get_ref<OrderedJson::object_t&>().emplace_back(name, std::move(value));
}

absl::StatusOr<Role> RoleNamed(const std::string& name) {
  static constexpr std::pair<absl::string_view, Role> kRoles[] = {
      {"system", Role::kSystem},       {"user", Role::kUser},        {"human", Role::kUser},
      {"assistant", Role::kAssistant}, {"gpt", Role::kAssistant},    {"developer", Role::kDeveloper},
      {"tool", Role::kTool},           {"observation", Role::kTool}, {"function", Role::kFunction}};
  const auto* const found =
      std::find_if(std::begin(kRoles), std::end(kRoles), [&](const auto& role) { return role.first == name; });
  if (found != std::end(kRoles)) return found->second;
  return absl::InvalidArgumentError(absl::StrCat("the role \"", EscapeForMessage(name),
                                                 "\" is none of system, developer, user, human, assistant, gpt, tool, "
                                                 "observation and function"));
}

// The text of one part of a content.
absl::StatusOr<std::string> TextOfPart(const OrderedJson& part) {
  if (!part.is_object()) return Unexpected("it", KindOfJson(part), R"({"type": "text", "text": …})");
  const OrderedJson* text = nullptr;
  for (const auto& [name, value] : part.items()) {
    if (name == "type") {
      if (value == "text") continue;
      const std::string type = value.is_string() ? value.get<std::string>() : std::string(KindOfJson(value));
      return absl::InvalidArgumentError(absl::StrCat("its type is \"", EscapeForMessage(type),
                                                     "\"; only parts of the type \"text\" can be rendered"));
    }
    if (name == "text") {
      text = &value;
    } else if (!IsNothing(value) && name != "annotations") {
      return absl::InvalidArgumentError(
          absl::StrCat("it has \"", EscapeForMessage(name), "\"; a part has \"type\" and \"text\""));
    }
  }
  if (text == nullptr || !text->is_string()) {
    return Unexpected("\"text\"", text == nullptr ? "missing" : KindOfJson(*text), "text");
  }
  return text->get<std::string>();
}

absl::StatusOr<std::string> ReadContent(const OrderedJson& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return Unexpected(kNamesOfContent, KindOfJson(content), "text, or a list of parts,");
  std::string joined;
  size_t number = 0;
  for (const OrderedJson& part : content) {
    ++number;
    absl::StatusOr<std::string> text = TextOfPart(part);
    if (!text.ok()) return Annotate(text.status(), absl::StrCat("part ", number, " of ", kNamesOfContent));
    joined += *text;
  }
  return joined;
}

absl::StatusOr<OrderedJson> ReadArguments(const OrderedJson& arguments) {
  if (arguments.is_null()) return OrderedJson::object();
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) {
    return Unexpected("\"arguments\"", KindOfJson(arguments), "an object, or the JSON text of one,");
  }
  OrderedJson object = ObjectOfArguments(arguments.get_ref<const std::string&>());
  return object.is_discarded() ? arguments : object;
}

// {"name", "arguments"}, and what else it has.
absl::StatusOr<OrderedJson> ReadFunction(const OrderedJson& function) {
  if (!function.is_object()) return Unexpected("\"function\"", KindOfJson(function), "an object");
  OrderedJson arguments = OrderedJson::object(), more = OrderedJson::object();
  const OrderedJson* name = nullptr;
  for (const auto& [key, value] : function.items()) {
    if (key == "arguments") {
      TDOCK_ASSIGN_OR_RETURN(arguments, ReadArguments(value));
    } else if (key == "name") {
      name = &value;
    } else if (!IsNothing(value) && key != "parsed_arguments") {
      AddMember(more, key, value);
    }
  }
  if (name == nullptr || !name->is_string() || IsNothing(*name)) {
    const bool is_missing = name == nullptr || IsNothing(*name);
    return Unexpected("\"name\"", is_missing ? "missing" : KindOfJson(*name), "the name of a function");
  }
  OrderedJson read = OrderedJson::object();
  AddMember(read, "name", *name);
  AddMember(read, "arguments", std::move(arguments));
  for (auto& [key, value] : more.items()) AddMember(read, key, std::move(value));
  return read;
}

// {"id", "type", "function"}, and what else it has.
absl::StatusOr<OrderedJson> ReadCall(const OrderedJson& call) {
  if (!call.is_object()) return Unexpected("it", KindOfJson(call), "an object with \"function\"");
  const auto wrapped = call.find("function");
  const bool is_wrapped = wrapped != call.end();
  OrderedJson id, type = "function", function = OrderedJson::object(), more = OrderedJson::object();
  for (const auto& [name, value] : call.items()) {
    if (name == "function" || (IsNothing(value) && name != "arguments")) continue;
    if (name == "id" || name == "type") {
      (name == "id" ? id : type) = value;
    } else {
      AddMember(is_wrapped || name == "index" ? more : function, name, value);
    }
  }
  TDOCK_ASSIGN_OR_RETURN(function, ReadFunction(is_wrapped ? *wrapped : function));
  OrderedJson read = OrderedJson::object();
  if (!id.is_null()) AddMember(read, "id", std::move(id));
  AddMember(read, "type", std::move(type));
  AddMember(read, "function", std::move(function));
  for (auto& [name, value] : more.items()) AddMember(read, name, std::move(value));
  return read;
}

absl::StatusOr<OrderedJson> ReadCalls(const OrderedJson& calls) {
  if (!calls.is_array()) return Unexpected("\"tool_calls\"", KindOfJson(calls), "a list");
  OrderedJson read = OrderedJson::array();
  for (const OrderedJson& call : calls) {
    absl::StatusOr<OrderedJson> one = ReadCall(call);
    if (!one.ok()) return Annotate(one.status(), absl::StrCat("call ", read.size() + 1, " of \"tool_calls\""));
    read.push_back(*std::move(one));
  }
  return read;
}

// A field of a turn as its template gets it.
absl::StatusOr<OrderedJson> ReadField(absl::string_view name, const OrderedJson& value) {
  if (name == "tool_calls") return ReadCalls(value);
  if (name != "function_call") return value;
  absl::StatusOr<OrderedJson> function = ReadFunction(value);
  if (!function.ok()) return Annotate(function.status(), "\"function_call\"");
  return function;
}

// Keeps the one of two values under two names that says something.
absl::Status KeepOne(const OrderedJson& value, const OrderedJson*& kept, absl::string_view names) {
  if (value.is_null()) return absl::OkStatus();
  if (kept != nullptr) return absl::InvalidArgumentError(absl::StrCat("it has both ", names));
  kept = &value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Turn> ReadTurn(const OrderedJson& message) {
  if (!message.is_object()) return Unexpected("it", KindOfJson(message), "an object with \"role\" and \"content\"");
  const OrderedJson* role = nullptr;
  const OrderedJson* content = nullptr;
  OrderedJson fields = OrderedJson::object();
  Turn turn;
  for (const auto& [name, value] : message.items()) {
    if (name == "role" || name == "from") {
      TDOCK_RETURN_IF_ERROR(KeepOne(value, role, "\"role\" and \"from\""));
    } else if (name == "content" || name == "value") {
      TDOCK_RETURN_IF_ERROR(KeepOne(value, content, "\"content\" and \"value\""));
    } else if (name == "train") {
      if (value.is_boolean()) {
        turn.train = value.get<bool>();
      } else if (!value.is_null()) {
        return Unexpected("\"train\"", KindOfJson(value), "true or false");
      }
    } else if (!IsNothing(value) && name != "annotations" && name != "parsed") {
      TDOCK_ASSIGN_OR_RETURN(OrderedJson field, ReadField(name, value));
      AddMember(fields, name, std::move(field));
    }
  }
  if (role == nullptr || !role->is_string()) {
    return Unexpected("\"role\" (or \"from\")", role == nullptr ? "missing" : KindOfJson(*role), "text");
  }
  TDOCK_ASSIGN_OR_RETURN(turn.role, RoleNamed(role->get<std::string>()));
  turn.has_content = content != nullptr;
  // A reply may do nothing but call tools, or think.
  if (content == nullptr && (turn.role != Role::kAssistant || fields.empty())) {
    return Unexpected(kNamesOfContent, "missing", "text");
  }
  if (content != nullptr) {
    TDOCK_ASSIGN_OR_RETURN(turn.content, ReadContent(*content));
  }
  if (!fields.empty()) turn.fields = JsonText(fields);
  return turn;
}

absl::StatusOr<std::vector<Turn>> ReadTurns(const OrderedJson& messages) {
  if (!messages.is_array()) return Unexpected("it", KindOfJson(messages), "a list of turns");
  std::vector<Turn> turns;
  for (const OrderedJson& message : messages) {
    absl::StatusOr<Turn> turn = ReadTurn(message);
    if (!turn.ok()) return Annotate(turn.status(), absl::StrCat("turn ", turns.size() + 1));
    turns.push_back(*std::move(turn));
  }
  return turns;
}

OrderedJson JsonOfTurn(const Turn& turn) {
  OrderedJson message = OrderedJson::object();
  AddMember(message, "role", std::string(RoleName(turn.role)));
  if (turn.has_content) AddMember(message, "content", turn.content);
  if (turn.fields.empty()) return message;
  OrderedJson fields = ReadOrderedJson(turn.fields);
  if (!fields.is_object()) return message;
  for (auto& [name, value] : fields.items()) AddMember(message, name, std::move(value));
  return message;
}

// ---- JSON from outside.

namespace {

// Makes a value of what a parser reads, in time that grows with the length of the text. The library's own makers look
// through all members of an object for each name, and its maker with a callback through all of a list for each object.
class JsonMaker final : public nlohmann::json_sax<OrderedJson> {
 public:
  JsonMaker(absl::string_view text, const std::function<bool()>& goes_on) : text_(text), goes_on_(goes_on) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(int64_t value) override { return Put(value); }
  bool number_unsigned(uint64_t value) override { return Put(value); }
  bool number_float(double value, const std::string& digits) override {
    is_exact_ = is_exact_ && digits.find_first_of(".eE") != std::string::npos;
    return Put(value);
  }
  bool string(std::string& value) override { return Put(std::move(value)); }
  bool binary(OrderedJson::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(OrderedJson::object()); }
  bool start_array(size_t) override { return Open(OrderedJson::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    OrderedJson& object = *open_.back();
    const size_t before = object.size();
    member_ = &object[std::move(name)];
    is_exact_ = is_exact_ && object.size() > before;
    if (object.size() <= kMaxNames) return true;
    problem_ = absl::StrCat("it has an object with more than ", kMaxNames, " names in it");
    return false;
  }
  bool parse_error(size_t position, const std::string& read, const OrderedJson::exception& error) override {
    problem_ = WhyNotJson(text_, position, read, error);
    return false;
  }

  OrderedJson& value() { return value_; }
  // True if the value says all that the text does: no name comes twice, and no whole number had to be rounded.
  bool is_exact() const { return is_exact_; }
  size_t levels() const { return levels_; }
  const std::string& problem() const { return problem_; }

 private:
  static constexpr size_t kMaxNames = 4096, kValuesBetweenPolls = 512;

  bool Put(OrderedJson value) {
    Add(std::move(value));
    if (++values_ % kValuesBetweenPolls != 0 || !goes_on_ || goes_on_()) return true;
    problem_ = "it takes too long";
    return false;
  }
  OrderedJson& Add(OrderedJson value) {
    if (open_.empty()) return value_ = std::move(value);
    if (open_.back()->is_object()) return *member_ = std::move(value);
    auto& list = open_.back()->get_ref<OrderedJson::array_t&>();
    return list.emplace_back(std::move(value));
  }
  bool Open(OrderedJson value) {
    open_.push_back(&Add(std::move(value)));
    levels_ = std::max(levels_, open_.size());
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const absl::string_view text_;
  const std::function<bool()>& goes_on_;
  OrderedJson value_;
  std::vector<OrderedJson*> open_;  // objects and lists, the outermost first
  OrderedJson* member_ = nullptr;   // of the innermost object, whose value comes next
  size_t values_ = 0, levels_ = 0;
  bool is_exact_ = true;
  std::string problem_;
};

}  // namespace

absl::StatusOr<OrderedJson> ParseBoundedJson(absl::string_view json, OrderedJson::value_t type,
                                             absl::string_view expected, const std::function<bool()>& goes_on) {
  JsonMaker maker(json, goes_on);
  if (!OrderedJson::sax_parse(json.begin(), json.end(), &maker)) return absl::InvalidArgumentError(maker.problem());
  if (maker.value().type() == type) return std::move(maker.value());
  return absl::InvalidArgumentError(absl::StrCat("it is not ", expected, " in JSON"));
}

OrderedJson ObjectOfArguments(absl::string_view text) {
  constexpr size_t kMaxLevels = 64;
  if (absl::StripAsciiWhitespace(text).empty()) return OrderedJson::object();
  const std::function<bool()> always;
  JsonMaker maker(text, always);
  const bool is_object = OrderedJson::sax_parse(text.begin(), text.end(), &maker) && maker.value().is_object();
  const bool says_the_same = is_object && maker.is_exact() && maker.levels() <= kMaxLevels;
  return says_the_same ? std::move(maker.value()) : OrderedJson(OrderedJson::value_t::discarded);
}

bool IsNothing(const OrderedJson& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (!value.is_primitive() && value.empty());
}

}  // namespace tdock::text
