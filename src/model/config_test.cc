#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/test_models.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// As transformers 4 wrote them.
Json Llama() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16,
    "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": null, "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})");
}
Json Qwen2() {
  Json json = Llama();
  json.erase("attention_bias");
  json.erase("mlp_bias");
  json.update({{"model_type", "qwen2"}, {"use_sliding_window", false}, {"sliding_window", 4096}});
  return json;
}

std::string Complaint(const Json& json, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto config = ParseModelConfig(json.dump());
  EXPECT_EQ(config.status().code(), code) << json;
  return std::string(config.status().message());
}

// The complaint about a configuration that is right but for one key.
std::string ComplaintWith(const char* key, const Json& value, Json json = Llama()) {
  json[key] = value;
  return Complaint(json);
}

// The same for a value that is well formed, and that the decoder does not have.
std::string RefusalOf(const char* key, const Json& value, Json json = Llama()) {
  json[key] = value;
  return Complaint(json, absl::StatusCode::kUnimplemented);
}

TEST(ParseModelConfig, ReadsALlama) {
  const auto config = ParseModelConfig(Llama().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->vocab_size, 32);
  EXPECT_EQ(config->hidden_size, 16);
  EXPECT_EQ(config->intermediate_size, 40);
  EXPECT_EQ(config->num_layers, 3);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->max_positions, 64);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope_theta, 500000.0);
  EXPECT_FALSE(config->tied_head);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->eos_token_id, 2);
  EXPECT_EQ(config->pad_token_id, std::nullopt);
}

TEST(ParseModelConfig, GivesAQwen2BiasesOfItsQueriesKeysAndValues) {
  const auto config = ParseModelConfig(Qwen2().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kQwen2);
  EXPECT_TRUE(config->qkv_bias);
}

TEST(ParseModelConfig, ReadsTheRopeBaseWhereEitherVersionOfTransformersWritesIt) {
  Json json = Llama();
  json.erase("rope_theta");
  EXPECT_EQ(ParseModelConfig(json.dump())->rope_theta, 10000.0);
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(ParseModelConfig(json.dump())->rope_theta, 1e6);
  json["rope_theta"] = 1e6;
  EXPECT_EQ(ParseModelConfig(json.dump())->rope_theta, 1e6);
  json["rope_theta"] = 1e5;
  EXPECT_THAT(Complaint(json), HasSubstr("rope_theta is 100000 in one place and 1e+06 in another"));
}

TEST(ParseModelConfig, FillsInWhatMayBeLeftOut) {
  Json json = Llama();
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "bos_token_id",
                          "eos_token_id", "attention_bias", "mlp_bias"}) {
    json.erase(key);
  }
  const auto config = ParseModelConfig(json.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_FALSE(config->tied_head);
  EXPECT_EQ(config->eos_token_id, std::nullopt);
}

TEST(ParseModelConfig, TakesTheFirstOfSeveralEndTokens) {
  Json json = Llama();
  json["eos_token_id"] = {7, 8, 9};
  EXPECT_EQ(ParseModelConfig(json.dump())->eos_token_id, 7);
}

TEST(ParseModelConfig, RefusesByNameWhatTheDecoderDoesNotHave) {
  EXPECT_THAT(RefusalOf("model_type", "mistral"), HasSubstr("model_type 'mistral' is not supported"));
  EXPECT_THAT(RefusalOf("hidden_act", "gelu"), HasSubstr("hidden_act 'gelu' is not supported"));
  EXPECT_THAT(RefusalOf("attention_bias", true), HasSubstr("'attention_bias': true is not supported"));
  EXPECT_THAT(RefusalOf("mlp_bias", true), HasSubstr("'mlp_bias': true is not supported"));
  EXPECT_THAT(RefusalOf("use_sliding_window", true, Qwen2()), HasSubstr("'use_sliding_window': true"));
  EXPECT_THAT(RefusalOf("layer_types", {"full_attention", "sliding_attention"}, Qwen2()),
              HasSubstr("layer type \"sliding_attention\" is not supported"));
  EXPECT_THAT(RefusalOf("quantization_config", {{"bits", 4}}), HasSubstr("quantised checkpoints"));
  EXPECT_THAT(RefusalOf("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), HasSubstr("rope type 'linear'"));
  EXPECT_THAT(RefusalOf("rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 5e5}}),
              HasSubstr("rope_parameters: rope type 'llama3' is not supported"));
  EXPECT_THAT(RefusalOf("partial_rotary_factor", 0.5), HasSubstr("'partial_rotary_factor' is not supported"));
  EXPECT_THAT(RefusalOf("rope_parameters", {{"partial_rotary_factor", 0.25}, {"rope_theta", 5e5}}),
              HasSubstr("rope_parameters: 'partial_rotary_factor' is not supported"));
}

TEST(ParseModelConfig, NamesAKeyThatIsMissing) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings"}) {
    Json json = Llama();
    json.erase(key);
    EXPECT_EQ(Complaint(json), "key '" + std::string(key) + "' is missing");
  }
}

TEST(ParseModelConfig, NamesAKeyOfTheWrongType) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    EXPECT_EQ(ComplaintWith(key, "16"), "key '" + std::string(key) + "' must be an integer, not \"16\"");
    EXPECT_EQ(ComplaintWith(key, 16.0), "key '" + std::string(key) + "' must be an integer, not 16.0");
  }
  EXPECT_THAT(ComplaintWith("rms_norm_eps", "small"), HasSubstr("key 'rms_norm_eps' must be a number, not \"small\""));
  EXPECT_THAT(ComplaintWith("rope_theta", Json::array()), HasSubstr("key 'rope_theta' must be a number, not []"));
  EXPECT_THAT(ComplaintWith("rope_parameters", 3), HasSubstr("key 'rope_parameters' must be an object"));
  EXPECT_THAT(ComplaintWith("tie_word_embeddings", 1), HasSubstr("key 'tie_word_embeddings' must be true or false"));
  EXPECT_THAT(ComplaintWith("model_type", 1), HasSubstr("key 'model_type' must be a string, not 1"));
  EXPECT_THAT(ComplaintWith("eos_token_id", "</s>"), HasSubstr("key 'eos_token_id' must be an integer"));
  EXPECT_THAT(ComplaintWith("vocab_size", 18446744073709551615U), HasSubstr("must be an integer below 2^63"));
  EXPECT_THAT(ComplaintWith("layer_types", "full_attention", Qwen2()), HasSubstr("key 'layer_types' must be a list"));
}

TEST(ParseModelConfig, RefusesSizesThatContradictOneAnother) {
  EXPECT_THAT(ComplaintWith("hidden_size", 18),
              HasSubstr("hidden_size (18) must be a multiple of num_attention_heads"));
  EXPECT_THAT(ComplaintWith("num_key_value_heads", 3),
              HasSubstr("num_attention_heads (4) must be a multiple of num_key_value_heads (3)"));
  EXPECT_THAT(ComplaintWith("head_dim", 5), HasSubstr("head_dim must be even for the rotary embedding, not 5"));
  EXPECT_THAT(ComplaintWith("eos_token_id", 32),
              HasSubstr("eos_token_id must be at least 0 and below vocab_size (32)"));
  EXPECT_THAT(ComplaintWith("pad_token_id", -1), HasSubstr("pad_token_id must be at least 0"));
  EXPECT_THAT(ComplaintWith("rms_norm_eps", 0), HasSubstr("rms_norm_eps must be positive, not 0"));
  EXPECT_THAT(ComplaintWith("rope_theta", -1.0), HasSubstr("rope_theta must be positive, not -1"));
}

TEST(ParseModelConfig, RefusesSizesThatNoModelHas) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const int64_t size : {int64_t{0}, int64_t{-16}, int64_t{1} << 32, int64_t{INT64_MAX}}) {
      EXPECT_THAT(ComplaintWith(key, size),
                  testing::ContainsRegex(std::string(key) + " must be |hidden_size .* multiple"));
    }
  }
}

TEST(ParseModelConfig, NamesAllContradictionsAtOnce) {
  Json json = Llama();
  json["vocab_size"] = 0;
  json["max_position_embeddings"] = -5;
  json["rms_norm_eps"] = -1;
  EXPECT_THAT(Complaint(json),
              testing::AllOf(HasSubstr("vocab_size must be"), HasSubstr("max_position_embeddings must"),
                             HasSubstr("rms_norm_eps must")));
}

TEST(ParseModelConfig, SurvivesDamagedFiles) {
  const std::string text = Llama().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(ParseModelConfig(text.substr(0, length)).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(ParseModelConfig(R"({"model_type": "llama", "vocab_size": )" + std::string(1'000'000, '[') +
                                std::string(1'000'000, ']') + "}")
                   .ok());
  EXPECT_THAT(ParseModelConfig(R"({"model_type": "llama", "vocab_size": 1, "vocab_size": 2})").status().message(),
              HasSubstr("'vocab_size' twice"));
}

TEST(ModelConfigJson, IsReadBackToTheSameConfiguration) {
  std::vector<ModelConfig> configs = TinyConfigs();
  configs.front().bos_token_id = 0;
  configs.front().eos_token_id = 3;
  configs.front().pad_token_id = 28;
  configs.back().rope_theta = 1.0 / 3.0;
  configs.back().rms_norm_eps = 1e-300;
  for (const ModelConfig& config : configs) {
    const auto back = ParseModelConfig(ModelConfigJson(config));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == config) << ModelConfigJson(config);
  }
}

}  // namespace
}  // namespace tdock::model
