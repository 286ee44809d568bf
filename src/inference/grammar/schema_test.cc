#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "inference/grammar/grammar.h"
#include "inference/grammar/testing/text_matcher.h"

namespace tdock::inference {
namespace {

absl::StatusOr<std::shared_ptr<const Grammar>> SchemaGrammar(std::string schema) {
  return CompileGrammar({.kind = GrammarSpec::Kind::kJsonSchema, .text = std::move(schema)});
}

struct SchemaCase {
  std::string schema;
  std::vector<std::string> accepted, refused;
};

void CheckSchemas(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& one : cases) {
    SCOPED_TRACE(one.schema);
    const auto grammar = SchemaGrammar(one.schema);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (const std::string& text : one.accepted) EXPECT_TRUE(Matches(*grammar, text)) << text;
    for (const std::string& text : one.refused) EXPECT_FALSE(Matches(*grammar, text)) << text;
  }
}

TEST(JsonSchema, HasTypes) {
  CheckSchemas({
      {"{}", {"null", "1.5", "\"a\"", "[1,{}]", " {\"a\":[]}"}, {"", "nul", "   null", "1 "}},
      {R"({"type": "null"})", {"null"}, {"true", "0"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"null", "\"true\""}},
      {R"({"type": "integer"})", {"0", "-12", "123456789012345678901234567890"}, {"-0", "1.0", "1e3", "01"}},
      {R"({"type": "number"})", {"0", "-0.5", "1e-5"}, {"1.", "1e100"}},
      {R"({"type": "string"})", {"\"\"", R"("a\n\u00e9é😀")"}, {"a", "\"\n\"", R"("\ud83d\ude00")"}},
      {R"({"type": "array"})", {"[]", "[1, \"a\", [null]]"}, {"[1,]", "{}"}},
      {R"({"type": "object"})", {"{}", R"({"a": {"a": 1}})"}, {"[]"}},
      {R"({"type": ["integer", "null"]})", {"1", "null"}, {"1.5", "true"}},
      {R"({"type": "string", "nullable": true})", {"\"a\"", "null"}, {"1"}},
      {R"({"title": "T", "description": "D", "default": 3, "examples": [1], "$schema": "s", "$id": "i", "deprecated": true,
          "$comment": "c", "readOnly": true, "x-order": 3, "discriminator": {"propertyName": "a"}, "type": "boolean"})",
       {"true"},
       {"1"}},
  });
}

// A schema without a type is about the types of its keywords.
TEST(JsonSchema, KnowsTypesByTheirKeywords) {
  CheckSchemas({
      {R"({"minLength": 1})", {"\"a\""}, {"\"\"", "1"}},
      {R"({"minimum": 3})", {"3", "3.5"}, {"2", "\"a\""}},
      {R"({"items": {"type": "null"}})", {"[null]"}, {"{}", "[1]"}},
      {R"({"properties": {"a": {}}})", {"{}", "{\"a\":1}"}, {"[]", "{\"b\":1}"}},
      {R"({"minimum": 3, "maxLength": 1})", {"4", "\"a\""}, {"2", "\"ab\"", "null"}},
  });
}

TEST(JsonSchema, HasValuesThatAreNamed) {
  CheckSchemas({
      {R"({"enum": ["a", "ab", 1, 1.5, null, true, {"x": [1, "y"]}, []]})",
       {"\"a\"", "\"ab\"", "1", "1.5", "null", "true", R"({"x":[1,"y"]})", R"({ "x" : [ 1 , "y" ] })", "[]", "[ ]"},
       {"\"b\"", "\"\"", "2", "1.", "false", R"({"x":[1,"z"]})", "{}", "[1]"}},
      {R"({"const": "q\"\\\n\u0001é"})", {R"("q\"\\\n\u0001é")"}, {R"("q")", R"("q\"\\\n\u0001\u00e9")"}},
      {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
      {R"({"type": "integer", "enum": [1, 2, 3], "minimum": 2})", {"2", "3"}, {"1"}},
      {R"({"enum": ["a", "abc"], "maxLength": 2})", {"\"a\""}, {"\"abc\""}},
      {R"({"enum": [1, 2], "anyOf": [{"const": 2}, {"const": 3}]})", {"2"}, {"1", "3"}},
  });
}

TEST(JsonSchema, HasPropertiesInTheirOrder) {
  CheckSchemas({
      {R"({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b", "a"],
          "additionalProperties": false})",
       {R"({"b":1,"a":"x"})", "{ \"b\" :\n1 , \"a\": \"x\"\t}"},
       {"{}", R"({"b":1})", R"({"a":"x","b":1})", R"({"b":1,"a":"x","c":1})", R"({"b":"x","a":"x"})",
        R"({"b":1,"a":"x",})"}},
      {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]})",
       {R"({"b":2})", R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1,"b":2,"c":3})"},
       {"{}", R"({"a":1})", R"({"a":1,"c":3})", R"({"c":3,"b":2})", R"({"b":2,"b":2})", R"({,"b":2})"}},
      {R"({"properties": {"a": {}, "b": {}}})",
       {"{}", R"({"a":[]})", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({"b":1,"a":1})"}},
      {R"({"properties": {"a b\"é": {"const": 1}}})", {R"({"a b\"é":1})", "{}"}, {R"({"a b":1})"}},
      {R"({"type": "object", "properties": {}})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"properties": {"a": {}, "b": false}})", {"{}", R"({"a":1})"}, {R"({"b":1})"}},
      {R"({"required": ["a"], "type": "object"})", {R"({"a":[1]})"}, {"{}", R"({"a":1,"b":1})"}},
  });
}

TEST(JsonSchema, HasOtherProperties) {
  CheckSchemas({
      {R"({"properties": {"ab": {"const": 1}}, "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"ab":1})", R"({"ab":1,"x":true,"":false})", R"({"a":true})", R"({"abc":true})",
        R"({"x":true,"y":false})"},
       {R"({"x":1})", R"({"x":true,"ab":1})", R"({"ab":true})", R"({"\u0061b":true})", R"({"ab":1,"ab":true})"}},
      {R"({"additionalProperties": {"type": "integer"}})", {"{}", R"({"\u0061":1,"b":2})"}, {R"({"a":"b"})"}},
      {R"({"properties": {"a": {}}, "additionalProperties": true})", {R"({"a":1,"b":[{}]})"}, {R"({"b":1,"a":1})"}},
      {R"({"patternProperties": {"^a": {"type": "integer"}, "z$": {"type": "null"}}})",
       {"{}", R"({"a1":1,"xz":null})"},
       {R"({"b":1})", R"({"a":null})", R"({"az":1})"}},
      {R"({"properties": {"a1": {"maximum": 3}}, "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": false})",
       {R"({"a1":2})", R"({"a1":3,"a2":9})"},
       {R"({"a1":2.5})", R"({"a1":4})", R"({"b":1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"x":1})", R"({"y":1,"x":2})"},
       {R"({"z":1})"}},
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}})",
       {R"({"abc":1})"},
       {R"({"abcd":1})", R"({"A":1})"}},
      {R"({"additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 3})",
       {R"({"a":null})", R"({"a":null,"b":null,"c":null})"},
       {"{}", R"({"a":null,"b":null,"c":null,"d":null})"}},
      {R"({"type": "object", "maxProperties": 0})", {"{}"}, {R"({"a":1})"}},
  });
}

TEST(JsonSchema, HasItems) {
  CheckSchemas({
      {R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1]", "[ 1 , 2,3 ]"}, {"[\"a\"]", "[1,]", "[,1]"}},
      {R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 4})",
       {"[1,2]", "[1,2,3]", "[1,2,3,4]"},
       {"[]", "[1]", "[1,2,3,4,5]"}},
      {R"({"items": {"type": "integer"}, "minItems": 3, "maxItems": 3})", {"[1,2,3]"}, {"[1,2]", "[1,2,3,4]"}},
      {R"({"items": {"type": "integer"}, "maxItems": 1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"items": {"type": "integer"}, "minItems": 1})", {"[1]", "[1,2,3,4,5,6]"}, {"[]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}]})",
       {"[]", "[1]", "[1,\"a\"]"},
       {"[\"a\"]", "[1,\"a\",null]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2})",
       {"[1,\"a\"]"},
       {"[1]", "[1,\"a\",1]"}},
      {R"({"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 4})",
       {"[1,null]", "[1,null,null,null]"},
       {"[1]", "[null,null]", "[1,null,null,null,null]"}},
      {R"({"prefixItems": [{"type": "integer"}], "items": false})", {"[]", "[1]"}, {"[1,1]"}},
      {R"({"items": [{"type": "integer"}], "additionalItems": {"type": "null"}})", {"[1,null]"}, {"[1,1]"}},
      {R"({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true})",
       {"[]", R"(["a"])", R"(["a","c"])", R"(["a","b","c"])"},
       {R"(["a","a"])", R"(["b","a"])", R"(["d"])"}},
      {R"({"items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 2, "maxItems": 2})",
       {R"(["a","b"])", R"(["b","c"])"},
       {R"(["a"])", R"(["a","b","c"])", "[]"}},
      // Lists in lists count apart.
      {R"({"items": {"items": {"type": "integer"}, "minItems": 2, "maxItems": 2}, "minItems": 2, "maxItems": 3})",
       {"[[1,2],[3,4]]", "[[1,2],[3,4],[5,6]]"},
       {"[[1,2]]", "[[1,2],[3]]", "[[1,2],[3,4,5]]"}},
      // Two kinds of lists at once.
      {R"({"anyOf": [{"items": {"type": "integer"}, "maxItems": 2}, {"items": {"type": ["integer", "null"]}, "minItems": 3}]})",
       {"[]", "[1,2]", "[1,2,3]", "[1,null,3]"},
       {"[1,null]", "[null]"}},
  });
}

TEST(JsonSchema, HasTextsOfALength) {
  CheckSchemas({
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("é😀a")", R"("\n\u00e9")"},
       {R"("a")", R"("abcd")", R"("\n")", R"("é😀ab")"}},
      {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
      {R"({"type": "string", "minLength": 1, "maxLength": 1})", {R"("a")", R"("€")"}, {R"("")", R"("ab")"}},
      {R"({"type": "string", "minLength": 3})", {R"("abc")", R"("abcdefgh")"}, {R"("ab")"}},
      {R"({"type": "string", "maxLength": 100000})",
       {absl::StrCat("\"", std::string(100'000, 'a'), "\"")},
       {absl::StrCat("\"", std::string(100'001, 'a'), "\"")}},
      // Several at once.
      {R"({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "minLength": 3, "maxLength": 4}, {"const": "xx"}]})",
       {R"("")", R"("a")", R"("abc")", R"("abcd")", R"("xx")"},
       {R"("ab")", R"("abcde")", R"("xxxxx")"}},
  });
}

TEST(JsonSchema, HasPatternsAndFormats) {
  CheckSchemas({
      {R"({"type": "string", "pattern": "^[a-z]+$"})", {R"("abc")"}, {R"("")", R"("a1")"}},
      {R"({"type": "string", "pattern": "b.d"})", {R"("abcde")", R"("bed")"}, {R"("bd")"}},
      {R"({"type": "string", "pattern": "^[\"\\\\\\n]{2}$"})", {R"("\"\\")", R"("\n\n")"}, {R"("\"")", "\"\"\\\"\""}},
      {R"({"type": "string", "pattern": "^[^a]$"})", {R"("b")", R"("é")", R"("\t")"}, {R"("a")", R"("")"}},
      {R"({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("abc")"},
       {R"("a")", R"("abcd")", R"("AB")"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")"}, {R"("2023-02-29")"}},
      {R"({"type": "string", "format": "date-time", "pattern": "Z$"})",
       {R"("2024-02-29T01:02:03Z")"},
       {R"("2024-02-29T01:02:03+00:00")"}},
      {R"({"type": "string", "format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})",
       {R"("https://example.org/a?b=c")"},
       {R"("example")"}},
      {R"({"type": "string", "format": "password"})", {R"("x")"}, {"1"}},
  });
}

TEST(JsonSchema, HasNumbersWithinBounds) {
  CheckSchemas({
      {R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 12})", {"-3", "0", "11"}, {"-4", "12", "1.5", "-0"}},
      {R"({"type": "integer", "minimum": 0, "multipleOf": 5})", {"0", "5", "100"}, {"3", "-5"}},
      {R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})",
       {"0.5", "1", "1.0", "0.001"},
       {"0", "0.0", "1.01", "2", "-1"}},
      {R"({"type": "number", "minimum": 1e2})", {"100", "100.5", "12345"}, {"99.9", "1e3"}},
      {R"({"type": "integer", "format": "int32"})", {"2147483647", "-2147483648"}, {"2147483648"}},
      {R"({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 20}})",
       {"[1,20,3]"},
       {"[21]", "[0]", "[1,200]"}},
  });
}

TEST(JsonSchema, CombinesSchemas) {
  CheckSchemas({
      {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}}]})",
       {"1", "[null]"},
       {"null", "[1]"}},
      {R"({"oneOf": [{"const": 1}, {"const": 2}], "title": "x"})", {"1", "2"}, {"3"}},
      {R"({"anyOf": [{"properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
                     {"properties": {"k": {"const": "b"}, "v": {"type": "null"}}, "required": ["k", "v"]}]})",
       {R"({"k":"a","v":1})", R"({"k":"b","v":null})"},
       {R"({"k":"a","v":null})", R"({"k":"b","v":1})", R"({"k":"c","v":1})"}},
      {R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}, "a": {"minimum": 3}}}]})",
       {R"({"a":3})", R"({"a":4,"b":null})"},
       {R"({"a":2})", R"({"b":null})", "{}"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}, "description": "d"})", {"null"}, {"1"}},
      {R"({"properties": {"a": {"$ref": "#/definitions/p", "minimum": 3}}, "definitions": {"p": {"type": "integer"}}})",
       {R"({"a":3})"},
       {R"({"a":2})", R"({"a":3.5})"}},
  });
}

TEST(JsonSchema, MayReferToItself) {
  CheckSchemas({
      {R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
           "required": ["v", "next"], "additionalProperties": false}}, "$ref": "#/$defs/node"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})", R"({"v":1,"next":{"v":2,"next":null})"}},
      {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]", "[[}"}},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": false})",
       {"{}", R"({"a":{"a":{}}})"},
       {R"({"a":1})"}},
  });
  // Deep inside there is no room for what could not be closed again.
  const auto tree = SchemaGrammar(
      R"({"type": "object", "properties": {"l": {"type": "array", "items": {"$ref": "#"}}}, "required": ["l"]})");
  ASSERT_TRUE(tree.ok()) << tree.status();
  std::string begin, end;
  for (int i = 0; i < 16; ++i) {
    begin += "{\"l\":[";
    end += "]}";
  }
  EXPECT_TRUE(Matches(*tree, begin + end));
  EXPECT_FALSE(TextMatcher(*tree).Push(begin + "{"));
}

TEST(JsonSchema, IsRefusedByTheKeywordAndItsPlace) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"[]", {"object"}},
      {"{\"a\"", {"JSON"}},
      {R"({"properties": {"a": {"not": {}}}})", {"'not'", "#/properties/a/not"}},
      {R"({"properties": {"a/b": {"type": "text"}}})", {"'type'", "#/properties/a~1b/type"}},
      {R"({"type": "array", "uniqueItems": true})", {"'uniqueItems'", "schema at #"}},
      {R"({"if": {}})", {"'if'", "#/if"}},
      {R"({"type": "string", "format": "colour"})", {"'format'", "'colour'", "date-time"}},
      {R"({"type": "string", "pattern": "(a)\\1"})", {"'pattern'", "#/pattern", "byte 3"}},
      {R"({"type": "string", "pattern": "a^"})", {"'pattern'", "no text"}},
      {R"({"type": "number", "multipleOf": 0.1})", {"'multipleOf'", "1000"}},
      {R"({"type": "string", "minLength": "a"})", {"'minLength'", "#/minLength"}},
      {R"({"type": "string", "minLength": -1})", {"'minLength'"}},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", {"'maxLength'", "'minLength'"}},
      {R"({"items": {"type": "integer", "minimum": 3, "maximum": 2}})", {"#/items", "no number"}},
      {R"({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5})", {"no number"}},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", {"'minItems'", "'maxItems'"}},
      {R"({"properties": {"a": {"enum": ["x"], "type": "integer"}}})", {"'enum'", "#/properties/a/enum"}},
      {R"({"enum": []})", {"'enum'", "list"}},
      {R"({"properties": {"a": false}, "required": ["a"]})", {"#/properties/a", "required"}},
      {R"({"properties": {"b": {}}, "additionalProperties": false, "required": ["a"]})",
       {"#/additionalProperties", "'a'"}},
      {R"({"type": "object", "minProperties": 2})", {"'minProperties'"}},
      {R"({"properties": {"a": {"$ref": "#/$defs/b"}}})", {"'$ref'", "#/properties/a/$ref", "'$defs'"}},
      {R"({"$ref": "http://example.org/s"})", {"'$ref'", "#"}},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})",
       {"#/$defs/a", "itself"}},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}})",
       {"#/$defs/a", "itself"}},
      {R"({"$defs": {"a": {"properties": {"n": {"$ref": "#/$defs/a"}}, "required": ["n"]}}, "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]})",
       {"#", "an end", "32"}},
      {R"({"type": ["string"], "allOf": [{"type": "integer"}]})", {"types"}},
      {R"({"type": "string", "maxLength": 50000, "pattern": "a"})", {"'maxLength'", "20000"}},
      {absl::StrCat(R"({"description": ")", std::string(300'000, 'x'), "\"}"), {"bytes", "262144"}},
      {absl::StrCat("{\"items\":", std::string(70, '['), std::string(70, ']'), "}"), {"64"}},
      {absl::StrCat("{\"items\":", std::string(3, ' '), "7}"), {"'items'", "#/items"}},
  };
  for (const auto& [schema, names] : cases) {
    EXPECT_THAT(SchemaGrammar(schema).status(), Fails(absl::StatusCode::kInvalidArgument, names))
        << schema.substr(0, 300);
  }
}

TEST(JsonSchema, IsRefusedIfItIsTooLarge) {
  std::string branches;
  for (int i = 0; i < 20; ++i)
    absl::StrAppend(&branches, i == 0 ? "" : ",", R"({"anyOf": [{"type": "string"}, {"minimum": 1}]})");
  EXPECT_THAT(SchemaGrammar(absl::StrCat("{\"allOf\":[", branches, "]}")).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"combinations", "20000"}));
  // Schemas that are followed ever again.
  std::string twice = R"("a0": {"type": "null"})";
  for (int i = 1; i < 60; ++i) {
    const std::string before = absl::StrCat(R"({"$ref": "#/$defs/a)", i - 1, "\"}");
    absl::StrAppend(&twice, ", \"a", i, R"(": {"allOf": [)", before, ", ", before, "]}");
  }
  EXPECT_THAT(SchemaGrammar(absl::StrCat(R"({"$ref": "#/$defs/a59", "$defs": {)", twice, "}}")).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"steps"}));
  std::string any = "{}";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&any, ",{}");
  EXPECT_THAT(
      SchemaGrammar(absl::StrCat(R"({"enum": ["b"], "pattern": "^[ab]*a[ab]{10}$", "anyOf": [)", any, "]}")).status(),
      Fails(absl::StatusCode::kInvalidArgument, {"steps"}));
  std::string values = "0";
  for (int i = 1; i < 3000; ++i) absl::StrAppend(&values, ",", i);
  EXPECT_THAT(
      SchemaGrammar(absl::StrCat(R"({"allOf": [{"enum": [)", values, R"(]}, {"enum": [)", values, "]}]}")).status(),
      Fails(absl::StatusCode::kInvalidArgument, {"steps"}));
  std::string names;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&names, i == 0 ? "" : ",", "\"", i, "\":{}");
  EXPECT_THAT(SchemaGrammar(absl::StrCat("{\"properties\":{", names, "}}")).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"5000 names", "4096"}));
  names.clear();
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&names, i == 0 ? "" : ",", "\"", i, "\":{}");
  EXPECT_THAT(SchemaGrammar(absl::StrCat(R"({"properties":{"a":{"properties":{)", names, R"(}},"b":{"properties":{)",
                                         names, "}}}}"))
                  .status(),
              Fails(absl::StatusCode::kInvalidArgument, {"large", "524288"}));
}

// As pydantic writes it.
TEST(JsonSchema, TakesTheSchemasOfModels) {
  CheckSchemas(
      {{R"({"$defs": {"E": {"enum": ["x", "y"], "title": "E", "type": "string"}, "M": {"additionalProperties": false, "description": "doc",
    "properties": {"a": {"title": "A", "type": "integer"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "B"},
    "c": {"items": {"$ref": "#/$defs/S"}, "maxItems": 3, "minItems": 1, "title": "C", "type": "array"},
    "e": {"$ref": "#/$defs/E", "default": "x"},
    "f": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}], "title": "F", "type": "array"},
    "u": {"discriminator": {"mapping": {"s": "#/$defs/S", "t": "#/$defs/T"}, "propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/S"}, {"$ref": "#/$defs/T"}], "title": "U"},
    "dec": {"anyOf": [{"type": "number"}, {"pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "type": "string"}], "title": "Dec"},
    "url": {"format": "uri", "maxLength": 2083, "minLength": 1, "title": "Url", "type": "string"},
    "dk": {"additionalProperties": {"type": "integer"}, "default": {}, "propertyNames": {"$ref": "#/$defs/E"}, "title": "Dk", "type": "object"},
    "child": {"anyOf": [{"$ref": "#/$defs/M"}, {"type": "null"}], "default": null}, "any": {"default": null, "title": "Any"}},
    "required": ["a", "c", "f", "u", "dec"], "title": "M", "type": "object"},
    "S": {"properties": {"kind": {"const": "s", "title": "Kind", "type": "string"}, "n": {"exclusiveMaximum": 10, "minimum": 0, "multipleOf": 2, "title": "N", "type": "integer"}}, "required": ["kind", "n"], "title": "S", "type": "object"},
    "T": {"properties": {"kind": {"const": "t", "title": "Kind", "type": "string"}, "n": {"exclusiveMinimum": 0, "maximum": 1, "title": "N", "type": "number"}}, "required": ["kind", "n"], "title": "T", "type": "object"}},
    "$ref": "#/$defs/M"})",
        {R"({"a": 1, "c": [{"kind": "s", "n": 8}], "f": [1, "x"], "u": {"kind": "t", "n": 0.5}, "dec": "-1.5"})",
         R"({"a": 1, "b": null, "c": [{"kind": "s", "n": 0}, {"kind": "s", "n": 2}], "e": "y", "f": [1, "x"], "u": {"kind": "s", "n": 4}, "dec": 1e3, "url": "https://a.example/", "dk": {"x": 1}, "child": {"a": 1, "c": [{"kind": "s", "n": 8}], "f": [1, "x"], "u": {"kind": "s", "n": 8}, "dec": 1}, "any": [{}]})"},
        {R"({"a": 1, "c": [], "f": [1, "x"], "u": {"kind": "t", "n": 0.5}, "dec": "-1.5"})",
         R"({"a": 1, "c": [{"kind": "s", "n": 8}], "f": [1, "x"], "u": {"kind": "t", "n": 4}, "dec": "-1.5"})",
         R"({"a": 1, "c": [{"kind": "s", "n": 8}], "f": [1, "x"], "u": {"kind": "s", "n": 4}, "dec": "x"})"}}});
}

}  // namespace
}  // namespace tdock::inference
