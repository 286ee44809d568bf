#include "inference/model_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "inference/testing/small_server.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::json;
using http::RawClient;

constexpr int kHandlers = 4;

// Requests whose prompts do not become tokens; each client waits for its reply.
std::vector<std::unique_ptr<RawClient>> AskForever(SmallServer& small, int count) {
  const std::string body = Json{{"prompt", "!"}, {"max_tokens", 1}}.dump();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<RawClient>(small.port()));
    EXPECT_TRUE(clients.back()->Send(SmallServer::Request("POST", "/v1/completions", body)));
  }
  return clients;
}

TEST(ModelServer, AnswersWhatIsQuickWhileAllHandlersReadPrompts) {
  SmallServer small;
  small.Start();
  const auto clients = AskForever(small, kHandlers + 2);
  ASSERT_TRUE(Eventually([&] { return small.tokenizer().waiting() == kHandlers; }));
  for (const char* const path : {"/", "/health", "/metrics", "/v1/models", "/v1/models/small"}) {
    EXPECT_EQ(small.Ask("GET", path).status, 200) << path;
  }
  EXPECT_EQ(small.Post("/abort_request", {{"abort_all", true}}).status, 200);
  small.tokenizer().Release();
  for (const auto& client : clients) EXPECT_THAT(client->ReadResponse(), testing::HasSubstr("200 OK"));
}

TEST(ModelServer, StopsReadingAPromptWhoseClientIsGone) {
  SmallServer small;
  small.Start();
  const auto clients = AskForever(small, kHandlers);
  ASSERT_TRUE(Eventually([&] { return small.tokenizer().waiting() == kHandlers; }));
  for (const auto& client : clients) client->Close();
  EXPECT_TRUE(Eventually([&] { return small.tokenizer().stopped() == kHandlers; }));
  EXPECT_EQ(small.Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
}

TEST(ModelServer, EndsWhileHandlersReadPrompts) {
  SmallServer small;
  small.Start();
  const auto clients = AskForever(small, kHandlers + 2);
  ASSERT_TRUE(Eventually([&] { return small.tokenizer().waiting() == kHandlers; }));
  EXPECT_FALSE(small.server()->Drain(absl::ZeroDuration()));
  small.server().reset();
  EXPECT_GE(small.tokenizer().stopped(), kHandlers);
  EXPECT_EQ(small.tokenizer().waiting(), 0);
}

TEST(ModelServer, RefusesAPromptThatTakesTooLongToRead) {
  SmallServer small({.prepare_timeout = absl::Milliseconds(1)});
  small.Start();
  const auto reply = small.Post("/v1/completions", {{"prompt", "!"}, {"max_tokens", 1}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.code(), "\"prompt_timeout\"");
  EXPECT_EQ(reply.param(), "\"prompt\"");
  EXPECT_THAT(reply.message(), Mentions({"1ms"}));
}

TEST(ModelServer, RefusesPromptsThatTheContextHasNoRoomForBeforeTheyAreRead) {
  SmallServer small;
  small.Start();
  const auto refused = [&](const char* path, const Json& fields) {
    const auto reply = small.Post(path, fields);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.code(), "\"context_length_exceeded\"") << reply.body;
    return reply.message();
  };
  const std::string context = std::to_string(SmallServer::kContext);
  EXPECT_THAT(refused("/v1/completions", {{"prompt", std::string(1'000'000, 'a')}, {"max_tokens", 20}}),
              Mentions({"more than 380 tokens", "20", context}));
  EXPECT_THAT(refused("/v1/completions", {{"prompt", std::vector<int>(381, 1)}, {"max_tokens", 20}}),
              Mentions({"381 tokens", "20", "401", context}));
  EXPECT_THAT(refused("/v1/completions", {{"prompt", "!"}, {"max_tokens", 400}}), Mentions({"400", context}));
  const Json message = {{"role", "user"}, {"content", "a"}};
  EXPECT_THAT(refused("/v1/chat/completions", {{"messages", std::vector<Json>(401, message)}}),
              Mentions({"401 messages", context}));
  EXPECT_THAT(refused("/v1/chat/completions", {{"messages", std::vector<Json>(100, message)}}),
              Mentions({"more than 399 tokens", context}));
  EXPECT_EQ(small.tokenizer().waiting() + small.tokenizer().stopped(), 0);
}

TEST(ModelServer, TakesRoomForAnswersBeforeItReadsPrompts) {
  SmallServer small({.max_open_answers = 2});
  small.Start();
  const auto clients = AskForever(small, 2);
  ASSERT_TRUE(Eventually([&] { return small.tokenizer().waiting() == 2; }));
  const auto reply = small.Post("/v1/completions", {{"prompt", "!"}, {"max_tokens", 1}});
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.code(), "\"rate_limit_exceeded\"");
  EXPECT_EQ(small.tokenizer().waiting(), 2);
  small.tokenizer().Release();
  for (const auto& client : clients) EXPECT_THAT(client->ReadResponse(), testing::HasSubstr("200 OK"));
  EXPECT_EQ(small.Post("/v1/completions", {{"prompt", "!"}, {"max_tokens", 1}}).status, 200);
}

TEST(ModelServer, ReadsNoLargeBodyOnTheThreadForWhatIsQuick) {
  SmallServer small;
  small.Start();
  EXPECT_EQ(small.Post("/abort_request", {{"rid", std::string(70'000, 'a')}}).status, 413);
  EXPECT_EQ(small.Post("/abort_request", {{"rid", "a"}}).status, 200);
}

TEST(ModelServer, IsNotHealthyWhileItCannotAnswer) {
  SmallServer small;
  small.Break(0);
  small.Start();
  EXPECT_EQ(small.Ask("GET", "/health").status, 200);
  const auto failed = small.Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}});
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(failed.message(), Mentions({"logits", "not finite"}));
  ASSERT_TRUE(Eventually([&] { return small.Ask("GET", "/health").status == 503; }));
  const auto health = small.Ask("GET", "/health");
  EXPECT_EQ(health.code(), "\"cannot_answer\"");
  EXPECT_THAT(health.message(), Mentions({"logits", "not finite"}));
}

TEST(ModelServer, AsksTheReplicasThatCanAnswer) {
  SmallServer small({}, /*replicas=*/2);
  small.Break(0);
  small.Start();
  const auto status = [&] { return small.Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}}).status; };
  EXPECT_EQ(status(), 500);
  ASSERT_TRUE(Eventually([&] { return status() == 200; }));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(status(), 200);
  EXPECT_EQ(small.Ask("GET", "/health").status, 200);
}

}  // namespace
}  // namespace tdock::inference
