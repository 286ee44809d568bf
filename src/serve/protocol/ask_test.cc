#include "serve/protocol/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"

namespace tdock::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Ask Read(Form form, absl::string_view body) {
  auto read = ReadAsk(form, body);
  if (const auto* problem = std::get_if<Problem>(&read)) ADD_FAILURE() << problem->message;
  return std::holds_alternative<Ask>(read) ? std::get<Ask>(read) : Ask{};
}

Problem Refused(Form form, absl::string_view body) {
  const auto read = ReadAsk(form, body);
  if (const auto* problem = std::get_if<Problem>(&read)) return *problem;
  ADD_FAILURE() << "is not refused: " << body;
  return {};
}

TEST(ReadAsk, ReadsACompletion) {
  const Ask ask = Read(Form::kCompletion, R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0.5,
      "n": 2, "stop": "x", "seed": -1, "logprobs": 3, "stream": true, "stream_options": {"include_usage": true},
      "logit_bias": {"7": -1.5}, "top_k": -1, "user": "u", "suffix": null})");
  EXPECT_EQ(ask.model, "m");
  EXPECT_THAT(ask.prompts, ElementsAre(AskedPrompt("a"), AskedPrompt("b")));
  EXPECT_TRUE(ask.is_list && ask.stream && ask.include_usage);
  EXPECT_EQ(ask.sampling.max_tokens, 5);
  EXPECT_EQ(ask.sampling.temperature, 0.5);
  EXPECT_EQ(ask.sampling.top_k, 0);
  EXPECT_EQ(ask.sampling.seed, ~uint64_t{0});
  EXPECT_THAT(*ask.sampling.stop, ElementsAre("x"));
  EXPECT_EQ(ask.sampling.logit_bias->at(7), -1.5);
  EXPECT_EQ(ask.log_probs, 3);
  EXPECT_EQ(ask.n, 2);
}

TEST(ReadAsk, ReadsPromptsInAllTheirForms) {
  const auto prompts = [](absl::string_view given) {
    return Read(Form::kCompletion, absl::StrCat("{\"prompt\": ", given, "}")).prompts;
  };
  using Tokens = std::vector<int32_t>;
  EXPECT_THAT(prompts("\"\""), ElementsAre(AskedPrompt("")));
  EXPECT_THAT(prompts("[1, 2]"), ElementsAre(AskedPrompt(Tokens{1, 2})));
  EXPECT_THAT(prompts("[[1], [2, 3]]"), ElementsAre(AskedPrompt(Tokens{1}), AskedPrompt(Tokens{2, 3})));
  EXPECT_THAT(prompts("[\"a\", [2]]"), ElementsAre(AskedPrompt("a"), AskedPrompt(Tokens{2})));
}

TEST(ReadAsk, BoundsWhatEveryTokenIsComparedWith) {
  const auto repeated = [](size_t count, const std::string& one) {
    std::string list = one;
    for (size_t i = 1; i < count; ++i) absl::StrAppend(&list, ",", one);
    return list;
  };
  const auto with = [](absl::string_view field) { return absl::StrCat(R"({"prompt": "a", )", field, "}"); };
  const Ask same = Read(Form::kCompletion, with(absl::StrCat("\"stop_token_ids\": [9,", repeated(5000, "7"), "]")));
  EXPECT_THAT(*same.sampling.stop_token_ids, ElementsAre(7, 9));
  EXPECT_LT(same.sampling.stop_token_ids->capacity(), 100U);
  std::string tokens, biases;
  for (int i = 0; i < 1025; ++i) {
    absl::StrAppend(&tokens, i == 0 ? "" : ",", i);
    absl::StrAppend(&biases, i == 0 ? "" : ",", "\"", i, "\":1");
  }
  const auto refused = [&](const std::string& field) { return Refused(Form::kCompletion, with(field)).param; };
  EXPECT_EQ(refused(absl::StrCat("\"stop_token_ids\": [", tokens, "]")), "stop_token_ids");
  EXPECT_EQ(refused(absl::StrCat("\"logit_bias\": {", biases, "}")), "logit_bias");
  EXPECT_EQ(refused(absl::StrCat("\"stop\": \"", std::string(1025, 'x'), "\"")), "stop");
  Read(Form::kCompletion, with(absl::StrCat("\"stop\": \"", std::string(1024, 'x'), "\"")));
}

TEST(ReadAsk, BoundsWhatItReads) {
  const AskLimits limits{.max_messages = 3};
  const auto conversation = [&](int messages) {
    std::vector<std::string> each(static_cast<size_t>(messages), R"({"role": "user", "content": "a"})");
    return ReadAsk(Form::kChat, absl::StrCat("{\"messages\": [", absl::StrJoin(each, ","), "]}"), limits);
  };
  EXPECT_EQ(std::get<Ask>(conversation(3)).turns.size(), 3U);
  const Problem problem = std::get<Problem>(conversation(4));
  EXPECT_EQ(problem.code, "context_length_exceeded");
  EXPECT_EQ(problem.param, "messages");
  EXPECT_THAT(problem.message, Mentions({"4 messages", "3"}));
  const std::vector<std::string> prompts(129, "\"a\"");
  const Problem many = Refused(Form::kCompletion, absl::StrCat("{\"prompt\": [", absl::StrJoin(prompts, ","), "]}"));
  EXPECT_EQ(many.param, "prompt");
  EXPECT_THAT(many.message, Mentions({"129", "128"}));
  const auto named = [](size_t bytes) {
    return absl::StrCat(R"({"prompt": "a", "request_id": ")", std::string(bytes, 'i'), "\"}");
  };
  EXPECT_EQ(Read(Form::kCompletion, named(1024)).request_id.size(), 1024U);
  EXPECT_EQ(Refused(Form::kCompletion, named(1025)).param, "request_id");
}

// Reading must not look at all items again for each of them.
TEST(ReadAsk, TakesALinearTimeForEveryList) {
  struct List {
    Form form;
    const char *before, *item, *after;  // an empty item: a name of its own each time
    int64_t items;
  };
  const List lists[] = {
      {Form::kChat, R"({"messages": [)", R"({"role": "user", "content": "a"})", "]}", 1000},
      {Form::kChat, R"({"messages": [{"role": "user", "content": [)", R"({"type": "text", "text": "a"})", "]}]}", 3000},
      {Form::kChat, R"({"messages": [{"role": "assistant", "tool_calls": [)",
       R"({"function": {"name": "f", "arguments": "{\"x\": 1}"}})", "]}]}", 1000},
      {Form::kChat, R"({"messages": [{"role": "user", "content": "a"}], "tools": [)", R"({"type": "function"})", "]}",
       3000},
      {Form::kCompletion, R"({"prompt": [)", "\"a\"", "]}", 20000},
      {Form::kCompletion, R"({"prompt": [)", "7", "]}", 30000},
      {Form::kCompletion, R"({"prompt": [)", "[7]", "]}", 20000},
      {Form::kCompletion, R"({"prompt": "a", "stop": [)", "\"b\"", "]}", 20000},
      {Form::kCompletion, R"({"prompt": "a", "stop_token_ids": [)", "7", "]}", 30000},
      {Form::kCompletion, R"({"prompt": "a", "logit_bias": {)", "", "}}", 5000},
      {Form::kGenerate, R"({"text": "a", "sampling_params": {)", "", "}}", 5000},
  };
  for (const List& list : lists) {
    SCOPED_TRACE(absl::StrCat(list.before, list.item));
    ExpectLinear(
        [&](int64_t n) {
          std::string body = list.before;
          for (int64_t i = 0; i < n; ++i) {
            if (i > 0) body += ',';
            if (*list.item != 0) body += list.item;
            if (*list.item == 0) absl::StrAppend(&body, "\"", i, "\":1");
          }
          body += list.after;
          EXPECT_FALSE(ReadAsk(list.form, body).valueless_by_exception());
        },
        list.items);
  }
}

TEST(ReadAsk, ReadsIdentitiesThatNotEveryWriterOfJsonHas) {
  const auto with = [](absl::string_view identity) {
    return absl::StrCat(R"({"prompt": "a", "seed": 1, "identity": )", identity, "}");
  };
  const auto read = [&](absl::string_view identity) { return Read(Form::kCompletion, with(identity)).identity; };
  EXPECT_EQ(read("0"), 0U);
  EXPECT_EQ(read("18446744073709551615"), ~uint64_t{0});
  EXPECT_EQ(read("\"18446744073709551615\""), ~uint64_t{0});
  EXPECT_EQ(read("null"), std::nullopt);
  for (const char* const wrong : {"-1", "1.0", "18446744073709551616", "\"18446744073709551616\"", "\" 1\"", "\"\"",
                                  "\"01\"", "\"+1\"", "true", "[1]"}) {
    EXPECT_EQ(Refused(Form::kCompletion, with(wrong)).param, "identity") << wrong;
  }
  EXPECT_EQ(Refused(Form::kChat, R"({"messages": [{"role": "user", "content": "a"}], "identity": 1})").code,
            "unknown_parameter");
}

TEST(ReadAsk, ReadsAConversation) {
  const Ask ask = Read(Form::kChat, R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
      {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null, "tool_calls": [{"function":
      {"name": "f", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "content": "c", "tool_call_id": "1"}],
      "tools": [{"type": "function"}], "logprobs": true})");
  ASSERT_EQ(ask.turns.size(), 3U);
  EXPECT_EQ(ask.turns[0].content, "ab");
  EXPECT_FALSE(ask.turns[1].has_content);
  EXPECT_THAT(ask.turns[1].fields, HasSubstr(R"("arguments":{"x":1})")) << "opened, as templates read them";
  EXPECT_EQ(ask.turns[2].role, text::Role::kTool);
  EXPECT_THAT(ask.context.tools, HasSubstr("function"));
  EXPECT_EQ(ask.log_probs, 0);
}

TEST(ReadAsk, ReadsWhatVerlAsks) {
  const Ask ask = Read(Form::kGenerate, R"({"input_ids": [1, 2], "rid": "r", "return_logprob": true,
      "sampling_params": {"max_new_tokens": 4, "n": 2, "top_k": 3, "stop_token_ids": [5]}})");
  EXPECT_EQ(ask.request_id, "r");
  EXPECT_EQ(ask.sampling.max_tokens, 4);
  EXPECT_EQ(ask.sampling.top_k, 3);
  EXPECT_THAT(*ask.sampling.stop_token_ids, ElementsAre(5));
  EXPECT_EQ(ask.n, 2);
  EXPECT_EQ(Refused(Form::kGenerate, R"({"text": "a", "sampling_params": {"top_p": 2}})").param,
            "sampling_params.top_p");
  EXPECT_EQ(Refused(Form::kGenerate, R"({"text": "a", "input_ids": [1]})").status, 400);
}

TEST(ReadAsk, NamesWhatIsWrong) {
  EXPECT_EQ(Refused(Form::kCompletion, R"({"prompt": "a", "n": 0})").param, "n");
  EXPECT_EQ(Refused(Form::kCompletion, R"({"prompt": "a", "nonsense": 0})").code, "unknown_parameter");
  EXPECT_EQ(Refused(Form::kCompletion, R"({})").param, "prompt");
  EXPECT_EQ(Refused(Form::kCompletion, R"({"prompt": "a", "top_p": 0, "min_p": 0.5})").param, "top_p");
  EXPECT_EQ(Refused(Form::kCompletion, R"({"prompt": "a", "min_p": 1})").param, "min_p");
  EXPECT_EQ(Refused(Form::kCompletion, R"({"prompt": ["a", "b"], "n": 65})").param, "prompt") << "130 answers";
  EXPECT_EQ(Refused(Form::kChat, R"({"messages": [{"role": "user", "content": "a", "x": 1}]})").param, "messages[0].x");
  EXPECT_EQ(Refused(Form::kChat, R"({"messages": []})").param, "messages");
  EXPECT_EQ(Refused(Form::kCompletion, "[]").code, "invalid_json");
  EXPECT_THAT(Refused(Form::kCompletion, R"({"prompt": "a", "max_tokens": 99999999999999999999})").message,
              HasSubstr("max_tokens"));
}

TEST(ReadSampling, FillsWhatIsNotGiven) {
  SamplingAsk mine = Read(Form::kCompletion, R"({"prompt": "a", "temperature": 0.5})").sampling;
  const auto preferred = ReadSampling(R"({"temperature": 0, "top_p": 0.5})");
  mine.FillFrom(std::get<SamplingAsk>(preferred));
  EXPECT_EQ(mine.temperature, 0.5);
  EXPECT_EQ(mine.top_p, 0.5);
  EXPECT_TRUE(std::holds_alternative<Problem>(ReadSampling(R"({"n": 3})")));
}

TEST(ReadAbort, NeedsToKnowWhat) { EXPECT_TRUE(std::holds_alternative<Problem>(ReadAbort("{}"))); }

TEST(BodyOf, IsAnErrorObject) {
  EXPECT_EQ(BodyOf({.message = "no \"x\"\xff", .param = "x"}),
            "{\"error\":{\"message\":\"no \\\"x\\\"\uFFFD\",\"type\":\"invalid_request_error\",\"param\":\"x\","
            "\"code\":null}}");
}

}  // namespace
}  // namespace tdock::serve
