#include "text/turn_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "text/call_form.h"

namespace tdock::text {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<Turn> Read(absl::string_view json) { return ReadTurn(ReadOrderedJson(json)); }

std::string FieldsOf(absl::string_view json) {
  const absl::StatusOr<Turn> turn = Read(json);
  return turn.ok() ? turn->fields : std::string(turn.status().message());
}

TEST(ReadTurn, KnowsBothNamesOfRolesAndContents) {
  const auto expect = [](absl::string_view json, const Turn& turn) {
    const absl::StatusOr<Turn> read = Read(json);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, turn) << json;
  };
  expect(R"({"role": "user", "content": "Hi"})", {Role::kUser, "Hi"});
  expect(R"({"from": "human", "value": "Hi"})", {Role::kUser, "Hi"});
  expect(R"({"from": "gpt", "value": "", "role": null, "content": null})", {Role::kAssistant, ""});
  expect(R"({"from": "observation", "value": "4"})", {Role::kTool, "4"});
  expect(R"({"role": "function", "content": "4", "name": "f"})",
         {.role = Role::kFunction, .content = "4", .fields = R"({"name":"f"})"});
  expect(R"({"role": "assistant", "content": "a", "train": false, "tool_calls": null, "meta": {}, "refusal": null})",
         {.role = Role::kAssistant, .content = "a", .train = false});
}

TEST(ReadTurn, JoinsPartsThatAreText) {
  EXPECT_EQ(
      Read(R"({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": " b", "type": "text"}]})")->content,
      "a b");
  EXPECT_EQ(Read(R"({"role": "user", "content": []})")->content, "");
  const auto expect = [](absl::string_view part, std::vector<std::string> names) {
    EXPECT_THAT(
        Read(absl::StrCat(R"({"role": "user", "content": [{"type": "text", "text": "a"}, )", part, "]}")).status(),
        Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect(R"({"type": "image_url", "image_url": {"url": "x"}})", {"part 2", "\"content\"", "\"image_url\"", "\"text\""});
  expect(R"("bare")", {"part 2", "text;"});
  expect(R"({"type": "text"})", {"part 2", "\"text\"", "missing"});
  expect(R"({"type": "text", "text": "a", "image": "x"})", {"part 2", "\"image\""});
}

TEST(ReadTurn, NamesTheKeyThatIsWrong) {
  const auto expect = [](absl::string_view json, std::vector<std::string> names) {
    EXPECT_THAT(Read(json).status(), Fails(absl::StatusCode::kInvalidArgument, std::move(names))) << json;
  };
  expect("[1]", {"a list;", "\"role\"", "\"content\""});
  expect(R"({"content": "a"})", {"\"role\" (or \"from\")", "missing"});
  expect(R"({"role": 1, "content": "a"})", {"\"role\"", "a number;"});
  expect(R"({"role": "robot", "content": "a"})", {"\"robot\"", "assistant", "observation"});
  expect(R"({"role": "user"})", {"\"content\" (or \"value\")", "missing"});
  expect(R"({"role": "tool", "content": null, "name": "f"})", {"\"content\"", "missing"});
  expect(R"({"role": "assistant", "content": null})", {"\"content\"", "missing"});
  expect(R"({"role": "user", "content": {"a": 1}})", {"\"content\"", "an object;"});
  expect(R"({"role": "user", "from": "gpt", "content": "a"})", {"\"role\" and \"from\""});
  expect(R"({"role": "user", "content": "a", "value": "b"})", {"\"content\" and \"value\""});
  expect(R"({"role": "user", "content": "a", "train": 1})", {"\"train\"", "a number;", "false"});
  const auto call = [](absl::string_view calls) {
    return absl::StrCat(R"({"role": "assistant", "tool_calls": )", calls, "}");
  };
  expect(call("\"f\""), {"\"tool_calls\"", "text;", "a list"});
  expect(call(R"([{"name": "f"}, 1])"), {"call 2", "a number;"});
  expect(call(R"([{"id": "1"}])"), {"call 1", "\"name\"", "missing"});
  expect(call(R"([{"function": {"name": 3}}])"), {"call 1", "\"name\"", "a number;"});
  expect(call(R"([{"function": "f"}])"), {"call 1", "\"function\"", "text;"});
  expect(call(R"([{"name": "f", "arguments": [1]}])"), {"call 1", "\"arguments\"", "a list;", "an object"});
  const auto turns = ReadTurns(ReadOrderedJson(R"([{"role": "user", "content": "a"}, {"role": "user"}])"));
  EXPECT_THAT(turns.status(), Fails(absl::StatusCode::kInvalidArgument, {"turn 2", "\"content\""}));
}

TEST(ReadTurn, CallsHaveOneForm) {
  constexpr char kCall[] =
      R"({"tool_calls":[{"type":"function","function":{"name":"f","arguments":{"b":1,"a":"é"}}}]})";
  for (
      const char* call : {
          R"({"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "é"}}})",
          R"({"function": {"arguments": "{\"b\": 1,\n \"a\": \"\\u00e9\"}", "name": "f"}, "type": "function"})",
          R"({"name": "f", "arguments": {"b": 1, "a": "é"}})",
          R"({"arguments": "{\"b\":1,\"a\":\"é\"}", "name": "f", "id": null})",
          R"({"function": {"name": "f", "arguments": "{\"b\":1,\"a\":\"é\"}", "parsed_arguments": {"b": 1}}, "id": ""})",
      }) {
    EXPECT_EQ(FieldsOf(absl::StrCat(R"({"role": "assistant", "content": null, "tool_calls": [)", call, "]}")), kCall);
  }
  EXPECT_EQ(
      FieldsOf(R"({"role": "assistant", "tool_calls": [{"index": 0, "name": "f", "id": "c1", "arguments": " "}]})"),
      R"({"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{}},"index":0}]})");
  EXPECT_EQ(FieldsOf(R"({"role": "assistant", "function_call": {"name": "f", "arguments": "{\"a\": 1}"}})"),
            R"({"function_call":{"name":"f","arguments":{"a":1}}})");
}

TEST(ReadTurn, ArgumentsThatAnObjectWouldChangeStayText) {
  for (const char* text : {"{\\\"a\\\": ", "[1]", "\\\"f\\\"", "{\\\"a\\\": 123456789012345678901}",
                           "{\\\"a\\\": 1, \\\"a\\\": 2}", "{\\\"a\\\": NaN}"}) {
    const std::string fields =
        FieldsOf(absl::StrCat(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": ")", text, "\"}]}"));
    EXPECT_THAT(fields, HasSubstr(absl::StrCat("\"arguments\":\"", text, "\"")));
  }
  const std::string deep = absl::StrCat(std::string(1000, '['), std::string(1000, ']'));
  EXPECT_THAT(FieldsOf(absl::StrCat(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{\"a\": )",
                                    deep, "}\"}]}")),
              HasSubstr("\"arguments\":\"{"));
}

TEST(ReadTurn, ArgumentsWithNumbersOfAnySizeAreAnObject) {
  EXPECT_EQ(FieldsOf(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments":
      "{\"a\": 6.022e23, \"b\": 1E-7, \"c\": -9223372036854775808, \"d\": 18446744073709551615}"}]})"),
            R"({"tool_calls":[{"type":"function","function":{"name":"f","arguments":)"
            R"({"a":6.022e+23,"b":1e-07,"c":-9223372036854775808,"d":18446744073709551615}}}]})");
}

TEST(ReadTurn, TakesTimeThatGrowsWithTheLengthOfArgumentsAlone) {
  for (const char* const unit : {"{}, ", "[[]], ", "{\"a\": 1, \"b\": {}}, "}) {
    ExpectLinear(
        [unit](int64_t n) {
          std::string text = "{\"a\": [";
          for (int64_t i = 0; i < n; ++i) text += unit;
          EXPECT_EQ(ObjectOfArguments(text + "0]}")["a"].size(), static_cast<size_t>(n) + 1);
        },
        4000);
  }
  std::string many = "{";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&many, "\"", i, "\": 0, ");
  EXPECT_TRUE(ObjectOfArguments(many + "\"a\": 0}").is_discarded());
}

TEST(ReadTurn, TurnsComeBackFromTheirJson) {
  for (const char* json :
       {R"({"role":"user","content":"a"})", R"({"role":"assistant","content":"","name":"x"})",
        R"({"role":"assistant","reasoning_content":"hm"})",
        R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]})"}) {
    EXPECT_EQ(JsonText(JsonOfTurn(*Read(json))), json);
  }
}

// ---- Calls in templates.

constexpr char kQwen[] = R"({%- for m in messages %}{{ '<' + m.role + '>' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}{%- endfor %})";
constexpr char kQwen3[] = R"({%- for m in messages %}{{ '<' + m.role + '>' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}{{ c.function.name + ' ' }}
{%- if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}
{%- endfor %}{%- endfor %})";
constexpr char kLlama[] = R"({%- for m in messages %}{% if 'tool_calls' in m %}
{%- if m.tool_calls|length != 1 %}{{ raise_exception('only one call') }}{% endif %}{%- set c = m.tool_calls[0].function %}
{{- '{"name": "' + c.name + '", ' + '"parameters": ' }}{{ c.arguments | tojson }}{{ "}" }}
{%- else %}{{ '<' + m.role + '>' + m.content }}{% endif %}{%- endfor %})";
constexpr char kMistral[] = R"({%- for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}[TOOL_CALLS] [
{%- for c in m.tool_calls %}{%- set out = c.function | tojson %}{{ out[:-1] }}
{%- if not c.id is defined or c.id|length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}
{{- ', "id": "' + c.id + '"}' }}{% endfor %}]
{%- else %}{{ '<' + m.role + '>' + m.content }}{% endif %}{%- endfor %})";
constexpr char kDeepSeek[] = R"({%- for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}
{%- for c in m['tool_calls'] %}{{ '<call>' + c['type'] + '<sep>' + c['function']['name'] + '\n```json\n' + c['function']['arguments'] + '\n```' }}{% endfor %}
{%- else %}{{ '<' + m.role + '>' + m.content }}{% endif %}{%- endfor %})";
constexpr char kGlm[] = R"({%- for m in messages %}{{ '<' + m.role + '>' }}{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name }}
{%- for k, v in c.function.arguments.items() %}{{ '<key>' + k + '</key><value>' }}{{ v | tojson if v is not string else v }}{{ '</value>' }}{% endfor %}
{%- endfor %}{%- endfor %})";

std::string Shown(absl::string_view jinja, absl::string_view messages) {
  const absl::StatusOr<ChatTemplate> form = ChatTemplate::Parse(jinja);
  if (!form.ok()) return std::string(form.status().message());
  const absl::StatusOr<std::vector<Turn>> turns = ReadTurns(ReadOrderedJson(messages));
  if (!turns.ok()) return std::string(turns.status().message());
  const auto rendered = form->Render(*turns, {}, false, {.bos = "<s>", .eos = "</s>"});
  return rendered.ok() ? rendered->text : std::string(rendered.status().message());
}

std::string Asked(absl::string_view turn) { return absl::StrCat(R"([{"role": "user", "content": "W?"}, )", turn, "]"); }

TEST(ToolCalls, AreRenderedAlikeWhateverTheirFormInTheData) {
  constexpr char kObject[] = R"({"city": "Paris", "n": 2})";
  constexpr char kText[] = R"("{\"city\":\"Paris\",\"n\":2}")";
  const struct {
    const char* jinja;
    const char* expected;
  } cases[] = {
      {kQwen,
       "<user>W?<assistant><tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Paris\", \"n\": 2}}\n"
       "</tool_call>"},
      {kQwen3, "<user>W?<assistant>get {\"city\": \"Paris\", \"n\": 2}"},
      {kLlama, "<user>W?{\"name\": \"get\", \"parameters\": {\"city\": \"Paris\", \"n\": 2}}"},
      {kMistral,
       "<user>W?[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"city\": \"Paris\", \"n\": 2}, \"id\": "
       "\"abcdefgh1\"}]"},
      {kDeepSeek, "<user>W?<call>function<sep>get\n```json\n{\"city\": \"Paris\", \"n\": 2}\n```"},
      {kGlm, "<user>W?<assistant><tool_call>get<key>city</key><value>Paris</value><key>n</key><value>2</value>"}};
  for (const auto& [jinja, expected] : cases) {
    for (const char* content : {R"("content": null, )", R"("content": "", )", R"("content": [], )", ""}) {
      for (const char* arguments : {kObject, kText}) {
        const std::string function = absl::StrCat(R"("name": "get", "arguments": )", arguments);
        for (const std::string& call :
             {absl::StrCat(R"({"id": "abcdefgh1", "type": "function", "function": {)", function, "}}"),
              absl::StrCat(R"({"id": "abcdefgh1", )", function, "}")}) {
          EXPECT_EQ(
              Shown(jinja, Asked(absl::StrCat(R"({"role": "assistant", )", content, R"("tool_calls": [)", call, "]}"))),
              expected);
        }
      }
    }
  }
}

TEST(ToolCalls, AreLookedForInTimeThatGrowsWithTheirNumberAlone) {
  ExpectLinear(
      [](int64_t n) {
        std::vector<std::vector<std::string>> names;
        std::string text;
        for (int64_t i = 0; i < n; ++i) {
          names.push_back({absl::StrCat("f", i), absl::StrCat("id", i)});
          absl::StrAppend(&text, "<f", i, ">");
        }
        EXPECT_TRUE(ShowsCalls(names, text));
      },
      4000);
}

TEST(ToolCalls, ArgumentsThatAreNoObjectAreOnlyRenderedAsTheyAre) {
  const std::string broken =
      Asked(R"({"role": "assistant", "tool_calls": [{"id": "abcdefgh1", "name": "get", "arguments": "{\"city"}]})");
  EXPECT_THAT(Shown(kQwen3, broken), HasSubstr("get {\"city"));
  EXPECT_THAT(Shown(kDeepSeek, broken), HasSubstr("```json\n{\"city\n```"));
  for (const char* jinja : {kQwen, kLlama, kMistral, kGlm}) {
    EXPECT_THAT(Shown(jinja, broken), Mentions({"turn 2", "call 1", "\"arguments\"", "{\\\"city", "chat_template"}));
  }
}

TEST(ToolCalls, KeysThatATemplateWouldLeaveOutAreRefused) {
  const auto turn = [](absl::string_view of_call, absl::string_view of_function) {
    return Asked(absl::StrCat(R"({"role": "assistant", "tool_calls": [{"id": "abcdefgh1", "index": 0)", of_call,
                              R"(, "function": {"name": "get", "arguments": {})", of_function, "}}]}"));
  };
  for (const char* jinja : {kQwen, kQwen3, kLlama, kDeepSeek, kGlm, kMistral}) {
    EXPECT_THAT(Shown(jinja, turn("", "")), Not(HasSubstr("leave out")));
    EXPECT_THAT(Shown(jinja, turn(R"(, "why": "x")", "")), Mentions({"turn 2", "call 1", "\"why\"", "leave out"}));
  }
  EXPECT_THAT(Shown(kQwen, turn("", R"(, "strict": true)")), Mentions({"turn 2", "call 1", "\"strict\"", "leave out"}));
  EXPECT_THAT(Shown(kMistral, turn("", R"(, "strict": true)")), HasSubstr("\"strict\": true"));
  EXPECT_THAT(Shown("{% for m in messages if m.tool_calls %}{{ m.tool_calls | tojson }}{% endfor %}",
                    turn(R"(, "why": "x")", "")),
              HasSubstr("\"why\": \"x\""));
}

TEST(Reasoning, HasTheNameThatTheTemplateReads) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string turns = Asked(absl::StrCat(R"({"role": "assistant", "content": "a", ")", name, R"(": "hm"})"));
    for (const char* read : {"m.reasoning_content", "m['thinking']", "m.get('reasoning')"}) {
      EXPECT_EQ(Shown(absl::StrCat("{% for m in messages %}{{ ", read, " or '' }}{% endfor %}"), turns), "hm");
    }
    EXPECT_THAT(Shown("{% for m in messages %}Use reasoning. {{ m.content }}{% endfor %}", turns),
                Mentions({"turn 2", absl::StrCat("\"", name, "\""), "leave out"}));
  }
}

}  // namespace
}  // namespace tdock::text
