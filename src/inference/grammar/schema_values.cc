#include "inference/grammar/schema_document.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

struct NamedType {
  absl::string_view name;
  TypeSet types;
};
constexpr NamedType kTypes[] = {
    {"null", kNullType},   {"boolean", kBoolType}, {"integer", kIntegerType}, {"number", kIntegerType | kFractionType},
    {"string", kTextType}, {"array", kListType},   {"object", kObjectType}};

// The types that a keyword is about.
TypeSet TypesOfKeyword(absl::string_view keyword) {
  for (const char* const name : {"minLength", "maxLength", "pattern", "format"}) {
    if (keyword == name) return kTextType;
  }
  for (const char* const name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (keyword == name) return kIntegerType | kFractionType;
  }
  for (const char* const name : {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}) {
    if (keyword == name) return kListType;
  }
  for (const char* const name : {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                                 "minProperties", "maxProperties", "unevaluatedProperties"}) {
    if (keyword == name) return kObjectType;
  }
  return 0;
}

absl::StatusOr<TypeSet> TypesNamed(SchemaDocument& document, const SchemaJson& schema, const SchemaJson& type) {
  TypeSet types = 0;
  const auto add = [&](const SchemaJson& name) {
    const auto* const known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                           [&](const NamedType& one) { return name == std::string(one.name); });
    if (known != std::end(kTypes)) types |= known->types;
    return known != std::end(kTypes);
  };
  const bool fits = type.is_array() ? std::all_of(type.begin(), type.end(), add) : add(type);
  if (!fits) {
    return document.Error(schema, "type",
                          "must be null, boolean, integer, number, string, array, object, or a list of these");
  }
  const SchemaJson* const nullable = KeywordOf(schema, "nullable");
  if (nullable != nullptr && nullable->get<bool>()) types |= kNullType;
  return types;
}

TypeSet TypeOfValue(const SchemaJson& value) {
  switch (value.type()) {
    case SchemaJson::value_t::null:
      return kNullType;
    case SchemaJson::value_t::boolean:
      return kBoolType;
    case SchemaJson::value_t::string:
      return kTextType;
    case SchemaJson::value_t::array:
      return kListType;
    case SchemaJson::value_t::object:
      return kObjectType;
    default:
      // 1.0 is an integer of JSON schemas.
      return value.is_number_integer() || std::floor(value.get<double>()) == value.get<double>() ? kIntegerType
                                                                                                 : kFractionType;
  }
}

uint32_t CountOf(const SchemaJson& value) { return static_cast<uint32_t>(std::min(value.get<double>(), 4e9)); }

template <class Better>
std::optional<uint32_t> BestCount(const Schemas& schemas, absl::string_view keyword, const Better& better) {
  std::optional<uint32_t> best;
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const value = KeywordOf(*part.schema, keyword);
    if (value != nullptr && (!best || better(CountOf(*value), *best))) best = CountOf(*value);
  }
  return best;
}

// The shortest and the longest text; absent: there is no longest one.
std::pair<size_t, std::optional<size_t>> LengthsOf(const CharDfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<size_t> shortest(count, SIZE_MAX), longest(count), edges_to(count);
  for (const CharDfa::State& state : dfa.states) {
    for (const CharDfa::Edge& edge : state.edges) ++edges_to[edge.to];
  }
  std::vector<uint32_t> found = {0};
  shortest[0] = 0;
  size_t least = SIZE_MAX;
  for (size_t next = 0; next < found.size(); ++next) {
    const uint32_t state = found[next];
    if (dfa.states[state].accepts) least = std::min(least, shortest[state]);
    for (const CharDfa::Edge& edge : dfa.states[state].edges) {
      if (shortest[edge.to] == SIZE_MAX) found.push_back(edge.to);
      shortest[edge.to] = std::min(shortest[edge.to], shortest[state] + 1);
    }
  }
  // In an order in which edges lead to later states. Those that have none are in a circle.
  std::vector<uint32_t> order;
  if (edges_to[0] == 0) order.push_back(0);
  size_t most = 0;
  for (size_t next = 0; next < order.size(); ++next) {
    const uint32_t state = order[next];
    if (dfa.states[state].accepts) most = std::max(most, longest[state]);
    for (const CharDfa::Edge& edge : dfa.states[state].edges) {
      longest[edge.to] = std::max(longest[edge.to], longest[state] + 1);
      if (--edges_to[edge.to] == 0) order.push_back(edge.to);
    }
  }
  return {least, order.size() == count ? std::optional(most) : std::nullopt};
}

}  // namespace

absl::StatusOr<TypeSet> TypesOf(SchemaDocument& document, const Schemas& schemas) {
  TypeSet types = kAllTypes, of_keywords = 0;
  bool are_named = false;
  for (const Schemas::Part& part : schemas.parts) {
    for (const auto& item : part.schema->items()) of_keywords |= TypesOfKeyword(item.key());
    const SchemaJson* const type = KeywordOf(*part.schema, "type");
    if (type == nullptr) continue;
    are_named = true;
    TDOCK_ASSIGN_OR_RETURN(const TypeSet named, TypesNamed(document, *part.schema, *type));
    types &= named;
  }
  return are_named || of_keywords == 0 ? types : of_keywords;
}

std::optional<uint32_t> LargestCount(const Schemas& schemas, absl::string_view keyword) {
  return BestCount(schemas, keyword, std::greater<>());
}

std::optional<uint32_t> LeastCount(const Schemas& schemas, absl::string_view keyword) {
  return BestCount(schemas, keyword, std::less<>());
}

absl::StatusOr<TextRules> TextRulesOf(SchemaDocument& document, const Schemas& schemas) {
  TextRules rules{.min = LargestCount(schemas, "minLength").value_or(0), .max = LeastCount(schemas, "maxLength")};
  const SchemaJson* last = nullptr;
  const auto add = [&](const SchemaJson& schema, absl::string_view keyword,
                       absl::StatusOr<CharDfa> dfa) -> absl::Status {
    last = &schema;
    if (dfa.ok()) TDOCK_RETURN_IF_ERROR(document.Spend(dfa->cost, schema));
    if (dfa.ok() && rules.dfa) dfa = Intersect(*rules.dfa, *dfa);
    if (!dfa.ok()) return document.Error(schema, keyword, absl::StrCat("is not supported: ", dfa.status().message()));
    if (dfa->empty()) return document.Error(schema, keyword, "is met by no text");
    rules.dfa = *std::move(dfa);
    return absl::OkStatus();
  };
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson& schema = *part.schema;
    if (rules.max && rules.min > *rules.max && KeywordOf(schema, "maxLength") != nullptr) {
      return document.Error(schema, "maxLength", "is below 'minLength'");
    }
    if (const SchemaJson* const pattern = KeywordOf(schema, "pattern")) {
      TDOCK_RETURN_IF_ERROR(
          add(schema, "pattern", CompileRegex(pattern->get_ref<const std::string&>(), RegexMatch::kSearch)));
    }
    if (const SchemaJson* const format = KeywordOf(schema, "format")) {
      const auto regex = PatternOfFormat(format->get_ref<const std::string&>());
      if (!regex.ok()) return document.Error(schema, "format", regex.status().message());
      if (!regex->empty()) TDOCK_RETURN_IF_ERROR(add(schema, "format", CompileRegex(*regex, RegexMatch::kWhole)));
    }
  }
  if (!rules.dfa || (rules.min == 0 && !rules.max)) return rules;
  const auto [shortest, longest] = LengthsOf(*rules.dfa);
  const bool always_meets = shortest >= rules.min && (!rules.max || (longest && *longest <= *rules.max));
  if (always_meets) return rules;
  const char* const keyword = rules.max ? "maxLength" : "minLength";
  if (std::max(rules.min, rules.max.value_or(0)) >= kMaxDfaStates) {
    return document.Error(
        *last, absl::StrCat("has '", keyword, "' beside a pattern or format; it may be at most ", kMaxDfaStates));
  }
  TDOCK_RETURN_IF_ERROR(add(*last, keyword, DfaOfLengths(rules.min, rules.max)));
  return rules;
}

absl::StatusOr<CharDfa> DfaOfText(SchemaDocument& document, const Schemas& schemas) {
  TDOCK_ASSIGN_OR_RETURN(TextRules rules, TextRulesOf(document, schemas));
  if (rules.dfa) return *std::move(rules.dfa);
  if (std::max(rules.min, rules.max.value_or(0)) < kMaxDfaStates) return DfaOfLengths(rules.min, rules.max);
  return document.Error(*schemas.parts.front().schema,
                        absl::StrCat("has names of more than ", kMaxDfaStates, " characters"));
}

absl::StatusOr<NumberBounds> NumberBoundsOf(SchemaDocument& document, const Schemas& schemas, bool is_integer) {
  NumberBounds bounds{.is_integer = is_integer};
  const auto keep = [&](const Decimal& value, bool is_min, bool is_excluded) {
    auto& bound = is_min ? bounds.min : bounds.max;
    const int order = bound ? CompareDecimals(value, bound->value) * (is_min ? 1 : -1) : 1;
    if (order > 0) bound = NumberBounds::Bound{value, is_excluded};
    if (order == 0) bound->is_excluded = bound->is_excluded || is_excluded;
  };
  const auto add = [&](const SchemaJson& schema, const char* keyword, bool is_min, bool is_excluded) -> absl::Status {
    const SchemaJson* const value = KeywordOf(schema, keyword);
    if (value == nullptr) return absl::OkStatus();
    const auto decimal = ReadDecimal(JsonText(*value));
    if (!decimal.ok()) return document.Error(schema, keyword, decimal.status().message());
    keep(*decimal, is_min, is_excluded);
    return absl::OkStatus();
  };
  for (const Schemas::Part& part : schemas.parts) {
    TDOCK_RETURN_IF_ERROR(add(*part.schema, "minimum", /*is_min=*/true, /*is_excluded=*/false));
    TDOCK_RETURN_IF_ERROR(add(*part.schema, "exclusiveMinimum", /*is_min=*/true, /*is_excluded=*/true));
    TDOCK_RETURN_IF_ERROR(add(*part.schema, "maximum", /*is_min=*/false, /*is_excluded=*/false));
    TDOCK_RETURN_IF_ERROR(add(*part.schema, "exclusiveMaximum", /*is_min=*/false, /*is_excluded=*/true));
    if (const SchemaJson* const format = KeywordOf(*part.schema, "format")) {
      const auto& name = format->get_ref<const std::string&>();
      // Formats of texts say nothing of numbers.
      const bool is_known =
          name == "int32" || name == "int64" || name == "float" || name == "double" || PatternOfFormat(name).ok();
      if (!is_known) return document.Error(*part.schema, "format", PatternOfFormat(name).status().message());
      if (name == "int32" || name == "int64") {
        keep({.is_negative = true, .whole = name == "int32" ? "2147483648" : "9223372036854775808"}, true, false);
        keep({.whole = name == "int32" ? "2147483647" : "9223372036854775807"}, false, false);
      }
    }
    const SchemaJson* const multiple = KeywordOf(*part.schema, "multipleOf");
    if (multiple == nullptr) continue;
    const auto value = multiple->get<double>();
    if (!(value >= 1 && value <= NumberBounds::kMaxMultiple && std::floor(value) == value)) {
      return document.Error(
          *part.schema, "multipleOf",
          absl::StrCat("must be a whole number from 1 to ", NumberBounds::kMaxMultiple, "; others are not supported"));
    }
    bounds.is_integer = true;
    bounds.multiple_of = std::lcm(bounds.multiple_of, static_cast<int64_t>(value));
    if (bounds.multiple_of > NumberBounds::kMaxMultiple) {
      return document.Error(*part.schema, "multipleOf",
                            absl::StrCat("leaves, with others, the multiples of ", bounds.multiple_of, "; at most ",
                                         NumberBounds::kMaxMultiple, " is supported"));
    }
  }
  return bounds;
}

absl::StatusOr<std::optional<std::vector<const SchemaJson*>>> ValuesOf(SchemaDocument& document,
                                                                       const Schemas& schemas) {
  using Values = std::vector<const SchemaJson*>;
  std::optional<Values> values;
  const SchemaJson* named = nullptr;
  TypeSet of_keywords = 0;
  const auto keep = [&](const SchemaJson& schema, const Values& of) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(document.Spend(of.size() * (values ? values->size() : 1), schema));
    const auto is_in = [&](const SchemaJson* value) {
      return std::any_of(of.begin(), of.end(), [&](const SchemaJson* one) { return *one == *value; });
    };
    if (values) std::erase_if(*values, [&](const SchemaJson* value) { return !is_in(value); });
    if (!values) values = of;
    return absl::OkStatus();
  };
  for (const Schemas::Part& part : schemas.parts) {
    for (const auto& item : part.schema->items()) of_keywords |= TypesOfKeyword(item.key());
    if (const SchemaJson* const value = KeywordOf(*part.schema, "const")) {
      TDOCK_RETURN_IF_ERROR(keep(*part.schema, {value}));
    }
    if (const SchemaJson* const list = KeywordOf(*part.schema, "enum")) {
      Values all;
      for (const SchemaJson& value : *list) all.push_back(&value);
      TDOCK_RETURN_IF_ERROR(keep(*part.schema, all));
    }
    if (values && named == nullptr) named = part.schema;
  }
  if (!values) return std::nullopt;
  const char* const keyword = KeywordOf(*named, "const") != nullptr ? "const" : "enum";
  TypeSet types = kAllTypes;
  for (const Schemas::Part& part : schemas.parts) {
    const SchemaJson* const type = KeywordOf(*part.schema, "type");
    if (type == nullptr) continue;
    TDOCK_ASSIGN_OR_RETURN(const TypeSet named_types, TypesNamed(document, *part.schema, *type));
    types &= named_types;
  }
  std::erase_if(*values, [&](const SchemaJson* value) { return (TypeOfValue(*value) & types) == 0; });
  TypeSet of_values = 0;
  for (const SchemaJson* const value : *values) of_values |= TypeOfValue(*value);
  if ((of_values & of_keywords & (kListType | kObjectType)) != 0) {
    return document.Error(*named, keyword, "has lists or objects, and other keywords are about these, too");
  }
  if ((of_values & of_keywords & kTextType) != 0) {
    TDOCK_ASSIGN_OR_RETURN(const CharDfa dfa, DfaOfText(document, schemas));
    std::erase_if(*values, [&](const SchemaJson* value) {
      return value->is_string() && !dfa.Accepts(value->get_ref<const std::string&>());
    });
  }
  if ((of_values & of_keywords & (kIntegerType | kFractionType)) != 0) {
    TDOCK_ASSIGN_OR_RETURN(const NumberBounds bounds, NumberBoundsOf(document, schemas, /*is_integer=*/false));
    TDOCK_ASSIGN_OR_RETURN(const CharDfa dfa, DfaOfNumbers(bounds));
    TDOCK_RETURN_IF_ERROR(document.Spend(dfa.cost, *named));
    std::erase_if(*values,
                  [&](const SchemaJson* value) { return value->is_number() && !dfa.Accepts(JsonText(*value)); });
  }
  return values;
}

}  // namespace tdock::inference
