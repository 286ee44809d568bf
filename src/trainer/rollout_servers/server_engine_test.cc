#include "trainer/rollout_servers/server_engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "trainer/rollout_servers/testing/server_engine_fixture.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::Pair;

TEST_F(ServerEngineTest, AnswersAreThoseOfAnEngineInThisProcess) {
  FakeServer a(other_), b(other_, {.instance = "fedcba9876543210"});
  const auto engine = Make(Options({a.url(), b.url() + "/v1/", a.url()}));
  ASSERT_NE(engine, nullptr);
  ExpectSame(AnswersOf(*engine, Some()), Expected(Some()));
  EXPECT_GT(a.asked(), 0);
  EXPECT_GT(b.asked(), 0);
  EXPECT_EQ(a.asked() + b.asked(), 6);
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& weight : policy_.parameters()) at::Tensor(weight).mul_(1.25);
  }
  ASSERT_TRUE(engine->Serve(Policy(), 9, false, kNoStop).ok());
  ExpectSame(AnswersOf(*engine, Some()), Expected(Some(), 9));
  ASSERT_TRUE(engine->Serve(Policy(), 9, false, kNoStop).ok()) << "the same again";
  EXPECT_EQ(a.updates() + b.updates(), 4);
  const auto report = ReportOf(*engine);
  EXPECT_THAT(report, Contains(Pair("rollout/servers", 2)));
  EXPECT_THAT(report, Contains(Pair("rollout/server_retries", 0)));
  double bytes = 0;
  for (const auto& [name, weight] : policy_.NamedWeights()) bytes += static_cast<double>(weight.nbytes());
  EXPECT_THAT(report, Contains(Pair("rollout/server_weights_bytes", 4 * bytes)));
  EXPECT_GT(engine->computing(), absl::ZeroDuration());
}

TEST_F(ServerEngineTest, PartsOfAnAnswerAreTheWholeAnswer) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  std::vector<engine::Request> requests;
  requests.reserve(6);
  for (int32_t i = 0; i < 6; ++i) requests.push_back(Ask(7 + i, 1));
  const Answers expected = Expected(requests);
  for (engine::Request& request : requests) request.token_budget = 3;
  Answers answers;
  for (int round = 0; round < 8; ++round) {
    answers = AnswersOf(*engine, requests);
    ASSERT_EQ(answers.size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const engine::Completion& completion = answers.at({i, 0}).completion;
      if (round == 0 && completion.finish_reason == engine::FinishReason::kBudget) {
        EXPECT_EQ(completion.tokens.size(), 3U);
        EXPECT_FALSE(completion.finished);
      }
      requests[i].so_far = {completion};
    }
  }
  for (auto& [key, answer] : answers) answer.version = 7;  // of those that came back unchanged
  ExpectSame(answers, expected);
}

TEST_F(ServerEngineTest, SendsTheKeyAndNeverSaysIt) {
  FakeServer server(other_);
  server.Set([](const http::Request& request) -> std::optional<http::Response> {
    if (request.Header("authorization") == "Bearer a-secret") return std::nullopt;
    return http::Response{.status = 401, .body = absl::StrCat("not ", request.Header("authorization"))};
  });
  auto options = Options({server.url()});
  options.key_env = "TDOCK_TEST_SERVER_KEY";
  ASSERT_EQ(setenv("TDOCK_TEST_SERVER_KEY", "a-secret", 1), 0);
  EXPECT_NE(Make(options), nullptr);
  ASSERT_EQ(setenv("TDOCK_TEST_SERVER_KEY", "b-secret", 1), 0);
  const absl::Status refused = CheckServers(options, 10, kNoStop).status();
  EXPECT_THAT(refused, Fails(absl::StatusCode::kFailedPrecondition, {server.url(), "401"}));
  EXPECT_THAT(std::string(refused.message()), testing::Not(HasSubstr("b-secret")));
  unsetenv("TDOCK_TEST_SERVER_KEY");
}

TEST_F(ServerEngineTest, AbortingClosesTheConnection) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  server.Hold();
  const auto id = engine->Add(Ask(7));
  ASSERT_TRUE(id.ok() && Eventually([&] { return server.asked() == 1; }));
  EXPECT_EQ(engine->open(), 2);
  ASSERT_TRUE(engine->Abort(*id).ok());
  EXPECT_EQ(engine->open(), 0);
  const auto ended = engine->Step();
  ASSERT_TRUE(ended.ok());
  ASSERT_EQ(ended->size(), 2U);
  EXPECT_EQ(ended->front().completion.finish_reason, engine::FinishReason::kAborted);
  EXPECT_THAT(engine->Abort(*id), Fails(absl::StatusCode::kNotFound));
  EXPECT_FALSE(engine->HasWork());
  EXPECT_TRUE(Eventually([&] { return server.gone() == 1; }));
}

TEST_F(ServerEngineTest, AnswersEndAtTheirDeadline) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  server.Hold();
  engine::Request request = Ask(7, 1);
  request.deadline = absl::Now() + absl::Milliseconds(20);
  const Answers answers = AnswersOf(*engine, {request});
  EXPECT_EQ(answers.at({0, 0}).completion.finish_reason, engine::FinishReason::kDeadline);
}

TEST_F(ServerEngineTest, WeightsMayChangeWhileAnswersAreInProgress) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(server.last_update()["flush_cache"], true);
  server.Hold();
  ASSERT_TRUE(engine->Add(Ask(7)).ok());
  ASSERT_TRUE(Eventually([&] { return server.asked() == 1; }));
  EXPECT_THAT(engine->Serve(Policy(), 8, false, kNoStop),
              Fails(absl::StatusCode::kFailedPrecondition, {"2 answers", "version 8", "in_flight"}));
  ASSERT_TRUE(engine->Serve(Policy(), 8, /*in_flight=*/true, kNoStop).ok());
  EXPECT_EQ(server.last_update()["flush_cache"], false);
  server.Release();
  Answers answers;
  Finish(*engine, answers);
  ExpectSame(answers, Expected({Ask(7)}, 8));
}

TEST_F(ServerEngineTest, OtherServersGetFolders) {
  const std::string folder = testing::TempDir() + absl::StrCat("weights_", getpid());
  FakeServer a(other_, {.kind = ServerKind::kOther}), b(other_, {.kind = ServerKind::kOther});
  auto options = Options({a.url(), b.url()});
  options.weights = ServerWeights::kFolder;
  options.weights_folder = folder;
  auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(a.last_update()["weight_version"], "7");
  EXPECT_THAT(a.last_update()["model_path"].get<std::string>(), HasSubstr(folder + "/weights-7"));
  ASSERT_TRUE(engine->Serve(Policy(), 8, false, kNoStop).ok());
  EXPECT_FALSE(std::filesystem::exists(folder + "/weights-7"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/weights-8/model.safetensors"));
  const Answers answers = AnswersOf(*engine, Some());
  const Answers expected = Expected(Some(), 8);
  ASSERT_EQ(answers.size(), expected.size());
  for (const auto& [key, answer] : answers) {
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    const engine::Completion& completion = answer.completion;
    EXPECT_EQ(completion.weights.size(), 1U);
    EXPECT_EQ(completion.weights[0], (engine::WeightsSpan{8, static_cast<int64_t>(completion.tokens.size())}));
    EXPECT_EQ(completion.finished, completion.tokens.back() == 2 || completion.tokens.back() == 3);
  }
  EXPECT_EQ(a.updates(), 2);
  engine.reset();
  EXPECT_FALSE(std::filesystem::exists(folder + "/weights-8"));
  std::filesystem::remove_all(folder);
}

TEST_F(ServerEngineTest, ServersMayKeepTheWeightsTheyHave) {
  FakeServer server(policy_, {.kind = ServerKind::kOther});
  auto options = Options({server.url()});
  options.weights = ServerWeights::kNone;
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Serve(Policy(), 8, false, kNoStop).ok());
  const Answers answers = AnswersOf(*engine, {Ask(7, 1)});
  ASSERT_TRUE(answers.at({0, 0}).status.ok());
  EXPECT_EQ(answers.at({0, 0}).version, 7) << "the first";
  EXPECT_EQ(server.updates(), 0);
}

TEST_F(ServerEngineTest, RefusesByNameWhatServersCannotDo) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  const auto refused = [&](const std::function<void(engine::Request&)>& change) {
    engine::Request request = Ask(7);
    change(request);
    return engine->Add(std::move(request)).status();
  };
  const auto unknown = absl::StatusCode::kUnimplemented;
  EXPECT_THAT(refused([](auto& request) { request.sampling.stop = {"x"}; }), Fails(unknown, {"stop texts"}));
  EXPECT_THAT(refused([](auto& request) { request.on_token = [](int64_t, const engine::NewToken&) {}; }),
              Fails(unknown, {"on_token"}));
  EXPECT_THAT(refused([](auto& request) { request.constrain = [](int64_t) { return nullptr; }; }),
              Fails(unknown, {"constrain"}));
  EXPECT_THAT(refused([](auto& request) { request.sampling.filtered_log_probs = true; }),
              Fails(unknown, {"filtered_log_probs"}));
  EXPECT_THAT(refused([](auto& request) {
                request.token_budget = 1;
                request.sampling.presence_penalty = 1;
              }),
              Fails(unknown, {"presence_penalty"}));
  const auto wrong = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused([](auto& request) { request.prompt.tokens = {}; }), Fails(wrong, {"prompt", "empty"}));
  EXPECT_THAT(refused([](auto& request) { request.sampling.top_p = 2; }), Fails(wrong, {"top_p"}));
  EXPECT_EQ(server.asked(), 0);
  EXPECT_FALSE(engine->HasWork());
}

TEST_F(ServerEngineTest, ChecksOptionsAndServers) {
  const auto wrong = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(MakeServerEngine(Options({"http://a b"})).status(), Fails(wrong, {"rollout.servers"}));
  EXPECT_THAT(MakeServerEngine(Options({})).status(), Fails(wrong, {"no servers"}));
  auto missing = Options({});
  missing.urls_file = "/nowhere/servers";
  EXPECT_THAT(MakeServerEngine(missing).status(), Fails(absl::StatusCode::kNotFound, {"rollout.servers_file"}));
  auto key = Options({"http://a"});
  key.key_env = "TDOCK_NO_SUCH_VARIABLE";
  EXPECT_THAT(MakeServerEngine(key).status(), Fails(wrong, {"rollout.server_key_env", "TDOCK_NO_SUCH_VARIABLE"}));

  FakeServer fits(other_), foreign(other_, {.kind = ServerKind::kOther}), lacks(other_);
  lacks.Change([](json& reply) { reply["choices"][0].erase("token_ids"); });
  EXPECT_TRUE(CheckServers(Options({fits.url()}), 48, kNoStop).ok());
  EXPECT_THAT(CheckServers(Options({fits.url()}), 49, kNoStop).status(),
              Fails(wrong, {fits.url(), "48 tokens", "up to 49"}));
  const absl::Status all = CheckServers(Options({fits.url(), foreign.url(), lacks.url()}), 48, kNoStop).status();
  EXPECT_THAT(all, Fails(absl::StatusCode::kFailedPrecondition,
                         {foreign.url(), "rollout.server_weights", lacks.url(), "no \"token_ids\""}));
  EXPECT_THAT(std::string(all.message()), testing::Not(HasSubstr(fits.url() + ":")));

  auto bfloat16 = Options({fits.url()});
  bfloat16.wanted.dtype = "bfloat16";
  EXPECT_THAT(
      CheckServers(bfloat16, 48, kNoStop).status(),
      Fails(absl::StatusCode::kFailedPrecondition, {fits.url(), "float32", "model.compute_dtype", "--dtype bfloat16"}));

  FakeServer portable(other_, {.kernels = "portable"});
  auto options = Options({portable.url(), fits.url()});
  options.wanted.kernels = "avx2";
  EXPECT_THAT(CheckServers(options, 48, kNoStop).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {portable.url(), "portable", "--kernels avx2"}));
  options.wanted.kernels = "portable";
  EXPECT_TRUE(CheckServers(options, 48, kNoStop).ok());

  // One that is away is no reason to wait.
  const SilentPort closed(/*listens=*/false);
  const std::string& away = closed.url();
  const auto some = CheckServers(Options({fits.url(), away}), 48, kNoStop);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(*some, testing::ElementsAre(HasSubstr(away)));
  EXPECT_THAT(CheckServers(Options({away}), 48, kNoStop).status(), Fails(absl::StatusCode::kUnavailable, {away}));
}

}  // namespace
}  // namespace tdock::trainer
