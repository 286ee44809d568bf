#include "trainer/merge/listing/listed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/json_text.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/hostile_text.h"
#include "trainer/merge/listing/megatron_names.h"

namespace tdock::trainer {
namespace {

using ::testing::ElementsAre;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Line(const std::string& rest) {
  return absl::StrCat(R"({"name": "w", "file": "f", "begin": 64, "dtype": "F32", )", rest, "}");
}

// A shard of a [rows, 3] tensor of these rows.
ListedTensor Shard(int64_t rank, int64_t ranks, int64_t rows, int64_t of) {
  ListedTensor tensor{.name = "w", .rank = rank, .ranks = ranks, .shape = {of, 3}, .sharded = true};
  tensor.placements = {"shard 0"};
  tensor.box = {.file = absl::StrCat("f", rank), .sizes = {rows, 3}, .strides = {3, 1}};
  return tensor;
}

TEST(ListedTensors, ALineIsOneShardOrOneBox) {
  const auto shard = ParseListedTensor(Line(
      R"("rank": 1, "world": 2, "sizes": [2, 3], "strides": [3, 1], "full_shape": [4, 3], "mesh": null, "placements": ["shard 0"])"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->box.span_bytes(), 24u);
  EXPECT_THAT(shard->shape, ElementsAre(4, 3));
  EXPECT_TRUE(shard->box.is_contiguous());
  const auto box = ParseListedTensor(Line(R"("sizes": [2, 3], "strides": [1, 7], "shape": [4, 3], "offsets": [2, 0])"));
  ASSERT_TRUE(box.ok()) << box.status();
  EXPECT_FALSE(box->box.is_contiguous());
  EXPECT_EQ(box->box.span_bytes(), 4u * (1 + 14 + 1));
}

TEST(ListedTensors, WhatCannotBeIsRefused) {
  for (const char* rest :
       {R"("sizes": [2])", R"("sizes": [2], "strides": [1, 1])", R"("sizes": [-1], "strides": [1])",
        R"("sizes": [9007199254740992, 9007199254740992], "strides": [1, 1], "shape": [1], "offsets": [0])",
        R"("sizes": [9007199254740992], "strides": [9007199254740992], "shape": [1], "offsets": [0])",
        R"("sizes": [2], "strides": [1], "rank": 0, "world": 1, "full_shape": [4], "placements": [])",
        R"("sizes": [2], "strides": [1], "rank": -1, "world": 1, "full_shape": null)",
        R"("sizes": [1,1,1,1,1,1,1,1,1], "strides": [1,1,1,1,1,1,1,1,1], "shape": [1], "offsets": [0])"}) {
    EXPECT_THAT(ParseListedTensor(Line(rest)).status(), Fails(kInvalid, {})) << rest;
  }
  EXPECT_THAT(ParseListedTensor(R"({"error": "f: cut short"})").status(), Fails(kInvalid, {"f: cut short"}));
}

TEST(ListedTensors, QuotesWhatPicklesSay) {
  const std::string hostile = AsciiJsonText(nlohmann::json(kHostileText));
  const auto expect_quoted = [](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
  };
  for (const char* line :
       {R"({"error": H})", R"({"name": H})", R"({"name": H, "file": H, "begin": 0, "dtype": H})",
        R"({"name": H, "file": H, "begin": 0, "dtype": "F32", "sizes": [H]})",
        R"({"name": H, "file": H, "begin": 0, "dtype": "F32", "sizes": [1], "strides": [1], "rank": 0, "world": 1,
            "full_shape": [4], "placements": H})",
        R"({"name": H, "file": H, "begin": 0, "dtype": "F32", "sizes": [1], "strides": [1], "rank": 0, "world": 1,
            "full_shape": [4], "placements": [1]})",
        R"({H: 1, H: 2})", R"(H)"}) {
    expect_quoted(ParseListedTensor(absl::StrReplaceAll(line, {{"H", hostile}})).status());
  }
  expect_quoted(ParseListedTensor(kHostileText).status());
  ListedTensor shard = Shard(0, 1, 5, 5), box = shard;
  shard.name = box.name = kHostileText;
  shard.placements = {kHostileText};
  box.box.offsets = {1, 1};
  expect_quoted(PutBoxesTogether({box}).status());
  for (const std::vector<ListedTensor>& listed : {std::vector{shard}, std::vector{shard, shard}}) {
    expect_quoted(PutRanksTogether(listed).status());
    expect_quoted(PutBoxesTogether(listed).status());
  }
}

TEST(ListedTensors, ShardsOfUnequalSizesMakeUpTheWhole) {
  const auto put = PutRanksTogether({Shard(0, 4, 3, 5), Shard(1, 4, 2, 5), Shard(2, 4, 0, 5), Shard(3, 4, 0, 5)});
  ASSERT_TRUE(put.ok()) << put.status();
  ASSERT_EQ(put->front().boxes.size(), 2u);
  EXPECT_THAT(put->front().boxes[1].offsets, ElementsAre(3, 0));
  EXPECT_THAT(put->front().info.shape, ElementsAre(5, 3));
}

TEST(ListedTensors, ReplicasOfShardsAreReadOnce) {
  std::vector<ListedTensor> listed;
  for (int64_t rank = 0; rank < 4; ++rank) {
    listed.push_back(Shard(rank, 4, rank % 2 == 0 ? 3 : 2, 5));
    listed.back().placements = {"replicate", "shard 0"};
  }
  const auto put = PutRanksTogether(listed);
  ASSERT_TRUE(put.ok()) << put.status();
  ASSERT_EQ(put->front().boxes.size(), 2u);
  EXPECT_EQ(put->front().boxes[1].file, "f1");
  listed[3].placements = listed[2].placements = listed[1].placements = listed[0].placements = {"shard 0", "replicate"};
  EXPECT_THAT(PutRanksTogether(listed).status(),
              Fails(absl::StatusCode::kUnimplemented, {"'w'", "shard 0, replicate"}));
}

TEST(ListedTensors, ShardsThatDoNotFitAreNamed) {
  EXPECT_THAT(PutRanksTogether({Shard(0, 2, 3, 5)}).status(), Fails(kInvalid, {"'w'", "1 of 2 ranks"}));
  EXPECT_THAT(PutRanksTogether({Shard(0, 2, 3, 5), Shard(1, 2, 1, 5)}).status(), Fails(kInvalid, {"have 4 of 5"}));
  EXPECT_THAT(PutRanksTogether({Shard(0, 2, 3, 5), Shard(1, 2, 3, 5)}).status(),
              Fails(kInvalid, {"more than", "[5, 3]"}));
  EXPECT_THAT(PutRanksTogether({Shard(0, 2, 3, 5), Shard(1, 2, 2, 6)}).status(), Fails(kInvalid, {"rank 1"}));
  EXPECT_THAT(PutRanksTogether({Shard(0, 2, 3, 5), Shard(0, 2, 2, 5)}).status(), Fails(kInvalid, {"rank 0"}));
  ListedTensor partial = Shard(0, 1, 5, 5);
  partial.placements = {"Partial"};
  EXPECT_THAT(PutRanksTogether({partial}).status(), Fails(absl::StatusCode::kUnimplemented, {"Partial"}));
}

ListedTensor Box(int64_t row, int64_t rows, int64_t column, int64_t columns) {
  ListedTensor tensor{.name = "w", .shape = {4, 4}};
  tensor.box = {.file = "f", .offsets = {row, column}, .sizes = {rows, columns}, .strides = {columns, 1}};
  return tensor;
}

TEST(ListedTensors, BoxesFillTheirTensorOrAreRefused) {
  EXPECT_TRUE(PutBoxesTogether({Box(0, 4, 2, 2), Box(0, 2, 0, 2), Box(2, 2, 0, 2)}).ok());
  EXPECT_THAT(PutBoxesTogether({Box(0, 4, 0, 2), Box(0, 2, 2, 2)}).status(), Fails(kInvalid, {"12 of 16"}));
  EXPECT_THAT(PutBoxesTogether({Box(0, 3, 0, 4), Box(2, 1, 0, 4)}).status(), Fails(kInvalid, {"'w'", "same numbers"}));
  EXPECT_THAT(PutBoxesTogether({Box(0, 4, 1, 4)}).status(), Fails(kInvalid, {"'w'", "beyond", "[4, 4]"}));
}

StoredTensor Stored(const std::string& name, std::vector<int64_t> shape) {
  return {.name = name, .info = {DType::kF32, std::move(shape)}, .boxes = {}, .copies = {}};
}

TEST(MegatronNames, FusedProjectionsAreSplitByGroups) {
  model::ModelConfig config;
  config.vocab_size = 10;
  config.hidden_size = 8;
  config.intermediate_size = 6;
  config.num_layers = 1;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 2;
  config.max_positions = 4;
  std::vector<StoredTensor> tensors = {
      Stored("embedding.word_embeddings.weight", {64, 8}),
      Stored("output_layer.weight", {64, 8}),
      Stored("decoder.final_layernorm.weight", {8}),
      Stored("decoder.layers.input_layernorm.weight", {1, 8}),
      Stored("decoder.layers.self_attention.linear_qkv.weight", {1, 16, 8}),
      Stored("decoder.layers.self_attention.linear_proj.weight", {1, 8, 8}),
      Stored("decoder.layers.0.pre_mlp_layernorm.weight", {8}),
      Stored("decoder.layers.0.mlp.linear_fc1.weight", {12, 8}),
      Stored("decoder.layers.0.mlp.linear_fc2.weight", {8, 6}),
      Stored("decoder.layers.0.mlp.linear_fc1._extra_state", {1}),
  };
  const auto mapped = MapMegatron(tensors, config);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const auto weight = [&](const std::string& name) {
    return *std::find_if(mapped->begin(), mapped->end(), [&](const auto& w) { return w.name == name; });
  };
  const MappedWeight k = weight("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(k.layer, 0);
  EXPECT_THAT(k.shape, ElementsAre(4, 8));
  // A group is two queries, the key and the value, of two rows each.
  ASSERT_EQ(k.rows.size(), 2u);
  EXPECT_EQ(k.rows[0].from, 4);
  EXPECT_EQ(k.rows[1].from, 12);
  EXPECT_EQ(k.rows[1].to, 2);
  EXPECT_EQ(weight("model.layers.0.mlp.up_proj.weight").rows[0].from, 6);
  EXPECT_THAT(weight("lm_head.weight").shape, ElementsAre(10, 8));
  tensors.push_back(Stored("decoder.layers.0.mlp.router.weight", {8}));
  EXPECT_THAT(MapMegatron(tensors, config).status(), Fails(kInvalid, {"mlp.router"}));
  tensors.resize(8);
  EXPECT_THAT(MapMegatron(tensors, config).status(), Fails(kInvalid, {"no tensor", "linear_fc2"}));
}

}  // namespace
}  // namespace tdock::trainer
