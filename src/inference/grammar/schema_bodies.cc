// The insides of objects and lists of JSON schemas.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "inference/grammar/schema_network.h"

namespace tdock::inference {
namespace {

constexpr size_t kMaxPatternProperties = 32, kMaxDistinctPlaces = 10'000;

// The schema of names that "properties" does not have; null: none is given.
const SchemaJson* AdditionalOf(const SchemaJson& schema) {
  const SchemaJson* const additional = KeywordOf(schema, "additionalProperties");
  return additional != nullptr ? additional : KeywordOf(schema, "unevaluatedProperties");
}

// The schemas of the first items of a list; null: none.
const SchemaJson* PrefixItemsOf(const SchemaJson& schema) {
  const SchemaJson* const prefix = KeywordOf(schema, "prefixItems");
  if (prefix != nullptr) return prefix;
  const SchemaJson* const items = KeywordOf(schema, "items");
  return items != nullptr && items->is_array() ? items : nullptr;
}

// The schema of the others; null: none is given.
const SchemaJson* RestItemsOf(const SchemaJson& schema) {
  const SchemaJson* const items = KeywordOf(schema, "items");
  return items != nullptr && items->is_array() ? KeywordOf(schema, "additionalItems") : items;
}

}  // namespace

absl::Status SchemaNetwork::AddObject(const Schemas& schemas, NodeId entry) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<Member> members, MembersOf(schemas));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<ExtraMembers> extras, ExtrasOf(schemas, members));
  TDOCK_ASSIGN_OR_RETURN(members, WithoutNever(std::move(members)));
  const NodeId begin = json_.AddBlanks(entry);
  return members.empty() ? AddOnlyExtras(schemas, extras, begin) : AddFixedMembers(schemas, members, extras, begin);
}

absl::StatusOr<std::vector<SchemaNetwork::Member>> SchemaNetwork::MembersOf(const Schemas& schemas) {
  Properties properties;
  std::vector<std::string> names;
  absl::flat_hash_set<absl::string_view> known, required;
  for (const Schemas::Part& part : schemas.parts) {
    auto& of_part = properties.emplace_back();
    const SchemaJson* const named = KeywordOf(*part.schema, "properties");
    if (named == nullptr) continue;
    for (auto item = named->begin(); item != named->end(); ++item) {
      of_part[item.key()] = &*item;
      if (known.insert(item.key()).second) names.push_back(item.key());
    }
  }
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const list = KeywordOf(*part.schema, "required");
    if (list == nullptr) continue;
    for (const SchemaJson& name : *list) {
      const auto& text = name.get_ref<const std::string&>();
      required.insert(text);
      if (known.insert(text).second) names.push_back(text);
    }
  }
  TDOCK_ASSIGN_OR_RETURN(const std::optional<CharDfa> allowed, NamesOf(schemas));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<NamePattern> patterns, PatternsOf(schemas));
  std::vector<Member> members;
  for (const std::string& name : names) {
    TDOCK_RETURN_IF_ERROR(Spend(schemas.parts.size() + patterns.size() * (1 + name.size()), schemas));
    TDOCK_ASSIGN_OR_RETURN(Schemas value, MemberOf(schemas, properties, patterns, name));
    if (allowed && !allowed->Accepts(name) && value.never == nullptr) {
      static const auto* const kFalse = new SchemaJson(false);
      value.never = kFalse;
    }
    members.push_back({.name = name, .value = std::move(value), .is_required = required.contains(name)});
  }
  return members;
}

absl::StatusOr<std::vector<SchemaNetwork::Member>> SchemaNetwork::WithoutNever(std::vector<Member> members) const {
  for (const Member& member : members) {
    if (member.value.never == nullptr || !member.is_required) continue;
    return document_.Error(*member.value.never,
                           absl::StrCat("allows nothing, and '", EscapeForMessage(member.name), "' is required"));
  }
  std::erase_if(members, [](const Member& member) { return member.value.never != nullptr; });
  return members;
}

absl::StatusOr<Schemas> SchemaNetwork::MemberOf(const Schemas& schemas, const Properties& properties,
                                                const std::vector<NamePattern>& patterns, absl::string_view name) {
  Schemas value;
  for (size_t i = 0; i < schemas.parts.size(); ++i) {
    const SchemaJson& schema = *schemas.parts[i].schema;
    bool is_named = false;
    const auto found = properties[i].find(name);
    if (found != properties[i].end()) {
      is_named = true;
      TDOCK_ASSIGN_OR_RETURN(value, document_.Expand(*found->second, std::move(value)));
    }
    for (const NamePattern& pattern : patterns) {
      if (pattern.part != i || !pattern.names->Accepts(name)) continue;
      is_named = true;
      TDOCK_ASSIGN_OR_RETURN(value, document_.Expand(*pattern.value, std::move(value)));
    }
    const SchemaJson* const additional = AdditionalOf(schema);
    if (is_named || additional == nullptr) continue;
    TDOCK_ASSIGN_OR_RETURN(value, document_.Expand(*additional, std::move(value)));
  }
  return value;
}

// The names that "propertyNames" allows; absent: any.
absl::StatusOr<std::optional<CharDfa>> SchemaNetwork::NamesOf(const Schemas& schemas) {
  std::optional<CharDfa> names;
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const of_names = KeywordOf(*part.schema, "propertyNames");
    if (of_names == nullptr) continue;
    TDOCK_ASSIGN_OR_RETURN(const Schemas expanded, document_.Expand(*of_names));
    CharDfa dfa;  // accepts nothing
    if (expanded.never == nullptr) {
      for (const Schemas::Part& one : expanded.parts) {
        if (one.has_any) return document_.Error(*one.schema, "anyOf", "is not supported for names of properties");
        if (one.has_one) return document_.Error(*one.schema, "oneOf", "is not supported for names of properties");
      }
      TDOCK_ASSIGN_OR_RETURN(const auto values, ValuesOf(document_, expanded));
      if (values) {
        std::vector<std::string> texts;
        for (const SchemaJson* const value : *values) {
          if (value->is_string()) texts.push_back(value->get<std::string>());
        }
        TDOCK_ASSIGN_OR_RETURN(dfa, DfaOfTexts(texts));
      } else {
        TDOCK_ASSIGN_OR_RETURN(dfa, DfaOfText(document_, expanded));
      }
    }
    TDOCK_RETURN_IF_ERROR(Spend(dfa.states.size(), schemas));
    if (names) {
      TDOCK_ASSIGN_OR_RETURN(dfa, Intersect(*names, dfa));
    }
    names = std::move(dfa);
  }
  return names;
}

absl::StatusOr<std::vector<SchemaNetwork::NamePattern>> SchemaNetwork::PatternsOf(const Schemas& schemas) {
  std::vector<NamePattern> patterns;
  for (size_t i = 0; i < schemas.parts.size(); ++i) {
    const SchemaJson& schema = *schemas.parts[i].schema;
    const SchemaJson* const of_patterns = KeywordOf(schema, "patternProperties");
    if (of_patterns == nullptr) continue;
    for (auto item = of_patterns->begin(); item != of_patterns->end(); ++item) {
      TDOCK_ASSIGN_OR_RETURN(const CharDfa* const dfa, PatternDfa(schema, "patternProperties", item.key()));
      patterns.push_back({i, dfa, &*item});
      if (patterns.size() <= kMaxPatternProperties) continue;
      return document_.Error(schema, "patternProperties",
                             absl::StrCat("has more than ", kMaxPatternProperties, " patterns"));
    }
  }
  return patterns;
}

absl::StatusOr<std::vector<SchemaNetwork::ExtraMembers>> SchemaNetwork::ExtrasOf(const Schemas& schemas,
                                                                                 const std::vector<Member>& members) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<NamePattern> patterns, PatternsOf(schemas));
  bool has_names = !patterns.empty(), has_additional = false;
  for (const Schemas::Part& part : schemas.parts) {
    has_names = has_names || KeywordOf(*part.schema, "properties") != nullptr ||
                KeywordOf(*part.schema, "patternProperties") != nullptr;
    has_additional = has_additional || AdditionalOf(*part.schema) != nullptr;
  }
  // Names that the schema does not have, and "propertyNames" allows.
  TDOCK_ASSIGN_OR_RETURN(std::optional<CharDfa> others, NamesOf(schemas));
  const auto keep = [&](std::optional<CharDfa>& names, const CharDfa& dfa) -> absl::Status {
    const size_t cost_before = names ? names->cost : 0;
    auto both = names ? Intersect(*names, dfa) : dfa;
    if (!both.ok()) {
      return document_.Error(*schemas.parts.front().schema,
                             absl::StrCat("has names that are too many: ", both.status().message()));
    }
    names = *std::move(both);
    return Spend(names->cost - cost_before, schemas);
  };
  std::vector<std::string> texts;
  for (const Member& member : members) texts.push_back(member.name);
  if (!texts.empty() && (has_additional || !patterns.empty())) {
    TDOCK_ASSIGN_OR_RETURN(const CharDfa fixed, DfaOfTexts(texts));
    TDOCK_RETURN_IF_ERROR(keep(others, Complement(fixed)));
  }
  std::vector<ExtraMembers> extras;
  // The names of one pattern and of no other, or of none.
  const auto add = [&](size_t pattern) -> absl::Status {
    ExtraMembers extra{.names = others, .value = {}};
    for (size_t i = 0; i < patterns.size(); ++i) {
      TDOCK_RETURN_IF_ERROR(keep(extra.names, i == pattern ? *patterns[i].names : Complement(*patterns[i].names)));
    }
    for (size_t i = 0; i < schemas.parts.size(); ++i) {
      const bool is_pattern = pattern < patterns.size() && patterns[pattern].part == i;
      const SchemaJson* const value = is_pattern ? patterns[pattern].value : AdditionalOf(*schemas.parts[i].schema);
      if (value == nullptr) continue;
      TDOCK_ASSIGN_OR_RETURN(extra.value, document_.Expand(*value, std::move(extra.value)));
    }
    const bool is_there = extra.value.never == nullptr && (!extra.names || !extra.names->empty());
    if (is_there) extras.push_back(std::move(extra));
    return absl::OkStatus();
  };
  for (size_t i = 0; i < patterns.size(); ++i) TDOCK_RETURN_IF_ERROR(add(i));
  const bool is_open = has_additional || (!has_names && members.empty());
  if (is_open) TDOCK_RETURN_IF_ERROR(add(patterns.size()));
  return extras;
}

absl::StatusOr<NodeId> SchemaNetwork::AddMember(const ExtraMembers& extra, NodeId from) {
  const NodeId behind = builder_.NewNode();
  const NodeId name = extra.names ? json_.AddName(*extra.names, from) : json_.AddAnyName(from);
  TDOCK_RETURN_IF_ERROR(AddNeededValue(extra.value, json_.AddColon(name), behind));
  return behind;
}

// The names come in the order of the schema, then the others:
//
//   first[0] ─► key 0 ─ value 0 ─ , ─► next[1] ─► key 1 …
//     └──────► first[1] ─► key 1 …        └──────► next[2] …    past a member that may be left out
absl::Status SchemaNetwork::AddFixedMembers(const Schemas& schemas, const std::vector<Member>& members,
                                            const std::vector<ExtraMembers>& extras, NodeId begin) {
  const auto required = static_cast<size_t>(
      std::count_if(members.begin(), members.end(), [](const Member& member) { return member.is_required; }));
  const uint32_t min = LargestCount(schemas, "minProperties").value_or(0);
  const uint32_t max = LeastCount(schemas, "maxProperties").value_or(std::numeric_limits<uint32_t>::max());
  if (min > required || (max < members.size() || (!extras.empty() && max != std::numeric_limits<uint32_t>::max()))) {
    return document_.Error(*schemas.parts.front().schema,
                           absl::StrCat("has '", min > required ? "minProperties" : "maxProperties",
                                        "', which is not supported beside properties that may be left out or added"));
  }
  size_t last_required = 0;  // the number of the first member behind all that are required
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].is_required) last_required = i + 1;
  }
  NodeId first = begin, next = builder_.NewNode();
  for (size_t i = 0; i < members.size(); ++i) {
    const NodeId key = builder_.NewNode(), behind = builder_.NewNode();
    const NodeId following_first = builder_.NewNode(), following_next = builder_.NewNode();
    builder_.Join(first, key);
    builder_.Join(next, key);
    if (!members[i].is_required) {
      builder_.Join(first, following_first);
      builder_.Join(next, following_next);
    }
    const NodeId name = builder_.AddText(key, JsonText(SchemaJson(members[i].name)));
    TDOCK_RETURN_IF_ERROR(AddNeededValue(members[i].value, json_.AddColon(name), behind));
    const NodeId end = json_.AddBlanks(behind);
    if (i + 1 >= last_required) builder_.AddByte(end, '}', Network::kEnd);
    builder_.Join(json_.AddComma(end), following_next);
    first = following_first;
    next = following_next;
  }
  builder_.AddByte(first, '}', Network::kEnd);
  const NodeId extra_key = builder_.NewNode();
  builder_.Join(first, extra_key);
  builder_.Join(next, extra_key);
  for (const ExtraMembers& extra : extras) {
    TDOCK_ASSIGN_OR_RETURN(const NodeId behind, AddMember(extra, extra_key));
    const NodeId end = json_.AddBlanks(behind);
    builder_.AddByte(end, '}', Network::kEnd);
    builder_.Join(json_.AddComma(end), extra_key);
  }
  return absl::OkStatus();
}

absl::Status SchemaNetwork::AddOnlyExtras(const Schemas& schemas, const std::vector<ExtraMembers>& extras,
                                          NodeId begin) {
  const uint32_t min = LargestCount(schemas, "minProperties").value_or(0);
  const std::optional<uint32_t> max = LeastCount(schemas, "maxProperties");
  const auto fail = [&](absl::string_view why) { return document_.Error(*schemas.parts.front().schema, why); };
  if (min > 1) return fail("has a 'minProperties' above 1, which is not supported: a name could come twice");
  if (max && min > *max) return fail("has a 'minProperties' above its 'maxProperties'");
  if (min > 0 && extras.empty()) return fail("has 'minProperties', and allows no properties");
  if (min == 0) builder_.AddByte(begin, '}', Network::kEnd);
  if (extras.empty() || max == 0U) return absl::OkStatus();
  return AddItems(begin, '}', 0, min, max, [&](NodeId from) -> absl::StatusOr<NodeId> {
    const NodeId behind = builder_.NewNode();
    for (const ExtraMembers& extra : extras) {
      TDOCK_ASSIGN_OR_RETURN(const NodeId end, AddMember(extra, from));
      builder_.Join(end, behind);
    }
    return behind;
  });
}

absl::Status SchemaNetwork::AddList(const Schemas& schemas, NodeId entry) {
  const uint32_t min = LargestCount(schemas, "minItems").value_or(0);
  const std::optional<uint32_t> max = LeastCount(schemas, "maxItems");
  const auto fail = [&](absl::string_view why) { return document_.Error(*schemas.parts.front().schema, why); };
  if (max && min > *max) return fail("has a 'minItems' above its 'maxItems'");
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Schemas> prefix, PrefixOf(schemas));
  const auto named = static_cast<uint32_t>(prefix.size());
  TDOCK_ASSIGN_OR_RETURN(const std::optional<Schemas> rest,
                         RestOf(schemas, prefix.size(), named == 0 || min > named || max.value_or(0) > named));
  NodeId begin = json_.AddBlanks(entry);
  if (min == 0) builder_.AddByte(begin, ']', Network::kEnd);
  const bool is_unique = std::any_of(schemas.parts.begin(), schemas.parts.end(), [](const Schemas::Part& part) {
    const SchemaJson* const unique = KeywordOf(*part.schema, "uniqueItems");
    return unique != nullptr && unique->get<bool>();
  });
  if (is_unique && max.value_or(2) > 1 && named > 0) {
    return fail("has 'uniqueItems', which is not supported beside 'prefixItems'");
  }
  if (is_unique && max.value_or(2) > 1 && rest) return AddDistinctItems(schemas, *rest, min, max, begin);
  uint32_t count = 0;
  for (; count < named && count < max.value_or(named); ++count) {
    if (prefix[count].never != nullptr && count >= min) return absl::OkStatus();
    const NodeId behind = builder_.NewNode();
    TDOCK_RETURN_IF_ERROR(AddNeededValue(prefix[count], begin, behind));
    const NodeId end = json_.AddBlanks(behind);
    if (count + 1 >= min) builder_.AddByte(end, ']', Network::kEnd);
    begin = json_.AddComma(end);
  }
  if (max && count >= *max) return absl::OkStatus();
  if (!rest) return min > count ? fail(absl::StrCat("needs ", min, " items, and allows ", count)) : absl::OkStatus();
  return AddItems(begin, ']', count, min, max, [&](NodeId from) -> absl::StatusOr<NodeId> {
    const NodeId behind = builder_.NewNode();
    TDOCK_RETURN_IF_ERROR(AddNeededValue(*rest, from, behind));
    return behind;
  });
}

absl::StatusOr<std::vector<Schemas>> SchemaNetwork::PrefixOf(const Schemas& schemas) {
  std::vector<Schemas> prefix;
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const items = PrefixItemsOf(*part.schema);
    if (items != nullptr && items->size() > prefix.size()) prefix.resize(items->size());
  }
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const items = PrefixItemsOf(*part.schema);
    const SchemaJson* const others = RestItemsOf(*part.schema);
    for (size_t i = 0; i < prefix.size(); ++i) {
      const SchemaJson* const item = items != nullptr && i < items->size() ? &(*items)[i] : others;
      if (item == nullptr) continue;
      TDOCK_ASSIGN_OR_RETURN(prefix[i], document_.Expand(*item, std::move(prefix[i])));
    }
  }
  return prefix;
}

absl::StatusOr<std::optional<Schemas>> SchemaNetwork::RestOf(const Schemas& schemas, size_t prefix, bool is_open) {
  Schemas rest;
  bool is_named = false;
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const items = RestItemsOf(*part.schema);
    if (items == nullptr) continue;
    is_named = true;
    TDOCK_ASSIGN_OR_RETURN(rest, document_.Expand(*items, std::move(rest)));
  }
  const bool is_there = rest.never == nullptr && (is_named || is_open || prefix == 0);
  return is_there ? std::optional(std::move(rest)) : std::nullopt;
}

// Items that differ, in the order in which the schema names them.
absl::Status SchemaNetwork::AddDistinctItems(const Schemas& schemas, const Schemas& items, uint32_t min,
                                             std::optional<uint32_t> max, NodeId begin) {
  const auto fail = [&](absl::string_view why) { return document_.Error(*schemas.parts.front().schema, why); };
  const bool has_branches = std::any_of(items.parts.begin(), items.parts.end(),
                                        [](const Schemas::Part& part) { return part.has_any || part.has_one; });
  TDOCK_ASSIGN_OR_RETURN(const auto values, ValuesOf(document_, items));
  if (!values || has_branches) return fail("has 'uniqueItems', which is supported for items that an 'enum' names");
  const size_t most = std::min<size_t>(max.value_or(UINT32_MAX), values->size());
  if (min > most) return fail(absl::StrCat("needs ", min, " different items, and allows ", most));
  // How many items there are only matters up to the bounds.
  const size_t last = max || min > 1 ? most : std::min<size_t>(most, 1);
  if ((last + 1) * values->size() > kMaxDistinctPlaces) {
    return fail(absl::StrCat("has 'uniqueItems' and bounds for more than ", kMaxDistinctPlaces, " items times values"));
  }
  std::vector<NodeId> places = {begin};  // before the next value, by the number of items so far
  for (size_t count = 1; count <= last; ++count) places.push_back(builder_.NewNode());
  for (const SchemaJson* const value : *values) {
    std::vector<NodeId> following;
    for (size_t count = 0; count <= last; ++count) {
      following.push_back(builder_.NewNode());
      builder_.Join(places[count], following.back());
    }
    for (size_t count = 0; count <= last; ++count) {
      if (max && count >= *max) break;
      const size_t now = std::min(count + 1, last);
      const NodeId behind = builder_.NewNode();
      json_.AddLiteral(*value, places[count], behind);
      const NodeId end = json_.AddBlanks(behind);
      if (now >= min) builder_.AddByte(end, ']', Network::kEnd);
      builder_.Join(json_.AddComma(end), following[now]);
    }
    places = std::move(following);
  }
  return absl::OkStatus();
}

// Items with commas between them, behind `before` others. How many there are is a limit of nodes:
//
//   fewer than `min`: not yet closed ─► at least `min` ─► `max`: no comma
//
// Each of the three has nodes of its own, and a comma leads to the successor of its own part where the count is
// reached.
absl::Status SchemaNetwork::AddItems(NodeId begin, char close, uint32_t before, uint32_t min,
                                     std::optional<uint32_t> max, AddItem add_item) {
  struct Part {
    NodeId comma, item;  // behind a comma; where the item begins
  };
  const auto add = [&](uint32_t limit, bool closes, bool goes_on) -> absl::StatusOr<Part> {
    const NetworkBuilder::Limit of_part(builder_, limit);
    const Part part{.comma = builder_.NewNode(), .item = builder_.NewNode()};
    builder_.Join(json_.AddBlanks(part.comma), part.item);
    const absl::StatusOr<NodeId> behind = add_item(part.item);
    if (!behind.ok()) return behind.status();
    const NodeId end = json_.AddBlanks(*behind);
    if (closes) builder_.AddByte(end, close, Network::kEnd);
    if (goes_on) builder_.AddByte(end, ',', part.comma, /*counts=*/true);
    return part;
  };
  // The count is that of commas.
  std::optional<Part> following;
  const uint32_t first = before + 1;
  if (max) {
    TDOCK_ASSIGN_OR_RETURN(following, add(Network::kNoLimit, /*closes=*/true, /*goes_on=*/false));
  }
  if (!max || std::max(first, min) < *max) {
    TDOCK_ASSIGN_OR_RETURN(const Part open, add(max ? *max - 1 : Network::kNoLimit, /*closes=*/true, /*goes_on=*/true));
    if (following) builder_.SetSuccessor(open.comma, following->comma);
    following = open;
  }
  if (first < min) {
    TDOCK_ASSIGN_OR_RETURN(const Part needed, add(min - 1, /*closes=*/false, /*goes_on=*/true));
    builder_.SetSuccessor(needed.comma, following->comma);
    following = needed;
  }
  builder_.Join(begin, following->item);
  return absl::OkStatus();
}

}  // namespace tdock::inference
