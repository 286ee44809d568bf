#include "trainer/rollout_servers/server_engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"
#include "trainer/rollout_servers/testing/fake_server.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::Pair;

const std::function<absl::Status()> kNoStop = {};

// Until something is so; false after ten seconds.
bool Await(const std::function<bool()>& is_so) {
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (!is_so() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(2));
  return is_so();
}

// By request and sample.
using Answers = std::map<std::pair<engine::RequestId, int64_t>, engine::Answer>;

class ServerEngineTest : public testing::Test {
 protected:
  static model::Decoder Model(uint64_t seed) {
    return model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, false), seed, at::kCPU);
  }
  // The policy, as it is at the time.
  std::shared_ptr<const model::Decoder> Policy() const { return {std::shared_ptr<void>(), &policy_}; }

  ServerEngineOptions Options(std::vector<std::string> urls) const {
    return {.urls = std::move(urls),
            .timeout = absl::Seconds(10),
            .answer_timeout = absl::Seconds(20),
            .tries = 3,
            .end_tokens = {2, 3},
            .vocab_size = 29};
  }

  std::unique_ptr<AnswerEngine> Make(const ServerEngineOptions& options, int64_t version = 7) {
    auto engine = MakeServerEngine(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return nullptr;
    const absl::Status served = (*engine)->Serve(Policy(), version, false, kNoStop);
    EXPECT_TRUE(served.ok()) << served;
    return *std::move(engine);
  }

  static engine::Request Ask(int32_t first, int64_t samples = 2) {
    return {.prompt = {.tokens = {first, 5, 6}, .samples = samples, .identity = ~uint64_t{0} - first},
            .sampling = {.temperature = 0.9, .max_new_tokens = 20, .seed = ~uint64_t{9}, .top_p = 0.97}};
  }

  static std::vector<engine::Request> Some(int32_t count = 6) {
    std::vector<engine::Request> requests;
    for (int32_t i = 0; i < count; ++i) requests.push_back(Ask(7 + i, 1 + i % 3));
    return requests;
  }

  // What an engine of this process answers.
  Answers Expected(std::vector<engine::Request> requests, int64_t version = 7) const {
    engine::Engine engine(policy_, {.end_tokens = {2, 3}});
    engine.Update([] {}, version);
    Answers answers;
    const absl::Status done = engine.AnswerAll(std::move(requests), [&](std::span<engine::Answer> ended) {
      for (engine::Answer& answer : ended) answers[{answer.request, answer.sample}] = std::move(answer);
      return absl::OkStatus();
    });
    EXPECT_TRUE(done.ok()) << done;
    return answers;
  }

  static void Finish(AnswerEngine& engine, Answers& answers) {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (engine.HasWork() && absl::Now() < until) {
      auto ended = engine.Step();
      ASSERT_TRUE(ended.ok()) << ended.status();
      for (engine::Answer& answer : *ended) answers[{answer.request, answer.sample}] = std::move(answer);
    }
    EXPECT_FALSE(engine.HasWork());
  }

  static Answers AnswersOf(AnswerEngine& engine, std::vector<engine::Request> requests) {
    std::map<engine::RequestId, engine::RequestId> numbers;
    for (engine::Request& request : requests) {
      const auto id = engine.Add(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status();
      if (id.ok()) numbers.emplace(*id, numbers.size());
    }
    Answers answers, by_number;
    Finish(engine, answers);
    for (auto& [key, answer] : answers) by_number[{numbers.at(key.first), key.second}] = std::move(answer);
    return by_number;
  }

  static void ExpectSame(const Answers& answers, const Answers& expected) {
    ASSERT_EQ(answers.size(), expected.size());
    for (const auto& [key, answer] : expected) {
      const auto found = answers.find(key);
      ASSERT_TRUE(found != answers.end());
      ASSERT_TRUE(found->second.status.ok()) << found->second.status;
      const engine::Completion &has = found->second.completion, &wants = answer.completion;
      EXPECT_EQ(has.tokens, wants.tokens);
      EXPECT_EQ(has.log_probs, wants.log_probs) << "to the last bit";
      EXPECT_EQ(has.finished, wants.finished);
      EXPECT_EQ(has.finish_reason, wants.finish_reason);
      EXPECT_EQ(has.weights, wants.weights);
      EXPECT_EQ(found->second.version, wants.weights.back().version);
    }
  }

  static std::map<std::string, double> ReportOf(AnswerEngine& engine) {
    StepMetrics metrics;
    engine.Report(metrics);
    return metrics.Values();
  }

  model::Decoder policy_ = Model(21);
  const model::Decoder other_ = Model(22);
};

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

TEST_F(ServerEngineTest, AServerThatDiesLosesNothing) {
  auto a = std::make_unique<FakeServer>(other_);
  FakeServer b(other_, {.instance = "b"});
  const auto engine = Make(Options({a->url(), b.url()}));
  ASSERT_NE(engine, nullptr);
  a->Hold();
  for (engine::Request& request : Some()) ASSERT_TRUE(engine->Add(std::move(request)).ok());
  EXPECT_TRUE(Await([&] { return a->asked() >= 2; }));
  const int port = a->port();
  a.reset();
  Answers answers;
  Finish(*engine, answers);
  ExpectSame(answers, Expected(Some()));
  const auto report = ReportOf(*engine);
  EXPECT_GE(report.at("rollout/server_retries"), 2);
  EXPECT_THAT(report, Contains(Pair("rollout/servers", 1)));
  // It comes back, as another one, and is sent the weights when they are next served.
  FakeServer again(other_, {.instance = "c", .port = port});
  ASSERT_TRUE(Await([&] {
    if (!engine->Serve(Policy(), 7, false, kNoStop).ok()) return false;
    return again.updates() == 1 && ReportOf(*engine).at("rollout/servers") == 2;
  }));
  Answers more = AnswersOf(*engine, Some());
  ExpectSame(more, Expected(Some()));
  EXPECT_GT(again.asked(), 0);
}

TEST_F(ServerEngineTest, AServerThatWasStartedAgainGetsTheWeightsBeforeItIsAsked) {
  auto server = std::make_unique<FakeServer>(other_);
  const auto engine = Make(Options({server->url()}));
  ASSERT_NE(engine, nullptr);
  server->Hold();
  const auto id = engine->Add(Ask(7));
  ASSERT_TRUE(id.ok() && Await([&] { return server->asked() == 1; }));
  const int port = server->port();
  server.reset();
  server = std::make_unique<FakeServer>(other_, FakeServerOptions{.instance = "another", .port = port});
  Answers answers;
  Finish(*engine, answers);
  ExpectSame(answers, Expected({Ask(7)}));
  EXPECT_EQ(server->updates(), 1);
}

TEST_F(ServerEngineTest, AnswersOfOtherWeightsAreNotTaken) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  std::atomic<int> lies = 1;
  server.Change([&](json& reply) {
    if (lies-- > 0) reply["choices"][0]["weight_versions"][0]["version"] = 99;
  });
  ExpectSame(AnswersOf(*engine, {Ask(7)}), Expected({Ask(7)}));
  EXPECT_EQ(server.updates(), 2) << "they were sent again";
  EXPECT_THAT(ReportOf(*engine), Contains(Pair("rollout/server_wrong_version", 1)));
  server.Change([&](json& reply) { reply["system_fingerprint"] = "tdock-other"; });
  const Answers answers = AnswersOf(*engine, {Ask(7)});
  EXPECT_THAT(answers.at({0, 0}).status,
              Fails(absl::StatusCode::kUnavailable, {"asked 3 times", "rollout.server_retries", "started again"}));
}

TEST_F(ServerEngineTest, NonsenseIsAskedAgainAndThenAnError) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  std::atomic<int> lies = 2;
  server.Change([&](json& reply) {
    if (lies-- > 0) reply["choices"][0]["token_ids"][0] = 29;
  });
  ExpectSame(AnswersOf(*engine, {Ask(7)}), Expected({Ask(7)}));
  lies = 100;
  const Answers answers = AnswersOf(*engine, {Ask(7)});
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_THAT(answers.at({0, 0}).status, Fails(absl::StatusCode::kUnavailable, {"asked 3 times", "has 29 among"}));
  EXPECT_THAT(answers.at({0, 1}).status, Fails(absl::StatusCode::kUnavailable));
  EXPECT_EQ(server.asked(), 6);
}

TEST_F(ServerEngineTest, WhatAServerRefusesIsAnErrorWithItsWords) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  server.Set([](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/v1/completions") return std::nullopt;
    return http::Response{.status = 400, .body = R"({"error": {"message": "too many bananas"}})"};
  });
  const Answers answers = AnswersOf(*engine, {Ask(7, 1)});
  EXPECT_THAT(answers.at({0, 0}).status,
              Fails(absl::StatusCode::kFailedPrecondition, {server.url(), "400", "too many bananas"}));
  EXPECT_EQ(server.asked(), 1);
}

TEST_F(ServerEngineTest, AServerWithTooMuchToDoIsAskedLater) {
  FakeServer server(other_);
  auto options = Options({server.url()});
  options.tries = 1;
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  std::atomic<int> refusals = 2;
  server.Set([&](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/v1/completions" || refusals-- <= 0) return std::nullopt;
    return http::Response{.status = 429, .body = "busy", .headers = {{"Retry-After", "0"}}};
  });
  ExpectSame(AnswersOf(*engine, {Ask(7)}), Expected({Ask(7)}));
  EXPECT_EQ(server.asked(), 3);
}

TEST_F(ServerEngineTest, ASlowServerHoldsUpOnlyWhatItHas) {
  FakeServer slow(other_), fast(other_, {.instance = "b"});
  auto options = Options({slow.url(), fast.url()});
  options.connections = 2;
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  slow.Hold();
  for (engine::Request& request : Some(12)) ASSERT_TRUE(engine->Add(std::move(request)).ok());
  Answers answers;
  ASSERT_TRUE(Await([&] {
    const auto ended = engine->Step();
    for (const engine::Answer& answer : *ended) answers[{answer.request, answer.sample}] = answer;
    return fast.asked() == 10;
  }));
  slow.Release();
  Finish(*engine, answers);
  ExpectSame(answers, Expected(Some(12)));
  EXPECT_EQ(slow.asked(), 2);
}

TEST_F(ServerEngineTest, WeightsAreSentAgainWhereAnUploadFails) {
  FakeServer server(other_);
  std::atomic<int> conflicts = 1, lost = 1, busy = 1;
  server.Set([&](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/update_weights") return std::nullopt;
    const bool is_piece = request.query.find("offset=1000") != std::string::npos;
    if (request.query.empty() && conflicts-- > 0) {
      return http::Response{.status = 409, .body = "another upload", .headers = {{"Retry-After", "0"}}};
    }
    if (is_piece && lost-- > 0) return http::Response{.status = 404, .body = "no such upload"};
    if (is_piece && busy-- > 0) return http::Response{.status = 503, .body = "busy"};
    return std::nullopt;
  });
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  EXPECT_LT(conflicts, 0);
  EXPECT_LT(lost, 0);
  EXPECT_LT(busy, 0);
  EXPECT_EQ(server.updates(), 1);
  ExpectSame(AnswersOf(*engine, {Ask(7)}), Expected({Ask(7)}));
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
  const absl::Status refused = CheckServers(options, 10, kNoStop);
  EXPECT_THAT(refused, Fails(absl::StatusCode::kFailedPrecondition, {server.url(), "401"}));
  EXPECT_THAT(std::string(refused.message()), testing::Not(HasSubstr("b-secret")));
  unsetenv("TDOCK_TEST_SERVER_KEY");
}

TEST_F(ServerEngineTest, ServersComeAndGoWithTheFile) {
  const std::string file = testing::TempDir() + absl::StrCat("servers_", getpid());
  FakeServer a(other_), b(other_, {.instance = "b"});
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write(absl::StrCat("# servers\n\n ", a.url(), " \n"));
  auto options = Options({});
  options.urls_file = file;
  options.connections = 1;
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  a.Hold();
  for (engine::Request& request : Some()) ASSERT_TRUE(engine->Add(std::move(request)).ok());
  Answers answers;
  write(absl::StrCat(a.url(), "\n", b.url(), "\n"));
  ASSERT_TRUE(Await([&] {
    const auto ended = engine->Step();
    for (const engine::Answer& answer : *ended) answers[{answer.request, answer.sample}] = answer;
    return b.asked() >= 2;
  })) << "a has one, and the others wait";
  EXPECT_EQ(b.updates(), 1);
  write(b.url() + "\n");
  ASSERT_TRUE(Await([&] {
    const auto ended = engine->Step();
    for (const engine::Answer& answer : *ended) answers[{answer.request, answer.sample}] = answer;
    return ReportOf(*engine).at("rollout/servers") == 1;
  }));
  a.Release();
  Finish(*engine, answers);
  ExpectSame(answers, Expected(Some()));
  EXPECT_EQ(a.asked(), 1);
  // One that was removed gets no more weights.
  ASSERT_TRUE(engine->Serve(Policy(), 8, false, kNoStop).ok());
  EXPECT_EQ(a.updates(), 1);
  EXPECT_EQ(b.updates(), 2);
  std::filesystem::remove(file);
}

TEST_F(ServerEngineTest, AbortingClosesTheConnection) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  server.Hold();
  const auto id = engine->Add(Ask(7));
  ASSERT_TRUE(id.ok() && Await([&] { return server.asked() == 1; }));
  EXPECT_EQ(engine->open(), 2);
  ASSERT_TRUE(engine->Abort(*id).ok());
  EXPECT_EQ(engine->open(), 0);
  const auto ended = engine->Step();
  ASSERT_TRUE(ended.ok());
  ASSERT_EQ(ended->size(), 2U);
  EXPECT_EQ(ended->front().completion.finish_reason, engine::FinishReason::kAborted);
  EXPECT_THAT(engine->Abort(*id), Fails(absl::StatusCode::kNotFound));
  EXPECT_FALSE(engine->HasWork());
  EXPECT_TRUE(Await([&] { return server.gone() == 1; }));
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
  ASSERT_TRUE(Await([&] { return server.asked() == 1; }));
  EXPECT_THAT(engine->Serve(Policy(), 8, false, kNoStop),
              Fails(absl::StatusCode::kFailedPrecondition, {"2 answers are in progress"}));
  ASSERT_TRUE(engine->Serve(Policy(), 8, /*in_flight=*/true, kNoStop).ok());
  EXPECT_EQ(server.last_update()["flush_cache"], false);
  server.Release();
  Answers answers;
  Finish(*engine, answers);
  ExpectSame(answers, Expected({Ask(7)}, 8));
}

TEST_F(ServerEngineTest, OtherServersGetFolders) {
  const std::string folder = testing::TempDir() + absl::StrCat("weights_", getpid());
  FakeServer a(other_, {.is_tdock = false}), b(other_, {.is_tdock = false});
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
  FakeServer server(policy_, {.is_tdock = false});
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

TEST_F(ServerEngineTest, SaysWhatEachServersTroubleIs) {
  FakeServer wrong(Model(1), {.is_tdock = true});
  wrong.Set([](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/update_weights") return std::nullopt;
    return http::Response{.status = 500, .body = "no memory"};
  });
  int port = 0;
  {
    const FakeServer gone(other_);
    port = gone.port();
  }
  auto options = Options({wrong.url(), absl::StrCat("http://127.0.0.1:", port)});
  options.timeout = absl::Milliseconds(300);
  auto engine = MakeServerEngine(options);
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT((*engine)->Serve(Policy(), 1, false, kNoStop),
              Fails(absl::StatusCode::kUnavailable, {"for 300ms (rollout.server_timeout) no server", wrong.url(),
                                                     "no memory", absl::StrCat(port), "Connection refused"}));
}

TEST_F(ServerEngineTest, AServerWithAnotherModelIsAnErrorAtOnce) {
  model::ModelConfig config = model::TinyConfig(model::Architecture::kQwen2, false);
  config.intermediate_size = 8;
  FakeServer server(model::TinyDecoder(config, 1, at::kCPU));
  auto engine = MakeServerEngine(Options({server.url()}));
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT((*engine)->Serve(Policy(), 1, false, kNoStop),
              Fails(absl::StatusCode::kFailedPrecondition, {server.url(), "other names or shapes"}));
}

TEST_F(ServerEngineTest, AStopEndsTheWaitForAServerThatSaysNothing) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  auto engine = MakeServerEngine(Options({absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port))}));
  ASSERT_TRUE(engine.ok());
  const absl::Time begun = absl::Now();
  const auto stop = [&] {
    return absl::Now() < begun + absl::Milliseconds(100) ? absl::OkStatus() : absl::CancelledError("enough");
  };
  EXPECT_THAT((*engine)->Serve(Policy(), 1, false, stop), Fails(absl::StatusCode::kCancelled, {"enough"}));
  engine->reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(2));
  ::close(listener);
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
  EXPECT_THAT(refused([](auto& request) { request.prompt.tokens = {}; }), Fails(wrong, {"the prompt is empty"}));
  EXPECT_THAT(refused([](auto& request) { request.sampling.top_p = 2; }), Fails(wrong, {"top_p"}));
  EXPECT_EQ(server.asked(), 0);
  EXPECT_FALSE(engine->HasWork());
}

TEST_F(ServerEngineTest, ChecksOptionsAndServers) {
  const auto wrong = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(MakeServerEngine(Options({"http://a b"})).status(), Fails(wrong, {"rollout.servers"}));
  EXPECT_THAT(MakeServerEngine(Options({})).status(), Fails(wrong, {"there are no servers"}));
  auto missing = Options({});
  missing.urls_file = "/nowhere/servers";
  EXPECT_THAT(MakeServerEngine(missing).status(), Fails(absl::StatusCode::kNotFound, {"rollout.servers_file"}));
  auto key = Options({"http://a"});
  key.key_env = "TDOCK_NO_SUCH_VARIABLE";
  EXPECT_THAT(MakeServerEngine(key).status(), Fails(wrong, {"rollout.server_key_env", "is not set"}));

  FakeServer fits(other_), foreign(other_, {.is_tdock = false}), lacks(other_);
  lacks.Change([](json& reply) { reply["choices"][0].erase("token_ids"); });
  EXPECT_TRUE(CheckServers(Options({fits.url()}), 48, kNoStop).ok());
  EXPECT_THAT(CheckServers(Options({fits.url()}), 49, kNoStop), Fails(wrong, {"context has 48 tokens", "up to 49"}));
  const absl::Status all = CheckServers(Options({fits.url(), foreign.url(), lacks.url()}), 48, kNoStop);
  EXPECT_THAT(all, Fails(wrong, {foreign.url(), "rollout.server_weights", lacks.url(), "no \"token_ids\""}));
  EXPECT_THAT(std::string(all.message()), testing::Not(HasSubstr(fits.url() + ":")));
}

}  // namespace
}  // namespace tdock::trainer
