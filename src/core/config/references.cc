#include "core/config/references.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/overrides.h"

namespace tdock::config {
namespace {

constexpr absl::string_view kOpen = "${";
constexpr size_t kNone = absl::string_view::npos;

// Where the first `wanted` is that is in no quotes and no brackets opened from `at` on.
size_t FindOutside(absl::string_view text, size_t at, char wanted) {
  int depth = 0;
  char quote = '\0';
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != '\0') {
      if (c == '\\') {
        ++at;
      } else if (c == quote) {
        quote = '\0';
      }
    } else if (depth == 0 && c == wanted) {
      return at;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return kNone;
}

absl::Status Fault(absl::string_view body, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("${", EscapeForMessage(body), "}: ", what));
}

// The name of a resolver, as in ${name:arguments}; empty for a reference to a key.
absl::string_view Resolver(absl::string_view body) {
  const size_t colon = body.find(':');
  const absl::string_view name = body.substr(0, colon == kNone ? 0 : colon);
  const auto is_word = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; };
  return std::all_of(name.begin(), name.end(), is_word) ? name : absl::string_view();
}

absl::Status RefuseResolver(absl::string_view name, absl::string_view body) {
  if (name == "oc.env") {
    return Fault(body, "the environment is not read, so that a configuration says everything itself; write the value");
  }
  return Fault(body, "only ${key} and ${oc.select:key,default} are supported; write the value");
}

absl::string_view Section(absl::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == kNone ? absl::string_view() : name.substr(0, dot);
}

}  // namespace

void References::Add(std::string key, std::string written, Value value) {
  nodes_.insert_or_assign(std::move(key), Node{.written = std::move(written), .given = std::move(value)});
}

absl::StatusOr<Value> References::ValueOf(const std::string& key) { return Follow(nodes_.at(key)); }

const absl::StatusOr<Value>& References::Follow(Node& node) {
  if (!node.value) {
    path_.push_back(&node);
    absl::StatusOr<Value> value = Expand(node.given);
    path_.pop_back();
    node.value.emplace(std::move(value));
  }
  return *node.value;
}

absl::StatusOr<Value> References::Expand(const Value& value) {
  if (value.kind == Value::Kind::kScalar) return ExpandScalar(value.scalar);
  Value expanded = value;
  for (Given& item : expanded.items) {
    TDOCK_ASSIGN_OR_RETURN(Value whole, ExpandScalar(item));
    if (whole.kind != Value::Kind::kScalar) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(item.text), " is ", Describe(whole), ", which cannot be an item of a list"));
    }
    item = std::move(whole.scalar);
  }
  return expanded;
}

absl::StatusOr<Value> References::ExpandScalar(const Given& given) {
  const absl::string_view text = given.text;
  if (given.null || !absl::StrContains(text, kOpen)) return Value{.scalar = given};
  std::string expanded;
  for (size_t at = 0;;) {
    const size_t open = text.find(kOpen, at);
    if (open == kNone) {
      absl::StrAppend(&expanded, text.substr(at));
      return Value{.scalar = {.text = std::move(expanded), .quoted = given.quoted}};
    }
    size_t slashes = 0;
    while (at + slashes < open && text[open - slashes - 1] == '\\') ++slashes;
    absl::StrAppend(&expanded, text.substr(at, open - slashes - at), std::string(slashes / 2, '\\'));
    at = open + kOpen.size();
    if (slashes % 2 == 1) {
      absl::StrAppend(&expanded, kOpen);
      continue;
    }
    const size_t close = FindOutside(text, at, '}');
    if (close == kNone) {
      return absl::InvalidArgumentError(absl::StrCat(
          Quoted(text.substr(open)), ": the reference is not closed; write } behind it, or \\${ for the text ${"));
    }
    const absl::string_view body = text.substr(at, close - at);
    TDOCK_ASSIGN_OR_RETURN(Value value, ExpandReference(body));
    if (open == 0 && close + 1 == text.size()) return value;
    if (value.kind != Value::Kind::kScalar || value.null()) {
      return Fault(body, absl::StrCat("it is ", Describe(value), ", which cannot be a part of a text"));
    }
    absl::StrAppend(&expanded, value.scalar.text);
    at = close + 1;
  }
}

absl::StatusOr<Value> References::ExpandReference(absl::string_view body) {
  if (depth_ >= limits_.max_depth) {
    return Fault(body, absl::StrCat("references lead from one to the next more than ", limits_.max_depth, " times"));
  }
  ++depth_;
  const absl::string_view resolver = Resolver(body);
  absl::StatusOr<Value> value;
  if (resolver.empty()) {
    value = LookUp(body, body);
  } else if (resolver == "oc.select") {
    value = Select(body, body.substr(resolver.size() + 1));
  } else {
    value = RefuseResolver(resolver, body);
  }
  --depth_;
  if (value.ok()) TDOCK_RETURN_IF_ERROR(Charge(body, *value));
  return value;
}

// The first argument is the name of a key, and the second, which may be missing, what stands in for it.
absl::StatusOr<Value> References::Select(absl::string_view body, absl::string_view arguments) {
  const size_t comma = FindOutside(arguments, 0, ',');
  absl::StatusOr<Value> value = LookUp(body, arguments.substr(0, comma));
  if (!absl::IsNotFound(value.status())) return value;
  if (comma == kNone) return Value{.scalar = {.text = "", .null = true}};
  const absl::string_view text = absl::StripAsciiWhitespace(arguments.substr(comma + 1));
  const std::optional<Value> fallback = ParseInlineValue(text, /*takes_list=*/true, limits_);
  if (!fallback) return Fault(body, "a quote or a bracket in its default is not closed");
  return Expand(*fallback);
}

// The value of the key `name`, which may have references in it. NotFound if there is no such key, or no value yet.
absl::StatusOr<Value> References::LookUp(absl::string_view body, absl::string_view name) {
  TDOCK_ASSIGN_OR_RETURN(const Value expanded, ExpandScalar({.text = std::string(absl::StripAsciiWhitespace(name))}));
  if (expanded.kind != Value::Kind::kScalar || expanded.null()) return Fault(body, "it does not name a key");
  const std::string absolute = Absolute(expanded.scalar.text);
  const std::string key = names_.OurName(absolute);
  const Binding* binding = names_.Find(key);
  const auto found = nodes_.find(key);
  if (found == nodes_.end()) {
    if (binding != nullptr) return binding->default_value();
    return absl::NotFoundError(absl::StrCat("${", EscapeForMessage(body), "}: ", NoSuchKey(absolute)));
  }
  Node& node = found->second;
  if (const auto again = std::find(path_.begin(), path_.end(), &node); again != path_.end()) {
    std::string circle;
    for (auto at = again; at != path_.end(); ++at) absl::StrAppend(&circle, EscapeForMessage((*at)->written), " → ");
    return Fault(body, absl::StrCat("it leads round in a circle: ", circle, EscapeForMessage(node.written)));
  }
  const absl::StatusOr<Value>& value = Follow(node);
  if (!value.ok()) return absl::InvalidArgumentError(value.status().message());
  if (value->missing()) {
    return absl::NotFoundError(
        absl::StrCat("${", EscapeForMessage(body), "}: ", EscapeForMessage(absolute), " is ???: it needs a value"));
  }
  return value->null() && binding != nullptr ? binding->default_value() : *value;
}

std::string References::Absolute(absl::string_view name) const {
  if (!absl::StartsWith(name, ".") || path_.empty()) return std::string(name);
  absl::string_view section = path_.back()->written;
  while (absl::ConsumePrefix(&name, ".")) section = Section(section);
  return section.empty() ? std::string(name) : absl::StrCat(section, ".", name);
}

absl::Status References::Charge(absl::string_view body, const Value& value) {
  const auto cost = [](const Given& given) { return static_cast<int64_t>(given.text.size() + sizeof(Given)); };
  added_bytes_ += cost(value.scalar);
  for (const Given& item : value.items) added_bytes_ += cost(item);
  if (added_bytes_ <= limits_.max_bytes) return absl::OkStatus();
  return Fault(body, absl::StrCat("with it, references add more than ", limits_.max_bytes, " bytes to the text"));
}

std::string References::NoSuchKey(absl::string_view name) {
  const bool advise = advised_++ < limits_.max_reported;  // it takes time
  return absl::StrCat("there is no key ", EscapeForMessage(name), advise ? "; " : "",
                      advise ? names_.Advice(name) : "");
}

}  // namespace tdock::config
