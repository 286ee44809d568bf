#include "bench/inference/inference_benchmarks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"
#include "inference/grammar/token_masks.h"

namespace tdock::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kVocabulary = 50'000, kSchemaBytes = 10'000;
constexpr char kAddress[] =
    R"({"type": "object", "properties": {"street": {"type": "string", "maxLength": 80}, "zip": {"type": "string", "pattern": "^\\d{5}$"}},
        "required": ["street", "zip"], "additionalProperties": false})";

// The bytes, what JSON is often made of, and made-up words with and without a space before them.
std::vector<std::string> MadeUpTokens(size_t count) {
  std::vector<std::string> tokens;
  absl::flat_hash_set<std::string> known;
  const auto add = [&](std::string token) {
    if (tokens.size() < count && known.insert(token).second) tokens.push_back(std::move(token));
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* const token :
       {"{\"",    "\":",    "\",",   "\"}",   "\"]",  "}}", "]}", "},",   "],",    "{}",   "[]", "[{\"", " \"",
        "\": \"", "\", \"", "\":\"", "\",\"", " {\"", " [", " {", "true", "false", "null", "  ", ", "}) {
    add(token);
  }
  for (int number = 0; number < 1000; ++number) add(absl::StrCat(number));
  Rng rng(11);
  while (tokens.size() < count) {
    std::string word;
    for (uint64_t syllables = 1 + rng.Below(4); syllables > 0; --syllables) {
      word += "bcdfghklmnprstvw"[rng.Below(16)];
      word += "aeiou"[rng.Below(5)];
    }
    if (rng.Below(8) == 0) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    if (rng.Below(30) == 0) word += "\"";
    add(rng.Below(2) == 0 ? absl::StrCat(" ", word) : word);
  }
  return tokens;
}

std::shared_ptr<const inference::Vocabulary> MadeUpVocabulary(const std::vector<std::string>& tokens) {
  return std::make_shared<const inference::Vocabulary>(tokens, std::vector<std::string>(), std::vector<int32_t>());
}

// One property of each kind in turn, with a description each, up to so many bytes.
std::string LargeSchema(size_t bytes) {
  const std::vector<OrderedJson> kinds = {
      {{"type", "string"}},
      {{"type", "integer"}, {"minimum", 0}, {"maximum", 150}},
      {{"$ref", "#/$defs/address"}},
      {{"anyOf", {{{"type", "number"}}, {{"type", "null"}}}}},
      {{"type", "string"}, {"enum", {"red", "green", "blue", "none of these"}}},
      {{"type", "array"}, {"items", {{"$ref", "#/$defs/address"}}}, {"minItems", 1}, {"maxItems", 10}},
      {{"type", "string"}, {"format", "date-time"}},
      {{"type", "boolean"}},
      {{"type", "string"}, {"minLength", 2}, {"maxLength", 200}},
      {{"type", "number"}, {"exclusiveMinimum", 0}},
      {{"type", "string"}, {"format", "email"}},
  };
  OrderedJson schema = {{"type", "object"},
                        {"properties", OrderedJson::object()},
                        {"required", OrderedJson::array()},
                        {"additionalProperties", false}};
  schema["$defs"]["address"] = ReadOrderedJson(kAddress);
  for (size_t i = 0; JsonText(schema).size() < bytes; ++i) {
    const std::string name = absl::StrCat("property_", i);
    schema["properties"][name] = kinds[i % kinds.size()];
    schema["properties"][name]["description"] = absl::StrCat("The property with the number ", i);
    if (i % 3 != 0) schema["required"].push_back(name);
  }
  return JsonText(schema);
}

inference::GrammarSpec SchemaSpec(std::string schema) {
  return {.kind = inference::GrammarSpec::Kind::kJsonSchema, .text = std::move(schema)};
}

absl::StatusOr<Prepared> PrepareCompiling(const Settings& settings) {
  return Prepared{.run = [schema = LargeSchema(kSchemaBytes), &clock = settings.clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double seconds,
                           Seconds(clock, [&] { return inference::CompileGrammar(SchemaSpec(schema)).status(); }));
    return Figure(1000 * seconds, {{"schema_bytes", static_cast<double>(schema.size())}});
  }};
}

// An answer and the grammar that it is of.
class Followed {
 public:
  explicit Followed(bool quick) : tokens_(MadeUpTokens(kVocabulary)), vocabulary_(MadeUpVocabulary(tokens_)) {
    for (size_t i = 0; i < tokens_.size(); ++i) ids_[tokens_[i]] = static_cast<int32_t>(i);
    Rng rng(12);
    std::string text = "[";
    for (int i = 0; i < (quick ? 3 : 30); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", "{\"name\": \"", tokens_[2000 + rng.Below(40'000)],
                      "\", \"age\": ", rng.Below(150), ", \"address\": {\"street\": \"Sa dokabe ", i,
                      "\", \"zip\": \"0", 1000 + rng.Below(9000), "\"}, \"tags\": [\"mikasu\", \"ba\"]}");
    }
    // Words that end in a quote would end the text that they are in.
    for (size_t at = 0; (at = text.find("\"\",", at)) != std::string::npos;) text.replace(at, 3, "\",");
    text += "]";
    for (size_t at = 0; at < text.size();) {
      size_t size = std::min<size_t>(text.size() - at, 16);
      while (!ids_.contains(text.substr(at, size))) --size;
      answer_.push_back(ids_[text.substr(at, size)]);
      at += size;
    }
    OrderedJson schema = ReadOrderedJson(
        R"({"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 40}}}, "required": ["name", "age", "tags"]}})");
    OrderedJson& properties = schema["items"]["properties"];
    OrderedJson ordered = {{"name", properties["name"]},
                           {"age", properties["age"]},
                           {"address", ReadOrderedJson(kAddress)},
                           {"tags", properties["tags"]}};
    properties = std::move(ordered);
    schema_ = JsonText(schema);
  }

  absl::StatusOr<std::shared_ptr<inference::TokenMasks>> NewMasks() const {
    TDOCK_ASSIGN_OR_RETURN(auto grammar, inference::CompileGrammar(SchemaSpec(schema_)));
    return std::make_shared<inference::TokenMasks>(std::move(grammar), vocabulary_);
  }

  // Microseconds for each token: its mask, and the step over it.
  absl::StatusOr<double> Follow(Clock& clock, inference::TokenMasks& masks) const {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] {
                             inference::TokenMasks::Place place = masks.Start();
                             for (const int32_t token : answer_) {
                               const auto mask = masks.Allowed(place);
                               const auto at = static_cast<size_t>(token);
                               if (((*mask)[at / 64] >> (at % 64) & 1) == 0) {
                                 return absl::InternalError("a token of the answer is not allowed: " + tokens_[at]);
                               }
                               masks.Accept(place, token);
                             }
                             return place.complete() ? absl::OkStatus()
                                                     : absl::InternalError("the answer is not whole");
                           }));
    return 1e6 * seconds / static_cast<double>(answer_.size());
  }

 private:
  const std::vector<std::string> tokens_;
  const std::shared_ptr<const inference::Vocabulary> vocabulary_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<int32_t> answer_;
  std::string schema_;
};

absl::StatusOr<Prepared> PrepareMasks(const Settings& settings) {
  const auto followed = std::make_shared<const Followed>(settings.quick);
  TDOCK_ASSIGN_OR_RETURN(const auto kept, followed->NewMasks());
  TDOCK_RETURN_IF_ERROR(followed->Follow(settings.clock, *kept).status());
  return Prepared{.run = [followed, kept, &clock = settings.clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double microseconds, followed->Follow(clock, *kept));
    TDOCK_ASSIGN_OR_RETURN(const auto masks, followed->NewMasks());
    TDOCK_ASSIGN_OR_RETURN(const double first, followed->Follow(clock, *masks));
    return Figure(microseconds, {{"first_us", first}, {"kept_mib", static_cast<double>(kept->bytes()) / (1 << 20)}});
  }};
}

}  // namespace

std::vector<Benchmark> GrammarBenchmarks() {
  return {{.name = "serve/grammar/compile", .unit = "ms", .prepare = PrepareCompiling},
          {.name = "serve/grammar/mask", .unit = "us", .prepare = PrepareMasks}};
}

std::shared_ptr<inference::TokenMasks> MasksOfLongAnswers(size_t tokens) {
  constexpr char kSchema[] =
      R"({"type": "object", "properties": {"number": {"type": "integer", "minimum": 10, "maximum": 99},
          "tags": {"type": "array", "items": {"type": "string", "minLength": 8, "maxLength": 12}, "minItems": 2, "maxItems": 3},
          "text": {"type": "string", "minLength": 100000}}, "required": ["number", "tags", "text"]})";
  auto grammar = inference::CompileGrammar(SchemaSpec(kSchema));
  TDOCK_CHECK(grammar.ok(), "the schema of a benchmark does not compile");
  return std::make_shared<inference::TokenMasks>(*std::move(grammar), MadeUpVocabulary(MadeUpTokens(tokens)));
}

}  // namespace tdock::bench
