// For tests: replies in every form, and calls written at random.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"
#include "text/replies/reply_parser.h"
#include "text/replies/testing/added_deltas.h"

namespace tdock::text {

using OrderedJson = nlohmann::ordered_json;

struct ReplySample {
  ReplyForm form;
  std::string text;
  ParsedReply expected;
  ReplyOptions options = {};
};

inline ToolCall CallOf(const char* id, const char* name, const char* arguments) {
  return {.id = id, .name = name, .arguments = arguments};
}

inline std::vector<ReplySample> ReplySamples() {
  const char* const kTypes = R"([{"type": "function", "function": {"name": "find", "parameters": {"properties":
      {"text": {"type": "string"}, "count": {"type": "integer"}}}}}])";
  return {
      {ReplyForm::kPlain, " <think>a</think> ", {.content = " <think>a</think> "}},
      {ReplyForm::kHermes,
       "<think>\nShall I <tool_call>{}</tool_call>?\n</think>\n\nLet me see.\n<tool_call>\n"
       "{\"name\": \"find\", \"arguments\": {\"text\": \"a </tool_call> \\\" }] <tool_call>\", \"n\": -1.5e3}}\n"
       "</tool_call>\n<tool_call>{\"arguments\": \"{\\\"a\\\": [1]}\", \"name\": \"now\"}</tool_call>\n",
       {.reasoning = "Shall I <tool_call>{}</tool_call>?",
        .content = "Let me see.",
        .calls = {CallOf("call_0", "find", "{\"text\": \"a </tool_call> \\\" }] <tool_call>\", \"n\": -1.5e3}"),
                  CallOf("call_1", "now", "{\"a\": [1]}")}}},
      {ReplyForm::kHermes,
       "<tool_call>{\"name\": \"now\"}</tool_call> And <tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
       {.content = "And", .calls = {CallOf("call_0", "now", "{}"), CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kHermes,
       "Hm, <think> is text.</think> So <think>it is</think>.",
       {.reasoning = "Hm, <think> is text.", .content = "So <think>it is</think>."},
       {.reasoning_open = true}},
      {ReplyForm::kHermes, "\n<think>\n\n</think>\n\nTwo.\n", {.content = "Two."}},
      {ReplyForm::kHermes, "<think>never ends ", {.reasoning = "never ends"}},
      {ReplyForm::kLlama3,
       "\n{\"name\": \"find\", \"parameters\": {\"text\": \"; {\"}}; {\"name\": \"now\", \"parameters\": {}}",
       {.calls = {CallOf("call_0", "find", "{\"text\": \"; {\"}"), CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kLlama3,
       "Well.<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {\"a\": null}}",
       {.content = "Well.", .calls = {CallOf("call_0", "now", "{\"a\": null}")}}},
      {ReplyForm::kMistral,
       "[THINK]a [TOOL_CALLS] b[/THINK]So[TOOL_CALLS] [{\"name\": \"find\", \"arguments\": {\"text\": \"]\"}, \"id\": "
       "\"abc\"}, {\"name\": \"now\", \"arguments\": {}}]",
       {.reasoning = "a [TOOL_CALLS] b",
        .content = "So",
        .calls = {CallOf("call00000", "find", "{\"text\": \"]\"}"), CallOf("call00001", "now", "{}")}}},
      {ReplyForm::kMistral,
       "So[THINK]a[/THINK][TOOL_CALLS]find[CALL_ID]123456789[ARGS]{\"text\": \"[ARGS]{\"}[TOOL_CALLS]now{}",
       {.reasoning = "a",
        .content = "So",
        .calls = {CallOf("123456789", "find", "{\"text\": \"[ARGS]{\"}"), CallOf("call00001", "now", "{}")}}},
      {ReplyForm::kDeepSeek,
       "<think>a</think>So<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n"
       "{\"text\": "
       "\"```<｜tool▁call▁end｜>\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
       "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {.reasoning = "a",
        .content = "So",
        .calls = {CallOf("call_0", "find", "{\"text\": \"```<｜tool▁call▁end｜>\"}"), CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kDeepSeek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>{\"text\": \"｜\"}<｜tool▁call▁end｜>"
       "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {.calls = {CallOf("call_0", "find", "{\"text\": \"｜\"}"), CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kDeepSeek,
       "So\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"find\">\n<｜DSML｜parameter name=\"text\" "
       "string=\"true\">5 </｜DSML｜parameter> \"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"count\" "
       "string=\"false\">[1, 2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
       "name=\"now\">\n</｜DSML｜invoke>\n"
       "</｜DSML｜function_calls>",
       {.content = "So",
        .calls = {CallOf("call_0", "find", "{\"text\": \"5 </｜DSML｜parameter> \\\"\", \"count\": [1, 2]}"),
                  CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kHarmony,
       "<|channel|>analysis<|message|>Is <|channel|> text?<|end|><|start|>assistant<|channel|>commentary<|message|>"
       "Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
       "{\"text\": \"<|call|>\"}<|call|>",
       {.reasoning = "Is <|channel|> text?",
        .content = "Let me see.",
        .calls = {CallOf("call_0", "find", "{\"text\": \"<|call|>\"}")}}},
      {ReplyForm::kHarmony,
       " to=functions.now<|channel|>commentary json<|message|>{}",
       {.calls = {CallOf("call_0", "now", "{}")}}},
      {ReplyForm::kHarmony,
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
       "<|start|>assistant<|channel|>final<|message|>Two.<|return|>",
       {.reasoning = "a\nb", .content = "Two."}},
      {ReplyForm::kHarmony, "Two.", {.content = "Two."}},
      {ReplyForm::kGlm,
       "\n<think>a</think>\nSo\n<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>5 </arg_value> <b>\n</arg_value>\n"
       "<arg_key>count</arg_key>\n<arg_value>5</arg_value>\n</tool_call><tool_call>now\n</tool_call>",
       {.reasoning = "a",
        .content = "So",
        .calls = {CallOf("call_0", "find", "{\"text\": \"5 </arg_value> <b>\\n\", \"count\": 5}"),
                  CallOf("call_1", "now", "{}")}},
       {.tools = kTypes}},
      {ReplyForm::kGlm,
       "<tool_call>find<arg_key>any</arg_key><arg_value>{\"a\": null}</arg_value></tool_call>\n"
       "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
       {.calls = {CallOf("call_0", "find", "{\"any\": {\"a\": null}}"), CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kGemma,
       "<|channel>thought\na\n<channel|>So<|tool_call>call:find{count:5,text:<|\"|>}<tool_call|>\"<|\"|>,"
       "list:[true,null,{<|\"|>a b<|\"|>:-1.5}],none:{}}<tool_call|><|tool_call>call:now{}<tool_call|>",
       {.reasoning = "a",
        .content = "So",
        .calls = {CallOf("call_0", "find",
                         "{\"count\": 5, \"text\": \"}<tool_call|>\\\"\", \"list\": [true, null, {\"a b\": -1.5}], "
                         "\"none\": {}}"),
                  CallOf("call_1", "now", "{}")}}},
      {ReplyForm::kGemma,
       "<start_function_call>call:find{text:<escape>a, b<escape>}<end_function_call>",
       {.calls = {CallOf("call_0", "find", "{\"text\": \"a, b\"}")}}},
      {ReplyForm::kQwenCoder,
       "<think>\na\n</think>\n\nSo\n\n<tool_call>\n<function=find>\n<parameter=text>\n5\n</parameter> <b> "
       "</function>\n\n"
       "</parameter>\n<parameter=count>\n5\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n"
       "</function>\n</tool_call>",
       {.reasoning = "a",
        .content = "So",
        .calls = {CallOf("call_0", "find", "{\"text\": \"5\\n</parameter> <b> </function>\\n\", \"count\": 5}"),
                  CallOf("call_1", "now", "{}")}},
       {.tools = kTypes}},
      {ReplyForm::kQwenCoder,
       "So <function=now></function></tool_call>",
       {.content = "So", .calls = {CallOf("call_0", "now", "{}")}}},
  };
}

// Reads the text in random pieces of up to `most` bytes: the result is that of the whole, and so is what the deltas add
// up to where no call is broken.
inline void CheckInPieces(ReplyForm form, const std::string& text, const ReplyOptions& options, Rng& rng,
                          size_t most = 9) {
  const ParsedReply whole = ParseReply(form, text, options);
  ReplyParser parser(form, options);
  ParsedReply added;
  const auto add = [&] {
    for (const ReplyDelta& delta : parser.TakeDeltas()) ASSERT_TRUE(AddDelta(delta, added));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = 1 + static_cast<size_t>(rng.Below(most));
    parser.Push(absl::string_view(text).substr(at, bytes));
    at += bytes;
    add();
  }
  parser.Finish();
  add();
  EXPECT_EQ(parser.reply().reasoning, whole.reasoning);
  EXPECT_EQ(parser.reply().content, whole.content);
  EXPECT_EQ(parser.reply().broken, whole.broken);
  EXPECT_TRUE(parser.reply() == whole);
  EXPECT_TRUE(added.content == whole.content && added.reasoning == whole.reasoning);
  EXPECT_TRUE(!whole.broken.empty() || added.calls == whole.calls);
}

struct RandomCall {
  std::string name = {};
  OrderedJson arguments = OrderedJson::object();
};

struct CallWriter {
  ReplyForm form;
  std::vector<std::string> excluded;  // texts that the form cannot write in a text
  bool writes_several;
  std::function<std::string(const std::vector<RandomCall>&)> write;
};

inline std::string RandomText(Rng& rng, const std::vector<std::string>& excluded) {
  static const std::vector<std::string> kParts = {"a",
                                                  "b c",
                                                  "\n",
                                                  "\t",
                                                  "\"",
                                                  "\\",
                                                  "'",
                                                  "{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  ";",
                                                  "é",
                                                  "｜",
                                                  "😀",
                                                  "\x01",
                                                  "null",
                                                  "5",
                                                  "<",
                                                  "<think>",
                                                  "</think>",
                                                  "<tool_call>",
                                                  "</tool_call>",
                                                  "<|python_tag|>",
                                                  "[TOOL_CALLS]",
                                                  "[ARGS]",
                                                  "[THINK]",
                                                  "<｜tool▁call▁end｜>",
                                                  "```",
                                                  "<|call|>",
                                                  "<|end|>",
                                                  "<|channel|>",
                                                  "</arg_value>",
                                                  "<arg_key>",
                                                  "</parameter>",
                                                  "<parameter=x>",
                                                  "</function>",
                                                  "<escape>",
                                                  "<|\"|>",
                                                  "<tool_call|>",
                                                  "</｜DSML｜parameter>",
                                                  "</｜DSML｜invoke>"};
  std::string text;
  for (uint64_t i = rng.Below(6); i > 0; --i) {
    const std::string& part = kParts[rng.Below(kParts.size())];
    const std::string longer = text + part;
    const bool fits = std::none_of(excluded.begin(), excluded.end(),
                                   [&](const std::string& one) { return absl::StrContains(longer, one); });
    if (fits) text = longer;
  }
  return text;
}

inline OrderedJson RandomValue(Rng& rng, const std::vector<std::string>& excluded, int depth) {
  switch (rng.Below(depth > 0 ? 8 : 6)) {
    case 0:
      return OrderedJson(nullptr);
    case 1:
      return OrderedJson(rng.Below(2) == 0);
    case 2:
      return OrderedJson(static_cast<int64_t>(rng.Below(2000)) - 1000);
    case 3:
      return OrderedJson(static_cast<double>(rng.Below(1000)) / 8 - 60);
    case 6: {
      OrderedJson list = OrderedJson::array();
      for (uint64_t i = rng.Below(4); i > 0; --i) list.push_back(RandomValue(rng, excluded, depth - 1));
      return list;
    }
    case 7: {
      OrderedJson object = OrderedJson::object();
      for (uint64_t i = rng.Below(4); i > 0; --i) {
        const std::string key = absl::StrCat("k", i, RandomText(rng, excluded));
        object[key] = RandomValue(rng, excluded, depth - 1);
      }
      return object;
    }
    default:
      return OrderedJson(RandomText(rng, excluded));
  }
}

inline std::vector<RandomCall> RandomCalls(Rng& rng, const CallWriter& writer) {
  std::vector<RandomCall> calls(writer.writes_several ? 1 + rng.Below(3) : 1);
  for (size_t c = 0; c < calls.size(); ++c) {
    calls[c].name = absl::StrCat("tool_", c);
    for (uint64_t i = rng.Below(4); i > 0; --i) {
      calls[c].arguments[absl::StrCat("key", i)] = RandomValue(rng, writer.excluded, 2);
    }
  }
  return calls;
}

// Tools whose arguments have the types of these.
inline std::string ToolsOf(const std::vector<RandomCall>& calls) {
  OrderedJson tools = OrderedJson::array();
  for (const RandomCall& call : calls) {
    OrderedJson properties = OrderedJson::object();
    for (const auto& [key, value] : call.arguments.items()) {
      const char* const type = value.is_number() ? "number" : value.type_name();
      properties[key] = {{"type", type}};
    }
    OrderedJson function = {{"name", call.name}, {"parameters", {{"type", "object"}}}};
    function["parameters"]["properties"] = std::move(properties);
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return JsonText(tools);
}

// A value as Gemma's templates write it.
inline std::string GemmaValue(const OrderedJson& value, bool quotes_keys) {
  std::vector<std::string> parts;
  if (value.is_string()) return absl::StrCat("<|\"|>", value.get<std::string>(), "<|\"|>");
  if (value.is_array()) {
    for (const OrderedJson& one : value) parts.push_back(GemmaValue(one, true));
    return absl::StrCat("[", absl::StrJoin(parts, ","), "]");
  }
  if (!value.is_object()) return JsonText(value);
  for (const auto& [key, one] : value.items()) {
    parts.push_back(absl::StrCat(quotes_keys ? GemmaValue(OrderedJson(key), true) : key, ":", GemmaValue(one, true)));
  }
  return absl::StrCat("{", absl::StrJoin(parts, ","), "}");
}

// Each argument of a call between tags.
inline std::string Tagged(const RandomCall& call, const std::string& before_key, const std::string& before_value,
                          const std::string& after_value) {
  std::string text;
  for (const auto& [key, value] : call.arguments.items()) {
    absl::StrAppend(&text, before_key, key, before_value,
                    value.is_string() ? value.get<std::string>() : JsonText(value), after_value);
  }
  return text;
}

inline std::string Joined(const std::vector<RandomCall>& calls, const std::string& between,
                          const std::function<std::string(const RandomCall&)>& write) {
  std::vector<std::string> texts;
  for (const RandomCall& call : calls) texts.push_back(write(call));
  return absl::StrJoin(texts, between);
}

inline std::vector<CallWriter> CallWriters() {
  using Calls = std::vector<RandomCall>;
  const auto object = [](const RandomCall& call, const char* key) {
    OrderedJson json = {{"name", call.name}};
    json[key] = call.arguments;
    return JsonText(json);
  };
  return {
      {ReplyForm::kHermes,
       {},
       true,
       [=](const Calls& calls) {
         return Joined(calls, "\n", [&](const RandomCall& call) {
           return absl::StrCat("<tool_call>\n", object(call, "arguments"), "\n</tool_call>");
         });
       }},
      {ReplyForm::kLlama3,
       {},
       true,
       [=](const Calls& calls) {
         return Joined(calls, "; ", [&](const RandomCall& call) { return object(call, "parameters"); });
       }},
      {ReplyForm::kMistral,
       {},
       true,
       [=](const Calls& calls) {
         return absl::StrCat("[TOOL_CALLS][",
                             Joined(calls, ", ", [&](const RandomCall& call) { return object(call, "arguments"); }),
                             "]");
       }},
      {ReplyForm::kMistral,
       {},
       true,
       [](const Calls& calls) {
         return Joined(calls, "", [](const RandomCall& call) {
           return absl::StrCat("[TOOL_CALLS]", call.name, "[ARGS]", JsonText(call.arguments));
         });
       }},
      {ReplyForm::kDeepSeek,
       {},
       true,
       [](const Calls& calls) {
         const std::string all = Joined(calls, "\n", [](const RandomCall& call) {
           return absl::StrCat("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", call.name, "\n```json\n",
                               JsonText(call.arguments), "\n```<｜tool▁call▁end｜>");
         });
         return absl::StrCat("<｜tool▁calls▁begin｜>", all, "<｜tool▁calls▁end｜>");
       }},
      {ReplyForm::kDeepSeek,
       {},
       true,
       [](const Calls& calls) {
         const std::string all = Joined(calls, "", [](const RandomCall& call) {
           return absl::StrCat("<｜tool▁call▁begin｜>", call.name, "<｜tool▁sep｜>", JsonText(call.arguments),
                               "<｜tool▁call▁end｜>");
         });
         return absl::StrCat("<｜tool▁calls▁begin｜>", all, "<｜tool▁calls▁end｜>");
       }},
      {ReplyForm::kDeepSeek,
       {"</｜DSML｜invoke>"},
       true,
       [](const Calls& calls) {
         const std::string all = Joined(calls, "", [](const RandomCall& call) {
           std::string text = absl::StrCat("<｜DSML｜invoke name=\"", call.name, "\">\n");
           for (const auto& [key, value] : call.arguments.items()) {
             absl::StrAppend(&text, "<｜DSML｜parameter name=\"", key, "\" string=\"",
                             value.is_string() ? "true\">" : "false\">",
                             value.is_string() ? value.get<std::string>() : JsonText(value), "</｜DSML｜parameter>\n");
           }
           return absl::StrCat(text, "</｜DSML｜invoke>\n");
         });
         return absl::StrCat("<｜DSML｜tool_calls>\n", all, "</｜DSML｜tool_calls>");
       }},
      {ReplyForm::kHarmony,
       {},
       true,
       [](const Calls& calls) {
         return Joined(calls, "<|start|>assistant", [](const RandomCall& call) {
           return absl::StrCat("<|channel|>commentary to=functions.", call.name, " <|constrain|>json<|message|>",
                               JsonText(call.arguments), "<|call|>");
         });
       }},
      {ReplyForm::kGlm,
       {"<arg_key>", "</tool_call>"},
       true,
       [](const Calls& calls) {
         return Joined(calls, "\n", [](const RandomCall& call) {
           const std::string arguments = Tagged(call, "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n");
           return absl::StrCat("<tool_call>", call.name, "\n", arguments, "</tool_call>");
         });
       }},
      {ReplyForm::kGemma,
       {"<|\"|>", "<escape>"},
       true,
       [](const Calls& calls) {
         return Joined(calls, "", [](const RandomCall& call) {
           return absl::StrCat("<|tool_call>call:", call.name, GemmaValue(call.arguments, false), "<tool_call|>");
         });
       }},
      {ReplyForm::kQwenCoder,
       {"<parameter=", "</function>"},
       true,
       [](const Calls& calls) {
         return Joined(calls, "\n", [](const RandomCall& call) {
           const std::string arguments = Tagged(call, "<parameter=", ">\n", "\n</parameter>\n");
           return absl::StrCat("<tool_call>\n<function=", call.name, ">\n", arguments, "</function>\n</tool_call>");
         });
       }},
  };
}

}  // namespace tdock::text
