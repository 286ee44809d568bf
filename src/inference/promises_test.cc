// What docs/serving.md promises of answers, for every two options beside each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "inference/requests.h"
#include "inference/testing/small_server.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::json;

constexpr char kCompletions[] = "/v1/completions", kChat[] = "/v1/chat/completions";
constexpr int64_t kUsualTokens = 30;

// An answer, put together from events where it was streamed.
struct Given {
  std::string text = {};
  std::vector<int32_t> tokens = {}, prompt = {};
  std::vector<double> log_probs = {};
  std::vector<size_t> offsets = {};
  std::vector<size_t> tops = {};  // how many of the most likely tokens each position has
  std::string finish = {};
  int64_t of_version_0 = 0;
};
struct Answers {
  int status = 0;
  Json error = {};
  std::vector<Given> given = {};
  Json usage = {};
};

void AddLogProbs(const Json& log_probs, Given& given) {
  if (log_probs.is_null()) return;
  if (log_probs.contains("content")) {  // a conversation's
    for (const Json& token : log_probs["content"]) {
      given.log_probs.push_back(token["logprob"]);
      given.tops.push_back(token["top_logprobs"].size());
    }
    return;
  }
  for (const Json& one : log_probs["token_logprobs"])
    given.log_probs.push_back(one.is_null() ? 0.0 : one.get<double>());
  for (const Json& one : log_probs["text_offset"]) given.offsets.push_back(one);
  for (const Json& one : log_probs["top_logprobs"]) given.tops.push_back(one.size());
}

void AddChoice(const Json& choice, Answers& answers) {
  const size_t index = choice["index"];
  if (answers.given.size() <= index) answers.given.resize(index + 1);
  Given& given = answers.given[index];
  const Json message = choice.value("message", choice.value("delta", Json::object()));
  given.text += choice.value("text", message.value("content", ""));
  AddLogProbs(choice["logprobs"], given);
  if (choice["finish_reason"].is_string()) given.finish = choice["finish_reason"];
  for (const Json& token : choice.value("token_ids", Json::array())) given.tokens.push_back(token);
  for (const Json& token : choice.value("prompt_token_ids", Json::array())) given.prompt.push_back(token);
  for (const Json& run : choice.value("weight_versions", Json::array())) {
    if (run["version"] == 0) given.of_version_0 += run["tokens"].get<int64_t>();
  }
}

Answers Asked(const SmallServer& small, const char* path, const Json& fields) {
  const auto reply = small.Post(path, fields);
  Answers answers{.status = reply.status};
  if (reply.status != 200) {
    answers.error = reply.json()["error"];
    return answers;
  }
  if (!fields.value("stream", false)) {
    const Json json = reply.json();
    for (const Json& choice : json["choices"]) AddChoice(choice, answers);
    answers.usage = json["usage"];
    return answers;
  }
  std::vector<std::string> events;
  for (absl::string_view line : absl::StrSplit(reply.body, '\n')) {
    if (absl::ConsumePrefix(&line, "data: ")) events.emplace_back(line);
  }
  EXPECT_TRUE(!events.empty() && events.back() == "[DONE]") << reply.body;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    for (const Json& choice : event["choices"]) AddChoice(choice, answers);
    if (event.contains("usage") && !event["usage"].is_null()) answers.usage = event["usage"];
  }
  return answers;
}

std::string TextOf(const SmallServer& small, const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (!small.tokenizer().IsSpecial(token)) text += small.tokenizer().IdToToken(token).value();
  }
  return text;
}

bool IsIn(const Json& list, int32_t token) { return std::find(list.begin(), list.end(), Json(token)) != list.end(); }

// Where the answer ends, and that it ends nowhere before.
void CheckEnd(const SmallServer& small, const Json& fields, const Given& given) {
  const bool is_json = fields.contains("response_format");
  const bool ignores = fields.value("ignore_eos", false);
  const auto size = static_cast<int64_t>(given.tokens.size());
  const std::string all = TextOf(small, given.tokens);
  const Json stops = fields.value("stop", Json::array()), ids = fields.value("stop_token_ids", Json::array());
  const auto is_stop = [&](const Json& stop) {
    return all.compare(given.text.size(), std::string::npos, stop.get<std::string>()) == 0;
  };
  ASSERT_TRUE(absl::StartsWith(all, given.text)) << all;
  EXPECT_GE(size, fields.value("min_tokens", int64_t{0}));
  if (given.finish == "length") {
    EXPECT_EQ(size, fields["max_tokens"].get<int64_t>());
    EXPECT_EQ(given.text, all);
  } else if (is_json) {
    EXPECT_EQ(given.finish, "stop");
    EXPECT_EQ(given.text, all) << "no stop text is cut off";
    const Json object = Json::parse(given.text, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(object.is_object()) << given.text;
  } else {
    EXPECT_EQ(given.finish, "stop");
    const bool at_end_token = !ignores && given.tokens.back() == small.end_token();
    const bool at_stop_text = std::any_of(stops.begin(), stops.end(), is_stop);
    EXPECT_TRUE(at_end_token || at_stop_text || IsIn(ids, given.tokens.back()));
    const std::string last = IsIn(ids, given.tokens.back()) ? TextOf(small, {given.tokens.back()}) : "";
    EXPECT_TRUE(at_stop_text || given.text + last == all);
  }
  if (is_json) return;
  const auto before_last = std::span(given.tokens).first(given.tokens.empty() ? 0 : given.tokens.size() - 1);
  for (const int32_t token : before_last) {
    EXPECT_FALSE(IsIn(ids, token)) << "behind a stop token";
    EXPECT_TRUE(ignores || token != small.end_token()) << "behind an end token";
  }
  if (fields.contains("min_tokens")) return;
  for (const Json& stop : stops) EXPECT_EQ(given.text.find(stop.get<std::string>()), std::string::npos) << stop;
}

void CheckAnswer(const SmallServer& small, const Json& fields, const Given& given) {
  SCOPED_TRACE(given.text);
  CheckEnd(small, fields, given);
  EXPECT_EQ(given.of_version_0, static_cast<int64_t>(given.tokens.size()));
  const Json bias = fields.value("logit_bias", Json::object());
  const bool without_b = bias.value(absl::StrCat(small.IdOf("b")), 0) == -100;
  EXPECT_FALSE(without_b && absl::StrContains(given.text, "b"));
  const bool wants = fields.contains("logprobs");
  ASSERT_EQ(given.log_probs.size(), wants ? given.tokens.size() : 0) << "each token has one";
  for (const double log_prob : given.log_probs) EXPECT_LE(log_prob, 1e-5);
  for (const size_t top : given.tops) EXPECT_TRUE(top == 2 || top == 3);
  size_t offset = 0;
  for (size_t i = 0; i < given.offsets.size(); ++i) {
    EXPECT_EQ(given.offsets[i], offset);
    const int32_t token = given.tokens[i];
    offset += small.tokenizer().IsSpecial(token) ? small.tokenizer().IdToToken(token)->size() : 1;
  }
}

// An answer without the prompt that it begins with.
Given WithoutEcho(const SmallServer& small, const Json& fields, Given given) {
  if (!fields.value("echo", false)) return given;
  const std::string prompt = TextOf(small, given.prompt);
  EXPECT_TRUE(absl::StartsWith(given.text, prompt)) << given.text;
  given.text.erase(0, prompt.size());
  if (!fields.contains("logprobs")) return given;
  const auto size = static_cast<std::ptrdiff_t>(given.prompt.size());
  EXPECT_EQ(given.log_probs.front(), 0) << "nothing comes before the first token";
  EXPECT_EQ(given.tops.front(), 0U);
  for (size_t i = 1; i < given.prompt.size(); ++i) EXPECT_TRUE(given.tops[i] == 2 || given.tops[i] == 3);
  given.log_probs.erase(given.log_probs.begin(), given.log_probs.begin() + size);
  given.tops.erase(given.tops.begin(), given.tops.begin() + size);
  given.offsets.erase(given.offsets.begin(), given.offsets.begin() + size);
  for (size_t& offset : given.offsets) offset -= given.prompt.size();
  return given;
}

void CheckAnswers(const SmallServer& small, const Json& fields, const Answers& answers) {
  const Json prompts = fields.contains("prompt") && fields["prompt"].is_array() ? fields["prompt"] : Json::array({0});
  const auto n = fields.value("n", size_t{1});
  ASSERT_EQ(answers.given.size(), prompts.size() * n);
  int64_t tokens = 0, prompt_tokens = 0;
  for (size_t i = 0; i < answers.given.size(); ++i) {
    const Given& given = answers.given[i];
    CheckAnswer(small, fields, WithoutEcho(small, fields, given));
    tokens += static_cast<int64_t>(given.tokens.size());
    if (i % n == 0) prompt_tokens += static_cast<int64_t>(given.prompt.size());
    EXPECT_EQ(given.prompt, answers.given[i - i % n].prompt);
    if (fields.contains("prompt") && !fields["prompt"].is_array()) {
      EXPECT_EQ(TextOf(small, given.prompt), fields["prompt"].get<std::string>());
    }
  }
  if (fields.value("stream", false) && !fields.contains("stream_options")) return;
  EXPECT_EQ(answers.usage["completion_tokens"], tokens);
  EXPECT_EQ(answers.usage["prompt_tokens"], prompt_tokens);
  EXPECT_EQ(answers.usage["total_tokens"], tokens + prompt_tokens);
}

void ExpectSame(const Answers& streamed, const Answers& whole) {
  ASSERT_EQ(streamed.given.size(), whole.given.size());
  for (size_t i = 0; i < whole.given.size(); ++i) {
    const Given &a = streamed.given[i], &b = whole.given[i];
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.prompt, b.prompt);
    EXPECT_EQ(a.log_probs, b.log_probs);
    EXPECT_EQ(a.offsets, b.offsets);
    EXPECT_EQ(a.tops, b.tops);
    EXPECT_EQ(a.finish, b.finish);
  }
}

// The field for which these cannot be asked together; empty if they can.
std::string RefusedField(const Json& fields) {
  if (fields.contains("suffix")) return "suffix";
  if (fields.contains("echo") && fields.value("stream", false)) return "echo";
  const bool is_json = fields.contains("response_format");
  if (is_json && fields.contains("ignore_eos")) return "ignore_eos";
  const auto min_tokens = fields.value("min_tokens", int64_t{0});
  if (min_tokens > 0 && (is_json || min_tokens > fields["max_tokens"])) return "min_tokens";
  return "";
}

TEST(Promises, HoldForEveryTwoOptions) {
  SmallServer small;
  small.Start();
  const auto id = [&](const char* character) { return absl::StrCat(small.IdOf(character)); };
  const std::vector<Json> options = {
      // "e" would make numbers with exponents that have no value.
      {{"response_format", {{"type", "json_object"}}}, {"logit_bias", {{id("e"), -100}, {id("}"), 3}, {id("\""), 5}}}},
      {{"stop", {"\"", "}", ",", "a", "\n", "\":"}}},
      {{"stop", {"ab", "b", "abX", ":", "::"}}},
      {{"n", 3}},
      {{"stream", true}, {"stream_options", {{"include_usage", true}}}},
      {{"stream", true}},
      {{"logprobs", 2}},
      {{"min_tokens", 7}},
      {{"ignore_eos", true}, {"logit_bias", {{id("<eos>"), 5}}}},
      {{"stop_token_ids", {small.IdOf("a"), small.IdOf("\""), small.IdOf("}")}}},
      {{"logit_bias", {{id("b"), -100}, {id("a"), 2}}}},
      {{"logit_bias", {{id("<eos>"), 3}}}},
      {{"max_tokens", 5}},
      {{"temperature", 0}},
      {{"top_k", 5}, {"top_p", 0.9}, {"min_p", 0.01}},
      {{"repetition_penalty", 1.3}, {"presence_penalty", 0.5}, {"frequency_penalty", 0.5}},
      {{"prompt", {"ab", "{", "X"}}},
      {{"request_id", "mine"}},
      {{"suffix", "a"}},
      {{"echo", true}},
  };
  for (const char* const path : {kCompletions, kChat}) {
    const bool is_chat = path == kChat;
    for (size_t a = 0; a < options.size(); ++a) {
      for (size_t b = a; b < options.size(); ++b) {
        Json fields = {{"max_tokens", kUsualTokens}, {"seed", 10 * a + b}, {"return_token_ids", true}};
        if (is_chat) {
          fields["messages"] = {{{"role", "user"}, {"content", "ab"}}};
        } else {
          fields["prompt"] = "ab";
        }
        fields.merge_patch(options[a]);
        fields.merge_patch(options[b]);
        const bool of_completions = fields.contains("suffix") || fields.contains("echo") ||
                                    options[a].contains("prompt") || options[b].contains("prompt");
        if (is_chat && of_completions) continue;
        Json asked = fields;
        if (is_chat && fields.contains("logprobs")) asked.merge_patch({{"logprobs", true}, {"top_logprobs", 2}});
        SCOPED_TRACE(asked.dump());
        const Answers answers = Asked(small, path, asked);
        if (const std::string refused = RefusedField(fields); !refused.empty()) {
          EXPECT_EQ(answers.status, 400);
          EXPECT_EQ(answers.error["param"], refused);
          continue;
        }
        ASSERT_EQ(answers.status, 200) << answers.error;
        CheckAnswers(small, fields, answers);
        if (!fields.value("stream", false)) continue;
        asked.erase("stream");
        asked.erase("stream_options");
        ExpectSame(answers, Asked(small, path, asked));
      }
    }
  }
}

TEST(Promises, AnswersThatEndByThemselvesAreJsonObjectsWhateverTheStopsAre) {
  SmallServer small;
  small.Start();
  const Json biases = {
      {absl::StrCat(small.IdOf("e")), -100}, {absl::StrCat(small.IdOf("}")), 3}, {absl::StrCat(small.IdOf("\"")), 5}};
  const std::vector<Json> stops = {{{"stop", {"\""}}},
                                   {{"stop", {"}", "{"}}},
                                   {{"stop", {",", ":", "\":"}}},
                                   {{"stop", {"a", "\n", " ", "b", "é"}}},
                                   {{"stop_token_ids", {small.IdOf("\""), small.IdOf("}"), small.IdOf("a")}}},
                                   {{"stop", {"}"}}, {"stop_token_ids", {small.end_token()}}}};
  int ended = 0, with_stops = 0;
  for (size_t i = 0; i < 2 * stops.size(); ++i) {
    Json fields = {{"prompt", "ab"},
                   {"max_tokens", 300},
                   {"n", 6},
                   {"seed", i},
                   {"logit_bias", biases},
                   {"return_token_ids", true},
                   {"response_format", {{"type", "json_object"}}}};
    fields.merge_patch(stops[i % stops.size()]);
    if (i >= stops.size()) fields["stream"] = true;
    const Answers answers = Asked(small, kCompletions, fields);
    ASSERT_EQ(answers.status, 200) << answers.error;
    for (const Given& given : answers.given) {
      CheckAnswer(small, fields, given);
      ended += given.finish == "stop";
      for (const Json& stop : fields.value("stop", Json::array())) {
        with_stops += given.finish == "stop" && absl::StrContains(given.text, stop.get<std::string>());
      }
    }
  }
  EXPECT_GT(ended, 20);
  EXPECT_GT(with_stops, 10);
}

TEST(Promises, WhatIsPreferredContradictsNoRequest) {
  SmallServer small;
  small.Start({.max_tokens = 390, .min_tokens = 300, .ignore_eos = true});
  const auto size = [&](Json fields) {
    fields.merge_patch({{"prompt", std::string(20, 'a')}, {"return_token_ids", true}, {"seed", 1}});
    const Answers answers = Asked(small, kCompletions, fields);
    EXPECT_EQ(answers.status, 200) << answers.error;
    return answers.given.empty() ? 0 : answers.given[0].tokens.size();
  };
  EXPECT_EQ(size({{"max_tokens", 5}}), 5U) << "fewer than min_tokens";
  EXPECT_EQ(size({{"temperature", 1}}), 380U) << "all the room";
  EXPECT_LT(
      size({{"response_format", {{"type", "json_object"}}}, {"logit_bias", {{absl::StrCat(small.IdOf("}")), 100}}}}),
      300U);
}

std::string ContentOf(const SmallServer& small, Json fields) {
  fields.merge_patch({{"messages", {{{"role", "user"}, {"content", "ab"}}}}, {"temperature", 100}});
  const auto reply = small.Post(kChat, fields);
  EXPECT_EQ(reply.status, 200) << reply.body;
  const Json choice = reply.json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  return choice["message"]["content"].is_string() ? choice["message"]["content"].get<std::string>() : "";
}

TEST(Promises, AnswersAreWhatAGrammarSays) {
  SmallServer small;
  small.Start();
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"enum", {"b", "e"}}}}, {"b", {{"type", "boolean"}}}}},
                       {"required", {"a", "b"}},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}};
  for (int i = 0; i < 5; ++i) {
    const Json object = Json::parse(ContentOf(small, {{"response_format", format}}), nullptr, false);
    ASSERT_TRUE(object.is_object());
    EXPECT_TRUE(object["a"] == "b" || object["a"] == "e");
    EXPECT_TRUE(object["b"].is_boolean());
    EXPECT_EQ(object.size(), 2U);
    EXPECT_THAT(ContentOf(small, {{"guided_regex", "a[bf]{2}"}}), testing::MatchesRegex("a[bf][bf]"));
    EXPECT_THAT(ContentOf(small, {{"structured_outputs", {{"choice", {"abe", "al"}}}}}), testing::AnyOf("abe", "al"));
  }
  const auto reply = small.Post(kCompletions, {{"prompt", "ab"}, {"response_format", format}, {"max_tokens", 100}});
  EXPECT_TRUE(Json::parse(reply.json()["choices"][0]["text"].get<std::string>(), nullptr, false).is_object());
}

TEST(Promises, PromptsAreRenderedAsAsked) {
  SmallServer small;
  small.Start();
  const auto prompt = [&](Json fields) {
    if (!fields.contains("messages")) fields["messages"] = {{{"role", "user"}, {"content", "ab"}}};
    fields.merge_patch({{"max_tokens", 1}, {"return_token_ids", true}});
    const auto reply = small.Post(kChat, fields);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return TextOf(small, reply.json()["choices"][0]["prompt_token_ids"].get<std::vector<int32_t>>());
  };
  EXPECT_EQ(prompt({}), "(user)ab(a)") << "";
  EXPECT_EQ(prompt({{"add_generation_prompt", false}}), "(user)ab");
  EXPECT_EQ(prompt({{"truncate_prompt_tokens", 4}}), "b(a)");
  EXPECT_EQ(prompt({{"reasoning_effort", "medium"}}), "(user)ab(a)") << "as if absent";
  const Json begun = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "be"}}};
  EXPECT_EQ(prompt({{"messages", begun}, {"continue_final_message", true}}), "(user)a(assistant)be");
  const auto refused = [&](Json fields) {
    fields["messages"] = {{{"role", "user"}, {"content", "ab"}}};
    return small.Post(kChat, fields).param();
  };
  EXPECT_EQ(refused({{"reasoning_effort", "high"}}), "\"reasoning_effort\"");
  EXPECT_EQ(refused({{"chat_template_kwargs", {{"enable_thinking", false}}}}), "\"chat_template_kwargs\"");
  EXPECT_EQ(refused({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}, {"tool_choice", "required"}}),
            "\"messages\"")
      << "the template has no place for tools";
}

TEST(Promises, ScoresPrompts) {
  SmallServer small;
  small.Start();
  const std::string text = "abrbel";
  const Json scored =
      small.Post(kCompletions, {{"prompt", text}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 1}}).json();
  const Json choice = scored["choices"][0];
  EXPECT_EQ(choice["text"], text);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), text.size());
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
  const Json given = small.Post(kCompletions, {{"prompt", text}, {"max_tokens", 1}, {"prompt_logprobs", 0}}).json();
  const Json list = given["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), text.size());
  EXPECT_TRUE(list[0].is_null());
  for (size_t i = 1; i < text.size(); ++i) {
    const Json& token = list[i].at(absl::StrCat(small.IdOf(text.substr(i, 1))));
    EXPECT_EQ(token["decoded_token"], text.substr(i, 1));
    EXPECT_GE(token["rank"], 1);
    EXPECT_EQ(token["logprob"], choice["logprobs"]["token_logprobs"][i]);
  }
  const Json chat =
      small
          .Post(kChat,
                {{"messages", {{{"role", "user"}, {"content", "ab"}}}}, {"max_tokens", 1}, {"prompt_logprobs", 2}})
          .json();
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<size_t>());
}

TEST(Promises, BoundsTheLogProbabilitiesOfPrompts) {
  const ServedModel model{.names = {"m"}, .context_length = 1 << 20, .vocab_size = 2};
  Ask ask{.prompts = {std::vector<int32_t>(100'000)}, .prompt_log_probs = 20};
  EXPECT_EQ(std::get<0>(RequestsOf(ask, model, 0, 0)).size(), 1U);
  ask.n = 2;
  EXPECT_EQ(std::get<Problem>(RequestsOf(ask, model, 0, 0)).param, "prompt_logprobs");
  ask.prompt_log_probs = 0;
  EXPECT_EQ(std::get<0>(RequestsOf(ask, model, 0, 0)).size(), 1U);
}

TEST(Promises, TextsHaveWhatIsAskedFor) {
  SmallServer small;
  small.Start();
  const Json ends = {{"prompt", "ab"}, {"logit_bias", {{absl::StrCat(small.end_token()), 100}}}, {"temperature", 0}};
  const auto text = [&](Json fields, const Json& more) {
    fields.merge_patch(more);
    return small.Post(kCompletions, fields).json()["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text(ends, Json::object()), "");
  EXPECT_EQ(text(ends, {{"ignore_eos", true}, {"max_tokens", 2}, {"skip_special_tokens", false}}), "<eos><eos>");
  const Json stops = {
      {"prompt", "ab"}, {"stop", "b"}, {"temperature", 0}, {"logit_bias", {{absl::StrCat(small.IdOf("b")), 100}}}};
  EXPECT_EQ(text(stops, Json::object()), "");
  EXPECT_EQ(text(stops, {{"include_stop_str_in_output", true}}), "b");
  EXPECT_EQ(text(stops, {{"stop", nullptr}, {"max_tokens", 3}, {"allowed_token_ids", {small.IdOf("a")}}}), "aaa");
}

TEST(Promises, TextsBecomeTokensAndTokensTexts) {
  SmallServer small;
  small.Start();
  const Json tokens = small.Post("/tokenize", {{"prompt", "ab"}, {"return_token_strs", true}}).json();
  EXPECT_EQ(tokens["tokens"], Json({small.IdOf("a"), small.IdOf("b")}));
  EXPECT_EQ(tokens["token_strs"], Json({"a", "b"}));
  EXPECT_EQ(tokens["count"], 2);
  EXPECT_EQ(tokens["max_model_len"], SmallServer::kContext);
  EXPECT_EQ(small.Post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"], "ab");
  const Json chat = small.Post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "ab"}}}}}).json();
  EXPECT_EQ(chat["count"], 11) << "(user)ab(a)";
  EXPECT_EQ(small.Post("/detokenize", {{"tokens", {100'000}}}).param(), "\"tokens\"");
  EXPECT_EQ(small.Post("/tokenize", {{"prompt", "ab"}, {"model", "another"}}).status, 404);
  EXPECT_EQ(small.Post("/v1/embeddings", {{"input", "ab"}}).status, 400);
}

TEST(Promises, ResponsesAreTheSameStreamed) {
  SmallServer small;
  small.Start();
  const Json fields = {{"input", "ab"},
                       {"max_output_tokens", 20},
                       {"seed", 1},
                       {"top_logprobs", 2},
                       {"include", {"message.output_text.logprobs"}},
                       {"ignore_eos", true}};
  const Json whole = small.Post("/v1/responses", fields).json();
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  ASSERT_EQ(whole["output"].size(), 1U);
  const Json part = whole["output"][0]["content"][0];
  EXPECT_EQ(part["logprobs"].size(), 20U);
  EXPECT_EQ(whole["usage"]["output_tokens"], 20);
  Json streamed = fields;
  streamed["stream"] = true;
  const auto reply = small.Post("/v1/responses", streamed);
  std::string text, last;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(reply.body, '\n')) {
    if (!absl::ConsumePrefix(&line, "data: ")) continue;
    const Json event = Json::parse(line);
    EXPECT_EQ(event["sequence_number"], number++);
    if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
    last = std::string(line);
  }
  EXPECT_EQ(text, part["text"].get<std::string>());
  const Json end = Json::parse(last);
  EXPECT_EQ(end["type"], "response.incomplete");
  EXPECT_EQ(end["response"]["output"][0]["content"], whole["output"][0]["content"]);
  EXPECT_EQ(end["response"]["usage"], whole["usage"]);
}

TEST(Promises, RefusalsNameTheFieldWhereverItIsFoundOut) {
  SmallServer small;
  small.Start();
  const std::vector<std::pair<Json, std::string>> wrong = {
      {{{"min_tokens", 17}}, "min_tokens"},  // above the 16 tokens that a completion usually has
      {{{"min_tokens", 5}, {"max_tokens", 4}}, "min_tokens"},
      {{{"min_p", 1}}, "min_p"},
      {{{"top_p", 0}, {"min_p", 0.1}}, "top_p"},
      {{{"identity", 1}}, "identity"},
      {{{"stop_token_ids", {100'000}}}, "stop_token_ids"},
      {{{"logit_bias", {{"100000", 1}}}}, "logit_bias"},
      {{{"best_of", 2}}, "best_of"},
      {{{"stream_options", {{"include_usage", true}}}}, "stream_options"},
      {{{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema"},
      {{{"structured_outputs", {{"regex", "("}}}}, "structured_outputs.regex"},
      {{{"allowed_token_ids", {100'000}}}, "allowed_token_ids"},
      {{{"guided_regex", "a"}, {"allowed_token_ids", {1}}}, "allowed_token_ids"},
      {{{"prompt", {1, 100'000}}}, "prompt"},
      {{{"max_tokens", 0}}, "max_tokens"},
  };
  for (const auto& [patch, param] : wrong) {
    Json fields = {{"prompt", "ab"}};
    fields.merge_patch(patch);
    SCOPED_TRACE(fields.dump());
    const auto reply = small.Post(kCompletions, fields);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.param(), absl::StrCat("\"", param, "\""));
  }
}

}  // namespace
}  // namespace tdock::inference
