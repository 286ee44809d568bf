#include "model/decoder/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "kernels/products.h"
#include "model/decoder/device.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "model/decoder/weights.h"
#include "model/files/safetensors.h"
#include "model/files/testing/files.h"
#include "model/tensor_torch/convert.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using testing::HasSubstr;

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

TEST_P(CheckpointTest, IsReadBackInPlace) {
  for (const ModelConfig& config : TinyConfigs()) {
    const Decoder saved = TinyDecoder(config, 1, GetParam());
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("a"), saved).ok());
    Decoder decoder = TinyDecoder(config, 2, GetParam());
    const std::vector<at::Tensor> parameters = decoder.parameters();
    decoder.SetTrainable(true);
    ASSERT_EQ(ReloadWeights(env_, folder_.Path("a"), &decoder), absl::OkStatus());
    for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(SameBits(parameters[i], saved.parameters()[i]));
  }
  Decoder other = TinyDecoder(TinyConfig(Architecture::kQwen2, /*tied_head=*/true), 1, GetParam());
  ASSERT_TRUE(
      SaveCheckpoint(env_, folder_.Path("b"), TinyDecoder(TinyConfig(Architecture::kOpt, true), 1, GetParam())).ok());
  EXPECT_EQ(ReloadWeights(env_, folder_.Path("b"), &other).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(CheckpointTest, IsSavedInAnotherDType) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const Decoder decoder = TinyDecoder(TinyConfig(Architecture::kQwen2, /*tied_head=*/true), 1, GetParam());
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), decoder, {.dtype = dtype}).ok());
    const auto loaded = LoadCheckpoint(env_, folder_.path(), GetParam(), {.dtype = dtype});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->config().dtype, dtype == at::kHalf ? DType::kF16 : DType::kBF16);
    for (size_t i = 0; i < decoder.parameters().size(); ++i) {
      EXPECT_TRUE(SameBits(loaded->parameters()[i], decoder.parameters()[i].to(dtype)));
    }
    const at::Tensor tokens = RandomTokens(2, 7, loaded->config().vocab_size, 1, GetParam());
    const at::Tensor logits = FullLogits(*loaded, tokens);
    const double close = dtype == at::kHalf ? 0.1 : 0.8;
    EXPECT_LT((logits - FullLogits(decoder, tokens)).abs().mean().item<double>(), close);
  }
}

TEST_P(CheckpointTest, HasAValueHeadOfItsOwnOrAFreshOne) {
  for (ModelConfig config : TinyConfigs()) {
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("tokens"), TinyDecoder(config, 1, GetParam())).ok());
    const auto fresh = LoadCheckpoint(env_, folder_.Path("tokens"), GetParam(), {.value_head = true, .seed = 4});
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    const at::Tensor tokens = RandomTokens(2, 7, config.vocab_size, 1, GetParam());
    const auto values = [&](const Decoder& decoder) {
      return decoder.Values(decoder.Hidden({tokens, PositionsFromZero(2, 7, GetParam())}));
    };
    EXPECT_EQ(values(*fresh).sizes(), tokens.sizes());
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("values"), *fresh).ok());
    const auto saved = LoadCheckpoint(env_, folder_.Path("values"), GetParam());
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->config().head, Head::kValue);
    EXPECT_TRUE(at::equal(values(*saved), values(*fresh)));
    const auto other = LoadCheckpoint(env_, folder_.Path("tokens"), GetParam(), {.value_head = true, .seed = 5});
    EXPECT_FALSE(at::equal(values(*other), values(*fresh)));
    EXPECT_THROW(TinyDecoder(config, 1, GetParam()).Values(at::ones({1, 20}).to(GetParam())), c10::Error);
    EXPECT_THROW(saved->Logits(at::ones({1, 20}).to(GetParam())), c10::Error);
  }
}

TEST_P(CheckpointTest, TakesAnotherRopeScaling) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), TinyDecoder(config, 1, GetParam())).ok());
  const auto scaled =
      LoadCheckpoint(env_, folder_.path(), GetParam(), {.rope_scaling = R"({"rope_type": "linear", "factor": 4.0})"});
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->config().rope.factor, 4.0);
  const auto wrong = LoadCheckpoint(env_, folder_.path(), GetParam(), {.rope_scaling = R"({"rope_type": "x"})"});
  EXPECT_THAT(wrong.status(), Fails(absl::StatusCode::kUnimplemented, {"rope_scaling: ", "'x'"}));
}

TEST_P(CheckpointTest, ConvertsHalfPrecisionToFloat32) {
  const Decoder decoder = TinyDecoder(TinyConfig(Architecture::kQwen2, /*tied_head=*/true), 1, GetParam());
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), decoder).ok());
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    NamedTensors weights = decoder.NamedWeights();
    for (auto& [name, weight] : weights) weight = weight.to(dtype);
    ASSERT_TRUE(WriteTensors(env_, folder_.Path("model.safetensors"), weights).ok());
    const auto loaded = LoadCheckpoint(env_, folder_.path(), GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto read = loaded->NamedWeights();
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(SameBits(read[i].second, weights[i].second.to(at::kFloat))) << weights[i].first;
    }
  }
}

TEST_P(CheckpointTest, KeepsItsDtypeIfTheDeviceIsFastInIt) {
  const Decoder decoder = TinyDecoder(TinyConfig(Architecture::kQwen2, /*tied_head=*/true), 1, GetParam());
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf}) {
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), decoder, {.dtype = stored}).ok());
    const auto loaded = LoadCheckpoint(env_, folder_.path(), GetParam(), {.dtype = std::nullopt});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->dtype(), FastType(ToDType(stored).value(), GetParam()));
    EXPECT_EQ(loaded->compute_type(), loaded->dtype());
  }
  EXPECT_EQ(FastType(DType::kF32, GetParam()), at::kFloat);
  EXPECT_EQ(FastType(DType::kF16, at::kCPU), at::kFloat);
  EXPECT_EQ(FastType(DType::kBF16, at::kCPU), kernels::HasFastBFloat16() ? at::kBFloat16 : at::kFloat);
  EXPECT_EQ(FastType(DType::kF16, at::kCUDA), at::kHalf);
}

class CheckpointFiles : public testing::Test {
 protected:
  CheckpointFiles() : decoder_(TinyDecoder(TinyConfig(Architecture::kLlama, /*tied_head=*/false), 1, at::kCPU)) {
    EXPECT_TRUE(SaveCheckpoint(env_, folder_.path(), decoder_).ok());
  }

  void WriteWeights(const NamedTensors& weights) {
    ASSERT_TRUE(WriteTensors(env_, folder_.Path("model.safetensors"), weights).ok());
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

TEST_F(CheckpointFiles, WithMissingUnexpectedAndWronglyShapedWeightsAreRefusedWithAllNames) {
  NamedTensors weights = decoder_.NamedWeights();
  for (auto& [name, weight] : weights) {
    if (name == "model.norm.weight") name = "model.final_norm.weight";
    if (name == "model.layers.1.mlp.down_proj.weight") weight = weight.t();
  }
  WriteWeights(weights);
  EXPECT_THAT(Complaint(), Mentions({folder_.Path("model.safetensors") + ": ", "missing weights: model.norm.weight; ",
                                     "unexpected weights: model.final_norm.weight; ", "1 of 21",
                                     "model.layers.1.mlp.down_proj.weight: ", "is [28, 20]", "it [20, 28]"}));
}

TEST_F(CheckpointFiles, WithManyFaultsNameTheFirstOfThem) {
  WriteWeights({});
  EXPECT_THAT(Complaint(), HasSubstr("missing weights: model.embed_tokens.weight, "));
  EXPECT_THAT(Complaint(), HasSubstr(" and 11 more"));
}

TEST_F(CheckpointFiles, OfAnotherArchitectureAreRefused) {
  EditConfig("architectures", nlohmann::json::array({"Qwen2ForCausalLM"}));
  EditConfig("model_type", "qwen2");
  EXPECT_THAT(Complaint(), HasSubstr("missing weights: model.layers.0.self_attn.q_proj.bias"));
  EditConfig("architectures", nlohmann::json::array({"LlamaForCausalLM"}));
  EditConfig("model_type", "llama");
  EditConfig("tie_word_embeddings", true);
  EXPECT_THAT(Complaint(), Mentions({"lm_head.weight", "config.json", "tie_word_embeddings"}));
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

TEST_F(CheckpointFiles, AreSplitWhereTheyAreTooLarge) {
  const auto folder = folder_.Path("split");
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{2000}, uint64_t{10000}}) {
    ASSERT_TRUE(SaveCheckpoint(env_, folder, decoder_, {.max_file_bytes = bytes}).ok());
    const std::vector<std::string> names = *env_.List(folder);
    EXPECT_THAT(names, testing::Not(testing::Contains("model.safetensors")));
    size_t files = 0;
    for (const std::string& name : names) {
      if (!name.ends_with(".safetensors")) continue;
      ++files;
      const auto file = SafetensorsFile::Open(env_, JoinPath(folder, name));
      uint64_t size = 0;
      for (const std::string& weight : file->names()) size += file->Info(weight).bytes();
      EXPECT_TRUE(size <= bytes || file->names().size() == 1) << name;
    }
    EXPECT_GT(files, 1u);
    const auto index = nlohmann::json::parse(*env_.ReadFile(JoinPath(folder, "model.safetensors.index.json")));
    EXPECT_EQ(index["metadata"]["total_size"], 4 * decoder_.parameter_count());
    EXPECT_EQ(index["weight_map"].size(), decoder_.NamedWeights().size());
    const auto loaded = LoadCheckpoint(env_, folder, at::kCPU);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (size_t i = 0; i < decoder_.parameters().size(); ++i) {
      EXPECT_TRUE(SameBits(loaded->parameters()[i], decoder_.parameters()[i]));
    }
  }
  ASSERT_TRUE(SaveCheckpoint(env_, folder, decoder_).ok());
  EXPECT_THAT(*env_.List(folder), testing::ElementsAre("config.json", "generation_config.json", "model.safetensors"));
}

// A disk that fills up stands for a process that is killed.
TEST_F(CheckpointFiles, OfASaveThatEndsHalfwayOverAnotherDoNotOpen) {
  const std::string folder = folder_.Path("over");
  const Decoder other = TinyDecoder(decoder_.config(), 2, at::kCPU);
  const SaveOptions options = {.max_file_bytes = 2000};
  for (int64_t capacity = 0; capacity < 4 * decoder_.parameter_count(); capacity += 3000) {
    ASSERT_TRUE(SaveCheckpoint(env_, folder, decoder_, options).ok());
    LimitedEnv full(env_, capacity);
    EXPECT_FALSE(SaveCheckpoint(full, folder, other, options).ok());
    EXPECT_EQ(LoadCheckpoint(env_, folder, at::kCPU).status().code(), absl::StatusCode::kNotFound) << capacity;
  }
}

TEST_F(CheckpointFiles, KeepEveryEndTokenAndHowTheModelGenerates) {
  ModelConfig config = decoder_.config();
  config.eos_token_id = 3;
  config.other_eos_token_ids = {8, 9};
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("a"), Decoder::Random(config, 1, at::kCPU)).ok());
  const auto loaded = LoadCheckpoint(env_, folder_.Path("a"), at::kCPU);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config(), config);
  const auto read = [&](const char* file) { return nlohmann::json::parse(*env_.ReadFile(folder_.Path(file))); };
  EXPECT_EQ(read("a/generation_config.json")["eos_token_id"], nlohmann::json({3, 8, 9}));
  const std::string theirs = R"({"do_sample": true, "temperature": 0.6})";
  ASSERT_TRUE(WriteFileAtomically(env_, folder_.Path("a/generation_config.json"), theirs).ok());
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("b"), *loaded, {.tokenizer_from = folder_.Path("a")}).ok());
  EXPECT_EQ(*env_.ReadFile(folder_.Path("b/generation_config.json")), theirs);
}

TEST_F(CheckpointFiles, ThatMayHoldCodeAreNamed) {
  ASSERT_TRUE(env_.Rename(folder_.Path("model.safetensors"), folder_.Path("pytorch_model.bin")).ok());
  EXPECT_THAT(Load(), Fails(absl::StatusCode::kUnimplemented, {"pytorch_model.bin", "as safetensors"}));
}

TEST_F(CheckpointFiles, TakeTheTokenizerAlong) {
  const std::string from = folder_.Path("from");
  ASSERT_TRUE(env_.CreateFolders(from).ok());
  for (const char* name : {"tokenizer.json", "tokenizer.model", "chat_template.jinja", "README.md"}) {
    ASSERT_TRUE(WriteFileAtomically(env_, JoinPath(from, name), std::string("\0bytes of ", 10) + name).ok());
  }
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.Path("to"), decoder_, {.tokenizer_from = from}).ok());
  EXPECT_THAT(*env_.List(folder_.Path("to")),
              testing::ElementsAre("chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
                                   "tokenizer.json", "tokenizer.model"));
  EXPECT_EQ(*env_.ReadFile(folder_.Path("to/tokenizer.json")), *env_.ReadFile(JoinPath(from, "tokenizer.json")));
}

TEST_F(CheckpointFiles, LoseTheTemplatesOfAnotherTokenizer) {
  const auto make = [&](const std::string& folder, const std::string& name) {
    const std::string templates = folder_.Path(folder + "/additional_chat_templates");
    ASSERT_TRUE(env_.CreateFolders(templates).ok());
    ASSERT_TRUE(WriteFileAtomically(env_, JoinPath(templates, name), folder).ok());
  };
  make("from", "rag.jinja");
  make("to", "tools.jinja");
  ASSERT_TRUE(CopyTokenizerFiles(env_, folder_.Path("from"), folder_.Path("to")).ok());
  EXPECT_THAT(*env_.List(folder_.Path("to/additional_chat_templates")), testing::ElementsAre("rag.jinja"));
  ASSERT_TRUE(env_.CreateFolders(folder_.Path("plain")).ok());
  ASSERT_TRUE(CopyTokenizerFiles(env_, folder_.Path("plain"), folder_.Path("to")).ok());
  EXPECT_TRUE(env_.List(folder_.Path("to/additional_chat_templates"))->empty());
}

TEST_F(CheckpointFiles, OfAnUntiedModelNeverLackTheHead) {
  NamedTensors weights = decoder_.NamedWeights();
  ASSERT_EQ(weights.back().first, "lm_head.weight");
  weights.pop_back();
  WriteWeights(weights);
  EXPECT_THAT(Complaint(), HasSubstr("missing weights: lm_head.weight"));
}

TEST_F(CheckpointFiles, WithWeightsOfIntegersAreRefused) {
  NamedTensors weights = decoder_.NamedWeights();
  weights[3].second = weights[3].second.to(at::kLong);
  WriteWeights(weights);
  EXPECT_THAT(Complaint(), Mentions({"not floating-point", weights[3].first + " is int64"}));
}

TEST_F(CheckpointFiles, WithNumbersThatAreNotFiniteAreRefused) {
  const at::NoGradGuard no_grad;
  const Decoder broken = decoder_.Clone();
  const auto [name, weight] = broken.NamedWeights()[3];
  weight.view({-1})[weight.size(1) + 2] = std::numeric_limits<float>::quiet_NaN();
  for (const uint64_t bytes : {uint64_t{2000}, uint64_t{1} << 30}) {  // in several files, and in one
    ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), broken, {.max_file_bytes = bytes}).ok());
    EXPECT_THAT(Complaint(), Mentions({folder_.path(), ".safetensors", name, "nan", "[1, 2]"}));
    Decoder other = decoder_.Clone();
    EXPECT_THAT(ReloadWeights(env_, folder_.path(), &other),
                Fails(absl::StatusCode::kInvalidArgument, {name, "[1, 2]"}));
  }
  for (const auto& [each, all] : broken.NamedWeights()) all.fill_(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(SaveCheckpoint(env_, folder_.path(), broken).ok());
  EXPECT_THAT(Complaint(), Mentions({broken.NamedWeights()[0].first, "nan", "[0, 0]"}));
}

TEST_F(CheckpointFiles, MayHaveBuffersWithInfinities) {
  NamedTensors tensors = decoder_.NamedWeights();
  const at::Tensor mask = at::full({2, 2}, -std::numeric_limits<float>::infinity());
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", mask);
  WriteWeights(tensors);
  EXPECT_EQ(Load(), absl::OkStatus());
}

TEST_F(CheckpointFiles, ThatCannotBeReadAreNamed) {
  EXPECT_THAT(LoadCheckpoint(env_, "/nonexistent", at::kCPU).status(),
              Fails(absl::StatusCode::kNotFound, {"/nonexistent/config.json"}));
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
