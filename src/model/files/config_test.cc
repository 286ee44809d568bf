#include "model/files/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "model/files/testing/configs.h"
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
  json.update({{"architectures", Json::array({"Qwen2ForCausalLM"})},
               {"model_type", "qwen2"},
               {"use_sliding_window", false},
               {"sliding_window", 4096}});
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
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_EQ(config->rope.theta, 500000.0);
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
  EXPECT_EQ(ParseModelConfig(json.dump())->rope.theta, 10000.0);
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(ParseModelConfig(json.dump())->rope.theta, 1e6);
  json["rope_theta"] = 1e6;
  EXPECT_EQ(ParseModelConfig(json.dump())->rope.theta, 1e6);
  json["rope_theta"] = 1e5;
  EXPECT_THAT(Complaint(json), Mentions({"rope_theta", "100000", "1e+06"}));
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
  EXPECT_EQ(config->norm_eps, 1e-6);
  EXPECT_FALSE(config->tied_head);
  EXPECT_EQ(config->bos_token_id, 1) << "as `transformers` has it";
  EXPECT_EQ(config->eos_token_id, 2);
  json["eos_token_id"] = nullptr;
  EXPECT_EQ(ParseModelConfig(json.dump())->eos_token_id, std::nullopt);
}

TEST(ParseModelConfig, TakesTheFirstOfSeveralEndTokens) {
  Json json = Llama();
  json["eos_token_id"] = {7, 8, 9};
  EXPECT_EQ(ParseModelConfig(json.dump())->eos_token_id, 7);
  EXPECT_THAT(EosTokenIds(*ParseModelConfig(json.dump())), testing::ElementsAre(7, 8, 9));
}

TEST(ParseGenerationEnds, TakesANumberAListOrNothing) {
  EXPECT_THAT(*ParseGenerationEnds(R"({"eos_token_id": 7})"), testing::ElementsAre(7));
  EXPECT_THAT(*ParseGenerationEnds(R"({"eos_token_id": [7, 9]})"), testing::ElementsAre(7, 9));
  EXPECT_TRUE(ParseGenerationEnds(R"({"do_sample": true})")->empty());
  EXPECT_THAT(ParseGenerationEnds(R"({"eos_token_id": ["</s>"]})").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"key 'eos_token_id'", "number", "list"}));
}

// The smallest config.json of an architecture, as transformers 5 writes it.
Json Small(const char* model_type) {
  Json json = Json::parse(R"({
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "dtype": "float16"})");
  if (std::string(model_type) == "opt") {
    json = Json::parse(R"({"vocab_size": 32, "hidden_size": 16, "ffn_dim": 40, "num_hidden_layers": 2,
      "num_attention_heads": 4, "max_position_embeddings": 64})");
  } else if (std::string(model_type) == "gpt2") {
    json = Json::parse(R"({"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64})");
  }
  json["model_type"] = model_type;
  return json;
}

ModelConfig Parsed(const Json& json) {
  const auto config = ParseModelConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status() << json;
  return config.value_or(ModelConfig());
}

TEST(ParseModelConfig, ReadsEachArchitecture) {
  const ModelConfig mistral = Parsed(Small("mistral"));
  EXPECT_EQ(mistral.architecture, Architecture::kMistral);
  EXPECT_FALSE(mistral.qkv_bias);
  EXPECT_EQ(mistral.dtype, DType::kF16);
  const ModelConfig qwen3 = Parsed(Small("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.eos_token_id, std::nullopt) << "as `transformers` has it";
  EXPECT_EQ(qwen3.head_dim, 8);
  const ModelConfig opt = Parsed(Small("opt"));
  EXPECT_EQ(opt.positions, Positions::kLearned);
  EXPECT_EQ(opt.norm, NormKind::kLayer);
  EXPECT_EQ(opt.activation, Activation::kRelu);
  EXPECT_EQ(opt.norm_eps, 1e-5);
  EXPECT_TRUE(opt.tied_head && opt.qkv_bias && opt.output_bias && opt.mlp_bias && opt.final_norm && !opt.gated_mlp);
  const ModelConfig gpt2 = Parsed(Small("gpt2"));
  EXPECT_EQ(gpt2.intermediate_size, 64);
  EXPECT_EQ(gpt2.activation, Activation::kGeluTanh);
  EXPECT_TRUE(gpt2.tied_head && gpt2.mlp_bias && !gpt2.post_norm);
}

TEST(ParseModelConfig, ReadsAnOptWithNormsBehindAndNarrowEmbeddings) {
  Json json = Small("opt");
  json.update({{"do_layer_norm_before", false},
               {"word_embed_proj_dim", 8},
               {"enable_bias", false},
               {"layer_norm_elementwise_affine", false}});
  const ModelConfig config = Parsed(json);
  EXPECT_EQ(config.embedding(), 8);
  EXPECT_TRUE(config.post_norm && !config.final_norm && !config.norm_weights && !config.qkv_bias);
  json["word_embed_proj_dim"] = 16;
  EXPECT_EQ(Parsed(json).embedding_size, 0);
}

TEST(ParseModelConfig, ReadsWindows) {
  Json json = Small("mistral");
  EXPECT_EQ(Parsed(json).windows, std::vector<int64_t>(4, 4096)) << "as `transformers` has it";
  json["sliding_window"] = nullptr;
  EXPECT_TRUE(Parsed(json).windows.empty());
  json["sliding_window"] = 7;
  EXPECT_EQ(Parsed(json).windows, std::vector<int64_t>(4, 7));
  json = Small("qwen2");
  json.update({{"use_sliding_window", true}, {"max_window_layers", 3}});
  EXPECT_EQ(Parsed(json).windows, (std::vector<int64_t>{0, 0, 0, 4096}));
  json["sliding_window"] = nullptr;
  EXPECT_TRUE(Parsed(json).windows.empty());
  json.update({{"sliding_window", 7}, {"use_sliding_window", false}});
  EXPECT_TRUE(Parsed(json).windows.empty()) << "not in use";
  json["use_sliding_window"] = true;
  EXPECT_EQ(Parsed(json).windows, (std::vector<int64_t>{0, 0, 0, 7}));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(Parsed(json).windows, (std::vector<int64_t>{7, 0, 0, 7}));
  json["layer_types"].erase(0);
  EXPECT_THAT(Complaint(json), Mentions({"layer_types", "3 entries", "4 layers"}));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  json["use_sliding_window"] = false;
  EXPECT_THAT(Complaint(json), Mentions({"layer_types", "no sliding_window"}));
  EXPECT_THAT(ComplaintWith("sliding_window", 0, Small("mistral")),
              Mentions({"sliding_window", "at least 1", "not 0"}));
}

TEST(ParseModelConfig, ReadsEachKindOfRopeScaling) {
  const auto rope = [](const Json& scaling) {
    Json json = Llama();
    json["rope_scaling"] = scaling;
    return Parsed(json).rope;
  };
  EXPECT_EQ(rope({{"type", "linear"}, {"factor", 2.0}}),
            (RopeConfig{.type = RopeType::kLinear, .theta = 5e5, .factor = 2}));
  EXPECT_EQ(rope({{"rope_type", "dynamic"}, {"factor", 4}}),
            (RopeConfig{.type = RopeType::kDynamic, .theta = 5e5, .factor = 4}));
  EXPECT_EQ(rope({{"rope_type", "llama3"},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}}),
            (RopeConfig{.type = RopeType::kLlama3, .theta = 5e5, .factor = 8, .original_max_positions = 8192}));
  const RopeConfig yarn = rope({{"type", "yarn"},
                                {"factor", 1.5},
                                {"original_max_position_embeddings", 32768},
                                {"attention_factor", 1.1},
                                {"beta_fast", 16},
                                {"truncate", false}});
  EXPECT_EQ(yarn.type, RopeType::kYarn);
  EXPECT_EQ(yarn.attention_factor, 1.1);
  EXPECT_EQ(yarn.beta_fast, 16);
  EXPECT_FALSE(yarn.truncate);
}

TEST(ParseModelConfig, RefusesRopeScalingsThatMakeNoSense) {
  const auto complaint = [](const Json& scaling) { return ComplaintWith("rope_scaling", scaling); };
  EXPECT_THAT(complaint({{"type", "linear"}}), Mentions({"rope_scaling: ", "key 'factor'", "missing"}));
  EXPECT_THAT(complaint({{"type", "linear"}, {"factor", 0.5}}), Mentions({"factor", "at least 1", "not 0.5"}));
  EXPECT_THAT(complaint({{"type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 3}}),
              Mentions({"beta_fast", "beta_slow (3)", "not 1"}));
  EXPECT_THAT(complaint({{"type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
              Mentions({"high_freq_factor", "low_freq_factor (4)", "not 4"}));
  EXPECT_THAT(complaint({{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", -1}}),
              Mentions({"original_max_position_embeddings", "not -1"}));
}

TEST(OverrideRope, ChangesTheScalingAndNothingElse) {
  ModelConfig config = Parsed(Llama());
  ASSERT_TRUE(
      OverrideRope(R"({"rope_type": "yarn", "factor": 1.5, "original_max_position_embeddings": 64})", &config).ok());
  EXPECT_EQ(config.rope.type, RopeType::kYarn);
  EXPECT_EQ(config.rope.theta, 5e5);
  const ModelConfig before = config;
  EXPECT_FALSE(OverrideRope(R"({"rope_type": "yarn", "factor": 0})", &config).ok());
  EXPECT_EQ(config, before);
  ModelConfig gpt2 = Parsed(Small("gpt2"));
  EXPECT_THAT(OverrideRope(R"({"rope_type": "linear", "factor": 2})", &gpt2),
              Fails(absl::StatusCode::kInvalidArgument, {"'gpt2'", "rotary"}));
}

TEST(ParseModelConfig, RefusesByNameWhatTheDecoderDoesNotHave) {
  EXPECT_THAT(RefusalOf("model_type", "gemma"), Mentions({"model_type 'gemma'", "llama, "}));
  EXPECT_THAT(RefusalOf("num_local_experts", 8), Mentions({"mixture-of-experts", "'num_local_experts'"}));
  EXPECT_THAT(RefusalOf("vision_config", Json::object()), Mentions({"multimodal", "'vision_config'"}));
  EXPECT_THAT(RefusalOf("hidden_act", "mish"), Mentions({"hidden_act 'mish'"}));
  EXPECT_THAT(RefusalOf("layer_types", {"full_attention", "sliding_attention", "full_attention"}),
              Mentions({"'layer_types'", "model_type 'llama'"}));
  EXPECT_THAT(RefusalOf("layer_types", {"linear_attention", "full_attention", "full_attention"}, Qwen2()),
              Mentions({"layer type \"linear_attention\""}));
  EXPECT_THAT(RefusalOf("quantization_config", {{"bits", 4}}), Mentions({"quantised"}));
  EXPECT_THAT(RefusalOf("torch_dtype", "float8_e4m3fn"), Mentions({"torch_dtype 'float8_e4m3fn'"}));
  EXPECT_THAT(RefusalOf("rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}), Mentions({"rope type 'longrope'"}));
  EXPECT_THAT(RefusalOf("partial_rotary_factor", 0.5), Mentions({"'partial_rotary_factor'"}));
  EXPECT_THAT(RefusalOf("rope_parameters", {{"partial_rotary_factor", 0.25}, {"rope_theta", 5e5}}),
              Mentions({"rope_parameters: ", "'partial_rotary_factor'"}));
  EXPECT_THAT(RefusalOf("rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}),
              Mentions({"rope_parameters: ", "key 'full_attention'"}));
  EXPECT_THAT(RefusalOf("is_causal", false), Mentions({"'is_causal': false"}));
  EXPECT_THAT(RefusalOf("scale_attn_by_inverse_layer_idx", true, Small("gpt2")),
              Mentions({"'scale_attn_by_inverse_layer_idx': true"}));
}

TEST(ParseModelConfig, NamesAKeyThatIsMissing) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings"}) {
    Json json = Llama();
    json.erase(key);
    EXPECT_THAT(Complaint(json), Mentions({"key '" + std::string(key) + "'", "missing"}));
  }
}

TEST(ParseModelConfig, NamesAKeyOfTheWrongType) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    const std::string name = "key '" + std::string(key) + "'";
    EXPECT_THAT(ComplaintWith(key, "16"), Mentions({name, "an integer", "not \"16\""}));
    EXPECT_THAT(ComplaintWith(key, 16.0), Mentions({name, "an integer", "not 16.0"}));
  }
  EXPECT_THAT(ComplaintWith("rms_norm_eps", "small"), Mentions({"key 'rms_norm_eps'", "a number", "not \"small\""}));
  EXPECT_THAT(ComplaintWith("rope_theta", Json::array()), Mentions({"key 'rope_theta'", "a number", "not []"}));
  EXPECT_THAT(ComplaintWith("rope_parameters", 3), Mentions({"key 'rope_parameters'", "an object"}));
  EXPECT_THAT(ComplaintWith("tie_word_embeddings", 1), Mentions({"key 'tie_word_embeddings'", "true", "false"}));
  EXPECT_THAT(ComplaintWith("model_type", 1), Mentions({"key 'model_type'", "a string", "not 1"}));
  EXPECT_THAT(ComplaintWith("eos_token_id", "</s>"), Mentions({"key 'eos_token_id'", "an integer"}));
  EXPECT_THAT(ComplaintWith("vocab_size", 18446744073709551615U), Mentions({"key 'vocab_size'", "below 2^63"}));
  EXPECT_THAT(ComplaintWith("layer_types", "full_attention", Qwen2()), Mentions({"key 'layer_types'", "a list"}));
}

TEST(ParseModelConfig, RefusesSizesThatContradictOneAnother) {
  EXPECT_THAT(ComplaintWith("num_key_value_heads", 3),
              Mentions({"num_attention_heads (4)", "multiple", "num_key_value_heads (3)"}));
  EXPECT_THAT(ComplaintWith("hidden_size", 18), Mentions({"hidden_size (18)", "multiple", "num_attention_heads"}));
  EXPECT_THAT(ComplaintWith("n_embd", -4611686018427387904, Small("gpt2")), HasSubstr("n_inner"));
  EXPECT_THAT(ComplaintWith("head_dim", 5), Mentions({"head_dim", "even", "not 5"}));
  EXPECT_THAT(ComplaintWith("eos_token_id", 32), Mentions({"eos_token_id", "vocab_size (32)", "not 32"}));
  EXPECT_THAT(ComplaintWith("rms_norm_eps", 0), Mentions({"rms_norm_eps", "positive", "not 0"}));
  EXPECT_THAT(ComplaintWith("rope_theta", -1.0), Mentions({"rope_theta", "positive", "not -1"}));
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
              Mentions({"vocab_size", "not 0", "max_position_embeddings", "not -5", "rms_norm_eps", "not -1"}));
}

TEST(ParseModelConfig, SurvivesDamagedFiles) {
  const std::string text = Llama().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(ParseModelConfig(text.substr(0, length)).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(ParseModelConfig(R"({"model_type": "llama", "vocab_size": )" + std::string(1'000'000, '[') +
                                std::string(1'000'000, ']') + "}")
                   .ok());
  EXPECT_THAT(ParseModelConfig(R"({"model_type": "llama", "vocab_size": 1, "vocab_size": 2})").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'vocab_size'", "twice"}));
}

TEST(ModelConfigJson, IsReadBackToTheSameConfiguration) {
  std::vector<ModelConfig> configs = TinyConfigs();
  configs.front().bos_token_id = 0;
  configs.front().eos_token_id = 3;
  configs.front().pad_token_id = 28;
  configs.back().rope.theta = 1.0 / 3.0;
  configs.back().norm_eps = 1e-300;
  for (const char* type : {"mistral", "qwen2", "qwen3", "opt", "gpt2"}) configs.push_back(Parsed(Small(type)));
  ModelConfig windows = Parsed(Small("qwen3"));
  windows.windows = {0, 5, 0, 5};
  windows.qkv_bias = windows.output_bias = true;
  ModelConfig post_norm = Parsed(Small("opt"));
  post_norm.post_norm = true;
  post_norm.final_norm = false;
  post_norm.embedding_size = 8;
  ModelConfig yarn = Parsed(Llama());
  yarn.rope = {.type = RopeType::kYarn,
               .theta = 1e6,
               .factor = 1.5,
               .original_max_positions = 32,
               .mscale = 0.5,
               .mscale_all_dim = 0.25,
               .truncate = false};
  ModelConfig llama3 = Parsed(Llama());
  llama3.rope = {.type = RopeType::kLlama3, .factor = 8, .original_max_positions = 32, .high_freq_factor = 3};
  configs.insert(configs.end(), {windows, post_norm, yarn, llama3});
  for (const ModelConfig& config : configs) {
    const auto back = ParseModelConfig(ModelConfigJson(config));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == config) << ModelConfigJson(config);
  }
}

TEST(ParseModelConfig, StretchesTheContextWithTheRope) {
  Json json = Llama();
  EXPECT_EQ(ParseModelConfig(json.dump())->context_length(), 64);
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(ParseModelConfig(json.dump())->context_length(), 256);
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 1.5}, {"original_max_position_embeddings", 60}};
  EXPECT_EQ(ParseModelConfig(json.dump())->context_length(), 90);
  json["rope_scaling"]["original_max_position_embeddings"] = 16;  // max_position_embeddings has it counted in
  EXPECT_EQ(ParseModelConfig(json.dump())->context_length(), 64);
}

TEST(ParseModelConfig, TakesTheOriginalLengthFromWhereTransformersDoes) {
  Json json = Llama();
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 16}};
  json["original_max_position_embeddings"] = 32;
  EXPECT_EQ(ParseModelConfig(json.dump())->rope.original_max_positions, 32);
}

TEST(ParseModelConfig, RefusesTwoRopesThatDiffer) {
  Json json = Llama();
  json["rope_parameters"] = {{"rope_type", "default"}};
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(Complaint(json), Mentions({"rope_scaling", "rope_parameters"}));
}

TEST(ParseModelConfig, ReadsAPaddingThatIsNoTokenAsNone) {
  for (const int64_t id : {-1, 32}) {
    Json json = Llama();
    json["pad_token_id"] = id;
    const auto config = ParseModelConfig(json.dump());
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_FALSE(config->pad_token_id.has_value());
  }
}

TEST(ParseModelConfig, RefusesClassesOfOtherThings) {
  for (const char* name : {"LlavaForCausalLM", "Qwen2ForRewardModel", "LlamaForTokenClassification"}) {
    EXPECT_THAT(RefusalOf("architectures", Json::array({name})), HasSubstr(name));
  }
  EXPECT_TRUE(ParseModelConfig([] {
                Json json = Llama();
                json["architectures"] = Json::array({"LlamaModel"});
                return json.dump();
              }())
                  .ok());
  Json labels = Llama();
  labels["architectures"] = Json::array({"LlamaForSequenceClassification"});
  EXPECT_THAT(Complaint(labels, absl::StatusCode::kUnimplemented),
              Mentions({"LlamaForSequenceClassification", "2 labels"}));
}

}  // namespace
}  // namespace tdock::model
