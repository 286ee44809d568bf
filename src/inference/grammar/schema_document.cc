#include "inference/grammar/schema_document.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

constexpr size_t kMaxPathBytes = 200;
// Limits of schemas that lead to one another by $ref and allOf without a value between them.
constexpr size_t kMaxOpenSchemas = 200, kMaxSchemaParts = 100;
constexpr size_t kMaxKeywords = 100;  // of one schema
constexpr size_t kMaxNames = 4096;
constexpr size_t kStepsOfSchema = 8, kBytesOfStep = 16;

enum class Keyword : uint8_t {
  kIgnored,
  kAny,     // has a value of any kind
  kSchema,  // a schema, which may be true or false
  kSchemas,
  kNamedSchemas,
  kSchemaOrSchemas,
  kText,
  kTexts,
  kTextOrTexts,
  kCount,
  kNumber,
  kList,
  kBool
};

struct KnownKeyword {
  absl::string_view name;
  Keyword kind;
  absl::string_view must_be;
};

constexpr KnownKeyword kKeywords[] = {
    {"$anchor", Keyword::kIgnored, ""},
    {"$comment", Keyword::kIgnored, ""},
    {"$defs", Keyword::kIgnored, ""},
    {"$id", Keyword::kIgnored, ""},
    {"$ref", Keyword::kText, "a reference"},
    {"$schema", Keyword::kIgnored, ""},
    {"additionalItems", Keyword::kSchema, "a schema"},
    {"additionalProperties", Keyword::kSchema, "a schema"},
    {"allOf", Keyword::kSchemas, "a list of schemas"},
    {"anyOf", Keyword::kSchemas, "a list of schemas"},
    {"const", Keyword::kAny, ""},
    {"contentEncoding", Keyword::kIgnored, ""},
    {"contentMediaType", Keyword::kIgnored, ""},
    {"default", Keyword::kIgnored, ""},
    {"definitions", Keyword::kIgnored, ""},
    {"deprecated", Keyword::kIgnored, ""},
    {"description", Keyword::kIgnored, ""},
    {"discriminator", Keyword::kIgnored, ""},
    {"enum", Keyword::kList, "a list of values"},
    {"example", Keyword::kIgnored, ""},
    {"examples", Keyword::kIgnored, ""},
    {"exclusiveMaximum", Keyword::kNumber, "a number"},
    {"exclusiveMinimum", Keyword::kNumber, "a number"},
    {"format", Keyword::kText, "the name of a format"},
    {"items", Keyword::kSchemaOrSchemas, "a schema"},
    {"maxItems", Keyword::kCount, "a whole number"},
    {"maxLength", Keyword::kCount, "a whole number"},
    {"maxProperties", Keyword::kCount, "a whole number"},
    {"maximum", Keyword::kNumber, "a number"},
    {"minItems", Keyword::kCount, "a whole number"},
    {"minLength", Keyword::kCount, "a whole number"},
    {"minProperties", Keyword::kCount, "a whole number"},
    {"minimum", Keyword::kNumber, "a number"},
    {"multipleOf", Keyword::kNumber, "a number"},
    {"nullable", Keyword::kBool, "true or false"},
    {"oneOf", Keyword::kSchemas, "a list of schemas"},
    {"pattern", Keyword::kText, "a regular expression"},
    {"patternProperties", Keyword::kNamedSchemas, "an object of schemas"},
    {"prefixItems", Keyword::kSchemas, "a list of schemas"},
    {"properties", Keyword::kNamedSchemas, "an object of schemas"},
    {"propertyNames", Keyword::kSchema, "a schema"},
    {"readOnly", Keyword::kIgnored, ""},
    {"required", Keyword::kTexts, "a list of names"},
    {"title", Keyword::kIgnored, ""},
    {"type", Keyword::kTextOrTexts, "a type, or a list of types"},
    {"unevaluatedProperties", Keyword::kSchema, "a schema"},
    {"uniqueItems", Keyword::kBool, "true or false"},
    {"writeOnly", Keyword::kIgnored, ""},
};

bool IsSchema(const SchemaJson& value) { return value.is_object() || value.is_boolean(); }
bool IsText(const SchemaJson& value) { return value.is_string(); }

bool IsListOf(const SchemaJson& value, bool (*is_item)(const SchemaJson&)) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_item);
}

bool HasKind(const SchemaJson& value, Keyword kind) {
  switch (kind) {
    case Keyword::kIgnored:
    case Keyword::kAny:
      return true;
    case Keyword::kSchema:
      return IsSchema(value);
    case Keyword::kSchemas:
      return IsListOf(value, IsSchema) && !value.empty();
    case Keyword::kNamedSchemas:
      return value.is_object() && std::all_of(value.begin(), value.end(), IsSchema);
    case Keyword::kSchemaOrSchemas:
      return IsSchema(value) || IsListOf(value, IsSchema);
    case Keyword::kText:
      return value.is_string();
    case Keyword::kTexts:
      return IsListOf(value, IsText);
    case Keyword::kTextOrTexts:
      return value.is_string() || (IsListOf(value, IsText) && !value.empty());
    case Keyword::kCount:
      return value.is_number() && value.get<double>() >= 0 && std::floor(value.get<double>()) == value.get<double>();
    case Keyword::kNumber:
      return value.is_number();
    case Keyword::kList:
      return value.is_array() && !value.empty();
    case Keyword::kBool:
      return value.is_boolean();
  }
  return false;
}

// The largest number of names that an object has.
size_t MaxNames(const nlohmann::json& value) {
  size_t names = value.is_object() ? value.size() : 0;
  if (!value.is_structured()) return names;
  for (const nlohmann::json& item : value) names = std::max(names, MaxNames(item));
  return names;
}

// Where a value lies below another one; nothing if it does not.
std::optional<std::string> PathBelow(const SchemaJson& from, const SchemaJson& place) {
  if (&from == &place) return "";
  if (!from.is_structured()) return std::nullopt;
  size_t number = 0;
  for (auto item = from.begin(); item != from.end(); ++item, ++number) {
    const std::optional<std::string> below = PathBelow(*item, place);
    if (!below) continue;
    const std::string name =
        from.is_object() ? absl::StrReplaceAll(item.key(), {{"~", "~0"}, {"/", "~1"}}) : absl::StrCat(number);
    return absl::StrCat("/", name, *below);
  }
  return std::nullopt;
}

// With %HH as in addresses.
std::string Unescaped(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '%' && i + 2 < text.size() && absl::SimpleHexAtoi(text.substr(i + 1, 2), &code)) {
      plain += static_cast<char>(code);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

const SchemaJson* KeywordOf(const SchemaJson& schema, absl::string_view keyword) {
  const auto found = schema.find(std::string(keyword));
  return found == schema.end() ? nullptr : &*found;
}

absl::StatusOr<SchemaDocument> SchemaDocument::Parse(absl::string_view text, CompileBudget& budget) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the schema has ", text.size(), " bytes; at most ", kMaxBytes, " are allowed"));
  }
  // Checks the text, but forgets the order of names. Reading in order takes longer for each name of an object.
  const auto checked = ParseJsonObject(text, kMaxDepth);
  if (!checked.ok()) return absl::InvalidArgumentError(absl::StrCat("the schema: ", checked.status().message()));
  const size_t names = MaxNames(*checked);
  if (names > kMaxNames) {
    return absl::InvalidArgumentError(
        absl::StrCat("the schema has an object of ", names, " names; at most ", kMaxNames, " are allowed"));
  }
  SchemaDocument document(ReadOrderedJson(text), budget);
  TDOCK_RETURN_IF_ERROR(document.Spend(text.size() / kBytesOfStep, document.root()));
  return document;
}

std::string SchemaDocument::PathOf(const SchemaJson& place) const {
  return EscapeForMessage(absl::StrCat("#", PathBelow(*root_, place).value_or("")), kMaxPathBytes);
}

absl::Status SchemaDocument::Error(const SchemaJson& place, absl::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat("the schema at ", PathOf(place), " ", why));
}

absl::Status SchemaDocument::Error(const SchemaJson& schema, absl::string_view keyword, absl::string_view why) const {
  const SchemaJson* const value = KeywordOf(schema, keyword);
  return absl::InvalidArgumentError(
      absl::StrCat("'", EscapeForMessage(keyword), "' at ", PathOf(value == nullptr ? schema : *value), " ", why));
}

absl::Status SchemaDocument::Spend(size_t steps, const SchemaJson& place) {
  if (budget_->Spend(steps)) return absl::OkStatus();
  return Error(place, absl::StrCat("is too much: with what comes before it, the grammar takes more than ",
                                   CompileBudget::kMaxSteps, " steps to compile"));
}

absl::StatusOr<Schemas> SchemaDocument::Expand(const SchemaJson& schema, Schemas with,
                                               std::vector<const SchemaJson*> open) {
  TDOCK_RETURN_IF_ERROR(ExpandInto(schema, open, with));
  return with;
}

// `open` are the schemas that lead here.
absl::Status SchemaDocument::ExpandInto(const SchemaJson& schema, std::vector<const SchemaJson*>& open,
                                        Schemas& schemas) {
  TDOCK_RETURN_IF_ERROR(Spend(kStepsOfSchema, schema));
  if (schema.is_boolean()) {
    if (!schema.get<bool>() && schemas.never == nullptr) schemas.never = &schema;
    return absl::OkStatus();
  }
  if (std::find(open.begin(), open.end(), &schema) != open.end()) {
    return Error(schema, "refers to itself, without an end");
  }
  if (open.size() >= kMaxOpenSchemas || schemas.parts.size() >= kMaxSchemaParts) {
    return Error(schema, absl::StrCat("is behind more than ", kMaxOpenSchemas, " references, or beside more than ",
                                      kMaxSchemaParts, " other schemas"));
  }
  const auto is_same = [&](const Schemas::Part& part) { return part.schema == &schema; };
  if (std::any_of(schemas.parts.begin(), schemas.parts.end(), is_same)) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const Checked checked, Check(schema));
  open.push_back(&schema);
  // One that says nothing itself is left out, so that equal sets of schemas are known as such.
  if (checked.says_something) {
    schemas.parts.push_back({.schema = &schema,
                             .has_any = KeywordOf(schema, "anyOf") != nullptr,
                             .has_one = KeywordOf(schema, "oneOf") != nullptr});
  }
  if (checked.target != nullptr) TDOCK_RETURN_IF_ERROR(ExpandInto(*checked.target, open, schemas));
  if (const SchemaJson* const all = KeywordOf(schema, "allOf")) {
    for (const SchemaJson& one : *all) TDOCK_RETURN_IF_ERROR(ExpandInto(one, open, schemas));
  }
  open.pop_back();
  return absl::OkStatus();
}

absl::StatusOr<SchemaDocument::Checked> SchemaDocument::Check(const SchemaJson& schema) {
  if (const auto found = checked_.find(&schema); found != checked_.end()) return found->second;
  if (schema.size() > kMaxKeywords) {
    return Error(schema, absl::StrCat("has ", schema.size(), " keywords; at most ", kMaxKeywords, " are allowed"));
  }
  Checked checked;
  for (const auto& [name, value] : schema.items()) {
    const std::string& keyword = name;
    if (absl::StartsWith(keyword, "x-")) continue;  // of tools
    const auto* const known = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                           [&](const KnownKeyword& one) { return one.name == keyword; });
    if (known == std::end(kKeywords)) return Error(schema, keyword, "is a keyword that is not supported");
    if (!HasKind(value, known->kind)) return Error(schema, keyword, absl::StrCat("must be ", known->must_be));
    if (keyword == "$ref") {
      TDOCK_ASSIGN_OR_RETURN(checked.target, Resolve(schema, value.get_ref<const std::string&>()));
    } else if (known->kind != Keyword::kIgnored && keyword != "allOf") {
      checked.says_something = true;
    }
  }
  checked_[&schema] = checked;
  return checked;
}

absl::StatusOr<const SchemaJson*> SchemaDocument::Resolve(const SchemaJson& schema,
                                                          const std::string& reference) const {
  absl::string_view rest = reference;
  if (!absl::ConsumePrefix(&rest, "#") || (!rest.empty() && rest[0] != '/')) {
    return Error(schema, "$ref", "must be # or begin with #/: other documents and anchors are not supported");
  }
  const SchemaJson* found = root_.get();
  absl::ConsumePrefix(&rest, "/");
  const bool is_root = reference == "#";
  for (const absl::string_view escaped : absl::StrSplit(rest, '/')) {
    if (is_root) break;
    const std::string name = absl::StrReplaceAll(Unescaped(escaped), {{"~1", "/"}, {"~0", "~"}});
    size_t number = 0;
    if (found->is_object() && KeywordOf(*found, name) != nullptr) {
      found = KeywordOf(*found, name);
    } else if (found->is_array() && absl::SimpleAtoi(name, &number) && number < found->size()) {
      found = &(*found)[number];
    } else {
      return Error(schema, "$ref", absl::StrCat("names nothing: there is no '", EscapeForMessage(name), "'"));
    }
  }
  if (!IsSchema(*found)) return Error(schema, "$ref", "names what is no schema");
  return found;
}

}  // namespace tdock::inference
