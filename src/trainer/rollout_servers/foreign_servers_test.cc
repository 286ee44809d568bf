// Servers of other programs: a vLLM and an SGLang.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "trainer/rollout_servers/testing/fake_group.h"
#include "trainer/rollout_servers/testing/server_engine_fixture.h"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::Pair;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

class ForeignServersTest : public ServerEngineTest {
 protected:
  ~ForeignServersTest() override { std::filesystem::remove_all(folder_); }

  ServerEngineOptions Folders(std::vector<std::string> urls) const {
    ServerEngineOptions options = Options(std::move(urls));
    options.weights = ServerWeights::kFolder;
    options.weights_folder = folder_;
    return options;
  }
  void ChangePolicy() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& weight : policy_.parameters()) at::Tensor(weight).mul_(1.25);
  }
  // The status of serving the policy, as the servers have it at the first attempt.
  absl::Status Served(const ServerEngineOptions& options) {
    auto engine = MakeServerEngine(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return (*engine)->Serve(Policy(), 7, false, kNoStop);
  }
  static void ExpectVersion(const Answers& answers, int64_t version) {
    ASSERT_FALSE(answers.empty());
    for (const auto& [key, answer] : answers) {
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      const auto tokens = static_cast<int64_t>(answer.completion.tokens.size());
      EXPECT_THAT(answer.completion.weights, ElementsAre(engine::WeightsSpan{version, tokens}));
    }
  }
  // A server that answers the requests at `path` so.
  static void Answer(FakeServer& server, const std::string& path, int status, const std::string& body) {
    server.Set([=](const http::Request& request) -> std::optional<http::Response> {
      if (request.path != path) return std::nullopt;
      return http::Response{.status = status, .body = body};
    });
  }

  const std::string folder_ = testing::TempDir() + absl::StrCat("foreign_", getpid());
};

TEST_F(ForeignServersTest, AVllmReadsAFolderWhileItIsHalted) {
  FakeServer server(other_, {.kind = ServerKind::kVllm});
  const auto options = Folders({server.url()});
  EXPECT_EQ(CheckServers(options, 48, kNoStop).status(), absl::OkStatus());
  EXPECT_THAT(server.weight_calls(), ElementsAre("/resume")) << "nothing else has changed";
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_THAT(server.weight_calls(), ElementsAre("/resume", "/pause", "/collective_rpc", "/update_weight_version",
                                                 "/weight_checker", "/resume"));
  EXPECT_EQ(server.last_update()["kwargs"]["weights_path"], folder_ + "/weights-7");
  ExpectVersion(AnswersOf(*engine, Some()), 7);
  EXPECT_TRUE(server.last_ask().contains("token_ids")) << "vLLM's own interface";
  EXPECT_EQ(server.last_ask()["cache_salt"], "tdock-7");
  ChangePolicy();
  ASSERT_EQ(engine->Serve(Policy(), 8, false, kNoStop), absl::OkStatus());
  ExpectVersion(AnswersOf(*engine, Some()), 8);
  EXPECT_EQ(server.updates(), 2);
}

TEST_F(ForeignServersTest, AVllmWithoutScaleOutIsAskedForCompletions) {
  FakeServer server(other_, {.kind = ServerKind::kVllm, .has_tokens = false});
  const auto options = Folders({server.url()});
  EXPECT_EQ(CheckServers(options, 48, kNoStop).status(), absl::OkStatus());
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ExpectVersion(AnswersOf(*engine, Some()), 7);
  EXPECT_TRUE(server.last_ask().contains("prompt"));
}

TEST_F(ForeignServersTest, AnSglangReadsAFolder) {
  FakeServer server(other_, {.kind = ServerKind::kSglang});
  auto options = Folders({server.url()});
  options.wanted.model = "tiny";  // which it is called no longer once it has other weights
  EXPECT_EQ(CheckServers(options, 48, kNoStop).status(), absl::OkStatus());
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_THAT(server.weight_calls(),
              ElementsAre("/continue_generation", "/update_weights_from_disk", "/weights_checker"));
  EXPECT_EQ(server.last_update()["flush_cache"], true);
  ExpectVersion(AnswersOf(*engine, Some()), 7);
  ChangePolicy();
  ASSERT_EQ(engine->Serve(Policy(), 8, false, kNoStop), absl::OkStatus());
  ExpectVersion(AnswersOf(*engine, {Ask(7, 1)}), 8);
  EXPECT_TRUE(server.last_ask().contains("input_ids"));
}

TEST_F(ForeignServersTest, AnswersGoOnWithOtherWeights) {
  for (const ServerKind kind : {ServerKind::kVllm, ServerKind::kSglang}) {
    FakeServer server(other_, {.kind = kind});
    const auto engine = Make(Folders({server.url()}));
    ASSERT_NE(engine, nullptr);
    server.Hold();
    ASSERT_TRUE(engine->Add(Ask(7)).ok());
    ASSERT_TRUE(Eventually([&] { return server.asked() == 1; }));
    ChangePolicy();
    ASSERT_EQ(engine->Serve(Policy(), 8, /*in_flight=*/true, kNoStop), absl::OkStatus());
    EXPECT_FALSE(server.halted());
    if (kind == ServerKind::kSglang) {
      EXPECT_THAT(server.weight_calls(), Contains("/pause_generation"));
      EXPECT_EQ(server.last_update()["flush_cache"], false);
    }
    server.Release();
    Answers answers;
    Finish(*engine, answers);
    ExpectVersion(answers, 8);
    EXPECT_THAT(ReportOf(*engine), Contains(Pair("rollout/server_wrong_version", 0)));
  }
}

TEST_F(ForeignServersTest, AnswersOfOtherWeightsAreNotTaken) {
  for (const ServerKind kind : {ServerKind::kVllm, ServerKind::kSglang}) {
    FakeServer server(other_, {.kind = kind});
    const auto engine = Make(Folders({server.url()}));
    ASSERT_NE(engine, nullptr);
    server.Relabel("default");  // another one since it was started again
    ExpectVersion(AnswersOf(*engine, {Ask(7)}), 7);
    EXPECT_EQ(server.updates(), 2) << "they were sent again";
    EXPECT_THAT(ReportOf(*engine), Contains(Pair("rollout/server_wrong_version", 1)));
  }
}

TEST_F(ForeignServersTest, AVllmWithoutTheCallsIsRefusedBeforeTheRun) {
  FakeServer server(other_, {.kind = ServerKind::kVllm, .has_weight_calls = false});
  EXPECT_THAT(CheckServers(Folders({server.url()}), 48, kNoStop).status(),
              Fails(kRefused, {server.url(), "vLLM 0.32.0", "GET /weight_info was answered with 404",
                               "POST /collective_rpc was answered with 404", "VLLM_SERVER_DEV_MODE=1"}));
  EXPECT_THAT(CheckServers(Options({server.url()}), 48, kNoStop).status(),
              Fails(kRefused, {server.url(), "vLLM 0.32.0", "stream", "folder"}));
  auto none = Options({server.url()});
  none.weights = ServerWeights::kNone;
  EXPECT_EQ(CheckServers(none, 48, kNoStop).status(), absl::OkStatus());
}

TEST_F(ForeignServersTest, OthersWithoutTheCallsAreRefusedBeforeTheRun) {
  FakeServer sglang(other_, {.kind = ServerKind::kSglang}), other(other_, {.kind = ServerKind::kOther});
  Answer(sglang, "/update_weights_from_disk", 401, "no key");
  EXPECT_THAT(CheckServers(Folders({sglang.url()}), 48, kNoStop).status(),
              Fails(kRefused, {sglang.url(), "SGLang 0.5.23", "POST /update_weights_from_disk was answered with 401",
                               "--admin-api-key", "rollout.server_key_env"}));
  auto elsewhere = Folders({other.url()});
  elsewhere.weights_path = "/mine";
  EXPECT_THAT(CheckServers(elsewhere, 48, kNoStop).status(),
              Fails(kRefused, {other.url(), "POST /mine was answered with 404", "rollout.server_weights_path"}));
  EXPECT_EQ(CheckServers(Folders({other.url()}), 48, kNoStop).status(), absl::OkStatus());
  Answer(other, "/update_weights", 500, "KeyError: 'model_path'");
  EXPECT_EQ(CheckServers(Folders({other.url()}), 48, kNoStop).status(), absl::OkStatus()) << "it has the call";
}

TEST_F(ForeignServersTest, AnswersOfAnotherShapeAreRefusedBeforeTheRun) {
  FakeServer vllm(other_, {.kind = ServerKind::kVllm}), sglang(other_, {.kind = ServerKind::kSglang});
  vllm.Change([](json& reply) { reply["choices"][0].erase("logprobs"); });
  sglang.Change([](json& reply) {
    reply["meta_info"].erase("weight_version");
    reply["meta_info"].erase("weight_versions");
  });
  EXPECT_THAT(CheckServers(Folders({vllm.url(), sglang.url()}), 48, kNoStop).status(),
              Fails(kRefused, {vllm.url(), "logprobs.content", sglang.url(), "SGLang 0.5.23", "POST /generate",
                               "weight_versions"}));
  Answer(vllm, "/weight_info", 200, "[1]");
  EXPECT_THAT(CheckServers(Folders({vllm.url()}), 48, kNoStop).status(),
              Fails(absl::StatusCode::kInvalidArgument, {vllm.url(), "JSON object"}));
}

TEST_F(ForeignServersTest, AServerThatKeepsItsLabelIsRefusedAtTheUpdate) {
  FakeServer vllm(other_, {.kind = ServerKind::kVllm}), sglang(other_, {.kind = ServerKind::kSglang});
  Answer(vllm, "/update_weight_version", 200, R"({"success": true})");
  EXPECT_THAT(Served(Folders({vllm.url()})), Fails(kRefused, {vllm.url(), "version 7", "no version"}));
  EXPECT_FALSE(vllm.halted());
  Answer(sglang, "/model_info", 200, R"({"weight_version": "6"})");
  EXPECT_THAT(Served(Folders({sglang.url()})), Fails(kRefused, {sglang.url(), "version 7", "version 6"}));
}

TEST_F(ForeignServersTest, AServerWithOtherDigestsIsRefusedAtTheUpdate) {
  FakeServer vllm(other_, {.kind = ServerKind::kVllm}), sglang(other_, {.kind = ServerKind::kSglang});
  const std::string digests = json{{"checksums", {{"dp0:tp0:model.norm.weight", std::string(64, '0')}}}}.dump();
  Answer(vllm, "/weight_checker", 200, digests);
  EXPECT_THAT(Served(Folders({vllm.url()})), Fails(kRefused, {vllm.url(), "digests", "folder"}));
  EXPECT_FALSE(vllm.halted());
  // Hashes that are not ours say only whether anything has changed.
  const json rank = {{"checksums", {{"model.norm.weight", "0123456789abcdef"}}}};
  Answer(sglang, "/weights_checker", 200, json{{"success", true}, {"ranks", json::array({rank})}}.dump());
  const auto engine = Make(Folders({sglang.url()}));
  ASSERT_NE(engine, nullptr);
  ChangePolicy();
  EXPECT_THAT(engine->Serve(Policy(), 8, false, kNoStop), Fails(kRefused, {sglang.url(), "as before"}));
}

TEST_F(ForeignServersTest, AVllmThatIsToldAtAnotherPathNeedsNoLabel) {
  FakeServer server(other_, {.kind = ServerKind::kVllm});
  Answer(server, "/mine", 200, "");
  auto options = Folders({server.url()});
  options.weights_path = "/mine";
  EXPECT_EQ(CheckServers(options, 48, kNoStop).status(), absl::OkStatus());
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ExpectVersion(AnswersOf(*engine, Some()), 7);
  ASSERT_EQ(engine->Serve(Policy(), 8, false, kNoStop), absl::OkStatus());
  ExpectVersion(AnswersOf(*engine, {Ask(7)}), 8);
  EXPECT_THAT(server.weight_calls(), ElementsAre("/resume")) << "by CheckServers() alone";
}

TEST_F(ForeignServersTest, AServerWithoutDigestsIsNotCompared) {
  FakeServer server(other_, {.kind = ServerKind::kVllm});
  Answer(server, "/weight_checker", 404, "no");
  EXPECT_EQ(Served(Folders({server.url()})), absl::OkStatus());
}

TEST_F(ForeignServersTest, AServerGoesOnAfterAnUpdateThatFails) {
  FakeServer server(other_, {.kind = ServerKind::kVllm});
  Answer(server, "/collective_rpc", 500, "no such folder");
  auto options = Folders({server.url()});
  absl::Status status;
  // A loaded machine may not have come to it when the time is over.
  for (options.timeout = absl::Milliseconds(300); options.timeout < kPatience; options.timeout *= 4) {
    status = Served(options);
    if (absl::StrContains(status.message(), "no such folder")) break;
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, {server.url(), "/collective_rpc", "no such folder"}));
  EXPECT_FALSE(server.halted());
}

TEST_F(ForeignServersTest, WeightsComeThroughAGroup) {
  for (const ServerKind kind : {ServerKind::kVllm, ServerKind::kSglang}) {
    const auto channel = std::make_shared<FakeChannel>();
    FakeServer server(other_, {.kind = kind, .channel = channel});
    auto options = Options({server.url()});
    options.weights = ServerWeights::kNccl;
    EXPECT_THAT(CheckServers(options, 48, kNoStop).status(),
                Fails(absl::StatusCode::kUnimplemented, {server.url(), "NCCL", "GPU", "folder"}));
    int64_t groups = 0;
    options.open_group = [&](ServerKind, int64_t ranks) -> absl::StatusOr<std::unique_ptr<WeightGroup>> {
      ++groups;
      return std::make_unique<FakeGroup>(channel, ranks);
    };
    EXPECT_EQ(CheckServers(options, 48, kNoStop).status(), absl::OkStatus());
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    const json joined = server.last_update();
    const bool is_vllm = kind == ServerKind::kVllm;
    EXPECT_EQ((is_vllm ? joined["init_info"] : joined)["world_size"], 3);
    ExpectVersion(AnswersOf(*engine, Some()), 7);
    ChangePolicy();
    ASSERT_EQ(engine->Serve(Policy(), 8, false, kNoStop), absl::OkStatus());
    ExpectVersion(AnswersOf(*engine, Some()), 8);
    EXPECT_EQ(groups, 1);
    EXPECT_EQ(server.updates(), 2);
    EXPECT_FALSE(server.halted());
    // Another run finds the group of this one.
    const auto next = Make(options);
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(groups, 2);
    ExpectVersion(AnswersOf(*next, {Ask(7)}), 7);
  }
}

}  // namespace
}  // namespace tdock::trainer
