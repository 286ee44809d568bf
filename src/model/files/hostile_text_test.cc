// What model files say is quoted in every message.
#include "core/base/testing/hostile_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/testing/fails.h"
#include "model/files/adapter_config.h"
#include "model/files/config.h"
#include "model/files/safetensors.h"
#include "model/files/testing/one_file_env.h"
#include "model/files/weight_files.h"

namespace tdock::model {
namespace {

// The hostile text as a value of JSON.
std::string HostileJson() { return AsciiJsonText(nlohmann::json(kHostileText)); }

void ExpectQuoted(const absl::Status& status) {
  EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
}

// Hostile values of every kind.
std::vector<nlohmann::json> HostileValues() {
  const nlohmann::json text = kHostileText;
  return {text, nlohmann::json::array({text}), nlohmann::json::object({{kHostileText, text}}),
          nlohmann::json::object({{kHostileText, 1}})};
}

// Objects with one hostile value or one hostile key more, at the top and inside of objects there.
std::vector<nlohmann::json> MadeHostile(const nlohmann::json& object) {
  std::vector<nlohmann::json> made;
  for (const auto& [key, value] : object.items()) {
    for (const nlohmann::json& hostile : HostileValues()) {
      made.push_back(object);
      made.back()[key] = hostile;
    }
    if (!value.is_object()) continue;
    for (const nlohmann::json& inside : MadeHostile(value)) {
      made.push_back(object);
      made.back()[key] = inside;
    }
  }
  made.push_back(object);
  made.back()[std::string(kHostileText)] = 1;
  return made;
}

// Texts that are no JSON, or not what was asked for.
std::vector<std::string> NoObjects() {
  const std::string hostile = HostileJson();
  return {kHostileText,
          absl::StrCat("{\"a\": ", kHostileText, "}"),
          absl::StrCat("{\"", kHostileText, "\": 1}"),
          absl::StrCat("{", hostile, ": 1, ", hostile, ": 2}"),
          absl::StrCat("{", hostile, " 1}"),
          absl::StrCat("{\"a\": 1} ", hostile),
          absl::StrCat("{\"a\": 1}\xE2\x80\xAE"),
          hostile};
}

TEST(HostileText, IsQuotedInMessagesAboutAModelsConfiguration) {
  const nlohmann::json llama = ReadJson(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "layer_types": ["full_attention", "full_attention"],
    "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "head_dim": 4, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "bfloat16"})");
  ASSERT_TRUE(ParseModelConfig(JsonText(llama)).ok()) << ParseModelConfig(JsonText(llama)).status();
  size_t refused = 0;
  nlohmann::json others[] = {llama, llama, llama};
  others[1]["model_type"] = "qwen2";
  others[1]["use_sliding_window"] = true;
  others[2]["model_type"] = "mistral";
  others[2]["dtype"] = "float32";
  for (const nlohmann::json& base : others) {
    for (const nlohmann::json& json : MadeHostile(base)) {
      const absl::Status status = ParseModelConfig(JsonText(json)).status();
      ExpectQuoted(status);
      refused += status.ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 200u);
  for (const std::string& text : NoObjects()) ExpectQuoted(ParseModelConfig(text).status());
  EXPECT_THAT(ParseModelConfig(absl::StrCat("{\"model_type\": ", HostileJson(), "}")).status(),
              Fails(absl::StatusCode::kUnimplemented, {"model_type", "PWNED"}));
  ModelConfig config = *ParseModelConfig(JsonText(llama));
  ExpectQuoted(OverrideRope(absl::StrCat("{\"rope_type\": ", HostileJson(), "}"), &config));
  ExpectQuoted(ParseGenerationEnds(absl::StrCat("{\"eos_token_id\": ", HostileJson(), "}")).status());
}

TEST(HostileText, IsQuotedInMessagesAboutAdapters) {
  const nlohmann::json lora = ReadJson(R"({
    "peft_type": "LORA", "r": 8, "lora_alpha": 8, "use_rslora": false, "target_modules": ["q_proj"], "bias": "none",
    "layers_to_transform": [0], "modules_to_save": ["lm_head"], "lora_dropout": 0.0, "init_lora_weights": true})");
  ASSERT_TRUE(ParseLoraConfig(JsonText(lora)).ok()) << ParseLoraConfig(JsonText(lora)).status();
  for (const nlohmann::json& json : MadeHostile(lora)) ExpectQuoted(ParseLoraConfig(JsonText(json)).status());
  for (const std::string& text : NoObjects()) ExpectQuoted(ParseLoraConfig(text).status());
}

TEST(HostileText, IsQuotedInMessagesAboutSafetensors) {
  const std::string name = HostileJson();
  std::vector<std::string> headers = NoObjects();
  for (const std::string& entry : {std::string("1"), std::string("{}"),
                                   absl::StrCat(R"({"dtype":)", name, R"(,"shape":[1],"data_offsets":[0,4]})"),
                                   absl::StrCat(R"({"dtype":{)", name, ":1},\"shape\":[1],\"data_offsets\":[0,4]}"),
                                   absl::StrCat(R"({"dtype":"F32","shape":)", name, R"(,"data_offsets":[0,4]})"),
                                   absl::StrCat(R"({"dtype":"F32","shape":[1],"data_offsets":)", name, "}"),
                                   std::string(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
                                   std::string(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})")}) {
    headers.push_back(absl::StrCat("{", name, ":", entry, "}"));
    headers.push_back(absl::StrCat("{\"__metadata__\":{", name, ":", name, "},", name, ":", entry, "}"));
  }
  for (const std::string& header : headers) {
    const auto size = static_cast<uint64_t>(header.size());
    OneFileEnv env(absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&size), sizeof size), header, "data"));
    const absl::Status status = SafetensorsFile::Open(env, kHostileText).status();
    EXPECT_FALSE(status.ok()) << header;
    ExpectQuoted(status);
  }
}

TEST(HostileText, IsQuotedInMessagesAboutAnIndexOfWeights) {
  const std::string name = HostileJson();
  std::vector<std::string> texts = NoObjects();
  for (const std::string& file : {name, std::string("1"), std::string("\"../x\""), absl::StrCat("[", name, "]")}) {
    texts.push_back(absl::StrCat("{\"weight_map\": {", name, ": ", file, "}}"));
  }
  texts.push_back(absl::StrCat("{\"weight_map\": ", name, "}"));
  for (const std::string& text : texts) {
    EXPECT_THAT(ParseWeightIndex(text).status(), Fails(absl::StatusCode::kInvalidArgument)) << text;
    ExpectQuoted(ParseWeightIndex(text).status());
  }
}

TEST(HostileText, IsQuotedInNamesOfTensors) {
  EXPECT_EQ(ShowName("model.layers.0.weight"), "model.layers.0.weight");
  EXPECT_TRUE(IsSafeForTerminals(ShowName(kHostileText)));
  EXPECT_LT(ShowName(std::string(1000, 'x')).size(), 210u);
}

}  // namespace
}  // namespace tdock::model
