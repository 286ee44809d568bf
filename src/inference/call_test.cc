#include "inference/call.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "engine/engine.h"
#include "inference/failure.h"
#include "inference/replica.h"
#include "model/decoder/testing/models.h"
#include "text/char_tokenizer.h"

namespace tdock::inference {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

// Waits for what comes from the replica's thread.
class Ends {
 public:
  void Add(engine::Answer answer) {
    const MutexLock lock(mu_);
    answers_.push_back(std::move(answer));
    changed_.NotifyAll();
  }
  std::vector<engine::Answer> Await(size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kPatience);
    const MutexLock lock(mu_);
    while (answers_.size() < count && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mu_, deadline);
    return std::exchange(answers_, {});
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<engine::Answer> answers_ TDOCK_GUARDED_BY(mu_);
};

// Keeps the whole answer, or all events.
class OneExchange final : public http::Exchange {
 public:
  const http::Request& request() const override { return request_; }
  void DropBody() override {}
  void Send(http::Response response) override {
    const MutexLock lock(mu_);
    response_ = std::move(response);
  }
  void Begin(http::Response) override {}
  void Write(absl::string_view text) override {
    const MutexLock lock(mu_);
    absl::StrAppend(&written_, text);
  }
  void End(absl::string_view text) override { Write(text); }
  size_t unread_bytes() const override { return 0; }
  void OnGone(std::function<void()>) override {}
  bool gone() const override { return false; }
  void Note(std::string) override {}
  http::Response response() {
    const MutexLock lock(mu_);
    return response_;
  }
  std::string written() {
    const MutexLock lock(mu_);
    return written_;
  }

 private:
  const http::Request request_;
  Mutex mu_;
  http::Response response_ TDOCK_GUARDED_BY(mu_);
  std::string written_ TDOCK_GUARDED_BY(mu_);
};

class CallTest : public testing::Test {
 protected:
  static engine::Request Ask(int64_t max_new_tokens) {
    return {.prompt = {.tokens = {1, 2}}, .sampling = {.max_new_tokens = max_new_tokens, .ignore_eos = true}};
  }

  const model::Decoder decoder_ =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, false), 21, at::kCPU);
  engine::Engine engine_{decoder_, {}};
};

TEST_F(CallTest, AFailedStepFailsWhatItLostAndNothingElse) {
  Ends lost, kept, broken;
  Replica replica(engine_);
  engine::Request fails = Ask(4);
  fails.on_token = [&](int64_t, const engine::NewToken&) {
    std::thread([&] {  // adds another one during the step, which is not lost with it
      EXPECT_TRUE(replica.Add(Ask(5), [&](engine::Answer answer) { kept.Add(std::move(answer)); }).ok());
    })
        .join();
    throw std::runtime_error("no more");
  };
  ASSERT_TRUE(replica.Add(std::move(fails), [&](engine::Answer answer) { lost.Add(std::move(answer)); }).ok());
  const auto failed = lost.Await(1);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_THAT(failed[0].status.message(), Mentions({"no more"}));
  const auto whole = kept.Await(1);
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_TRUE(whole[0].status.ok());
  EXPECT_EQ(whole[0].completion.tokens.size(), 5U);
  EXPECT_EQ(whole[0].completion.finish_reason, engine::FinishReason::kLength);
  ASSERT_TRUE(replica.Add(Ask(1), [&](engine::Answer) { throw std::runtime_error("no memory"); }).ok());
  ASSERT_TRUE(replica.Add(Ask(3), [&](engine::Answer answer) { broken.Add(std::move(answer)); }).ok());
  const auto after = broken.Await(1);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_TRUE(after[0].status.ok());
}

TEST_F(CallTest, AReplicaIsHealthyAgainOnceItsEngineAnswers) {
  model::Decoder decoder = decoder_.Clone();
  const at::Tensor embedding = decoder.parameters().front(), whole = embedding.clone();
  const auto set = [&](bool broken) {
    const at::NoGradGuard no_grad;
    embedding.copy_(whole);
    if (broken) embedding.fill_(std::numeric_limits<float>::quiet_NaN());
  };
  set(true);
  engine::Engine engine(decoder, {});
  Replica replica(engine);
  EXPECT_TRUE(replica.health().ok());
  Ends ends;
  ASSERT_TRUE(replica.Add(Ask(3), [&](engine::Answer answer) { ends.Add(std::move(answer)); }).ok());
  ASSERT_EQ(ends.Await(1).size(), 1U);
  ASSERT_TRUE(Eventually([&] { return !replica.health().ok(); }));
  EXPECT_THAT(replica.health(), Fails(absl::StatusCode::kInternal, {"not finite"}));
  replica.BetweenSteps([&] { engine.Update([&] { set(false); }, 1); });
  EXPECT_TRUE(Eventually([&] { return replica.health().ok(); }));
}

TEST_F(CallTest, AReplicaIsHealthyWhereOnlyOneAnswerFails) {
  model::Decoder decoder = decoder_.Clone();
  {
    const at::NoGradGuard no_grad;
    decoder.parameters().front()[2].fill_(std::numeric_limits<float>::quiet_NaN());  // the embedding of token 2
  }
  engine::Engine engine(decoder, {});
  Replica replica(engine);
  Ends ends;
  ASSERT_TRUE(replica.Add(Ask(3), [&](engine::Answer answer) { ends.Add(std::move(answer)); }).ok());
  const auto failed = ends.Await(1);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_FALSE(failed[0].status.ok());
  for (int i = 0; i < 4; ++i) replica.BetweenSteps([] {});  // it asks itself, which takes a step
  EXPECT_EQ(replica.health(), absl::OkStatus());
}

TEST_F(CallTest, AbortedBeforeItStartsEndsAtOnce) {
  const auto tokenizer = *text::CharTokenizer::Create("abcdef");
  const ServedModel model{
      .names = {"m"}, .tokenizer = tokenizer.get(), .texts = std::make_shared<TokenTexts>(*tokenizer)};
  Metrics metrics;
  WorkQueue writers(1);
  Replica replica(engine_);
  const auto exchange = std::make_shared<OneExchange>();
  Ends ends;
  const auto call = std::make_shared<Call>(inference::Ask{.form = Form::kGenerate}, "id", exchange, model, metrics,
                                           writers, [&] { ends.Add({}); });
  call->Abort();
  engine::Request request = Ask(20);
  request.sampling.allowed_tokens = {1, 2};
  std::vector<engine::Request> requests;
  requests.push_back(std::move(request));
  call->Start(std::move(requests), replica);
  ASSERT_EQ(ends.Await(1).size(), 1U);
  replica.BetweenSteps([] {});
  writers.AwaitIdle();
  EXPECT_EQ(exchange->response().status, 200);
  EXPECT_THAT(exchange->response().body, HasSubstr(R"("finish_reason":{"type":"abort"})"));
}

// Allows one token after another.
class Script final : public engine::TokenConstraint {
 public:
  explicit Script(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}

  std::span<const uint64_t> Allowed() override {
    const auto token = static_cast<size_t>(tokens_[std::min(at_, tokens_.size() - 1)]);
    mask_.assign(token / 64 + 1, 0);
    mask_.back() = uint64_t{1} << (token % 64);
    return mask_;
  }
  void Accept(int32_t) override { ++at_; }

 private:
  const std::vector<int32_t> tokens_;
  size_t at_ = 0;
  std::vector<uint64_t> mask_;
};

// Has the characters of ASCII, and special tokens, of which the last two are those for padding and for the end.
std::unique_ptr<text::CharTokenizer> AsciiTokenizer(const std::vector<const char*>& specials) {
  std::vector<text::CharTokenizer::Token> tokens = {{.text = "\n"}};
  for (char c = ' '; c <= '~'; ++c) tokens.push_back({.text = std::string(1, c)});
  for (const char* const special : specials) tokens.push_back({.text = special, .special = true});
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  return *text::CharTokenizer::FromTokens(std::move(tokens), end, end - 1);
}

// A model that says what it is told to.
class SaidTest : public testing::Test {
 protected:
  static constexpr char kTools[] = R"([{"type": "function", "function": {"name": "find", "parameters": {}}}])";

  SaidTest() {
    tokenizer_ = AsciiTokenizer(kSpecials);
    model::ModelConfig config = model::TinyConfig(model::Architecture::kQwen2, false);
    config.vocab_size = tokenizer_->vocab_size();
    config.max_positions = 400;
    decoder_ = std::make_unique<model::Decoder>(model::TinyDecoder(config, 5, at::kCPU));
    model_.names = {"m"};
    model_.tokenizer = tokenizer_.get();
    model_.texts = std::make_shared<TokenTexts>(*tokenizer_);
    model_.end_tokens = {*tokenizer_->eos_id()};
  }

  // The reply to a chat, whole or as events, to a model that says this, and then the end token.
  std::string Said(const inference::Ask& ask, const std::string& said, const std::string& prompt = "a") {
    engine::Engine engine(*decoder_, {.end_tokens = model_.end_tokens, .tokenizer = tokenizer_.get()});
    Replica replica(engine);
    Metrics metrics;
    WorkQueue writers(1);
    Ends ends;
    const auto exchange = std::make_shared<OneExchange>();
    const auto call = std::make_shared<Call>(ask, "id", exchange, model_, metrics, writers, [&] { ends.Add({}); });
    std::vector<int32_t> script = Tokens(said);
    script.push_back(model_.end_tokens.front());
    engine::Request request{.prompt = {.tokens = Tokens(prompt)}};
    request.sampling.max_new_tokens = static_cast<int64_t>(script.size()) + 1;
    request.sampling.stop = ask.sampling.stop.value_or(std::vector<std::string>());
    request.sampling.stop_tokens = ask.sampling.stop_token_ids.value_or(std::vector<int32_t>());
    request.constrain = [&](int64_t) { return std::make_unique<Script>(script); };
    std::vector<engine::Request> requests;
    requests.push_back(std::move(request));
    call->Start(std::move(requests), replica);
    EXPECT_EQ(ends.Await(1).size(), 1U);
    replica.BetweenSteps([] {});
    writers.AwaitIdle();
    return ask.stream ? exchange->written() : exchange->response().body;
  }
  static inference::Ask Chat(bool stream) {
    inference::Ask ask{.form = Form::kChat};
    ask.turns = {{.role = text::Role::kUser, .content = "a"}};
    ask.context.tools = kTools;
    ask.reads_reply = true;
    ask.stream = stream;
    return ask;
  }
  Json Choice(const inference::Ask& ask, const std::string& said, const std::string& prompt = "a") {
    return Json::parse(Said(ask, said, prompt))["choices"][0];
  }
  // The events of one answer, put together again as clients do.
  Json Streamed(const std::string& said) {
    const std::string events = Said(Chat(/*stream=*/true), said);
    Json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", Json::array()}};
    for (absl::string_view event : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
      EXPECT_TRUE(absl::ConsumePrefix(&event, "data: ")) << event;
      if (event == "[DONE]") continue;
      const Json choice = Json::parse(event)["choices"][0];
      const Json& delta = choice["delta"];
      message["content"] = message["content"].get<std::string>() + delta.value("content", "");
      message["reasoning_content"] =
          message["reasoning_content"].get<std::string>() + delta.value("reasoning_content", "");
      EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", ""));
      for (const Json& part : delta.value("tool_calls", Json::array())) AddPart(part, message["tool_calls"]);
      if (choice["finish_reason"].is_string()) message["finish_reason"] = choice["finish_reason"];
    }
    return message;
  }

  const std::vector<const char*> kSpecials = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>",
                                              "<|call|>",  "<|other|>",   "<pad>",       "<eos>"};
  std::unique_ptr<text::CharTokenizer> tokenizer_;
  std::unique_ptr<model::Decoder> decoder_;
  ServedModel model_;

 private:
  std::vector<int32_t> Tokens(const std::string& text) const {
    return *tokenizer_->Encode(text, {.spelled = text::SpelledSpecial::kParse});
  }
  static void AddPart(const Json& part, Json& calls) {
    if (part.contains("id")) {
      EXPECT_EQ(part["index"], calls.size());
      EXPECT_EQ(part["type"], "function");
      calls.push_back(part);
      return;
    }
    ASSERT_LT(part["index"].get<size_t>(), calls.size());
    Json& function = calls[part["index"].get<size_t>()]["function"];
    function["arguments"] = function["arguments"].get<std::string>() + part["function"]["arguments"].get<std::string>();
  }
};

TEST_F(SaidTest, ReasoningAndCallsAreApartFromTheText) {
  struct Case {
    text::ReplyForm form;
    std::string said;
  };
  const std::vector<Case> cases = {
      {text::ReplyForm::kHermes,
       "<think>Hm</think>\n\nLook.\n<tool_call>\n{\"name\": \"find\", \"arguments\": {\"a\": \"</tool_call>\"}}\n"
       "</tool_call><tool_call>{\"name\": \"now\"}</tool_call>"},
      {text::ReplyForm::kHarmony,
       "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>Look.<|end|><|start|>"
       "assistant<|channel|>commentary to=functions.find<|message|>{\"a\": \"</tool_call>\"}<|call|><|start|>assistant"
       "<|channel|>commentary to=functions.now<|message|>{}"},
  };
  model_.has_reasoning = true;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.said);
    model_.reply_form = one.form;
    const Json choice = Choice(Chat(/*stream=*/false), one.said);
    const Json& message = choice["message"];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_EQ(message["content"], "Look.");
    EXPECT_EQ(message["reasoning_content"], "Hm");
    EXPECT_EQ(message["reasoning"], "Hm");
    ASSERT_EQ(message["tool_calls"].size(), 2U);
    EXPECT_EQ(message["tool_calls"][0]["type"], "function");
    EXPECT_EQ(message["tool_calls"][0]["function"],
              (Json{{"name", "find"}, {"arguments", "{\"a\": \"</tool_call>\"}"}}));
    EXPECT_EQ(message["tool_calls"][1]["function"], (Json{{"name", "now"}, {"arguments", "{}"}}));
    EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);

    Json streamed = Streamed(one.said);
    for (Json& call : streamed["tool_calls"]) call.erase("index");
    EXPECT_EQ(streamed["finish_reason"], "tool_calls");
    EXPECT_EQ(streamed["content"], "Look.");
    EXPECT_EQ(streamed["reasoning_content"], "Hm");
    EXPECT_EQ(streamed["tool_calls"], message["tool_calls"]);
  }
}

TEST_F(SaidTest, ContentIsNullWhereThereIsNone) {
  model_.reply_form = text::ReplyForm::kHermes;
  const Json calls = Choice(Chat(false), "<tool_call>{\"name\": \"now\"}</tool_call>");
  EXPECT_TRUE(calls["message"]["content"].is_null());
  EXPECT_FALSE(calls["message"].contains("reasoning_content"));
  const Json nothing = Choice(Chat(false), "");
  EXPECT_EQ(nothing["message"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(nothing["finish_reason"], "stop");
}

TEST_F(SaidTest, BrokenCallsAreText) {
  model_.reply_form = text::ReplyForm::kHermes;
  const std::string broken = "<tool_call>{\"name\": \"find\", \"arguments\": {\"a\": </tool_call>";
  const Json choice = Choice(Chat(false), broken);
  EXPECT_EQ(choice["message"], (Json{{"role", "assistant"}, {"content", broken}}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const Json streamed = Streamed(broken);
  EXPECT_EQ(streamed["content"], broken);
  EXPECT_EQ(streamed["finish_reason"], "stop");
}

TEST_F(SaidTest, ReadsCallsOnlyWhereThereAreToolsAndReasoningOnlyOfModelsThatHaveIt) {
  model_.reply_form = text::ReplyForm::kHermes;
  const std::string said = "<think>Hm</think><tool_call>{\"name\": \"now\"}</tool_call>";
  inference::Ask without_tools = Chat(false);
  without_tools.context.tools.clear();
  EXPECT_EQ(Choice(without_tools, said)["message"]["content"], said);
  model_.has_reasoning = true;
  const Json reasons = Choice(without_tools, said)["message"];
  EXPECT_EQ(reasons["content"], "<tool_call>{\"name\": \"now\"}</tool_call>");
  EXPECT_EQ(reasons["reasoning_content"], "Hm");
  inference::Ask as_it_is = Chat(false);
  as_it_is.reads_reply = false;
  EXPECT_EQ(Choice(as_it_is, said)["message"]["content"], said);
  EXPECT_EQ(Choice(without_tools, "Hm</think>Two", "a<think>\n")["message"]["reasoning_content"], "Hm")
      << "which the prompt has begun";
}

TEST_F(SaidTest, ShowsSpecialTokensWhereTheyAreAskedFor) {
  inference::Ask ask = Chat(false);
  ask.reads_reply = false;
  EXPECT_EQ(Choice(ask, "a<|other|>b<|end|>")["message"]["content"], "ab");
  ask.skip_special_tokens = false;
  EXPECT_EQ(Choice(ask, "a<|other|>b<|end|>")["message"]["content"], "a<|other|>b<|end|>");
  ask.include_stop = true;
  EXPECT_EQ(Choice(ask, "a<|other|>b")["message"]["content"], "a<|other|>b<eos>");
  ask.sampling.stop = {"bc", "b"};
  EXPECT_EQ(Choice(ask, "a<|other|>bcd")["message"]["content"], "a<|other|>b");
  ask.include_stop = false;
  EXPECT_EQ(Choice(ask, "a<|other|>bcd")["message"]["content"], "a<|other|>");
}

TEST_F(SaidTest, LeavesOutTheTokenThatEndsAnAnswer) {
  inference::Ask ask = Chat(false);
  ask.reads_reply = false;
  const auto content = [&](const std::string& said) {
    const Json choice = Choice(ask, said);
    EXPECT_EQ(choice["finish_reason"], "stop");
    return choice["message"]["content"];
  };
  ask.sampling.stop_token_ids = {*tokenizer_->TokenToId("b"), *tokenizer_->TokenToId("<|other|>")};
  EXPECT_EQ(content("abc"), "a");
  ask.skip_special_tokens = false;
  EXPECT_EQ(content("a<|other|>c"), "a");
  ask.include_stop = true;
  EXPECT_EQ(content("abc"), "ab");
  EXPECT_EQ(content("a<|other|>c"), "a<|other|>");
  ask.include_stop = false;
  ask.grammar = GrammarSpec();
  EXPECT_EQ(content("abc"), "ab") << "nothing of a grammar's text is left out";
}

// As where a grammar is complete with it.
TEST(ReplyStream, ReadsAMarkThatIsTheLastToken) {
  const auto tokenizer = AsciiTokenizer({"<tool_call>", "</tool_call>", "<pad>", "<eos>"});
  const engine::StopTexts stops({});
  ReplyStream stream(*tokenizer, stops, {}, {.form = text::ReplyForm::kHermes, .end_tokens = {*tokenizer->eos_id()}});
  const auto said = tokenizer->Encode("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                                      {.spelled = text::SpelledSpecial::kParse});
  ASSERT_TRUE(said.ok()) << said.status();
  for (const int32_t token : *said) ASSERT_TRUE(stream.Push(token).ok());
  ASSERT_TRUE(stream.Finish(std::nullopt, /*by_itself=*/true).ok());
  EXPECT_EQ(stream.reply().calls.size(), 1U);
  EXPECT_TRUE(stream.reply().broken.empty());
}

TEST(WhatOf, HasNoStack) {
  try {
    TORCH_CHECK(false, "no index 64");
  } catch (const std::exception& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("Exception raised from"));
    EXPECT_THAT(WhatOf(error), HasSubstr("index 64"));
    EXPECT_THAT(WhatOf(error), Not(HasSubstr("raised from")));
    return;
  }
  FAIL();
}

}  // namespace
}  // namespace tdock::inference
