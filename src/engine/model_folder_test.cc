#include "engine/model_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "engine/engine.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "model/files/testing/files.h"
#include "text/char_tokenizer.h"

namespace tdock::engine {
namespace {

class ModelFolderTest : public testing::TestWithParam<at::Device> {
 protected:
  // A folder with a model of 29 tokens and a tokenizer with these characters and two special tokens.
  absl::StatusOr<ModelFolder> Load(absl::string_view alphabet, bool tied_head) {
    const model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, tied_head);
    EXPECT_TRUE(model::SaveCheckpoint(Env::Real(), folder_.path(), model::TinyDecoder(config, 1, at::kCPU)).ok());
    EXPECT_TRUE((*text::CharTokenizer::Create(alphabet))->Save(Env::Real(), folder_.path()).ok());
    return LoadModelFolder(Env::Real(), folder_.path(), GetParam());
  }

  model::TestFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Devices, ModelFolderTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(ModelFolderTest, NeverAnswersWithATokenThatTheTokenizerDoesNotHave) {
  for (const bool tied_head : {false, true}) {
    const auto loaded = Load("abcdefgh", tied_head);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->decoder.config().vocab_size, 29);
    Engine engine(loaded->decoder, {.end_tokens = loaded->end_tokens});
    const std::vector<Prompt> prompts = {{{1, 2, 3}, 500}};
    for (const double temperature : {0.0, 1.0}) {
      const auto completions = engine.Generate(prompts, {.temperature = temperature, .max_new_tokens = 5});
      ASSERT_TRUE(completions.ok()) << completions.status();
      for (const Completion& c : *completions) EXPECT_TRUE(loaded->tokenizer->Decode(c.tokens).ok());
    }
  }
}

TEST_P(ModelFolderTest, ATokenizerThatKnowsMoreThanTheModelIsRefused) {
  EXPECT_TRUE(Load("abcdefghijklmnopqrstuvwxyzA", true).ok());
  EXPECT_THAT(Load("abcdefghijklmnopqrstuvwxyzAB", true).status(),
              Fails(absl::StatusCode::kInvalidArgument, {folder_.path() + ": ", "30 tokens", "only 29"}));
}

TEST_P(ModelFolderTest, EndsATextWhereEitherFileSays) {
  const int32_t eos = *Load("abcdefgh", true)->tokenizer->eos_id();
  EXPECT_EQ(Load("abcdefgh", true)->end_tokens, std::vector<int32_t>{eos});
  // Ids that the tokenizer lacks are never sampled.
  const std::string generation = R"({"eos_token_id": [3, )" + std::to_string(eos) + ", 28]}";
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder_.Path("generation_config.json"), generation).ok());
  const auto loaded = LoadModelFolder(Env::Real(), folder_.path(), GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->end_tokens, (std::vector<int32_t>{eos, 3}));
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder_.Path("generation_config.json"), "[").ok());
  EXPECT_THAT(LoadModelFolder(Env::Real(), folder_.path(), GetParam()).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"generation_config.json"}));
}

TEST_P(ModelFolderTest, AModelWithAValueHeadIsRefused) {
  ASSERT_TRUE(Load("abcdefgh", true).ok());
  model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, true);
  config.head = model::Head::kValue;
  const model::Decoder critic = model::TinyDecoder(config, 1, at::kCPU);
  ASSERT_TRUE(model::SaveCheckpoint(Env::Real(), folder_.path(), critic).ok());
  const auto loaded = LoadModelFolder(Env::Real(), folder_.path(), GetParam());
  EXPECT_THAT(loaded.status(), Fails(absl::StatusCode::kInvalidArgument, {folder_.path() + ": ", "value head"}));
}

}  // namespace
}  // namespace tdock::engine
