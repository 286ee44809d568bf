#include "generate/model_folder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "generate/engine.h"
#include "model/checkpoint.h"
#include "model/test_devices.h"
#include "model/test_models.h"
#include "model_files/test_files.h"
#include "text/char_tokenizer.h"

namespace tdock::generate {
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
    const Engine engine(loaded->decoder, {.end_token = loaded->tokenizer->eos_id().value()});
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
  EXPECT_EQ(Load("abcdefghijklmnopqrstuvwxyzAB", true).status().message(),
            folder_.path() + ": the tokenizer has 30 tokens, the model only 29");
}

}  // namespace
}  // namespace tdock::generate
