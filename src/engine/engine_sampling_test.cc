// The engine with everything that SamplingParams has beside the temperature.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "engine/engine.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::engine {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Field;

constexpr int32_t kEnd = 5;

class SampledAnswers : public testing::TestWithParam<at::Device> {
 protected:
  SampledAnswers() : decoder_(Make(29)) {}

  static model::Decoder Make(int64_t vocab_size) {
    model::ModelConfig config = model::TinyConfig(model::Architecture::kQwen2, false);
    config.vocab_size = vocab_size;
    return model::TinyDecoder(config, 21, GetParam());
  }

  std::vector<Completion> Answers(const std::vector<Prompt>& prompts, const SamplingParams& params,
                                  EngineOptions options = {.end_tokens = {kEnd}}) const {
    const auto completions = Engine(decoder_, options).Generate(prompts, params);
    EXPECT_TRUE(completions.ok()) << completions.status();
    return completions.value_or(std::vector<Completion>());
  }

  static std::vector<Prompt> SomePrompts(int64_t samples) {
    return {{{3, 1, 4, 1, 5}, samples, 10}, {{9}, samples, 11}, {{2, 6, 5, 3, 5, 8, 9, 7}, samples, 12}};
  }

  // The logits of the token behind `tokens`, on the host, by a full pass.
  at::Tensor NextLogits(const std::vector<int32_t>& tokens) const {
    const at::Tensor row = at::tensor(tokens, at::kInt).to(at::kLong).unsqueeze(0).to(GetParam());
    return FullLogits(decoder_, row)[0][-1].cpu().to(at::kDouble);
  }

  // The same after penalties and bias, token by token.
  at::Tensor NextScores(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer,
                        const SamplingParams& params) const {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    at::Tensor scores = NextLogits(all);
    for (int32_t token = 0; token < scores.size(0); ++token) {
      double score = scores[token].item<double>();
      if (params.logit_bias.contains(token)) score += params.logit_bias.at(token);
      if (std::find(all.begin(), all.end(), token) != all.end()) {
        score = score < 0 ? score * params.repetition_penalty : score / params.repetition_penalty;
      }
      const auto times = std::count(answer.begin(), answer.end(), token);
      score -= params.frequency_penalty * static_cast<double>(times) + (times > 0 ? params.presence_penalty : 0);
      scores[token] = score;
    }
    return scores;
  }

  model::Decoder decoder_;
};
INSTANTIATE_TEST_SUITE_P(Devices, SampledAnswers, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(SampledAnswers, GreedyWithPenaltiesAreThoseOfALoopOfFullPasses) {
  const SamplingParams params{.temperature = 0,
                              .max_new_tokens = 14,
                              .repetition_penalty = 1.3,
                              .presence_penalty = 0.4,
                              .frequency_penalty = 0.3,
                              .logit_bias = {{7, 1.5}}};
  const SamplingParams plain{.temperature = 0, .max_new_tokens = 14};
  const std::vector<Prompt> prompts = SomePrompts(1);
  const std::vector<Completion> answers = Answers(prompts, params);
  const std::vector<Completion> plain_answers = Answers(prompts, plain);
  int changed = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> answer;
    while (answer.size() < 14 && (answer.empty() || answer.back() != kEnd)) {
      answer.push_back(NextScores(prompts[i].tokens, answer, params).argmax().item<int32_t>());
    }
    EXPECT_EQ(answers[i].tokens, answer);
    changed += answers[i].tokens != plain_answers[i].tokens ? 1 : 0;
  }
  EXPECT_GT(changed, 0) << "the penalties make a difference";
}

TEST_P(SampledAnswers, RecordThePolicyOrWhatTheyAreSampledFrom) {
  for (const bool filtered : {false, true}) {
    const SamplingParams params{.temperature = 0.8,
                                .max_new_tokens = 8,
                                .seed = 3,
                                .repetition_penalty = 1.3,
                                .presence_penalty = 0.4,
                                .frequency_penalty = 0.3,
                                .logit_bias = {{7, 1.5}},
                                .top_log_probs = 3,
                                .filtered_log_probs = filtered};
    const std::vector<Prompt> prompts = SomePrompts(2);
    const std::vector<Completion> answers = Answers(prompts, params);
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::vector<int32_t>& prompt = prompts[i / 2].tokens;
      const Completion& answer = answers[i];
      ASSERT_EQ(answer.top.size(), answer.tokens.size());
      for (size_t at = 0; at < answer.tokens.size(); ++at) {
        const std::vector<int32_t> before(answer.tokens.begin(), answer.tokens.begin() + static_cast<int64_t>(at));
        const at::Tensor scores = NextScores(prompt, before, filtered ? params : SamplingParams{});
        const at::Tensor log_probs = at::log_softmax(scores / params.temperature, -1);
        EXPECT_NEAR(answer.log_probs[at], log_probs[answer.tokens[at]].item<double>(), 1e-5);
        const auto [highest, tokens] = log_probs.topk(3);
        ASSERT_EQ(answer.top[at].size(), 3u);
        for (int64_t k = 0; k < 3; ++k) {
          const TokenLogProb& top = answer.top[at][static_cast<size_t>(k)];
          EXPECT_EQ(top.token, tokens[k].item<int64_t>());
          EXPECT_NEAR(top.log_prob, highest[k].item<double>(), 1e-5);
        }
      }
    }
  }
}

TEST_P(SampledAnswers, DoNotDependOnTheOtherPromptsNorOnHowTheWorkIsSharedOut) {
  const SamplingParams params{.temperature = 1.2,
                              .max_new_tokens = 8,
                              .seed = 3,
                              .top_k = 12,
                              .top_p = 0.9,
                              .min_p = 0.02,
                              .repetition_penalty = 1.1,
                              .frequency_penalty = 0.2,
                              .min_new_tokens = 2};
  const std::vector<Prompt> prompts = SomePrompts(7);
  const std::vector<Completion> expected = Answers(prompts, params);
  ASSERT_EQ(expected.size(), 21u);
  for (const int64_t max_rows : {1, 9, 4096}) {
    const std::vector<Completion> given = Answers(prompts, params, {.end_tokens = {kEnd}, .max_rows = max_rows});
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(given[i].tokens, expected[i].tokens);
  }
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<Completion> alone = Answers({prompts[p]}, params);
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(alone[i].tokens, expected[7 * p + i].tokens);
  }
}

TEST_P(SampledAnswers, EndWhereTheParametersSay) {
  const auto answers = [&](SamplingParams params) {
    params.max_new_tokens = 6;
    params.allowed_tokens = {3, 4, kEnd};
    return Answers({{{1, 2}, 200}}, params);
  };
  const auto reasons = [](const std::vector<Completion>& completions, FinishReason reason) {
    return std::count_if(completions.begin(), completions.end(),
                         [&](const Completion& c) { return c.finish_reason == reason; });
  };
  for (const Completion& c : answers({})) {
    const auto end = std::find(c.tokens.begin(), c.tokens.end(), kEnd);
    EXPECT_EQ(c.finished, end != c.tokens.end());
    EXPECT_TRUE(c.finished ? end + 1 == c.tokens.end() : c.tokens.size() == 6u);
    for (const int32_t token : c.tokens) EXPECT_TRUE(token >= 3 && token <= kEnd);
  }
  EXPECT_GT(reasons(answers({}), FinishReason::kEndToken), 100);
  EXPECT_GT(reasons(answers({}), FinishReason::kLength), 0);

  const std::vector<Completion> longer = answers({.min_new_tokens = 3, .stop_tokens = {4}});
  EXPECT_GT(reasons(longer, FinishReason::kEndToken), 0);
  EXPECT_GT(reasons(longer, FinishReason::kStop), 0);
  for (const Completion& c : longer) {
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(c.tokens[i], 3);
    EXPECT_GE(c.tokens.size(), 4u);
  }
  EXPECT_THAT(answers({.ignore_eos = true}),
              Each(AllOf(Field(&Completion::finish_reason, FinishReason::kLength), Field(&Completion::finished, false),
                         Field(&Completion::tokens, testing::SizeIs(6)))));
}

TEST_P(SampledAnswers, EndRightWhereAStopTextIsComplete) {
  decoder_ = Make(262);
  const auto tokenizer = text::JsonTokenizer::Create(text::small::SmallByteLevel(), {}, {}).value();
  const std::string stop = "é€";
  SamplingParams params{.max_new_tokens = 30, .seed = 2, .stop = {stop, "aa"}};
  for (const unsigned char byte : stop) params.allowed_tokens.push_back(byte);
  params.allowed_tokens.push_back('a');
  for (const int32_t token : params.allowed_tokens) params.logit_bias[token] = 0;
  params.temperature = 10;  // any of them
  const std::vector<Completion> answers =
      Answers({{{1, 2}, 300}}, params, {.end_tokens = {261}, .tokenizer = tokenizer.get()});
  int stopped = 0;
  for (const Completion& c : answers) {
    for (size_t size = 1; size <= c.tokens.size(); ++size) {
      const std::string text = tokenizer->Decode(std::span(c.tokens).first(size)).value();
      const size_t found = std::min(text.find(stop), text.find("aa"));
      if (found == std::string::npos) continue;
      EXPECT_EQ(size, c.tokens.size()) << text;
      EXPECT_EQ(c.finish_reason, FinishReason::kStop);
      EXPECT_EQ(c.text_bytes, found);
      EXPECT_EQ(TextOf(c, *tokenizer).value(), text.substr(0, found));
      ++stopped;
    }
    EXPECT_EQ(c.log_probs.size(), c.tokens.size());
    EXPECT_TRUE(c.finished || c.tokens.size() == 30u);
  }
  EXPECT_GT(stopped, 50);
}

TEST_P(SampledAnswers, UseTheVocabularyThatTheDecoderIsLimitedTo) {
  decoder_.LimitVocabulary(20);
  const SamplingParams params{.max_new_tokens = 4, .top_k = 25, .logit_bias = {{19, 4}}, .top_log_probs = 20};
  for (const Completion& c : Answers({{{1, 2}, 20}}, params)) EXPECT_EQ(c.top[0].size(), 20u);
  const auto refused = Engine(decoder_, {}).Generate({}, {.max_new_tokens = 1, .allowed_tokens = {20}});
  EXPECT_THAT(refused.status(),
              Fails(absl::StatusCode::kInvalidArgument, {"allowed_tokens", "token 20", "vocabulary of 20", "0 to 19"}));
}

TEST_P(SampledAnswers, NeedATokenizerForStopTexts) {
  const auto refused = Engine(decoder_, {}).Generate({}, {.max_new_tokens = 1, .stop = {"a"}});
  EXPECT_THAT(refused.status(), Fails(absl::StatusCode::kInvalidArgument, {"stop ", "EngineOptions::tokenizer"}));
}

TEST_P(SampledAnswers, NameThePromptWhoseScoresAreNotFinite) {
  const auto answers = Engine(decoder_, {.end_tokens = {kEnd}})
                           .Generate(std::vector<Prompt>{{{1, 2}, 1}},
                                     {.temperature = 1e-3, .max_new_tokens = 1, .logit_bias = {{3, 3e38}}});
  EXPECT_THAT(answers.status(),
              Fails(absl::StatusCode::kInternal, {"prompt 0: ", "position 2", "bias", "penalties", "temperature"}));
}

}  // namespace
}  // namespace tdock::engine
