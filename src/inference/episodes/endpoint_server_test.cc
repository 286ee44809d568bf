// Agents get replies at the endpoints of their episodes, where their requests arrive as events.
#include "inference/episodes/endpoint_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/http/testing/raw_client.h"
#include "engine/sampling/token_constraint.h"
#include "nlohmann/json.hpp"
#include "text/char_tokenizer.h"

namespace tdock::inference {
namespace {

using environment::ChatRequest;
using environment::Endpoint;
using environment::Generated;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using DeltaKind = text::ReplyDelta::Kind;

struct HttpReply {
  int status = 0;
  std::string body = {};
  json error() const { return json::parse(body, nullptr, /*allow_exceptions=*/false)["error"]; }
};

class EndpointServerTest : public testing::Test {
 protected:
  EndpointServerTest() {
    environment::EndpointOptions options{.model = "small", .tokenizer = tokenizer_.get(), .end_tokens = {eos()}};
    options.chat_template = &template_;
    options.log = [this](const std::string& line) {
      const MutexLock lock(mu_);
      log_.push_back(line);
    };
    endpoints_ = *StartEndpoints(options);
    endpoint_ = endpoints_->Open(7);
  }

  int32_t eos() const { return *tokenizer_->eos_id(); }
  int port() const {
    absl::string_view rest = endpoint_.base_url;
    absl::ConsumePrefix(&rest, "http://127.0.0.1:");
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(rest.substr(0, rest.find('/')), &port));
    return port;
  }
  std::string ChatPath() const { return absl::StrCat("/episode/", endpoint_.api_key, "/v1/chat/completions"); }
  static std::string Request(const std::string& method, const std::string& path, const std::string& body,
                             const std::string& headers = "") {
    return absl::StrCat(method, " ", path, " HTTP/1.0\r\nHost: 127.0.0.1\r\n", headers, "Content-Length: ", body.size(),
                        "\r\n\r\n", body);
  }
  static HttpReply Read(http::RawClient& client) {
    const std::string all = client.ReadAll();
    HttpReply reply;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos || !absl::SimpleAtoi(all.substr(9, 3), &reply.status)) return reply;
    reply.body = all.substr(end + 4);
    return reply;
  }
  HttpReply Ask(const std::string& method, const std::string& path, const std::string& body = "",
                const std::string& headers = "") const {
    http::RawClient client(port());
    client.Send(Request(method, path, body, headers));
    return Read(client);
  }
  // The next request that comes.
  ChatRequest Come() {
    std::vector<environment::Event> events;
    EXPECT_TRUE(Eventually([&] {
      events = endpoints_->Take();
      return !events.empty();
    }));
    if (events.empty()) return {};
    EXPECT_THAT(events, SizeIs(1));
    EXPECT_EQ(events[0].episode, 7u);
    return std::get<ChatRequest>(*events[0].what);
  }
  // The reply to a request of these fields, where the model says what `generated` has.
  HttpReply Chat(json fields, const absl::StatusOr<Generated>& generated, ChatRequest* come = nullptr) {
    fields["messages"] = json::array({{{"role", "user"}, {"content", "ab"}}});
    http::RawClient client(port());
    client.Send(Request("POST", ChatPath(), fields.dump()));
    const ChatRequest request = Come();
    if (come != nullptr) *come = request;
    endpoints_->Answer(7, request.request, generated);
    return Read(client);
  }
  Generated Said(const std::string& text) const {
    Generated generated;
    generated.token_ids = *tokenizer_->Encode(text);
    generated.stop_reason = "end_token";
    generated.token_ids.push_back(eos());
    generated.log_probs.assign(generated.token_ids.size(), -0.5F);
    generated.versions.assign(generated.token_ids.size(), 3);
    generated.said = {{.kind = DeltaKind::kContent, .text = text}};
    generated.prompt_ids = {0, 1, 2};
    return generated;
  }
  size_t CountLog(const std::string& part) {
    const MutexLock lock(mu_);
    return static_cast<size_t>(
        std::count_if(log_.begin(), log_.end(), [&](const auto& line) { return absl::StrContains(line, part); }));
  }

  const std::unique_ptr<text::CharTokenizer> tokenizer_ = *text::CharTokenizer::Create("abcdefgh\"");
  const text::ChatTemplate template_ = *text::ChatTemplate::Parse(
      "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}{% if add_generation_prompt %}(a){% endif %}"
      "{% if bright %}!{% endif %}");
  Mutex mu_;
  std::vector<std::string> log_ TDOCK_GUARDED_BY(mu_);
  std::unique_ptr<environment::EpisodeEndpoints> endpoints_;
  Endpoint endpoint_;
};

TEST_F(EndpointServerTest, ARequestArrivesAndIsAnsweredInOpenAisForm) {
  EXPECT_EQ(endpoint_.model, "small");
  EXPECT_EQ(endpoint_.base_url, absl::StrCat("http://127.0.0.1:", port(), "/episode/", endpoint_.api_key, "/v1"));
  ChatRequest come;
  const json tools = json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  const HttpReply reply = Chat({{"model", "gpt-5"},
                                {"max_tokens", 5},
                                {"stop", {"x", "yz"}},
                                {"tools", tools},
                                {"logprobs", true},
                                {"chat_template_kwargs", {{"bright", true}}}},
                               Said("cd"), &come);
  EXPECT_THAT(come.turns, ElementsAre(text::Turn{.role = text::Role::kUser, .content = "ab"}));
  EXPECT_EQ(come.max_tokens, 5);
  EXPECT_THAT(come.stop, ElementsAre("x", "yz"));
  EXPECT_EQ(json::parse(come.tools)[0]["function"]["name"], "f");
  EXPECT_EQ(json::parse(come.template_variables), (json{{"bright", true}}));
  EXPECT_FALSE(come.constrain);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = json::parse(reply.body);
  EXPECT_EQ(body["model"], "small");
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "cd");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["weight_versions"], (json::parse(R"([{"version":3,"tokens":3}])")));
  ASSERT_THAT(choice["logprobs"]["content"], SizeIs(3));
  EXPECT_EQ(choice["logprobs"]["content"][0]["logprob"], -0.5);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
}

TEST_F(EndpointServerTest, AStreamHasTheSameReplyAndItsEnd) {
  const HttpReply reply = Chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}}, Said("cd"));
  ASSERT_EQ(reply.status, 200);
  EXPECT_THAT(reply.body, HasSubstr("\"delta\":{\"content\":\"cd\"}"));
  EXPECT_THAT(reply.body, HasSubstr("\"completion_tokens\":3"));
  EXPECT_THAT(reply.body, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(EndpointServerTest, CallsAndReasoningAreApartFromTheText) {
  Generated generated = Said("cd");
  generated.said = {{.kind = DeltaKind::kReasoning, .text = "ef"},
                    {.kind = DeltaKind::kCall, .id = "call_1", .text = "f"},
                    {.kind = DeltaKind::kArguments, .text = "{}"}};
  const HttpReply reply = Chat({}, generated);
  ASSERT_EQ(reply.status, 200);
  const json choice = json::parse(reply.body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["reasoning_content"], "ef");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"], (json{{"name", "f"}, {"arguments", "{}"}}));
}

TEST_F(EndpointServerTest, AKeyNamesAnEpisodeUntilThatIsOver) {
  const std::string hi = R"({"messages":[{"role":"user","content":"ab"}]})";
  const std::string other = endpoints_->Open(8).api_key;
  EXPECT_NE(other, endpoint_.api_key);
  EXPECT_GE(other.size(), 32u);
  EXPECT_EQ(Ask("POST", "/v1/chat/completions", hi).status, 401);
  const HttpReply unknown = Ask("POST", "/episode/0123/v1/chat/completions", hi);
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.error()["code"], "unknown_episode");
  EXPECT_EQ(Ask("POST", "/v1/chat/completions", hi, "Authorization: Bearer 0123\r\n").status, 404);
  EXPECT_EQ(Ask("POST", absl::StrCat("/episode/", other, "/v1/completions"), hi).error()["code"], "not_found");
  EXPECT_EQ(Ask("GET", ChatPath()).status, 405);
  const HttpReply models = Ask("GET", absl::StrCat("/episode/", other, "/v1/models"));
  EXPECT_EQ(json::parse(models.body)["data"][0]["id"], "small");
  endpoints_->Close(8);
  const HttpReply over = Ask("POST", "/v1/chat/completions", hi, absl::StrCat("Authorization: Bearer ", other, "\r\n"));
  EXPECT_EQ(over.status, 410);
  EXPECT_EQ(over.error()["code"], "episode_ended");
  // By the key alone, it is that of episode 7.
  http::RawClient client(port());
  client.Send(
      Request("POST", "/v1/chat/completions", hi, absl::StrCat("Authorization: Bearer ", endpoint_.api_key, "\r\n")));
  endpoints_->Answer(7, Come().request, Said("cd"));
  EXPECT_EQ(Read(client).status, 200);
}

TEST_F(EndpointServerTest, WhatIsOpenEndsWithItsEpisode) {
  http::RawClient client(port());
  client.Send(Request("POST", ChatPath(), R"({"messages":[{"role":"user","content":"ab"}]})"));
  const ChatRequest request = Come();
  endpoints_->Close(7);
  EXPECT_EQ(Read(client).status, 410);
  endpoints_->Answer(7, request.request, Said("cd"));  // which is too late
  EXPECT_THAT(endpoints_->Take(), SizeIs(0));
}

TEST_F(EndpointServerTest, AnErrorOfARequestSaysWhoseItIs) {
  const HttpReply limit = Chat({}, absl::OutOfRangeError("no room (data.max_response_length)"));
  EXPECT_EQ(limit.status, 400);
  EXPECT_EQ(limit.error()["code"], "context_length_exceeded");
  EXPECT_THAT(std::string(limit.error()["message"]), Mentions({"data.max_response_length"}));
  EXPECT_EQ(Chat({}, absl::InvalidArgumentError("no such field")).status, 400);
  EXPECT_EQ(Chat({}, absl::InternalError("broken")).status, 500);
}

TEST_F(EndpointServerTest, WhatATrainedModelCannotBeAskedForIsRefusedByName) {
  const std::pair<const char*, json> refused[] = {
      {"n", 2},          {"top_logprobs", 2},     {"logit_bias", {{"1", 5}}},    {"allowed_token_ids", {1}},
      {"min_tokens", 3}, {"stop_token_ids", {1}}, {"ignore_eos", true},          {"add_generation_prompt", false},
      {"frob", 1},       {"prompt_logprobs", 1},  {"skip_special_tokens", false}};
  for (const auto& [field, value] : refused) {
    json fields = {{field, value}, {"messages", json::array({{{"role", "user"}, {"content", "ab"}}})}};
    if (std::string(field) == "top_logprobs") fields["logprobs"] = true;
    const HttpReply reply = Ask("POST", ChatPath(), fields.dump());
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(reply.error()["param"], field) << reply.body;
  }
  EXPECT_EQ(Ask("POST", ChatPath(), "{").status, 400);
  EXPECT_THAT(endpoints_->Take(), SizeIs(0));
}

TEST_F(EndpointServerTest, SamplingThatIsNotUsedIsToldOfOnce) {
  for (const double temperature : {0.2, 0.3}) {
    EXPECT_EQ(Chat({{"temperature", temperature}, {"top_p", 1}, {"seed", 4}}, Said("cd")).status, 200);
  }
  EXPECT_EQ(CountLog("temperature"), 1u);
  EXPECT_EQ(CountLog("temperature=0.2"), 1u);
  EXPECT_EQ(CountLog("seed=4"), 1u);
  EXPECT_EQ(CountLog("top_p"), 0u) << "it is the run's";
}

TEST_F(EndpointServerTest, AChoiceLimitsTheTokensOfAReply) {
  ChatRequest come;
  EXPECT_EQ(Chat({{"structured_outputs", {{"choice", {"cd"}}}}}, Said("cd"), &come).status, 200);
  ASSERT_TRUE(come.constrain);
  const auto make = come.constrain({0, 1});
  ASSERT_TRUE(make.ok()) << make.status();
  const std::unique_ptr<engine::TokenConstraint> constraint = (*make)(0);
  EXPECT_EQ(constraint->Allowed()[0], uint64_t{1} << 2) << "c alone begins it";
  const HttpReply wrong =
      Ask("POST", ChatPath(), R"({"messages":[{"role":"user","content":"ab"}],"structured_outputs":{"regex":"("}})");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(std::string(wrong.error()["param"]), Mentions({"structured_outputs"}));
}

TEST_F(EndpointServerTest, ALargeRequestArrivesAndATooLargeOneIsRefused) {
  const auto with_bytes = [](size_t bytes) {
    return absl::StrCat(R"({"messages":[{"role":"user","content":")", std::string(bytes, 'a'), R"("}]})");
  };
  http::RawClient client(port());
  client.Send(Request("POST", ChatPath(), with_bytes(10 << 20)));
  const ChatRequest request = Come();
  ASSERT_THAT(request.turns, SizeIs(1));
  EXPECT_EQ(request.turns[0].content.size(), size_t{10} << 20);
  endpoints_->Answer(7, request.request, absl::OutOfRangeError("no room"));
  EXPECT_EQ(Read(client).status, 400);
  http::RawClient large(port());  // refused by its head
  large.Send(
      absl::StrCat("POST ", ChatPath(), " HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: ", 17 << 20, "\r\n\r\n"));
  EXPECT_EQ(Read(large).status, 413);
}

TEST_F(EndpointServerTest, ItsDescriptorCanBeReadWhileARequestWaits) {
  pollfd watched{.fd = endpoints_->descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&watched, 1, 0), 0);
  http::RawClient client(port());
  client.Send(Request("POST", ChatPath(), R"({"messages":[{"role":"user","content":"ab"}]})"));
  ASSERT_EQ(poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  const ChatRequest request = Come();
  EXPECT_EQ(poll(&watched, 1, 0), 0);
  EXPECT_FALSE(request.gone());
  client.Close();
  EXPECT_TRUE(Eventually(request.gone));
}

}  // namespace
}  // namespace tdock::inference
