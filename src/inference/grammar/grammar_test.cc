#include "inference/grammar/grammar.h"

#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "inference/grammar/testing/text_matcher.h"
#include "nlohmann/json.hpp"

namespace tdock::inference {
namespace {

using Kind = GrammarSpec::Kind;

bool IsObject(const std::string& text) { return Matches(CompileGrammar({}).value(), text); }

TEST(JsonObject, TakesObjects) {
  for (const char* text :
       {"{}", " {\n}", R"({"a": 1})", R"({"a":[1,-0.5e+3,0,10E9],"b":{"c":null,"d":[true,false,[]]}})",
        R"({"\u00e9\n\"":"é€😀\\\/"})", R"({"a" : "" , "b" : [ ] })", R"({"a":0.0,"b":-0,"c":1e5})"}) {
    EXPECT_TRUE(IsObject(text)) << text;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
}

TEST(JsonObject, TakesNothingElse) {
  for (const char* text : {"",
                           "[]",
                           "1",
                           "{",
                           "{}}",
                           "{} ",
                           "{1:2}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":1,})",
                           R"({"a":[1,]})",
                           R"({"a":01})",
                           R"({"a":+1})",
                           R"({"a":1.})",
                           R"({"a":.5})",
                           R"({"a":1e})",
                           R"({"a":tru})",
                           R"({"a":truee})",
                           R"({"a":"\x"})",
                           R"({"a":"\u12g4"})",
                           R"({"a":"\ud800"})",
                           R"({"a":"\uDFff"})",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\xff\"}",
                           "{\"a\":\"\xc3\"}",
                           "{\"a\":\"\xed\xa0\x80\"}",
                           "{\"a\":\"\xc0\x80\"}",
                           "{\"a\":\"\xf4\x90\x80\x80\"}",
                           R"({"a":[1}})",
                           R"({"a" 1})"}) {
    EXPECT_FALSE(IsObject(text)) << text;
  }
}

TEST(JsonObject, BoundsWhatAModelCouldRepeatForEver) {
  for (const char* const place :
       {"%{}", "{%}", "{%\"a\":1}", "{\"a\"%:1}", "{\"a\":%1}", "{\"a\":1%}", "{\"a\":1%,\"b\":[]}",
        "{\"a\":1,%\"b\":[]}", "{\"a\":[%]}", "{\"a\":[1%,2]}", "{\"a\":[1,%2]}"}) {
    const auto with = [&](const std::string& blanks) {
      std::string text = place;
      return text.replace(text.find('%'), 1, blanks);
    };
    for (const char* const blanks : {"", " ", "\n\t", "\r\n"}) EXPECT_TRUE(IsObject(with(blanks))) << with(blanks);
    EXPECT_FALSE(IsObject(with("   "))) << place;
  }
  const auto nested = [](size_t lists) { return "{\"a\":" + std::string(lists, '[') + std::string(lists, ']') + "}"; };
  EXPECT_TRUE(IsObject(nested(31)));
  EXPECT_FALSE(IsObject(nested(32)));
  const auto number = [](size_t digits) { return "{\"a\":" + std::string(digits, '1') + "}"; };
  EXPECT_TRUE(IsObject(number(32)));
  EXPECT_FALSE(IsObject(number(33)));
}

// Whatever is put together from bytes that are accepted is JSON as nlohmann reads it.
TEST(JsonObject, AgreesWithAParserOnRandomTexts) {
  std::mt19937 random(1);
  const std::string alphabet = "{}[]\":,\\ue0129.-+Etrfalsn \n\xc3\xa9\xe2\x82\xac";
  const TextMatcher empty(CompileGrammar({}).value());
  int complete = 0;
  for (int round = 0; round < 2000; ++round) {
    TextMatcher matcher = empty;
    std::string text;
    for (int i = 0; i < 3000 && !matcher.complete(); ++i) {
      TextMatcher next = matcher;
      const char byte = alphabet[random() % alphabet.size()];
      if (!next.Push(absl::string_view(&byte, 1))) continue;
      matcher = next;
      text += byte;
    }
    if (!matcher.complete()) continue;
    ++complete;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
  EXPECT_GT(complete, 500);
}

TEST(Choices, AreTakenAsTheyAre) {
  const auto grammar =
      CompileGrammar({.kind = Kind::kChoices, .choices = {"yes", "yes, it is", "{\"a", "né", "", "no"}}).value();
  for (const char* const text : {"yes", "yes, it is", "{\"a", "né", "", "no"})
    EXPECT_TRUE(Matches(grammar, text)) << text;
  for (const char* const text : {"y", "yes,", "no ", " no", "{\"a\"}"}) EXPECT_FALSE(Matches(grammar, text)) << text;
  TextMatcher matcher(grammar);
  ASSERT_TRUE(matcher.Push("yes"));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_FALSE(matcher.complete());
  ASSERT_TRUE(matcher.Push(", it is"));
  EXPECT_TRUE(matcher.complete());
  EXPECT_THAT(CompileGrammar({.kind = Kind::kChoices}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"choices"}));
}

TEST(Patterns, AreMatchedAsAWhole) {
  const auto grammar = CompileGrammar({.kind = Kind::kRegex, .text = R"(\d{3}-[a-cé]+|\{x?\}"😀)"}).value();
  for (const char* const text : {"123-a", "007-éab", "{}\"😀", "{x}\"😀"}) EXPECT_TRUE(Matches(grammar, text)) << text;
  for (const char* const text : {"", "12-a", "123-", "123-ad", "{}", "{}\"\xf0\x9f\x98\x81", "123-a{}"}) {
    EXPECT_FALSE(Matches(grammar, text)) << text;
  }
  EXPECT_THAT(CompileGrammar({.kind = Kind::kRegex, .text = "a^b"}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"pattern"}));
  EXPECT_THAT(CompileGrammar({.kind = Kind::kRegex, .text = "a(b"}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"byte 1"}));
}

CallRule AddRule() {
  return {.name = "add", .parameters = R"({"properties": {"a": {"type": "integer"}}, "required": ["a"]})"};
}

TEST(Calls, HaveTheNamesAndTheArgumentsOfTheirFunctions) {
  GrammarSpec spec{.kind = Kind::kCalls, .calls = {AddRule(), {.name = "st\"op"}}};
  spec.before_call = "<tool_call>\n";
  spec.after_call = "\n</tool_call>";
  spec.between_calls = "\n";
  const std::string add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 12}}\n</tool_call>";
  const std::string stop = "<tool_call>\n{\"name\": \"st\\\"op\", \"arguments\": {\"x\": [1]}}\n</tool_call>";
  const auto several = CompileGrammar(spec).value();
  for (const std::string& text : {add, stop, add + "\n" + stop, stop + "\n" + stop + "\n" + add}) {
    EXPECT_TRUE(Matches(several, text)) << text;
  }
  for (const std::string& text :
       {std::string(), add + "\n", add + stop, std::string("{\"name\": \"add\", \"arguments\": {\"a\": 1}}"),
        std::string("<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"sub\", \"arguments\": {\"a\": 1}}\n</tool_call>")}) {
    EXPECT_FALSE(Matches(several, text)) << text;
  }
  spec.one_call = true;
  const auto one = CompileGrammar(spec).value();
  EXPECT_TRUE(Matches(one, add));
  EXPECT_FALSE(Matches(one, add + "\n" + stop));
}

TEST(Calls, HaveTextAroundAllOfThem) {
  GrammarSpec spec{.kind = Kind::kCalls, .calls = {AddRule()}};
  spec.before_calls = "[TOOL_CALLS][";
  spec.between_calls = ", ";
  spec.after_calls = "]";
  const auto grammar = CompileGrammar(spec).value();
  const std::string call = "{\"name\": \"add\", \"arguments\": {\"a\":-1}}";
  EXPECT_TRUE(Matches(grammar, "[TOOL_CALLS][" + call + "]"));
  EXPECT_TRUE(Matches(grammar, "[TOOL_CALLS][" + call + ", " + call + "]"));
  EXPECT_FALSE(Matches(grammar, "[TOOL_CALLS][" + call));
  EXPECT_FALSE(Matches(grammar, "[TOOL_CALLS][]"));
}

TEST(Calls, TakeSpecialTokensOnlyAsSuch) {
  GrammarSpec spec{.kind = Kind::kCalls, .calls = {AddRule()}};
  spec.calls[0].before = "<|call|>add<|sep|>";
  spec.calls[0].after = "<|sep|>.";
  spec.special_tokens = {"<|call|>", "<|sep|>", "<|"};
  TextMatcher matcher(CompileGrammar(spec).value());
  EXPECT_FALSE(TextMatcher(matcher).Push("<"));
  EXPECT_FALSE(TextMatcher(matcher).Push("<|sep|>", /*special=*/true));
  ASSERT_TRUE(matcher.Push("<|call|>", /*special=*/true));
  EXPECT_FALSE(TextMatcher(matcher).Push("add", /*special=*/true));
  ASSERT_TRUE(matcher.Push("add"));
  ASSERT_TRUE(matcher.Push("<|sep|>", /*special=*/true));
  ASSERT_TRUE(matcher.Push("{\"a\":1"));
  EXPECT_FALSE(TextMatcher(matcher).Push("<|sep|>", /*special=*/true));
  ASSERT_TRUE(matcher.Push("}"));
  ASSERT_TRUE(matcher.Push("<|sep|>", /*special=*/true));
  ASSERT_TRUE(matcher.Push("."));
  EXPECT_TRUE(matcher.may_end());
}

TEST(Calls, HaveArgumentsBetweenTags) {
  GrammarSpec spec{.kind = Kind::kCalls, .one_call = true};
  spec.calls = {{.name = "f", .parameters = R"({"properties": {"city": {"type": "string"}, "days": {"type": "integer"},
      "unit": {"enum": ["C", "F"]}, "more": {"type": "array", "items": {"type": "string"}}}, "required": ["city", "unit"]})"}};
  spec.calls[0].before = "<function=f>\n";
  spec.calls[0].after = "</function>";
  spec.tags = ArgumentTags{"<parameter=", ">\n", "\n</parameter>\n"};
  const auto grammar = CompileGrammar(spec).value();
  const auto argument = [](const std::string& name, const std::string& value) {
    return absl::StrCat("<parameter=", name, ">\n", value, "\n</parameter>\n");
  };
  const auto call = [](const std::string& arguments) { return "<function=f>\n" + arguments + "</function>"; };
  for (const std::string& arguments :
       {argument("city", "São \"Paulo\"\n{x") + argument("unit", "C"),
        argument("city", "") + argument("days", "12") + argument("unit", "F") + argument("more", R"(["a", "b"])")}) {
    EXPECT_TRUE(Matches(grammar, call(arguments))) << arguments;
  }
  for (const std::string& arguments :
       {argument("city", "a"), argument("unit", "C"), argument("city", "a") + argument("unit", "K"),
        argument("city", "a") + argument("days", "x") + argument("unit", "C"),
        argument("city", "a\n</parameter>\nb") + argument("unit", "C")}) {
    EXPECT_FALSE(Matches(grammar, call(arguments))) << arguments;
  }
}

TEST(Calls, BetweenTagsAreRefusedWhereTheirSchemaSaysMoreThanNames) {
  for (const std::string keyword :
       {R"("anyOf": [{}])", R"("minProperties": 1)", R"("const": {})", R"("type": "string")"}) {
    GrammarSpec spec{.kind = Kind::kCalls, .calls = {{.name = "f", .parameters = absl::StrCat("{", keyword, "}")}}};
    spec.tags = ArgumentTags{"<", ">", "</>"};
    EXPECT_THAT(CompileGrammar(spec).status(), Fails(absl::StatusCode::kInvalidArgument, {"\"f\"", "#"})) << keyword;
  }
}

TEST(Calls, AreRefusedWhereTheyCannotBeToldApartOrMade) {
  EXPECT_THAT(CompileGrammar({.kind = Kind::kCalls}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"functions"}));
  const auto refused = [](std::vector<CallRule> calls) {
    return CompileGrammar({.kind = Kind::kCalls, .calls = std::move(calls)}).status();
  };
  EXPECT_THAT(refused({{.name = "f", .before = "call "}, {.name = "g", .before = "call {"}}),
              Fails(absl::StatusCode::kInvalidArgument, {"\"f\"", "\"g\""}));
  EXPECT_THAT(
      refused({{.name = "f"}, {.name = "g", .parameters = R"({"required": ["a"], "properties": {"a": false}})"}}),
      Fails(absl::StatusCode::kInvalidArgument, {"\"g\"", "#/properties/a"}));
  EXPECT_THAT(refused({{.name = "g", .parameters = R"({"type": "string"})"}}),
              Fails(absl::StatusCode::kInvalidArgument, {"\"g\"", "types"}));
  EXPECT_THAT(refused({{.name = "g", .parameters = "[]"}}), Fails(absl::StatusCode::kInvalidArgument, {"\"g\""}));
}

TEST(Calls, ShareOneLimit) {
  CallRule rule{.parameters = R"({"properties": {"a": {"type": "string", "pattern": "^[ab]*a[ab]{10}$"}}})"};
  std::vector<CallRule> calls;
  for (int i = 0; i < 2000; ++i) {
    rule.name = absl::StrCat("f", 1000 + i);
    calls.push_back(rule);
  }
  const auto compile = [](std::vector<CallRule> some) {
    return CompileGrammar({.kind = Kind::kCalls, .calls = std::move(some)}).status();
  };
  EXPECT_TRUE(compile({calls[0], calls[1]}).ok());
  EXPECT_THAT(compile(calls), Fails(absl::StatusCode::kInvalidArgument, {"\"f1", "steps"}));
}

TEST(CompileGrammar, TakesTimeInProportionToTheSchema) {
  ExpectLinear(
      [](int64_t n) {
        nlohmann::ordered_json schema = {{"type", "object"}, {"additionalProperties", false}};
        for (int64_t i = 0; i < n; ++i) {
          nlohmann::ordered_json& value = schema["properties"][absl::StrCat("p", i)];
          if (i % 3 == 0) value = {{"type", "string"}, {"maxLength", i + 1}};
          if (i % 3 == 1) value = {{"anyOf", {{{"type", "null"}}, {{"$ref", "#/properties/p0"}}}}};
          if (i % 3 == 2) value = {{"type", "array"}, {"items", {{"enum", {i, "x"}}}}};
          schema["required"].push_back(absl::StrCat("p", i));
        }
        EXPECT_TRUE(CompileGrammar({.kind = Kind::kJsonSchema, .text = schema.dump()}).ok());
      },
      60);
}

}  // namespace
}  // namespace tdock::inference
