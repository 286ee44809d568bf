// Random JSON schemas and values, against a checker that knows nothing of automata.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/utf8.h"
#include "inference/grammar/grammar.h"
#include "inference/grammar/testing/text_matcher.h"
#include "inference/grammar/token_masks.h"
#include "nlohmann/json.hpp"

namespace tdock::inference {
namespace {

using Ordered = nlohmann::ordered_json;

const std::vector<std::string>& PropertyNames() {
  static const auto* const kNames = new std::vector<std::string>{"a", "b", "ab", "é"};
  return *kNames;
}

class SchemaWriter {
 public:
  explicit SchemaWriter(uint64_t seed) : rng_(seed) {}

  // A schema with a part that it may refer to.
  Ordered Schema() {
    Ordered schema = Part(3);
    schema["$defs"]["node"] = Part(2);
    return schema;
  }

  // A value that mostly meets the schema.
  Ordered Meeting(const Ordered& schema, const Ordered& root, int depth = 0) {
    if (depth > 8 || !schema.is_object()) return Any(1);
    if (schema.contains("$ref")) return Meeting(root["$defs"]["node"], root, depth + 1);
    if (schema.contains("anyOf")) return Meeting(OneOf(schema["anyOf"]), root, depth + 1);
    if (schema.contains("enum")) return OneOf(schema["enum"]);
    const std::string type = schema.value("type", "");
    if (type == "boolean") return rng_.Below(2) == 0;
    if (type == "integer") {
      const int64_t low = schema.value("minimum", -5), multiple = schema.value("multipleOf", 1);
      return (low + Number(schema.value("maximum", 20) - low + 1)) / multiple * multiple;
    }
    if (type == "number") return static_cast<double>(Number(50) - 10) / 4 + 0.125;
    if (type == "string") {
      std::string text;
      for (int64_t i = schema.value("minLength", 0) + Number(3); i > 0; --i) text += OneOf(Ordered({"a", "b", "é"}));
      return text;
    }
    if (type == "array") {
      Ordered list = Ordered::array();
      for (int64_t i = schema.value("minItems", 0) + Number(2); i > 0; --i) {
        list.push_back(Meeting(schema["items"], root, depth + 1));
      }
      return list;
    }
    if (type != "object") return type == "null" ? Ordered() : Any(1);
    Ordered object = Ordered::object();
    for (const auto& [name, value] : schema["properties"].items()) {
      const bool is_required = std::count(schema["required"].begin(), schema["required"].end(), name) > 0;
      if (is_required || rng_.Below(2) == 0) object[name] = Meeting(value, root, depth + 1);
    }
    if (rng_.Below(3) == 0) object["x"] = Meeting(schema["additionalProperties"], root, depth + 1);
    return object;
  }

  // The same with something else somewhere.
  Ordered Changed(Ordered value) {
    if (!value.is_structured() || value.empty() || rng_.Below(3) == 0) return Any(1);
    auto item = value.begin();
    std::advance(item, Number(static_cast<int64_t>(value.size())));
    switch (rng_.Below(4)) {
      case 0:
        value.erase(item);
        break;
      case 1:
        if (value.is_array()) value.push_back(Any(1));
        if (value.is_object()) value["y"] = Any(1);
        break;
      default:
        *item = Changed(*item);
    }
    return value;
  }

  // As text, with blanks.
  std::string Text(const Ordered& value) {
    if (!value.is_structured()) return value.dump();
    std::string text(1, value.is_object() ? '{' : '[');
    text += Blanks();
    bool is_first = true;
    for (const auto& [name, item] : value.items()) {
      if (!is_first) text += Blanks() + "," + Blanks();
      is_first = false;
      if (value.is_object()) text += Ordered(name).dump() + Blanks() + ":" + Blanks();
      text += Text(item);
    }
    if (!is_first) text += Blanks();
    return text + (value.is_object() ? '}' : ']');
  }

  int64_t Number(int64_t below) {
    return static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(std::max<int64_t>(below, 1))));
  }

 private:
  Ordered OneOf(const Ordered& list) { return list[rng_.Below(list.size())]; }
  std::string Blanks() { return OneOf(Ordered({"", "", " ", "\n ", "\t\t"})); }

  Ordered Any(int depth) {
    switch (rng_.Below(depth == 0 ? 6 : 8)) {
      case 0:
        return OneOf(Ordered({nullptr, true, false}));
      case 1:
        return Number(30) - 8;
      case 2:
        return OneOf(Ordered({0.5, 2.25, -1.5, 10.25}));
      case 6: {
        Ordered list = Ordered::array();
        for (int64_t i = Number(4); i > 0; --i) list.push_back(Any(depth - 1));
        return list;
      }
      case 7: {
        // None of a schema's, whose order would matter.
        Ordered object = Ordered::object();
        for (int64_t i = Number(4); i > 0; --i) object[absl::StrCat("x", i)] = Any(depth - 1);
        return object;
      }
      default: {
        std::string text;
        for (int64_t i = Number(6); i > 0; --i) text += OneOf(Ordered({"a", "b", "é", "\"", "\n"}));
        return text;
      }
    }
  }

  Ordered Part(int depth) {
    Ordered schema = Ordered::object();
    const auto maybe = [&](const char* keyword, int64_t value) {
      if (rng_.Below(2) == 0) schema[keyword] = value;
    };
    switch (rng_.Below(depth == 0 ? 5 : 10)) {
      case 0:
        schema["type"] = OneOf(Ordered({"null", "boolean"}));
        break;
      case 1:
        schema["type"] = "integer";
        maybe("minimum", Number(10) - 5);
        maybe("maximum", 6 + Number(20));
        maybe("multipleOf", 1 + Number(4));
        break;
      case 2:
        schema["type"] = "string";
        maybe("minLength", Number(4));
        maybe("maxLength", 4 + Number(3));
        break;
      case 3:
        schema["enum"] = Ordered::array({1, "a", nullptr});
        schema["enum"].push_back(OneOf(Ordered({2.5, true, "ab", Ordered::array({1}), Ordered::object()})));
        break;
      case 4:
        schema["type"] = "number";
        schema["minimum"] = OneOf(Ordered({0, -1.5, 2}));
        schema["exclusiveMaximum"] = OneOf(Ordered({3, 10.5}));
        break;
      case 5:
        schema["$ref"] = "#/$defs/node";
        break;
      case 6:
        for (int64_t i = 1 + Number(3); i > 0; --i) schema["anyOf"].push_back(Part(depth - 1));
        break;
      case 7:
        schema = {{"type", "array"}, {"items", Part(depth - 1)}};
        maybe("minItems", Number(3));
        maybe("maxItems", 2 + Number(3));
        break;
      default: {
        schema = {{"type", "object"}, {"properties", Ordered::object()}, {"required", Ordered::array()}};
        for (const std::string& name : PropertyNames()) {
          if (rng_.Below(2) == 0) continue;
          schema["properties"][name] = Part(depth - 1);
          if (rng_.Below(2) == 0) schema["required"].push_back(name);
        }
        schema["additionalProperties"] = rng_.Below(2) == 0 ? Ordered(false) : Part(depth - 1);
      }
    }
    return schema;
  }

  Rng rng_;
};

bool Meets(const Ordered& value, const Ordered& schema, const Ordered& root, int depth = 0) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (depth > 40) return false;
  const auto meets = [&](const Ordered& one, const Ordered& part) { return Meets(one, part, root, depth + 1); };
  if (schema.contains("$ref")) return meets(value, root["$defs"]["node"]);
  if (schema.contains("anyOf")) {
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const Ordered& part) { return meets(value, part); });
  }
  if (schema.contains("enum")) {
    return std::any_of(schema["enum"].begin(), schema["enum"].end(), [&](const Ordered& one) { return one == value; });
  }
  const std::string type = schema.value("type", "");
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  const auto is_within = [&](const char* least, const char* most, double size) {
    return (!schema.contains(least) || size >= schema[least].get<double>()) &&
           (!schema.contains(most) || size <= schema[most].get<double>());
  };
  if (type == "integer" || type == "number") {
    if (!value.is_number() || (type == "integer" && !value.is_number_integer())) return false;
    if (schema.contains("exclusiveMaximum") && value.get<double>() >= schema["exclusiveMaximum"].get<double>())
      return false;
    if (schema.contains("multipleOf") && value.get<int64_t>() % schema["multipleOf"].get<int64_t>() != 0) return false;
    return is_within("minimum", "maximum", value.get<double>());
  }
  if (type == "string") {
    if (!value.is_string()) return false;
    const auto& text = value.get_ref<const std::string&>();
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    return is_within("minLength", "maxLength", static_cast<double>(characters));
  }
  if (type == "array") {
    return value.is_array() && is_within("minItems", "maxItems", static_cast<double>(value.size())) &&
           std::all_of(value.begin(), value.end(), [&](const Ordered& item) { return meets(item, schema["items"]); });
  }
  if (type != "object") return true;
  if (!value.is_object()) return false;
  for (const Ordered& name : schema["required"]) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  for (const auto& [name, item] : value.items()) {
    const bool is_named = schema["properties"].contains(name);
    if (!meets(item, is_named ? schema["properties"][name] : schema["additionalProperties"])) return false;
  }
  return true;
}

std::shared_ptr<const Grammar> RandomGrammar(SchemaWriter& writer, Ordered& schema) {
  for (;;) {
    schema = writer.Schema();
    // Some refer to themselves without an end.
    auto grammar = CompileGrammar({.kind = GrammarSpec::Kind::kJsonSchema, .text = schema.dump()});
    if (grammar.ok()) return *std::move(grammar);
  }
}

TEST(RandomSchemas, TakeWhatAChecker) {
  int meeting = 0, failing = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SchemaWriter writer(seed);
    Ordered schema;
    const auto grammar = RandomGrammar(writer, schema);
    for (int i = 0; i < 20; ++i) {
      Ordered value = writer.Meeting(schema, schema);
      if (i % 2 == 1) value = writer.Changed(std::move(value));
      const std::string text = writer.Text(value);
      const bool meets = Meets(value, schema, schema);
      ++(meets ? meeting : failing);
      ASSERT_EQ(Matches(grammar, text), meets) << schema << "\n" << text;
    }
  }
  EXPECT_GT(meeting, 800);
  EXPECT_GT(failing, 500);
}

// A vocabulary of all bytes, so that every text can be made, and of tokens that reach over several parts of JSON.
std::vector<std::string> JsonTokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* const token :
       {"{\"",        "\":", "\",", "\"}",  "\"]",   "}}",   "]}",     "}]",   "},",     "],",
        "{}",         "[]",  "[[",  "[{\"", "  ",    " \"",  "\n\n",   "true", "false",  "null",
        "12",         "-1",  "0.5", "ab",   "aaaa",  "é",    "\xa9\"", "a\"}", "\":{\"", "\": \"",
        "\":null,\"", "1,",  "1}",  "1]",   "\"b\"", "\\\"", "\\u00"}) {
    tokens.emplace_back(token);
  }
  tokens.emplace_back("");  // the end
  return tokens;
}

bool IsAllowed(const TokenMask& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 64] >> (static_cast<size_t>(token) % 64) & 1) != 0;
}

// Tokens that end something are likelier than others.
int32_t RandomToken(SchemaWriter& writer, const TokenMask& mask, const std::vector<std::string>& tokens) {
  std::vector<int32_t> allowed, ends;
  for (int32_t token = 0; static_cast<size_t>(token) < tokens.size(); ++token) {
    if (!IsAllowed(mask, token)) continue;
    const std::string& text = tokens[static_cast<size_t>(token)];
    allowed.push_back(token);
    const bool opens = text.find_first_of("{[") != std::string::npos;
    if (text.empty() || (!opens && text.find_first_of("\"}]") != std::string::npos)) ends.push_back(token);
  }
  const std::vector<int32_t>& from = !ends.empty() && writer.Number(3) != 0 ? ends : allowed;
  return from.empty() ? -1 : from[static_cast<size_t>(writer.Number(static_cast<int64_t>(from.size())))];
}

TEST(RandomSchemas, AreMetByWhatMasksLetThrough) {
  const std::vector<std::string> tokens = JsonTokens();
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  const auto vocabulary =
      std::make_shared<const Vocabulary>(tokens, std::vector<std::string>(), std::vector<int32_t>{end});
  int complete = 0;
  for (uint64_t seed = 1000; seed < 1060; ++seed) {
    SchemaWriter writer(seed);
    Ordered schema;
    const auto masks = std::make_shared<TokenMasks>(RandomGrammar(writer, schema), vocabulary);
    for (int i = 0; i < 3; ++i) {
      TokenMasks::Place place = masks->Start();
      std::string text;
      bool has_ended = false;
      for (int step = 0; step < 400 && !has_ended && !place.complete(); ++step) {
        const int32_t token = RandomToken(writer, *masks->Allowed(place), tokens);
        ASSERT_GE(token, 0) << schema << "\n" << text;
        has_ended = token == end;
        ASSERT_TRUE(!has_ended || place.may_end()) << text;
        text += tokens[static_cast<size_t>(token)];
        masks->Accept(place, token);
      }
      if (!has_ended && !place.complete()) continue;
      ++complete;
      const Ordered value = Ordered::parse(text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << schema << "\n" << text;
      EXPECT_TRUE(Meets(value, schema, schema)) << schema << "\n" << text;
    }
  }
  EXPECT_GT(complete, 60);
}

}  // namespace
}  // namespace tdock::inference
