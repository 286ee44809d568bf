#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "trainer/rollout_servers/testing/server_engine_fixture.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::Pair;

TEST_F(ServerEngineTest, AServerThatDiesLosesNothing) {
  auto a = std::make_unique<FakeServer>(other_);
  FakeServer b(other_, {.instance = "b"});
  const auto engine = Make(Options({a->url(), b.url()}));
  ASSERT_NE(engine, nullptr);
  a->Hold();
  for (engine::Request& request : Some()) ASSERT_TRUE(engine->Add(std::move(request)).ok());
  EXPECT_TRUE(Eventually([&] { return a->asked() >= 2; }));
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
  ASSERT_TRUE(Eventually([&] {
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
  ASSERT_TRUE(id.ok() && Eventually([&] { return server->asked() == 1; }));
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
  EXPECT_THAT(answers.at({0, 0}).status,
              Fails(absl::StatusCode::kUnavailable, {"asked 3 times", "has 29", "token_ids"}));
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

TEST_F(ServerEngineTest, OneServerThatFailsIsLeftToOthersHoweverBusyTheyAre) {
  for (const int code : {400, 404, 500}) {
    FakeServer busy(other_), broken(other_, {.instance = "b"});
    std::atomic<int> failed = 0;
    broken.Set([&](const http::Request& request) -> std::optional<http::Response> {
      if (request.path != "/v1/completions") return std::nullopt;
      ++failed;
      return http::Response{.status = code, .body = "no"};
    });
    auto options = Options({busy.url(), broken.url()});
    options.connections = 1;
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    busy.Hold();
    for (engine::Request& request : Some()) ASSERT_TRUE(engine->Add(std::move(request)).ok());
    Answers answers;
    ASSERT_TRUE(Eventually([&] {
      StepInto(*engine, answers);
      return failed >= 2;
    }));
    busy.Release();
    Finish(*engine, answers);
    ExpectSame(answers, Expected(Some()));
  }
}

TEST_F(ServerEngineTest, WhatAGatewayRefusesForAMomentIsAskedAgain) {
  FakeServer server(other_);
  const auto engine = Make(Options({server.url()}));
  ASSERT_NE(engine, nullptr);
  std::atomic<int> refusals = 2;
  server.Set([&](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/v1/completions" || refusals-- <= 0) return std::nullopt;
    return http::Response{.status = 404, .body = "no such route"};
  });
  ExpectSame(AnswersOf(*engine, {Ask(7)}), Expected({Ask(7)}));
  // For good, it is the last word.
  auto impatient = Options({server.url()});
  std::unique_ptr<AnswerEngine> other;
  // A loaded machine may need longer to send the weights.
  impatient.timeout = absl::Seconds(1);
  for (; other == nullptr && impatient.timeout < kPatience; impatient.timeout *= 4) {
    auto made = MakeServerEngine(impatient);
    ASSERT_TRUE(made.ok()) << made.status();
    if ((*made)->Serve(Policy(), 7, false, kNoStop).ok()) other = *std::move(made);
  }
  ASSERT_NE(other, nullptr);
  refusals = 1000;
  ASSERT_TRUE(other->Add(Ask(7)).ok());
  absl::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = other->Step().status();
    return !status.ok();
  }));
  EXPECT_THAT(status, Fails(absl::StatusCode::kFailedPrecondition, {server.url(), "404", "no such route"}));
}

TEST_F(ServerEngineTest, AnAnswerOfNewWeightsMayComeBeforeAllServersHaveThem) {
  FakeServer quick(other_), slow(other_, {.instance = "b"});
  const auto engine = Make(Options({quick.url(), slow.url()}));
  ASSERT_NE(engine, nullptr);
  std::atomic<bool> may_end = false;
  slow.Set([&](const http::Request& request) -> std::optional<http::Response> {
    if (request.query.find("checksum=") != std::string::npos) {
      EXPECT_TRUE(Eventually([&] { return may_end.load(); }));
    }
    return std::nullopt;
  });
  quick.Hold();
  ASSERT_TRUE(engine->Add(Ask(7)).ok());
  ASSERT_TRUE(Eventually([&] { return quick.asked() == 1; }));
  const absl::Time until = absl::Now() + kPatience;
  const auto watch = [&] {
    if (quick.updates() == 2) quick.Release();
    const bool is_late = absl::Now() >= until;
    if (engine->open() == 0 || is_late) may_end = true;
    return is_late ? absl::CancelledError("the answer was not taken") : absl::OkStatus();
  };
  EXPECT_EQ(engine->Serve(Policy(), 8, /*in_flight=*/true, watch), absl::OkStatus());
  Answers answers;
  Finish(*engine, answers);
  ExpectSame(answers, Expected({Ask(7)}, 8));
  EXPECT_THAT(ReportOf(*engine), Contains(Pair("rollout/server_wrong_version", 0)));
}

TEST_F(ServerEngineTest, ANumberThatSomebodyElsesWeightsHaveIsNotTakenForOurs) {
  FakeServer server(other_), ready(other_, {.instance = "b"});
  const auto engine = Make(Options({server.url(), ready.url()}));
  ASSERT_NE(engine, nullptr);
  server.Hold();
  ASSERT_TRUE(engine->Add(Ask(7)).ok());
  ASSERT_TRUE(Eventually([&] { return server.asked() == 1; }));
  // Another trainer was quicker with the version that ours were to have, and answers in progress have its tokens.
  std::atomic<bool> is_refused = false;
  server.Set([&](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/update_weights") return std::nullopt;
    is_refused = true;
    return http::Response{.status = 500, .body = "lost"};
  });
  server.Change([](json& reply) {
    for (json& choice : reply["choices"]) {
      for (json& span : choice["weight_versions"]) span["version"] = 2;
    }
  });
  ASSERT_EQ(engine->Serve(Policy(), 8, /*in_flight=*/true, kNoStop), absl::OkStatus());
  ASSERT_TRUE(is_refused);
  server.Release();
  Answers answers;
  Finish(*engine, answers);
  ExpectSame(answers, Expected({Ask(7)}, 8));
  EXPECT_THAT(ReportOf(*engine), Contains(Pair("rollout/server_wrong_version", 1)));
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
  ASSERT_TRUE(Eventually([&] {
    StepInto(*engine, answers);
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
    if (is_piece && lost-- > 0) return http::Response{.status = 404, .body = "another upload"};
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

TEST_F(ServerEngineTest, TheLastAnswersWaitUntilWeightsHaveArrived) {
  FakeServer a(other_), b(other_, {.instance = "b"});
  std::atomic<int> conflicts = 1;
  std::atomic<bool> is_sending = false, may_go_on = false;
  b.Set([&](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/update_weights") return std::nullopt;
    if (conflicts-- > 0) return http::Response{.status = 409, .headers = {{"Retry-After", "0"}}};
    if (request.query.find("offset=1000") != std::string::npos) {
      is_sending = true;
      EXPECT_TRUE(Eventually([&] { return may_go_on.load(); }));
    }
    return std::nullopt;
  });
  auto options = Options({a.url(), b.url()});
  options.connections = 1;
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  a.Hold();
  for (engine::Request& request : Some()) ASSERT_TRUE(engine->Add(std::move(request)).ok());
  Answers answers;
  ASSERT_TRUE(Eventually([&] {
    StepInto(*engine, answers);
    return is_sending.load();
  }));
  a.Release();
  ASSERT_TRUE(Eventually([&] {
    StepInto(*engine, answers);
    return engine->open() == 0;
  }));
  StepInto(*engine, answers);
  EXPECT_TRUE(engine->HasWork()) << "the policy may change after them, and its weights are being read";
  EXPECT_LT(answers.size(), 12U);
  may_go_on = true;
  Finish(*engine, answers);
  ExpectSame(answers, Expected(Some()));
  EXPECT_EQ(b.updates(), 1);
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
  ASSERT_TRUE(Eventually([&] {
    StepInto(*engine, answers);
    return b.asked() >= 2;
  })) << "a has one, and the others wait";
  EXPECT_EQ(b.updates(), 1);
  write(b.url() + "\n");
  ASSERT_TRUE(Eventually([&] {
    StepInto(*engine, answers);
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

TEST_F(ServerEngineTest, SaysWhatEachServersTroubleIs) {
  FakeServer wrong(Model(1));
  wrong.Set([](const http::Request& request) -> std::optional<http::Response> {
    if (request.path != "/update_weights") return std::nullopt;
    return http::Response{.status = 500, .body = "no memory"};
  });
  const SilentPort closed(/*listens=*/false);
  auto options = Options({wrong.url(), closed.url()});
  absl::Status status;
  // A loaded machine may not have asked both when the time is over.
  options.timeout = absl::Milliseconds(300);
  for (; options.timeout < kPatience; options.timeout *= 4) {
    auto engine = MakeServerEngine(options);
    ASSERT_TRUE(engine.ok());
    status = (*engine)->Serve(Policy(), 1, false, kNoStop);
    if (absl::StrContains(status.message(), "no memory") && absl::StrContains(status.message(), "refused")) break;
  }
  EXPECT_THAT(status,
              Fails(absl::StatusCode::kUnavailable, {absl::FormatDuration(options.timeout), "rollout.server_timeout",
                                                     wrong.url(), "no memory", closed.url(), "refused"}));
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

// Also if it comes after the run has begun.
TEST_F(ServerEngineTest, AServerThatComputesOtherwiseIsAnErrorAtOnce) {
  FakeServer server(other_, {.kernels = "portable"});
  auto options = Options({server.url()});
  options.wanted.kernels = "avx2";
  auto engine = MakeServerEngine(options);
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT((*engine)->Serve(Policy(), 1, false, kNoStop),
              Fails(absl::StatusCode::kFailedPrecondition, {server.url(), "portable", "--kernels avx2"}));
}

TEST_F(ServerEngineTest, AStopEndsTheWaitForAServerThatSaysNothing) {
  const SilentPort silent(/*listens=*/true);
  // Without the stop, each attempt takes ten seconds (kProbeWithin).
  EXPECT_TRUE(Eventually([&] {
    auto engine = MakeServerEngine(Options({silent.url()}));
    EXPECT_TRUE(engine.ok()) << engine.status();
    const absl::Time begun = absl::Now();
    const auto stop = [&] {
      return absl::Now() < begun + absl::Milliseconds(100) ? absl::OkStatus() : absl::CancelledError("enough");
    };
    EXPECT_THAT((*engine)->Serve(Policy(), 1, false, stop), Fails(absl::StatusCode::kCancelled, {"enough"}));
    engine->reset();
    return absl::Now() - begun < absl::Seconds(2);
  }));
}

}  // namespace
}  // namespace tdock::trainer
