#include "model/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/limited_env.h"
#include "model/safetensors.h"
#include "model/test_devices.h"
#include "model/test_files.h"
#include "model/test_models.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using testing::HasSubstr;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.cpu().const_data_ptr(), b.cpu().const_data_ptr(), a.nbytes()) == 0;
}

class CheckpointTest : public testing::TestWithParam<at::Device> {
 protected:
  Env& env_ = Env::Real();
  const TestFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Devices, CheckpointTest, testing::ValuesIn(TestDevices()), DeviceName);

TEST_P(CheckpointTest, IsReadBackBitForBit) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = TinyDecoder(config, 1, GetParam());
    decoder.SetTrainable(true);
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("a/b"), decoder).ok());
    const auto loaded = LoadCheckpoint(env_, folder_.Path("a/b"), GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(loaded->config() == config);
    ASSERT_EQ(loaded->parameters().size(), decoder.parameters().size());
    for (size_t i = 0; i < decoder.parameters().size(); ++i) {
      EXPECT_TRUE(SameBits(loaded->parameters()[i], decoder.parameters()[i]));
      EXPECT_EQ(loaded->parameters()[i].device(), GetParam());
      EXPECT_FALSE(loaded->parameters()[i].requires_grad());
    }
    const at::Tensor tokens = RandomTokens(2, 7, config.vocab_size, 1, GetParam());
    EXPECT_TRUE(at::equal(FullLogits(*loaded, tokens), FullLogits(decoder, tokens).detach()));
  }
}

TEST_P(CheckpointTest, ConvertsHalfPrecisionToFloat32) {
  const Decoder decoder = TinyDecoder(TinyConfig(Architecture::kQwen2, /*tied_head=*/true), 1, GetParam());
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), decoder).ok());
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    NamedTensors weights = decoder.NamedWeights();
    for (auto& [name, weight] : weights) weight = weight.to(dtype);
    ASSERT_TRUE(WriteSafetensors(env_, folder_.Path("model.safetensors"), weights).ok());
    const auto loaded = LoadCheckpoint(env_, folder_.path(), GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto read = loaded->NamedWeights();
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(SameBits(read[i].second, weights[i].second.to(at::kFloat))) << weights[i].first;
    }
  }
}

class CheckpointFiles : public testing::Test {
 protected:
  CheckpointFiles() : decoder_(TinyDecoder(TinyConfig(Architecture::kLlama, /*tied_head=*/false), 1, at::kCPU)) {
    EXPECT_TRUE(SaveCheckpoint(env_, folder_.path(), decoder_).ok());
  }

  void WriteWeights(const NamedTensors& weights) {
    ASSERT_TRUE(WriteSafetensors(env_, folder_.Path("model.safetensors"), weights).ok());
  }
  void EditConfig(const std::string& key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(*env_.ReadFile(folder_.Path("config.json")));
    config[key] = value;
    ASSERT_TRUE(WriteFileAtomically(env_, folder_.Path("config.json"), config.dump()).ok());
  }
  absl::Status Load() { return LoadCheckpoint(env_, folder_.path(), at::kCPU).status(); }
  std::string Complaint() {
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  Env& env_ = Env::Real();
  const TestFolder folder_;
  const Decoder decoder_;
};

TEST_F(CheckpointFiles, HaveTheNamesOfTheHuggingFaceLayout) {
  EXPECT_THAT(*env_.List(folder_.path()),
              testing::ElementsAre("config.json", "generation_config.json", "model.safetensors"));
  const auto config = nlohmann::json::parse(*env_.ReadFile(folder_.Path("config.json")));
  EXPECT_EQ(config["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["model_type"], "llama");
}

TEST_F(CheckpointFiles, PassTheEndTokenOnToGeneration) {
  ModelConfig config = TinyConfig(Architecture::kQwen2, /*tied_head=*/true);
  config.eos_token_id = 5;
  config.pad_token_id = 6;
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("other"), Decoder::Random(config, 1, at::kCPU)).ok());
  const auto generation = nlohmann::json::parse(*env_.ReadFile(folder_.Path("other/generation_config.json")));
  EXPECT_EQ(generation["eos_token_id"], 5);
  EXPECT_EQ(generation["pad_token_id"], 6);
  EXPECT_EQ(generation["do_sample"], false);
}

TEST_F(CheckpointFiles, WithMissingUnexpectedAndMisshapenWeightsAreRefusedWithAllNames) {
  NamedTensors weights = decoder_.NamedWeights();
  for (auto& [name, weight] : weights) {
    if (name == "model.norm.weight") name = "model.final_norm.weight";
    if (name == "model.layers.1.mlp.down_proj.weight") weight = weight.t();
  }
  WriteWeights(weights);
  const std::string complaint = Complaint();
  EXPECT_THAT(complaint, HasSubstr(folder_.Path("model.safetensors") + ": "));
  EXPECT_THAT(complaint, HasSubstr("missing weights: model.norm.weight; "));
  EXPECT_THAT(complaint, HasSubstr("unexpected weights: model.final_norm.weight; "));
  EXPECT_THAT(complaint, HasSubstr("wrong shapes: model.layers.1.mlp.down_proj.weight is [28, 20], config.json makes "
                                   "it [20, 28]"));
}

TEST_F(CheckpointFiles, WithManyFaultsNameTheFirstOfThem) {
  WriteWeights({});
  EXPECT_THAT(Complaint(), HasSubstr("missing weights: model.embed_tokens.weight, "));
  EXPECT_THAT(Complaint(), HasSubstr(" and 11 more"));
}

TEST_F(CheckpointFiles, OfAnotherArchitectureAreRefused) {
  EditConfig("model_type", "qwen2");
  EXPECT_THAT(Complaint(), HasSubstr("missing weights: model.layers.0.self_attn.q_proj.bias"));
  EditConfig("model_type", "llama");
  EditConfig("tie_word_embeddings", true);
  EXPECT_THAT(Complaint(), HasSubstr("unexpected weights: lm_head.weight"));
}

// Nothing of the size that the configuration claims may be allocated before the file is known to have it.
TEST_F(CheckpointFiles, WhoseConfigurationClaimsAHugeModelAreRefusedAtOnce) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size"}) EditConfig(key, 1 << 24);
  EditConfig("num_hidden_layers", 1 << 10);
  EditConfig("head_dim", 1 << 16);
  EditConfig("num_attention_heads", 1 << 16);
  EditConfig("num_key_value_heads", 1 << 16);
  EXPECT_THAT(Complaint(), HasSubstr("missing weights: model.layers.2."));
}

TEST_F(CheckpointFiles, InSeveralWeightFilesAreRefusedByName) {
  ASSERT_TRUE(env_.Rename(folder_.Path("model.safetensors"), folder_.Path("model-00001-of-00001.safetensors")).ok());
  EXPECT_EQ(Load().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(env_, folder_.Path("model.safetensors.index.json"), "{}").ok());
  EXPECT_EQ(Load().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Load().message(), HasSubstr("model.safetensors.index.json"));
}

TEST_F(CheckpointFiles, ThatCannotBeReadAreNamed) {
  EXPECT_THAT(LoadCheckpoint(env_, "/nonexistent", at::kCPU).status().message(),
              HasSubstr("/nonexistent/config.json: No such file"));
  EXPECT_FALSE(LoadCheckpoint(env_, folder_.Path("config.json"), at::kCPU).ok());

  ASSERT_TRUE(WriteFileAtomically(env_, folder_.Path("config.json"), "{").ok());
  EXPECT_THAT(Complaint(), HasSubstr(folder_.Path("config.json") + ": not JSON"));
  ASSERT_TRUE(env_.Remove(folder_.Path("config.json")).ok());
  ASSERT_TRUE(env_.CreateFolders(folder_.Path("config.json")).ok());
  EXPECT_THAT(Load().message(), HasSubstr(folder_.Path("config.json")));
}

TEST_F(CheckpointFiles, AreWholeOrNotThereWhenTheDiskFills) {
  const int64_t size = static_cast<int64_t>(env_.ReadFile(folder_.Path("model.safetensors"))->size());
  for (const int64_t capacity : {int64_t{0}, int64_t{100}, size - 1, size + 10, size + 200}) {
    const std::string folder = folder_.Path(std::to_string(capacity));
    LimitedEnv full(env_, capacity);
    const absl::Status status = SaveCheckpoint(full, folder, decoder_);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << capacity;
    EXPECT_FALSE(env_.Exists(JoinPath(folder, "config.json")));
    const std::vector<std::string> left = *env_.List(folder);
    for (const std::string& name : left) EXPECT_THAT(name, testing::Not(HasSubstr("writing")));
    EXPECT_FALSE(LoadCheckpoint(env_, folder, at::kCPU).ok());
  }
}

}  // namespace
}  // namespace tdock::model
