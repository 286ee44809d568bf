#include "trainer/rollout_servers/wire/weight_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "nlohmann/json.hpp"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::Pair;

constexpr auto kShapeless = absl::StatusCode::kInvalidArgument;
constexpr auto kVllm = ServerKind::kVllm;
constexpr auto kSglang = ServerKind::kSglang;

TEST(WeightCalls, SayAFolderInTheWayOfEachProgram) {
  const WireCall vllm = FolderCall(kVllm, kUsualFolderPath, "/f\"", 7, true);
  const WireCall sglang = FolderCall(kSglang, kUsualFolderPath, "/f", 7, false);
  EXPECT_EQ(vllm.shown(), "POST /collective_rpc");
  EXPECT_EQ(json::parse(vllm.body), json::parse(R"({"method": "reload_weights", "kwargs": {"weights_path": "/f\""}})"));
  EXPECT_EQ(sglang.shown(), "POST /update_weights_from_disk");
  EXPECT_EQ(json::parse(sglang.body),
            json::parse(R"({"model_path": "/f", "weight_version": "7", "flush_cache": false})"));
  for (const ServerKind kind : {kVllm, kSglang, ServerKind::kOther, ServerKind::kTdock}) {
    const WireCall other = FolderCall(kind, "/mine", "/f", 7, true);
    EXPECT_EQ(other.shown(), "POST /mine");
    EXPECT_EQ(json::parse(other.body),
              json::parse(R"({"model_path": "/f", "weight_version": "7", "flush_cache": true})"));
  }
  EXPECT_EQ(json::parse(RelabelCall(7).body), json::parse(R"({"new_version": "7"})"));
  EXPECT_EQ(HaltCall(kVllm).target, "/pause?mode=keep");
  EXPECT_EQ(json::parse(HaltCall(kSglang).body), json::parse(R"({"mode": "in_place"})"));
  EXPECT_TRUE(HasOwnFolderCall(kVllm, kUsualFolderPath) && HasOwnFolderCall(kSglang, "/update_weights_from_disk"));
  EXPECT_FALSE(HasOwnFolderCall(kVllm, "/mine") || HasOwnFolderCall(ServerKind::kOther, kUsualFolderPath));
}

TEST(WeightCalls, SayAGroupInTheWayOfEachProgram) {
  const GroupPlace place = {.servers = 2, .unique_id = std::string(128, '\xff'), .address = "10.0.0.1", .port = 29500};
  const json init = json::parse(JoinCall(kVllm, place).body).at("init_info");
  EXPECT_EQ(init.at("rank_offset"), 1);
  EXPECT_EQ(init.at("world_size"), 3);
  EXPECT_EQ(init.at("packed"), false);
  EXPECT_EQ(init.at("nccl_unique_id_b64").get<std::string>().substr(0, 4), "////") << "not the base64 of URLs";
  EXPECT_FALSE(init.contains("master_address"));
  EXPECT_EQ(json::parse(JoinCall(kSglang, place).body), json::parse(R"({"rank_offset": 1, "world_size": 3,
      "master_address": "10.0.0.1", "master_port": 29500, "group_name": "weight_update_group", "backend": "nccl"})"));
  const GroupWeights weights = {.names = {"a"}, .dtypes = {"bfloat16"}, .shapes = {{2, 3}}};
  EXPECT_EQ(json::parse(ReceiveCall(kVllm, weights, 7, true).body),
            json::parse(R"({"update_info": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}})"));
  EXPECT_EQ(json::parse(ReceiveCall(kSglang, weights, 7, true).body),
            json::parse(R"({"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[2, 3]], "flush_cache": true,
                            "group_name": "weight_update_group", "weight_version": "7"})"));
  EXPECT_EQ(json::parse(EndCall(kVllm, 7).body), json::parse(R"({"weight_version": "7"})"));
  EXPECT_EQ(json::parse(LeaveCall(kSglang).body), json::parse(R"({"group_name": "weight_update_group"})"));
  EXPECT_EQ(ReadRanks(R"({"world_size": 4})").value(), 4);
  EXPECT_EQ(ReadRanks(R"({"tp_size": 2})").value(), 2);
  for (const char* text : {R"({"world_size": 0})", R"({"world_size": 1e9})", "{}"}) {
    EXPECT_THAT(ReadRanks(text).status(), Fails(kShapeless, {"world_size"}));
  }
}

TEST(WeightCalls, ReadLabelsAndVersionsOfPrograms) {
  EXPECT_EQ(ReadLabel(R"({"weight_version": "12"})").value(), 12);
  EXPECT_EQ(ReadLabel(R"({"weight_version": "default"})").value(), std::nullopt);
  EXPECT_THAT(ReadLabel("{}").status(), Fails(kShapeless, {"weight_version"}));
  EXPECT_EQ(ReadProgramVersion(R"({"version": "0.32.0+cpu"})").value(), "0.32.0+cpu");
  EXPECT_THAT(ReadProgramVersion(R"({"version": "1\n2"})").status(), Fails(kShapeless, {"version"}));
  EXPECT_EQ(ReadProgramVersion("{\"version\": \"" + std::string(99, '1') + "\"}").value().size(), 40U);
}

TEST(WeightCalls, ReadDigestsOfAllRanks) {
  const std::string a(64, 'a'), b(16, 'b');
  const auto vllm = ReadDigests(
      json{{"checksums", {{"dp0:pp0:pcp0:tp0:norm", a}, {"dp0:pp0:pcp0:tp1:norm", a}, {"dp0:pp0:pcp0:tp0:q", b}}}}
          .dump());
  ASSERT_TRUE(vllm.ok()) << vllm.status();
  EXPECT_THAT(*vllm, ElementsAre(Pair("norm", ElementsAre(a, a)), Pair("q", ElementsAre(b))));
  const json rank = {{"checksums", {{"norm", b}}}, {"per_gpu_checksum", "x"}};
  const auto sglang = ReadDigests(json{{"success", true}, {"ranks", json::array({rank, rank})}}.dump());
  ASSERT_TRUE(sglang.ok()) << sglang.status();
  EXPECT_THAT(*sglang, ElementsAre(Pair("norm", ElementsAre(b, b))));
  EXPECT_THAT(ReadDigests("{}").status(), Fails(kShapeless, {"checksums"}));
  EXPECT_THAT(ReadDigests(R"({"ranks": [1]})").status(), Fails(kShapeless, {"checksums"}));
  for (const char* text : {R"({"checksums": {"w": 1}})", R"({"checksums": {"w": "abc"}})",
                           R"({"checksums": {"w": "ABCDEF0123456789"}})"}) {
    EXPECT_THAT(ReadDigests(text).status(), Fails(kShapeless, {"\"w\"", "hexadecimal"}));
  }
}

TEST(WeightCalls, ToldByCodesWhetherAServerHasACall) {
  for (const int code : {401, 403, 404, 405, 501}) EXPECT_TRUE(IsMissing(code));
  for (const int code : {0, 200, 400, 409, 422, 500, 503}) EXPECT_FALSE(IsMissing(code));
}

}  // namespace
}  // namespace tdock::trainer
