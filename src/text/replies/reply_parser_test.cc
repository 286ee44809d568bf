// Replies in every form: what they are read as, however they are cut into pieces.
#include "text/replies/reply_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "text/replies/testing/reply_samples.h"

namespace tdock::text {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(ReplyParser, ReadsEveryForm) {
  for (const ReplySample& sample : ReplySamples()) {
    const ParsedReply reply = ParseReply(sample.form, sample.text, sample.options);
    SCOPED_TRACE(absl::StrCat(NameOf(sample.form), ": ", sample.text));
    EXPECT_EQ(reply.reasoning, sample.expected.reasoning);
    EXPECT_EQ(reply.content, sample.expected.content);
    EXPECT_THAT(reply.broken, IsEmpty());
    ASSERT_EQ(reply.calls.size(), sample.expected.calls.size());
    for (size_t i = 0; i < reply.calls.size(); ++i) EXPECT_EQ(reply.calls[i], sample.expected.calls[i]);
  }
}

TEST(ReplyParser, ReadsTheSameInAnyPiecesAndOfAnyBeginning) {
  Rng rng(1);
  for (const ReplySample& sample : ReplySamples()) {
    for (size_t bytes = 0; bytes <= sample.text.size(); ++bytes) {
      const std::string text = sample.text.substr(0, bytes);
      SCOPED_TRACE(absl::StrCat(NameOf(sample.form), ": ", text));
      CheckInPieces(sample.form, text, sample.options, rng);
    }
    CheckInPieces(sample.form, sample.text, sample.options, rng, /*most=*/1);
  }
}

TEST(ReplyParser, RandomCallsComeBack) {
  Rng rng(2);
  for (const CallWriter& writer : CallWriters()) {
    for (int i = 0; i < 60; ++i) {
      const std::vector<RandomCall> calls = RandomCalls(rng, writer);
      const std::string text = writer.write(calls);
      SCOPED_TRACE(absl::StrCat(NameOf(writer.form), ": ", text));
      const ReplyOptions options{.tools = ToolsOf(calls)};
      const ParsedReply reply = ParseReply(writer.form, text, options);
      EXPECT_THAT(reply.broken, IsEmpty());
      ASSERT_EQ(reply.calls.size(), calls.size());
      for (size_t c = 0; c < calls.size(); ++c) {
        EXPECT_EQ(reply.calls[c].name, calls[c].name);
        EXPECT_EQ(ReadJson(reply.calls[c].arguments), ReadJson(JsonText(calls[c].arguments)));
      }
      CheckInPieces(writer.form, text, options, rng);
    }
  }
}

TEST(ReplyParser, TellsWhatIsWrongWithACallAndKeepsItsText) {
  struct BrokenReply {
    ReplyForm form;
    std::string text;
    std::vector<std::string> names;
    size_t calls = 0;  // that can be read
  };
  const std::vector<BrokenReply> cases = {
      {ReplyForm::kHermes, "<tool_call>now()</tool_call>", {"now()", "not JSON"}},
      {ReplyForm::kHermes, "<tool_call>[]</tool_call>", {"object"}},
      {ReplyForm::kHermes, "<tool_call>{}</tool_call>", {"no \"name\""}},
      {ReplyForm::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", {"arguments", "not JSON"}},
      {ReplyForm::kHermes, "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>", {"'name'"}},
      {ReplyForm::kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"parameters\": {}}</tool_call>",
       {"\"arguments\" and \"parameters\""}},
      {ReplyForm::kHermes, "<tool_call>{\"name\": \"f\"}", {"no </tool_call>"}},
      {ReplyForm::kHermes, "Well</tool_call>", {"no <tool_call> before it"}},
      {ReplyForm::kHermes,
       "<tool_call>{\"name\": \"f\"}<tool_call>{\"name\": \"g\"}</tool_call>",
       {"followed by </tool_call>"},
       1},
      {ReplyForm::kLlama3, "<|python_tag|>print(1)", {"print(1)", "not JSON"}},
      {ReplyForm::kLlama3, "{\"name\": \"f\", \"parameters\": {\"a\": 1]}", {"not JSON"}},
      {ReplyForm::kMistral, "[TOOL_CALLS][{\"name\": \"f\"} {\"name\": \"g\"}]", {"no ]"}, 1},
      {ReplyForm::kMistral, "[TOOL_CALLS]a b[ARGS]{}", {"\"a b\""}},
      {ReplyForm::kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": }", {"arguments", "not JSON"}},
      {ReplyForm::kDeepSeek, "<｜tool▁calls▁begin｜>f<｜tool▁calls▁end｜>", {"no <｜tool▁call▁begin｜>"}},
      {ReplyForm::kDeepSeek, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", {"no <｜tool▁call▁end｜>"}},
      {ReplyForm::kDeepSeek,
       "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"no\">",
       {"string="}},
      {ReplyForm::kHarmony,
       "<|channel|>commentary to=functions.f<|message|>{\"a\": 1<|call|>",
       {"arguments", "not JSON"}},
      {ReplyForm::kGlm, "<tool_call>f<arg_value>1</arg_value></tool_call>", {"<arg_key>", "</tool_call>"}},
      {ReplyForm::kGlm,
       "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></"
       "tool_call>",
       {"\"a\" twice"}},
      {ReplyForm::kGemma, "<|tool_call>call:f{a:x}<tool_call|>", {"\"x\"", "no value"}},
      {ReplyForm::kGemma, "<start_function_call>f{}<end_function_call>", {"no call:"}},
      {ReplyForm::kQwenCoder, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</tool_call>", {"no </function>"}},
  };
  Rng rng(3);
  for (const BrokenReply& one : cases) {
    SCOPED_TRACE(absl::StrCat(NameOf(one.form), ": ", one.text));
    const ParsedReply reply = ParseReply(one.form, absl::StrCat("Hm. ", one.text));
    const ParsedReply alone = ParseReply(one.form, one.text);
    EXPECT_EQ(alone.calls.size(), one.calls);
    ASSERT_EQ(alone.broken.size(), 1U);
    EXPECT_THAT(alone.broken[0], Mentions(one.names));
    if (one.calls == 0) {
      EXPECT_EQ(alone.content, one.text);
    }
    EXPECT_THAT(reply.content, HasSubstr("Hm."));
    CheckInPieces(one.form, one.text, {}, rng);
  }
}

TEST(ReplyParser, TextThatCallsNothingIsTextAsItIs) {
  const std::vector<std::pair<ReplyForm, std::string>> said = {
      {ReplyForm::kPlain, " <tool_call>{\"name\": \"f\"}</tool_call> \n"},
      {ReplyForm::kHermes, " 1 < 2, <tool> and a list: [1]\n"},
      {ReplyForm::kLlama3, "{\"name\": \"Ann\", \"age\": 7}"},
      {ReplyForm::kLlama3, " {\"answer\": {\"name\": \"f\", \"parameters\": {}}} "},
      {ReplyForm::kLlama3, "{\"name\": \"Ann\""},
      {ReplyForm::kLlama3, "{name}"},
      {ReplyForm::kLlama3, "It is {\"name\": \"f\", \"parameters\": {}}"},
      {ReplyForm::kMistral, "[TOOL] [THIN"},
      {ReplyForm::kDeepSeek, "<｜tool▁"},
      {ReplyForm::kHarmony, " to be"},
      {ReplyForm::kGlm, "<tool_cal"},
      {ReplyForm::kGemma, "<|tool_call"},
      {ReplyForm::kQwenCoder, "a<b> <function>"},
  };
  Rng rng(4);
  for (const auto& [form, text] : said) {
    SCOPED_TRACE(text);
    EXPECT_EQ(ParseReply(form, text), ParsedReply{.content = text});
    CheckInPieces(form, text, {}, rng);
  }
}

TEST(ReplyParser, ReadsWhatItIsAskedFor) {
  const std::string text = "<think>Hm</think>So <tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(ParseReply(ReplyForm::kHermes, text, {.reads_calls = false}).content,
            "So <tool_call>{\"name\": \"f\"}</tool_call>");
  const ParsedReply reply = ParseReply(ReplyForm::kHermes, text, {.reads_reasoning = false});
  EXPECT_EQ(reply.content, "<think>Hm</think>So");
  EXPECT_EQ(reply.calls.size(), 1U);
}

TEST(ReplyParser, SendsArgumentsAsTheyArrive) {
  ReplyParser parser(ReplyForm::kHermes);
  using Kind = ReplyDelta::Kind;
  parser.Push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a");
  EXPECT_EQ(parser.TakeDeltas(), (std::vector<ReplyDelta>{{.kind = Kind::kCall, .id = "call_0", .text = "f"},
                                                          {.kind = Kind::kArguments, .text = "{\"a"}}));
  parser.Push("\": 1}}");
  EXPECT_EQ(parser.TakeDeltas(), (std::vector<ReplyDelta>{{.kind = Kind::kArguments, .text = "\": 1}"}}));
  EXPECT_THAT(parser.reply().calls, IsEmpty());
  parser.Push("</tool_call>");
  EXPECT_EQ(parser.reply().calls.size(), 1U);
  parser.Finish();
  EXPECT_THAT(parser.TakeDeltas(), IsEmpty());
}

TEST(ReplyParser, IdsFollowFromTheSeed) {
  const std::string text = "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>";
  const auto ids = [&](ReplyForm form, const std::string& reply, const std::string& seed) {
    std::vector<std::string> all;
    const ParsedReply parsed = ParseReply(form, reply, {.id_seed = seed});
    for (const ToolCall& call : parsed.calls) all.push_back(call.id);
    return all;
  };
  EXPECT_THAT(ids(ReplyForm::kHermes, text, ""), testing::ElementsAre("call_0", "call_1"));
  const std::vector<std::string> seeded = ids(ReplyForm::kHermes, text, "a");
  ASSERT_EQ(seeded.size(), 2U);
  EXPECT_NE(seeded[0], seeded[1]);
  EXPECT_EQ(seeded, ids(ReplyForm::kHermes, text, "a"));
  EXPECT_NE(seeded, ids(ReplyForm::kHermes, text, "b"));
  for (const char* const seed : {"", "a"}) {
    const std::vector<std::string> of_mistral = ids(ReplyForm::kMistral, "[TOOL_CALLS]f[ARGS]{}", seed);
    ASSERT_EQ(of_mistral.size(), 1U);
    EXPECT_EQ(of_mistral[0].size(), 9U) << "as its templates want them";
  }
}

TEST(ReplyParser, HasLimits) {
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const ParsedReply many = ParseReply(ReplyForm::kHermes, call + call + call, {.max_calls = 2});
  EXPECT_EQ(many.calls.size(), 2U);
  ASSERT_EQ(many.broken.size(), 1U);
  EXPECT_THAT(many.broken[0], Mentions({"more than 2"}));
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const std::vector<std::pair<ReplyForm, std::string>> nested = {
      {ReplyForm::kHermes,
       absl::StrCat("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", deep, "}}</tool_call>")},
      {ReplyForm::kMistral, absl::StrCat("[TOOL_CALLS]f[ARGS]{\"a\": ", deep, "}")},
      {ReplyForm::kGemma, absl::StrCat("<|tool_call>call:f{a:", deep, "}<tool_call|>")},
  };
  for (const auto& [form, text] : nested) {
    const ParsedReply reply = ParseReply(form, text);
    EXPECT_THAT(reply.calls, IsEmpty());
    ASSERT_EQ(reply.broken.size(), 1U) << text;
    EXPECT_THAT(reply.broken[0], Mentions({"more than 64 nested"}));
  }
  const ParsedReply long_one = ParseReply(ReplyForm::kHermes, call + call, {.max_bytes = call.size() + 5});
  EXPECT_EQ(long_one.calls.size(), 1U);
  EXPECT_THAT(long_one.content, HasSubstr(call));
  EXPECT_FALSE(long_one.broken.empty());
}

TEST(ReplyParser, TakesTimeThatGrowsWithTheLengthAlone) {
  const std::vector<std::pair<ReplyForm, std::string>> repeated = {
      {ReplyForm::kHermes, "<tool_call>"},
      {ReplyForm::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"},
      {ReplyForm::kHermes, "<"},
      {ReplyForm::kLlama3, "{"},
      {ReplyForm::kGlm, "<tool_call>f<arg_key>a</arg_key><arg_value></arg_value>"},
      {ReplyForm::kQwenCoder, "<function=f><parameter=a></parameter>\n"},
      {ReplyForm::kHarmony, "<|channel|>"},
      {ReplyForm::kGemma, "<|tool_call>call:f{a:[1,"},
  };
  for (const auto& [form, unit] : repeated) {
    SCOPED_TRACE(unit);
    ExpectLinear(
        [form = form, unit = unit](int64_t n) {
          ReplyParser parser(form);
          for (int64_t i = 0; i < n; ++i) parser.Push(unit);
          parser.Finish();
        },
        2000);
  }
  for (const char* const opening : {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"",
                                    "<tool_call>f<arg_key>a</arg_key><arg_value></arg_value>"}) {
    const ReplyForm form = opening[11] == '{' ? ReplyForm::kHermes : ReplyForm::kGlm;
    SCOPED_TRACE(opening);
    ExpectLinear(
        [&](int64_t n) {
          ReplyParser parser(form);
          parser.Push(opening);
          for (int64_t i = 0; i < n; ++i) parser.Push(" ");
          parser.Finish();
        },
        10000);
  }
}

TEST(ReplyParser, TypesOfArgumentsAreThoseOfTheTools) {
  const std::string tools = R"([{"type": "function", "function": {"name": "f", "parameters": {
      "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "on": {"type": "boolean"},
                     "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "mode": {"enum": ["1", "2"]},
                     "part": {"$ref": "#/$defs/Part"}, "list": {"type": ["array", "null"]},
                     "loop": {"$ref": "#/$defs/Loop"}},
      "$defs": {"Part": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]}}}}}])";
  const std::vector<std::pair<std::string, std::string>> values = {
      {"text", "5"},    {"count", "5"},  {"on", "True"}, {"maybe", "null"}, {"mode", "1"},    {"part", "{}"},
      {"list", "None"}, {"loop", "[1]"}, {"other", "7"}, {"word", "seven"}, {"zip", "01234"},
  };
  std::string text = "<tool_call>\n<function=f>\n";
  for (const auto& [key, value] : values) absl::StrAppend(&text, "<parameter=", key, ">\n", value, "\n</parameter>\n");
  absl::StrAppend(&text, "</function>\n</tool_call>");
  const ParsedReply reply = ParseReply(ReplyForm::kQwenCoder, text, {.tools = tools});
  ASSERT_EQ(reply.calls.size(), 1U);
  EXPECT_EQ(ReadJson(reply.calls[0].arguments), ReadJson(R"({"text": "5", "count": 5, "on": true, "maybe": null,
      "mode": "1", "part": {}, "list": null, "loop": [1], "other": 7, "word": "seven", "zip": "01234"})"));
}

TEST(ReplyParser, ReadsTypesInTimeThatGrowsWithTheToolsAlone) {
  ExpectLinear(
      [](int64_t n) {
        std::string properties, values = "1";
        for (int64_t i = 0; i < n; ++i) {
          absl::StrAppend(&properties, i == 0 ? "" : ", ", "\"", i, "\": {\"$ref\": \"#/$defs/all\"}");
          values += ", 1";
        }
        const std::string tools = absl::StrCat(R"([{"name": "f", "parameters": {"properties": {)", properties,
                                               R"(}, "$defs": {"all": {"enum": [)", values, "]}}}}]");
        EXPECT_EQ(
            ParseReply(ReplyForm::kQwenCoder, "<function=f><parameter=0>2</parameter></function>", {.tools = tools})
                .calls.size(),
            1U);
      },
      2000);
}

TEST(ReplyForm, IsFoundInTemplates) {
  const std::vector<std::pair<const char*, ReplyForm>> spelled = {
      {"<tool_call>{{ call }}</tool_call>", ReplyForm::kHermes},
      {"{{ '\n<tool_call>' + call.name }}<arg_key>", ReplyForm::kGlm},
      {"<tool_call>\n<function={{ call.name }}>\n<parameter=", ReplyForm::kQwenCoder},
      {"{{ '[TOOL_CALLS]' }}", ReplyForm::kMistral},
      {"{{ '<｜tool▁calls▁begin｜>' }}", ReplyForm::kDeepSeek},
      {"{% set dsml = '｜DSML｜' %}", ReplyForm::kDeepSeek},
      {"<|start|>assistant<|channel|>final<|message|>", ReplyForm::kHarmony},
      {"<start_function_call>call:", ReplyForm::kGemma},
      {"{{ '<|tool_call>call:' }}", ReplyForm::kGemma},
      {"<|start_header_id|>{\"name\": {{ name }}, \"parameters\": {{ arguments }}}", ReplyForm::kLlama3},
      {"{{ content.split('</think>')[-1] }}", ReplyForm::kHermes},
      {"<|im_start|>{{ content }}", ReplyForm::kPlain},
  };
  for (const auto& [jinja, form] : spelled) {
    EXPECT_EQ(ReplyFormOf(*ChatTemplate::Parse(jinja)), form) << jinja;
  }
  for (const std::string& name : ReplyFormNames()) EXPECT_EQ(MarksOf(ReplyFormNamed(name).value()).name, name);
  EXPECT_THAT(ReplyFormNamed("xml").status(), Fails(absl::StatusCode::kInvalidArgument, {"\"xml\"", "qwen_coder"}));
}

TEST(ReplyForm, SaysWhatAPromptHasBegunAndWhichSpecialTokensBelongToIt) {
  EXPECT_TRUE(OpensReasoning(ReplyForm::kHermes, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(OpensReasoning(ReplyForm::kHermes, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(OpensReasoning(ReplyForm::kPlain, "<think>"));
  EXPECT_TRUE(IsReplyMark(ReplyForm::kHarmony, "<|channel|>"));
  EXPECT_TRUE(IsReplyMark(ReplyForm::kMistral, "[ARGS]"));
  EXPECT_FALSE(IsReplyMark(ReplyForm::kHermes, "<|im_end|>"));
  EXPECT_FALSE(IsReplyMark(ReplyForm::kPlain, "<tool_call>"));
}

TEST(ReplyTurn, HasItsCallsAndItsReasoningAmongItsFields) {
  const ParsedReply reply{
      .reasoning = "Hm", .content = "", .calls = {{.id = "c", .name = "f", .arguments = "{\"b\": 1, \"a\": [2]}"}}};
  const Turn turn = TurnOf(reply);
  EXPECT_FALSE(turn.has_content);
  EXPECT_EQ(turn.fields, R"({"reasoning_content":"Hm","tool_calls":[{"id":"c","type":"function",)"
                         R"("function":{"name":"f","arguments":{"b":1,"a":[2]}}}]})");
  const ParsedReply large{.calls = {{.id = "c", .name = "f", .arguments = "{\"a\": 123456789012345678901}"}}};
  EXPECT_THAT(TurnOf(large).fields, HasSubstr(R"("arguments":"{\"a\": 123456789012345678901}")")) << "as in data";
  EXPECT_EQ(TurnOf({.content = "Hi"}), (Turn{.role = Role::kAssistant, .content = "Hi"}));
  EXPECT_TRUE(TurnOf({}).has_content);
  EXPECT_EQ(DeltasOf(reply).size(), 3U);
}

TEST(ModelTurn, HasTheCallsApartFromTheTextAroundThem) {
  const absl::StatusOr<Turn> turn =
      ReadModelTurn({},
                    "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": [1, 2]}}\n</tool_call>\n"
                    "<tool_call>{\"name\": \"now\"}</tool_call>\n");
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_EQ(turn->role, Role::kAssistant);
  EXPECT_EQ(turn->content, "Let me see.");
  EXPECT_EQ(turn->fields,
            R"({"tool_calls":[{"id":"call_0","type":"function","function":{"name":"add","arguments":{"b":[1,2]}}},)"
            R"({"id":"call_1","type":"function","function":{"name":"now","arguments":{}}}]})");
}

TEST(ModelTurn, OfCallsAloneHasNoContent) {
  const absl::StatusOr<Turn> turn =
      ReadModelTurn({}, "\n<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>");
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_FALSE(turn->has_content);
}

TEST(ModelTurn, WithoutACallIsTheTextAsItWasSaid) {
  for (const ReplyForm form : {ReplyForm::kHermes, ReplyForm::kPlain}) {
    EXPECT_EQ(*ReadModelTurn({.form = form}, " {\"name\": 1} \n"),
              (Turn{.role = Role::kAssistant, .content = " {\"name\": 1} \n"}));
  }
  EXPECT_EQ(ReadModelTurn({.form = ReplyForm::kPlain}, "<tool_call>{").value().content, "<tool_call>{");
}

TEST(ModelTurn, TheModelIsToldWhatIsWrongWithACall) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> said = {
      {"<tool_call>{\"name\": \"now\"}", {"no </tool_call>"}},
      {"now</tool_call>", {"no <tool_call> before it"}},
      {"<tool_call>now()</tool_call>", {"now()", "not JSON"}},
      {"<tool_call>{\"arguments\": {}}</tool_call>", {"no \"name\""}},
      {"<tool_call>{\"name\": \"\"}</tool_call>", {"no name"}},
      {"<tool_call>{\"name\": \"now\", \"arguments\": 1}</tool_call>", {"\"arguments\"", "object"}},
      {"<tool_call>{\"name\": \"now\"}<tool_call>{\"name\": \"now\"}</tool_call>", {"followed by </tool_call>"}},
  };
  for (const auto& [text, names] : said) {
    const absl::Status status = ReadModelTurn({}, text).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, names)) << text;
    EXPECT_THAT(status.message(), Mentions({R"(<tool_call>{"name": "…", "arguments": {…}}</tool_call>)"}));
  }
}

TEST(ModelTurn, IsReadInTheFormOfTheTemplate) {
  const auto form_of = [](const char* jinja) {
    const ChatTemplate own = *ChatTemplate::Parse(jinja);
    return ReadingOf({}, &own, "").form;
  };
  EXPECT_EQ(form_of("{{ messages }}[TOOL_CALLS]"), ReplyForm::kMistral);
  EXPECT_EQ(form_of("{{ messages }}"), ReplyForm::kHermes) << "which other models can be asked for";
  const ChatTemplate own = *ChatTemplate::Parse("{{ messages }}[TOOL_CALLS]");
  EXPECT_EQ(ReadingOf(ReplyForm::kGlm, &own, "").form, ReplyForm::kGlm);
}

TEST(ModelTurn, HasItsReasoningWhereTheTemplateExpectsIt) {
  const std::string said = "<think>\nTwo?\n</think>\n\nTwo.";
  const ChatTemplate takes = *ChatTemplate::Parse(
      "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
      "{{ m.content }}{% endfor %}");
  const Turn apart = *ReadModelTurn(ReadingOf({}, &takes, ""), said);
  EXPECT_EQ(apart.content, "Two.");
  EXPECT_EQ(apart.fields, R"({"reasoning_content":"Two?"})");
  EXPECT_EQ(ReadModelTurn(ReadingOf({}, &takes, ""), "Two?</think>Two.", /*reasoning_open=*/true).value().content,
            "Two.");
  const ChatTemplate splits =
      *ChatTemplate::Parse("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}");
  EXPECT_EQ(ReadModelTurn(ReadingOf({}, &splits, ""), said).value(), (Turn{.role = Role::kAssistant, .content = said}));
  const Turn calls = *ReadModelTurn(ReadingOf({}, &splits, ""), said + "<tool_call>{\"name\": \"now\"}</tool_call>");
  EXPECT_EQ(calls.content, "<think>\nTwo?\n</think>\n\nTwo.");
}

}  // namespace
}  // namespace tdock::text
