#include "inference/grammar/schema_network.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

constexpr size_t kMaxBranches = 20'000;  // in all of a schema

std::string KeyOfBound(const std::optional<NumberBounds::Bound>& bound) {
  if (!bound) return "";
  return absl::StrCat(bound->is_excluded ? "x" : "", bound->value.is_negative ? "-" : "", bound->value.whole, ".",
                      bound->value.fraction);
}

// Texts that do not contain `end`.
absl::StatusOr<CharDfa> DfaWithout(absl::string_view end) {
  CharNfa nfa;
  const uint32_t begin = nfa.NewNode();
  nfa.AddEdge(begin, AllChars(), begin);
  uint32_t node = begin;
  for (std::optional<Utf8Char> next; (next = FirstUtf8Char(end)); end.remove_prefix(next->bytes)) {
    const uint32_t to = nfa.NewNode();
    nfa.AddEdge(node, {{next->code, next->code}}, to);
    node = to;
  }
  nfa.AddEdge(node, AllChars(), node);
  TDOCK_ASSIGN_OR_RETURN(const CharDfa with, nfa.Determinise(begin, node));
  return Complement(with);
}

}  // namespace

absl::Status SchemaNetwork::Add(bool only_objects, NodeId from, NodeId to) {
  TDOCK_ASSIGN_OR_RETURN(Schemas schemas, document_.Expand(document_.root()));
  static const auto* const kObjects = new SchemaJson(ReadOrderedJson(R"({"type": "object"})"));
  if (only_objects) schemas.parts.push_back({.schema = kObjects});
  TDOCK_RETURN_IF_ERROR(AddNeededValue(schemas, from, to));
  return AddBodies();
}

absl::Status SchemaNetwork::AddBodies() {
  for (; added_bodies_ < bodies_.size() && !builder_.full(); ++added_bodies_) {
    const Body body = bodies_[added_bodies_];
    TDOCK_RETURN_IF_ERROR(body.is_object ? AddObject(body.schemas, body.entry) : AddList(body.schemas, body.entry));
  }
  return absl::OkStatus();
}

absl::Status SchemaNetwork::AddArguments(const ArgumentTags& tags, AddSpelled add_spelled, NodeId from, NodeId to) {
  TDOCK_ASSIGN_OR_RETURN(const Schemas schemas, document_.Expand(document_.root()));
  for (const Schemas::Part& part : schemas.parts) {
    for (const char* const keyword : {"anyOf", "oneOf", "enum", "const", "minProperties", "maxProperties"}) {
      if (KeywordOf(*part.schema, keyword) == nullptr) continue;
      return document_.Error(*part.schema, keyword, "is not supported for all arguments of a call together");
    }
  }
  TDOCK_ASSIGN_OR_RETURN(const TypeSet types, TypesOf(document_, schemas));
  if ((types & kObjectType) == 0 || schemas.never != nullptr) {
    return document_.Error(document_.root(), "allows no object, which the arguments of a call are");
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<Member> members, MembersOf(schemas));
  TDOCK_ASSIGN_OR_RETURN(members, WithoutNever(std::move(members)));
  for (const Member& member : members) {
    const NodeId next = builder_.NewNode(), behind = builder_.NewNode();
    if (!member.is_required) builder_.Join(from, next);
    // A node of its own: what is left out does not come back.
    const NodeId begin = builder_.NewNode();
    builder_.Join(from, begin);
    const NodeId value = add_spelled(begin, absl::StrCat(tags.before_name, member.name, tags.before_value));
    {
      text_end_ = &tags.after_value;
      const absl::Cleanup reset = [&] { text_end_ = nullptr; };
      TDOCK_RETURN_IF_ERROR(AddNeededValue(member.value, value, behind));
    }
    builder_.Join(add_spelled(behind, tags.after_value), next);
    from = next;
  }
  builder_.Join(from, to);
  return AddBodies();
}

absl::Status SchemaNetwork::WhyNever(const Network& network) const {
  for (const Body& body : bodies_) {
    if (network.height(body.entry) != Network::kNoHeight || body.schemas.parts.empty()) continue;
    return document_.Error(
        *body.schemas.parts.front().schema,
        absl::StrCat("is met by nothing: it needs objects and lists in one another without an end, or "
                     "more than ",
                     kMaxNested, " of them"));
  }
  return document_.Error(document_.root(), "is met by nothing");
}

absl::Status SchemaNetwork::AddNeededValue(const Schemas& schemas, NodeId from, NodeId to) {
  TDOCK_ASSIGN_OR_RETURN(const bool is_met, AddValue(schemas, from, to));
  if (is_met) return absl::OkStatus();
  return unmet_.keyword == nullptr ? document_.Error(*unmet_.place, unmet_.why)
                                   : document_.Error(*unmet_.place, unmet_.keyword, unmet_.why);
}

absl::StatusOr<bool> SchemaNetwork::AddValue(const Schemas& schemas, NodeId from, NodeId to) {
  if (schemas.never != nullptr) {
    unmet_ = {.place = schemas.never, .why = "is false, and a value is needed there"};
    return false;
  }
  if (builder_.full()) return true;  // which is an error when all is done
  size_t keywords = 1;
  for (const Schemas::Part& part : schemas.parts) keywords += part.schema->size();
  TDOCK_RETURN_IF_ERROR(Spend(keywords, schemas));
  for (size_t i = 0; i < schemas.parts.size(); ++i) {
    if (schemas.parts[i].has_any) return AddBranches(schemas, i, "anyOf", from, to);
    if (schemas.parts[i].has_one) return AddBranches(schemas, i, "oneOf", from, to);
  }
  TDOCK_ASSIGN_OR_RETURN(const auto values, ValuesOf(document_, schemas));
  if (!values) return AddTypes(schemas, from, to);
  for (const SchemaJson* const value : *values) AddNamedValue(*value, from, to);
  if (!values->empty()) return true;
  const auto names = [](const Schemas::Part& part) {
    return KeywordOf(*part.schema, "enum") != nullptr || KeywordOf(*part.schema, "const") != nullptr;
  };
  const SchemaJson& named = *std::find_if(schemas.parts.begin(), schemas.parts.end(), names)->schema;
  unmet_ = {.place = &named,
            .keyword = KeywordOf(named, "const") != nullptr ? "const" : "enum",
            .why = "has no value that the other keywords allow"};
  return false;
}

absl::StatusOr<bool> SchemaNetwork::AddBranches(Schemas schemas, size_t part, const char* keyword, NodeId from,
                                                NodeId to) {
  const SchemaJson& schema = *schemas.parts[part].schema;
  const bool is_any = absl::string_view(keyword) == "anyOf";
  (is_any ? schemas.parts[part].has_any : schemas.parts[part].has_one) = false;
  choosing_.push_back(&schema);
  const absl::Cleanup leave = [&] { choosing_.pop_back(); };
  bool is_met = false;
  for (const SchemaJson& branch : *KeywordOf(schema, keyword)) {
    if (++branches_ > kMaxBranches) {
      return document_.Error(
          schema, keyword,
          absl::StrCat("is too much: with others, it has more than ", kMaxBranches, " combinations of branches"));
    }
    TDOCK_ASSIGN_OR_RETURN(const Schemas with, document_.Expand(branch, schemas, choosing_));
    TDOCK_ASSIGN_OR_RETURN(const bool is_branch_met, AddValue(with, from, to));
    is_met = is_met || is_branch_met;
  }
  return is_met;
}

absl::StatusOr<bool> SchemaNetwork::AddTypes(const Schemas& schemas, NodeId from, NodeId to) {
  if (schemas.parts.empty() && text_end_ == nullptr) {
    json_.AddAnyValue(from, to);
    return true;
  }
  TDOCK_ASSIGN_OR_RETURN(const TypeSet types, TypesOf(document_, schemas));
  if (types == 0) {
    unmet_ = {.place = schemas.parts.front().schema, .why = "is met by nothing: the types exclude one another"};
    return false;
  }
  if (text_end_ != nullptr && (types & kTextType) != 0) {  // what is not quoted can be read as anything
    TDOCK_RETURN_IF_ERROR(AddUnquotedText(schemas, from, to));
    return true;
  }
  bool is_met = (types & ~(kIntegerType | kFractionType)) != 0;
  if ((types & kTextType) != 0) TDOCK_RETURN_IF_ERROR(AddText(schemas, from, to));
  const auto add_literal = [&](const char* text) { builder_.Join(builder_.AddText(from, text), to); };
  if ((types & kNullType) != 0) add_literal("null");
  if ((types & kBoolType) != 0) {
    add_literal("true");
    add_literal("false");
  }
  if ((types & (kIntegerType | kFractionType)) != 0) {
    TDOCK_ASSIGN_OR_RETURN(const bool has_numbers, AddNumbers(schemas, (types & kFractionType) == 0, from, to));
    is_met = is_met || has_numbers;
  }
  if ((types & kListType) != 0) builder_.AddCall(from, '[', Entry(schemas, /*is_object=*/false), to);
  if ((types & kObjectType) != 0) builder_.AddCall(from, '{', Entry(schemas, /*is_object=*/true), to);
  return is_met;
}

absl::StatusOr<bool> SchemaNetwork::AddNumbers(const Schemas& schemas, bool is_integer, NodeId from, NodeId to) {
  TDOCK_ASSIGN_OR_RETURN(const NumberBounds bounds, NumberBoundsOf(document_, schemas, is_integer));
  const std::string key = absl::StrCat(bounds.is_integer ? "i" : "", bounds.multiple_of, ",", KeyOfBound(bounds.min),
                                       ",", KeyOfBound(bounds.max));
  const auto [found, is_new] = numbers_.try_emplace(key);
  if (is_new) {
    auto dfa = DfaOfNumbers(bounds);
    if (!dfa.ok()) {
      return document_.Error(*schemas.parts.front().schema,
                             absl::StrCat("has bounds that are not supported: ", dfa.status().message()));
    }
    TDOCK_RETURN_IF_ERROR(Spend(dfa->cost, schemas));
    found->second = *std::move(dfa);
  }
  if (found->second.empty()) {
    unmet_ = {.place = schemas.parts.front().schema,
              .why = "is met by no number: its minimum is above its maximum, or no multiple lies between them"};
    return false;
  }
  json_.AddRaw(found->second, from, to);
  return true;
}

absl::Status SchemaNetwork::AddText(const Schemas& schemas, NodeId from, NodeId to) {
  std::string key;
  for (const Schemas::Part& part : schemas.parts) {
    for (const char* const keyword : {"minLength", "maxLength", "pattern", "format"}) {
      const SchemaJson* const value = KeywordOf(*part.schema, keyword);
      if (value != nullptr) absl::StrAppend(&key, keyword, JsonText(*value));
    }
  }
  const auto [found, is_new] = texts_.try_emplace(key, Network::kEnd);
  if (is_new) {
    TDOCK_ASSIGN_OR_RETURN(const TextRules rules, TextRulesOf(document_, schemas));
    found->second = rules.dfa ? json_.TextEntry(*rules.dfa) : json_.TextEntry(rules.min, rules.max);
  }
  builder_.AddCall(from, '"', found->second, to);
  return absl::OkStatus();
}

absl::Status SchemaNetwork::AddUnquotedText(const Schemas& schemas, NodeId from, NodeId to) {
  TDOCK_ASSIGN_OR_RETURN(CharDfa dfa, DfaOfText(document_, schemas));
  if (!text_end_->empty()) {
    TDOCK_ASSIGN_OR_RETURN(const CharDfa without, DfaWithout(*text_end_));
    auto both = Intersect(dfa, without);
    if (!both.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("texts of the arguments are too large: ", both.status().message()));
    }
    dfa = *std::move(both);
  }
  TDOCK_RETURN_IF_ERROR(Spend(dfa.cost, schemas));
  json_.AddRaw(dfa, from, to);
  return absl::OkStatus();
}

void SchemaNetwork::AddNamedValue(const SchemaJson& value, NodeId from, NodeId to) {
  if (text_end_ == nullptr || !value.is_string()) return json_.AddLiteral(value, from, to);
  const auto& text = value.get_ref<const std::string&>();
  const bool ends_early = !text_end_->empty() && absl::StrContains(text, *text_end_);
  if (!ends_early) builder_.Join(builder_.AddText(from, text), to);
}

absl::Status SchemaNetwork::Spend(size_t steps, const Schemas& schemas) {
  return document_.Spend(steps, schemas.parts.empty() ? document_.root() : *schemas.parts.front().schema);
}

NodeId SchemaNetwork::Entry(const Schemas& schemas, bool is_object) {
  const auto [found, is_new] = (is_object ? objects_ : lists_).try_emplace(schemas, Network::kEnd);
  if (is_new) {
    found->second = json_.NewEntry();
    bodies_.push_back({.is_object = is_object, .schemas = schemas, .entry = found->second});
  }
  return found->second;
}

absl::StatusOr<const CharDfa*> SchemaNetwork::PatternDfa(const SchemaJson& schema, const char* keyword,
                                                         const std::string& pattern) {
  const auto [found, is_new] = patterns_.try_emplace(pattern);
  if (is_new) {
    auto dfa = CompileRegex(pattern, RegexMatch::kSearch);
    if (!dfa.ok()) return document_.Error(schema, keyword, absl::StrCat("is not supported: ", dfa.status().message()));
    TDOCK_RETURN_IF_ERROR(document_.Spend(dfa->cost, schema));
    found->second = *std::move(dfa);
  }
  return &found->second;
}

}  // namespace tdock::inference
