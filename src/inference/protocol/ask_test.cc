#include "inference/protocol/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"

namespace tdock::inference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
      {Form::kChat, R"({"messages": [{"role": "user", "content": "a"}], "tools": [)",
       R"({"type": "function", "function": {"name": "f"}})", "]}", 2000},
      {Form::kResponses, R"({"input": [)", R"({"role": "user", "content": [{"type": "input_text", "text": "a"}]})",
       "]}", 1000},
      {Form::kResponses, R"({"input": [)",
       R"({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"})", "]}", 1000},
      {Form::kChat, R"({"messages": [{"role": "user", "content": "a"}], "guided_choice": [)", "\"b\"", "]}", 1000},
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
      "tools": [{"type": "function", "function": {"name": "f"}}], "logprobs": true})");
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
  EXPECT_EQ(Refused(Form::kChat, R"({"messages": []})").param, "messages");
  EXPECT_EQ(Refused(Form::kChat, R"({"model": "m"})").param, "messages");
  EXPECT_EQ(Refused(Form::kCompletion, "[]").code, "invalid_json");
  EXPECT_THAT(Refused(Form::kCompletion, R"({"prompt": "a", "max_tokens": 99999999999999999999})").message,
              HasSubstr("max_tokens"));
}

// A body of the form with one message, or prompt, and these fields.
std::string With(Form form, absl::string_view fields) {
  const char* const said = form == Form::kChat        ? R"("messages": [{"role": "user", "content": "a"}])"
                           : form == Form::kResponses ? R"("input": "a")"
                                                      : R"("prompt": "a")";
  return absl::StrCat("{", said, fields.empty() ? "" : ", ", fields, "}");
}

TEST(ReadAsk, TakesWhatChangesNothing) {
  const Form all[] = {Form::kCompletion, Form::kChat, Form::kResponses};
  for (const Form form : all) {
    Read(form, With(form, R"("user": "u", "metadata": {"a": 1}, "priority": 7, "store": true, "service_tier": "flex",
        "prompt_cache_key": "k", "safety_identifier": "s", "n": 1, "best_of": 1, "length_penalty": 1, "bad_words": [],
        "use_beam_search": false, "spaces_between_special_tokens": true, "mm_processor_kwargs": {},
        "logits_processors": null, "stop": null, "truncate_prompt_tokens": null)"));
  }
  Read(Form::kChat, With(Form::kChat, R"("parallel_tool_calls": false, "tools": [], "echo": false, "functions": [],
      "function_call": "none", "modalities": ["text"], "verbosity": "medium", "top_logprobs": 0, "tool_choice": "none",
      "add_special_tokens": false, "include_reasoning": true, "response_format": {"type": "text"},
      "add_generation_prompt": true, "continue_final_message": false, "chat_template_kwargs": {}, "audio": null)"));
  Read(Form::kCompletion,
       With(Form::kCompletion, R"("suffix": "", "echo": false, "best_of": 1, "stream_options": {})"));
  Read(Form::kResponses, With(Form::kResponses, R"("truncation": "disabled", "background": false, "include": [],
      "previous_response_id": null, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "max_tool_calls": 3,
      "reasoning": {"effort": "low", "summary": "auto"}, "tool_choice": "auto")"));
}

TEST(ReadAsk, RefusesByNameWhatWouldChangeAnswers) {
  const std::vector<std::pair<std::string, std::string>> both = {
      {R"("length_penalty": 0.5)", "length_penalty"},          {R"("bad_words": ["a"])", "bad_words"},
      {R"("use_beam_search": true)", "use_beam_search"},       {R"("best_of": 3)", "best_of"},
      {R"("guided_grammar": "root ::= a")", "guided_grammar"}, {R"("logits_processors": ["a"])", "logits_processors"}};
  const std::vector<std::pair<std::string, std::string>> chat = {
      {R"("echo": true)", "echo"},
      {R"("modalities": ["audio"])", "modalities"},
      {R"("verbosity": "low")", "verbosity"},
      {R"("chat_template": "{{ a }}")", "chat_template"},
      {R"("functions": [{"name": "f"}])", "functions"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false)",
       "parallel_tool_calls"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type"},
      {R"("response_format": {"type": "structural_tag"})", "response_format.type"}};
  const std::vector<std::pair<std::string, std::string>> responses = {
      {R"("previous_response_id": "resp_1")", "previous_response_id"},
      {R"("background": true)", "background"},
      {R"("truncation": "auto")", "truncation"},
      {R"("prompt_logprobs": 1)", "prompt_logprobs"},
      {R"("n": 2)", "n"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type"}};
  const auto refuses = [](Form form, const auto& fields) {
    for (const auto& [field, param] : fields) {
      const Problem problem = Refused(form, With(form, field));
      EXPECT_EQ(problem.param, param) << field;
      EXPECT_EQ(problem.code, "unsupported_value") << field;
    }
  };
  refuses(Form::kCompletion, both);
  refuses(Form::kChat, both);
  refuses(Form::kChat, chat);
  refuses(Form::kResponses, responses);
}

TEST(ReadAsk, ReadsHowATemplateRenders) {
  const Ask ask = Read(Form::kChat, R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
      "content": "b"}], "chat_template_kwargs": {"z": 1, "a": [true]}, "reasoning_effort": "high",
      "continue_final_message": true, "documents": [{"title": "t", "text": "u"}], "truncate_prompt_tokens": 5,
      "skip_special_tokens": false, "include_stop_str_in_output": true})");
  EXPECT_EQ(ask.template_variables, R"({"z":1,"a":[true]})");
  EXPECT_EQ(ask.reasoning_effort, "high");
  EXPECT_TRUE(ask.continues_final_turn && !ask.generation_prompt && !ask.skip_special_tokens && ask.include_stop);
  EXPECT_THAT(ask.context.documents, HasSubstr("title"));
  EXPECT_EQ(ask.max_prompt_tokens, 5);
  EXPECT_FALSE(Read(Form::kChat, With(Form::kChat, R"("add_generation_prompt": false)")).generation_prompt);
  const auto refused = [](absl::string_view fields) { return Refused(Form::kChat, With(Form::kChat, fields)).param; };
  EXPECT_EQ(refused(R"("continue_final_message": true)"), "continue_final_message") << "the user's";
  EXPECT_EQ(refused(R"("continue_final_message": true, "add_generation_prompt": true)"), "continue_final_message");
  EXPECT_EQ(Refused(Form::kChat, R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"name": "f"}]}],
      "continue_final_message": true})")
                .param,
            "continue_final_message")
      << "behind calls";
  EXPECT_EQ(refused(R"("chat_template_kwargs": [])"), "chat_template_kwargs");
  EXPECT_EQ(refused(R"("truncate_prompt_tokens": 0)"), "truncate_prompt_tokens");
}

TEST(ReadAsk, ReadsTheLogProbabilitiesOfPrompts) {
  const Ask echo = Read(Form::kCompletion, With(Form::kCompletion, R"("echo": true, "logprobs": 2, "max_tokens": 0)"));
  EXPECT_TRUE(echo.echo);
  EXPECT_EQ(echo.sampling.max_tokens, 0);
  EXPECT_EQ(Read(Form::kChat, With(Form::kChat, R"("prompt_logprobs": 0)")).prompt_log_probs, 0);
  const auto refused = [](absl::string_view fields) {
    return Refused(Form::kCompletion, With(Form::kCompletion, fields)).param;
  };
  EXPECT_EQ(refused(R"("max_tokens": 0)"), "max_tokens") << "nothing is asked for";
  EXPECT_EQ(refused(R"("echo": true, "stream": true)"), "echo");
  EXPECT_EQ(refused(R"("prompt_logprobs": 1, "stream": true)"), "prompt_logprobs");
}

TEST(ReadAsk, ReadsWhatAnswersAreMadeOf) {
  using Kind = GrammarSpec::Kind;
  const auto read = [](absl::string_view fields) { return Read(Form::kChat, With(Form::kChat, fields)); };
  EXPECT_FALSE(read(R"("response_format": {"type": "text"})").grammar);
  EXPECT_TRUE(read("").reads_reply);
  const Ask object = read(R"("response_format": {"type": "json_object"})");
  EXPECT_EQ(object.grammar->kind, Kind::kJsonObject);
  EXPECT_FALSE(object.reads_reply) << "an object is no call";
  const Ask schema = read(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
      "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}})");
  EXPECT_EQ(schema.grammar->text, R"({"type":"object","properties":{"b":{},"a":{}}})") << "in its order";
  EXPECT_EQ(schema.grammar_field, "response_format.json_schema.schema");
  EXPECT_EQ(read(R"("guided_json": "{\"type\": \"object\"}")").grammar->text, R"({"type": "object"})");
  EXPECT_EQ(read(R"("structured_outputs": {"json": {"type": "null"}})").grammar_field, "structured_outputs.json");
  EXPECT_EQ(read(R"("guided_regex": "a+")").grammar->kind, Kind::kRegex);
  EXPECT_THAT(read(R"("structured_outputs": {"choice": ["a", "b"]})").grammar->choices, ElementsAre("a", "b"));
  const Ask text = Read(Form::kResponses, With(Form::kResponses, R"("text": {"format": {"type": "json_schema",
      "name": "n", "schema": {"type": "object"}}})"));
  EXPECT_EQ(text.grammar_field, "text.format.schema");
  const auto refused = [](absl::string_view fields) { return Refused(Form::kChat, With(Form::kChat, fields)).param; };
  EXPECT_EQ(refused(R"("response_format": {"type": "json_schema"})"), "response_format.json_schema");
  EXPECT_EQ(refused(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})"),
            "response_format.json_schema.schema");
  EXPECT_EQ(refused(R"("guided_regex": "a", "guided_choice": ["a"])"), "guided_choice");
  EXPECT_EQ(refused(R"("guided_choice": [])"), "guided_choice");
  EXPECT_EQ(refused(R"("guided_choice": ["a", 1])"), "guided_choice[1]");
  EXPECT_EQ(refused(R"("guided_json": "[")"), "guided_json");
  EXPECT_EQ(refused(R"("structured_outputs": {"regexp": "a"})"), "structured_outputs.regexp");
  EXPECT_EQ(refused(R"("guided_regex": "a", "tools": [{"type": "function", "function": {"name": "f"}}])"),
            "guided_regex")
      << "the model could call no tool";
}

TEST(ReadAsk, ReadsWhichToolsMustBeCalled) {
  constexpr char kTools[] =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "g"}}])";
  const auto read = [&](absl::string_view fields) {
    return Read(Form::kChat, With(Form::kChat, absl::StrCat(kTools, ", ", fields)));
  };
  const Ask required = read(R"("tool_choice": "required")");
  EXPECT_EQ(required.grammar->kind, GrammarSpec::Kind::kCalls);
  ASSERT_EQ(required.grammar->calls.size(), 2U);
  EXPECT_EQ(required.grammar->calls[0].parameters, R"({"type":"object"})");
  EXPECT_THAT(required.grammar->calls[1].parameters, IsEmpty());
  EXPECT_FALSE(required.grammar->one_call);
  EXPECT_TRUE(required.reads_reply);
  EXPECT_TRUE(read(R"("tool_choice": "required", "parallel_tool_calls": false)").grammar->one_call);
  const Ask named = read(R"("tool_choice": {"type": "function", "function": {"name": "g"}})");
  ASSERT_EQ(named.grammar->calls.size(), 1U);
  EXPECT_EQ(named.grammar->calls[0].name, "g");
  EXPECT_TRUE(named.grammar->one_call);
  EXPECT_THAT(read(R"("tool_choice": "none")").context.tools, IsEmpty());
  EXPECT_FALSE(read(R"("tool_choice": "auto")").grammar);
  const Ask flat = Read(Form::kResponses, With(Form::kResponses, R"("tools": [{"type": "function", "name": "f",
      "parameters": null, "strict": true}], "tool_choice": {"type": "function", "name": "f"})"));
  EXPECT_EQ(flat.grammar->calls.at(0).name, "f");
  EXPECT_THAT(flat.context.tools, HasSubstr(R"("function":{"name":"f")")) << "as templates read them";
  const auto refused = [](absl::string_view fields) { return Refused(Form::kChat, With(Form::kChat, fields)).param; };
  EXPECT_EQ(refused(R"("tools": [{"type": "function"}])"), "tools[0].function");
  EXPECT_EQ(refused(R"("tools": [{"type": "function", "function": {"name": ""}}])"), "tools[0].function.name");
  EXPECT_EQ(refused(R"("tools": [7])"), "tools[0]");
  EXPECT_EQ(refused(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}])"),
            "tools[0].function.parameters");
  EXPECT_EQ(refused(R"("tool_choice": "required")"), "tool_choice") << "no tools";
  EXPECT_EQ(refused(absl::StrCat(kTools, R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})")),
            "tool_choice");
  EXPECT_EQ(refused(absl::StrCat(kTools, R"(, "tool_choice": "sometimes")")), "tool_choice");
}

TEST(ReadAsk, ReadsAResponse) {
  const Ask ask = Read(Form::kResponses, R"({"instructions": "s", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}", "id": "fc", "status": "completed"},
      {"type": "function_call_output", "call_id": "1", "output": "d"},
      {"type": "message", "role": "assistant", "content": "e"}],
      "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "top_logprobs": 2})");
  ASSERT_EQ(ask.turns.size(), 5U);
  EXPECT_EQ(ask.turns[0].role, text::Role::kSystem);
  EXPECT_EQ(ask.turns[1].content, "ab");
  EXPECT_EQ(ask.turns[2].content, "c") << "one reply, with what it thinks, says and calls";
  EXPECT_THAT(ask.turns[2].fields, HasSubstr(R"("reasoning_content":"t")"));
  EXPECT_THAT(ask.turns[2].fields, HasSubstr(R"("arguments":{"x":1})"));
  EXPECT_EQ(ask.turns[3].role, text::Role::kTool);
  EXPECT_EQ(ask.turns[4].content, "e");
  EXPECT_EQ(ask.sampling.max_tokens, 5);
  EXPECT_EQ(ask.log_probs, 2);
  EXPECT_THAT(ask.repeated, HasSubstr(R"("max_output_tokens":5)"));
  EXPECT_EQ(Read(Form::kResponses, R"({"input": "a"})").turns.at(0).content, "a");
  const auto refused = [](absl::string_view input) {
    return Refused(Form::kResponses, absl::StrCat(R"({"input": )", input, "}")).param;
  };
  EXPECT_EQ(refused("[]"), "input");
  EXPECT_EQ(refused("7"), "input");
  EXPECT_EQ(refused("[7]"), "input[0]");
  EXPECT_EQ(refused(R"([{"type": "item_reference", "id": "a"}])"), "input[0].type");
  EXPECT_EQ(refused(R"([{"role": "user", "content": [{"type": "input_image"}]}])"), "input[0].content[0].type");
  EXPECT_EQ(refused(R"([{"role": "nobody", "content": "a"}])"), "input[0].role");
  EXPECT_EQ(refused(R"([{"type": "function_call", "call_id": "1", "arguments": "{}"}])"), "input[0].name");
  EXPECT_EQ(refused(R"([{"type": "function_call_output", "output": "d"}])"), "input[0].call_id");
}

TEST(ReadAsk, NamesThePlaceInAMessage) {
  const auto refused = [](absl::string_view message) {
    return Refused(Form::kChat, absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}, )", message, "]}"))
        .param;
  };
  EXPECT_EQ(refused("7"), "messages[1]");
  EXPECT_EQ(refused(R"({"content": "a"})"), "messages[1].role");
  EXPECT_EQ(refused(R"({"role": "nobody", "content": "a"})"), "messages[1].role");
  EXPECT_EQ(refused(R"({"role": "user"})"), "messages[1].content");
  EXPECT_EQ(refused(R"({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]})"),
            "messages[1].content[1].type");
  EXPECT_EQ(refused(R"({"role": "user", "content": [{"type": "text"}]})"), "messages[1].content[0].text");
  EXPECT_EQ(refused(R"({"role": "assistant", "tool_calls": 7})"), "messages[1].tool_calls");
  EXPECT_EQ(refused(R"({"role": "user", "content": [{"type": "role"}]})"), "messages[1].content[0].type");
}

TEST(ReadTokenize, ReadsATextOrAConversation) {
  const auto text = std::get<TokenizeAsk>(ReadTokenize(R"({"prompt": "a", "return_token_strs": true})"));
  EXPECT_TRUE(text.token_texts);
  EXPECT_THAT(text.ask.prompts, ElementsAre(AskedPrompt("a")));
  const auto chat = std::get<TokenizeAsk>(
      ReadTokenize(R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false})"));
  EXPECT_EQ(chat.ask.turns.size(), 1U);
  EXPECT_FALSE(chat.ask.generation_prompt);
  EXPECT_EQ(std::get<Problem>(ReadTokenize("{}")).param, "prompt");
  EXPECT_THAT(std::get<DetokenizeAsk>(ReadDetokenize(R"({"tokens": [1, 2]})")).tokens, ElementsAre(1, 2));
  EXPECT_EQ(std::get<Problem>(ReadDetokenize(R"({"tokens": [-1]})")).param, "tokens");
  EXPECT_EQ(std::get<Problem>(ReadDetokenize("{}")).param, "tokens");
}

TEST(ReadAsk, BoundsTheNamesOfAnObject) {
  std::string variables;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&variables, i == 0 ? "" : ",", "\"", i, "\":1");
  EXPECT_EQ(Refused(Form::kChat, With(Form::kChat, absl::StrCat("\"chat_template_kwargs\": {", variables, "}"))).code,
            "invalid_json");
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
}  // namespace tdock::inference
