#include "trainer/stages/model_scores.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "data/encode.h"
#include "data/testing/char_vocabulary.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::trainer {
namespace {

// Llama 2's kind, which begins texts with a token.
std::unique_ptr<text::Tokenizer> BeginningTokenizer() {
  std::string folder = testing::TempDir() + "/model_scores_test_XXXXXX";
  folder = ::mkdtemp(folder.data());
  EXPECT_TRUE(
      WriteFileAtomically(Env::Real(), folder + "/tokenizer.json", text::small::SmallByteFallback().dump()).ok());
  EXPECT_TRUE(WriteFileAtomically(Env::Real(), folder + "/tokenizer_config.json",
                                  R"({"bos_token": "<s>", "eos_token": "<unk>"})")
                  .ok());
  auto tokenizer = text::LoadTokenizer(Env::Real(), folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

class ModelScoresTest : public testing::Test {
 protected:
  static model::Decoder Scorer(int64_t vocabulary) {
    model::ModelConfig config;
    config.vocab_size = vocabulary;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 16;
    config.max_positions = 96;
    config.head = model::Head::kValue;
    return model::Decoder::Random(config, 5, at::kCPU);
  }

  // The value at the last token that counts of a chosen answer, as a reward model is trained with it.
  float AsTrained(const model::Decoder& decoder, const text::Tokenizer& tokenizer, const char* adapter_name,
                  data::Record record) {
    const data::Adapter adapter = *data::Adapters().Find(adapter_name);
    const auto encoder = data::SampleEncoder::Create(adapter, data::Phase::kReward, tokenizer, *chatml_, {});
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    const auto encoded = encoder->Encode(*data::MakeSample(adapter, data::Phase::kReward, std::move(record)));
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    const auto& pair = std::get<data::EncodedSample>(*encoded);
    size_t end = pair.ids.size();
    while (pair.loss_mask[end - 1] == 0) --end;
    const std::span<const int32_t> ids(pair.ids.data(), end);
    const Sequence sequence{ids.first(1), ids.subspan(1)};
    return Values(decoder, {&sequence, 1}, forward_, Scored::kValuesAt)[-1].item<float>();
  }

  Workers workers_{2};
  const ForwardOptions forward_{.workers = workers_};
  const absl::StatusOr<text::ChatTemplate> chatml_ = text::ChatTemplate::Named("chatml");
};

TEST_F(ModelScoresTest, TextsAreReadAsTheyWereInTraining) {
  const auto tokenizer = BeginningTokenizer();
  const model::Decoder decoder = Scorer(tokenizer->vocab_size());
  const ModelScores scores(decoder, forward_, AnswerScore::kLastToken, OwnTexts{tokenizer.get(), nullptr});
  const auto scored = scores.Score(std::vector<AnswerToScore>{{.prompt_text = "ab a", .response_text = " b ab"}});
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_FLOAT_EQ((*scored)[0], AsTrained(decoder, *tokenizer, "custom", {"ab a", " b ab", " a"}));
}

TEST_F(ModelScoresTest, TurnsAreReadAsTheyWereInTraining) {
  const auto tokenizer = data::AsciiTokenizer();
  const model::Decoder decoder = Scorer(tokenizer->vocab_size());
  const ModelScores scores(decoder, forward_, AnswerScore::kLastToken, OwnTexts{tokenizer.get(), &*chatml_});
  const AnswerToScore answer{.messages = R"([{"role": "user", "content": "what?"}])", .response_text = "this"};
  const auto scored = scores.Score({&answer, 1});
  ASSERT_TRUE(scored.ok()) << scored.status();
  const auto turn = [](const std::string& role, const std::string& content) {
    data::List turns;
    turns.emplace_back(data::Object{{"role", role}, {"content", content}});
    return turns;
  };
  data::Record record;
  record.emplace_back(turn("user", "what?"));
  record.emplace_back(turn("assistant", "this"));
  record.emplace_back(turn("assistant", "that"));
  EXPECT_FLOAT_EQ((*scored)[0], AsTrained(decoder, *tokenizer, "chat", std::move(record)));
}

TEST_F(ModelScoresTest, WhatCannotBeReadIsAnErrorThatSaysWhy) {
  const auto tokenizer = data::AsciiTokenizer();
  const model::Decoder decoder = Scorer(tokenizer->vocab_size());
  const auto refused = [&](const AnswerToScore& answer, const text::ChatTemplate* chat_template) {
    const ModelScores scores(decoder, forward_, AnswerScore::kLastToken, OwnTexts{tokenizer.get(), chat_template});
    return scores.Score({&answer, 1}).status();
  };
  const auto says = [](std::vector<std::string> names) {
    return Fails(absl::StatusCode::kInvalidArgument, std::move(names));
  };
  const char* const turns = R"([{"role": "user", "content": "q"}])";
  EXPECT_THAT(refused({.messages = turns, .response_text = "a"}, nullptr), says({"answer 0", "chat_template.jinja"}));
  EXPECT_THAT(refused({.messages = "{}", .response_text = "a"}, &*chatml_), says({"answer 0", "a list"}));
  EXPECT_THAT(refused({.messages = R"([{"role": "king", "content": "q"}])", .response_text = "a"}, &*chatml_),
              says({"answer 0", "\"king\""}));
  EXPECT_THAT(refused({.messages = R"([{"role": "user", "content": null}])", .response_text = "a"}, &*chatml_),
              says({"answer 0", "turn 1", "\"content\""}));
  const std::string longer(200, 'a');
  EXPECT_THAT(refused({.prompt_text = "q", .response_text = longer}, nullptr), says({"answer 0", "96 positions"}));
}

}  // namespace
}  // namespace tdock::trainer
