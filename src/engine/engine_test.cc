#include "engine/engine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::engine {
namespace {

using model::Architecture;
using model::Decoder;
using model::ModelConfig;

constexpr int32_t kNoEnd = -1;  // an end token that no token is

std::vector<Prompt> RandomPrompts(size_t count, uint64_t longest, int64_t vocab_size, uint64_t seed) {
  Rng rng(seed);
  std::vector<Prompt> prompts(count);
  for (Prompt& prompt : prompts) {
    prompt.tokens.resize(1 + rng.Below(longest));
    for (int32_t& token : prompt.tokens) token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_size)));
    prompt.samples = static_cast<int64_t>(1 + rng.Below(4));
  }
  return prompts;
}

class EngineTest : public testing::TestWithParam<at::Device> {
 protected:
  EngineTest() : decoder_(model::TinyDecoder(model::TinyConfig(Architecture::kQwen2, false), 21, GetParam())) {}

  static std::vector<Completion> Answers(Engine&& engine, const std::vector<Prompt>& prompts,
                                         const SamplingParams& params) {
    return Answers(engine, prompts, params);
  }
  static std::vector<Completion> Answers(Engine& engine, const std::vector<Prompt>& prompts,
                                         const SamplingParams& params) {
    const auto completions = engine.Generate(prompts, params);
    EXPECT_TRUE(completions.ok()) << completions.status();
    return completions.value_or(std::vector<Completion>());
  }

  // The log-probabilities of the token behind `tokens`, on the host, by a full pass.
  at::Tensor NextLogProbs(const std::vector<int32_t>& tokens, double temperature) const {
    const at::Tensor row = at::tensor(tokens, at::kInt).to(at::kLong).unsqueeze(0).to(GetParam());
    return at::log_softmax(FullLogits(decoder_, row)[0][-1].cpu().to(at::kDouble) / temperature, -1);
  }

  // One answer by a full pass over everything for each token.
  Completion NaiveGreedy(std::vector<int32_t> tokens, int64_t max_new_tokens, int32_t end_token) const {
    Completion completion;
    while (static_cast<int64_t>(completion.tokens.size()) < max_new_tokens && !completion.finished &&
           static_cast<int64_t>(tokens.size()) < decoder_.config().max_positions) {
      const at::Tensor log_probs = NextLogProbs(tokens, 1.0);
      const auto token = log_probs.argmax().item<int32_t>();
      tokens.push_back(token);
      completion.tokens.push_back(token);
      completion.log_probs.push_back(log_probs[token].item<float>());
      completion.finished = token == end_token;
    }
    return completion;
  }

  static void ExpectSame(const Completion& given, const Completion& expected, const std::string& what) {
    EXPECT_EQ(given.tokens, expected.tokens) << what;
    EXPECT_EQ(given.finished, expected.finished) << what;
    EXPECT_THAT(given.log_probs, testing::Pointwise(testing::FloatNear(1e-5f), expected.log_probs)) << what;
  }

  Decoder decoder_;
};
INSTANTIATE_TEST_SUITE_P(Devices, EngineTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(EngineTest, AnswersGreedilyAsALoopOfFullPassesDoes) {
  std::vector<Prompt> prompts = RandomPrompts(30, 40, decoder_.config().vocab_size, 1);
  for (Prompt& prompt : prompts) prompt.samples = 1;
  const SamplingParams params{.temperature = 0, .max_new_tokens = 12};
  // The most frequent second token ends some answers early, some late and some never.
  std::map<int32_t, int> counts;
  for (const Completion& c : Answers(Engine(decoder_, {.end_tokens = {kNoEnd}}), prompts, params)) {
    if (c.tokens.size() > 1) ++counts[c.tokens[1]];
  }
  const int32_t end = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                        return a.second < b.second;
                      })->first;
  const std::vector<Completion> completions = Answers(Engine(decoder_, {.end_tokens = {end}}), prompts, params);
  ASSERT_EQ(completions.size(), prompts.size());
  int64_t finished = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    ExpectSame(completions[i], NaiveGreedy(prompts[i].tokens, params.max_new_tokens, end),
               "prompt " + std::to_string(i));
    finished += completions[i].finished ? 1 : 0;
  }
  EXPECT_GT(finished, 2);
  EXPECT_LT(finished, 28);
}

// Pearson's statistic of `counts` against `log_probs`, rare tokens put together, in standard deviations above what is
// expected by chance.
double ChiSquareExcess(const std::vector<int64_t>& counts, const at::Tensor& log_probs) {
  double total = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  double statistic = 0;
  double bins = 0;
  double rare_expected = 0;
  double rare_count = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++bins;
  };
  for (size_t token = 0; token < counts.size(); ++token) {
    const double expected = total * std::exp(log_probs.const_data_ptr<double>()[token]);
    if (expected >= 10) {
      add(static_cast<double>(counts[token]), expected);
    } else {
      rare_expected += expected;
      rare_count += static_cast<double>(counts[token]);
    }
  }
  if (rare_expected >= 10) add(rare_count, rare_expected);
  EXPECT_GE(bins, 5);
  return (statistic - (bins - 1)) / std::sqrt(2 * (bins - 1));
}

TEST_P(EngineTest, SamplesFromTheSoftmaxOfTheLogitsOverTheTemperature) {
  // A steeper head, so that the temperature makes a difference.
  for (const auto& [name, weight] : decoder_.NamedWeights()) {
    if (name == "lm_head.weight") weight.mul_(2);
  }
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  Engine engine(decoder_, {.end_tokens = {kNoEnd}});
  for (const double temperature : {0.7, 1.0, 1.5}) {
    const std::vector<Completion> completions =
        Answers(engine, {{prompt, 30'000}}, {.temperature = temperature, .max_new_tokens = 2, .seed = 11});
    const size_t vocab = static_cast<size_t>(decoder_.config().vocab_size);
    std::vector<int64_t> first(vocab);
    for (const Completion& c : completions) ++first[static_cast<size_t>(c.tokens[0])];
    EXPECT_LT(ChiSquareExcess(first, NextLogProbs(prompt, temperature)), 4) << "temperature " << temperature;
    EXPECT_GT(ChiSquareExcess(first, NextLogProbs(prompt, temperature * 1.1)), 20) << "the test sees a difference";

    const auto likeliest = static_cast<int32_t>(std::max_element(first.begin(), first.end()) - first.begin());
    std::vector<int64_t> second(vocab);
    for (const Completion& c : completions) {
      if (c.tokens[0] == likeliest) ++second[static_cast<size_t>(c.tokens[1])];
    }
    std::vector<int32_t> longer = prompt;
    longer.push_back(likeliest);
    EXPECT_LT(ChiSquareExcess(second, NextLogProbs(longer, temperature)), 4) << "temperature " << temperature;
  }
}

TEST_P(EngineTest, RecordsTheLogProbsThatAFullPassGives) {
  const std::vector<Prompt> prompts = RandomPrompts(12, 30, decoder_.config().vocab_size, 2);
  for (const double temperature : {0.7, 1.0, 1.5}) {
    const std::vector<Completion> completions = Answers(Engine(decoder_, {.end_tokens = {5}}), prompts,
                                                        {.temperature = temperature, .max_new_tokens = 10, .seed = 3});
    size_t c = 0;
    for (const Prompt& prompt : prompts) {
      for (int64_t sample = 0; sample < prompt.samples; ++sample, ++c) {
        std::vector<int32_t> tokens = prompt.tokens;
        ASSERT_EQ(completions[c].log_probs.size(), completions[c].tokens.size());
        for (size_t i = 0; i < completions[c].tokens.size(); ++i) {
          const int32_t token = completions[c].tokens[i];
          ASSERT_NEAR(completions[c].log_probs[i], NextLogProbs(tokens, temperature)[token].item<double>(), 1e-5);
          tokens.push_back(token);
        }
      }
    }
    EXPECT_EQ(c, completions.size());
  }
}

TEST_P(EngineTest, GivesTheSameAnswersHoweverTheWorkIsSharedOut) {
  const std::vector<Prompt> prompts = RandomPrompts(25, 40, decoder_.config().vocab_size, 4);
  for (const double temperature : {0.0, 1.0}) {
    const SamplingParams params{.temperature = temperature, .max_new_tokens = 8, .seed = 5};
    const std::vector<Completion> expected = Answers(Engine(decoder_, {.end_tokens = {5}}), prompts, params);
    for (const int threads : {1, 3}) {
      Workers workers(threads, [] { at::set_num_threads(1); });
      for (const int64_t max_rows : {1, 7, 4096}) {
        Engine engine(decoder_, {.end_tokens = {5}, .max_rows = max_rows, .workers = &workers});
        const std::vector<Completion> given = Answers(engine, prompts, params);
        ASSERT_EQ(given.size(), expected.size());
        for (size_t i = 0; i < given.size(); ++i) {
          ExpectSame(given[i], expected[i],
                     "completion " + std::to_string(i) + " of max_rows " + std::to_string(max_rows));
        }
      }
    }
  }
}

TEST_P(EngineTest, WhatAPromptIsAnsweredFollowsFromItsIdentityNotFromItsPlace) {
  std::vector<Prompt> prompts = RandomPrompts(6, 20, decoder_.config().vocab_size, 9);
  for (size_t p = 0; p < prompts.size(); ++p) prompts[p].samples = 2, prompts[p].identity = 100 + p;
  const SamplingParams params{.temperature = 1.5, .max_new_tokens = 8, .seed = 5};
  Engine engine(decoder_, {.end_tokens = {kNoEnd}});
  const std::vector<Completion> together = Answers(engine, prompts, params);
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<Completion> alone = Answers(engine, {prompts[p]}, params);
    for (size_t s = 0; s < 2; ++s) ExpectSame(alone[s], together[2 * p + s], "prompt " + std::to_string(p));
  }
  EXPECT_NE(together[0].tokens, together[1].tokens);
}

// With an end token, each answer is the one without, cut behind the first end token: rows that end and leave the batch
// change nothing for the others.
TEST_P(EngineTest, KeepsTheEndTokenAndGoesOnWithTheOtherRows) {
  const std::vector<Prompt> prompts = RandomPrompts(40, 20, decoder_.config().vocab_size, 6);
  const SamplingParams params{.temperature = 1.3, .max_new_tokens = 15, .seed = 7};
  const std::vector<Completion> endless = Answers(Engine(decoder_, {.end_tokens = {kNoEnd}}), prompts, params);
  std::map<size_t, int> lengths;
  for (const int32_t end : {0, 5, 11}) {
    const std::vector<Completion> completions = Answers(Engine(decoder_, {.end_tokens = {end}}), prompts, params);
    for (size_t i = 0; i < completions.size(); ++i) {
      Completion cut = endless[i];
      const auto found = std::find(cut.tokens.begin(), cut.tokens.end(), end);
      cut.finished = found != cut.tokens.end();
      if (cut.finished) cut.tokens.erase(found + 1, cut.tokens.end());
      cut.log_probs.resize(cut.tokens.size());
      ExpectSame(completions[i], cut, "completion " + std::to_string(i));
      ++lengths[cut.tokens.size()];
    }
  }
  EXPECT_GT(lengths.size(), 10u) << "answers must end at many different steps";
}

TEST_P(EngineTest, EndsAtTheLimitOfTokensAndWhereTheModelHasNoMorePositions) {
  const int64_t positions = decoder_.config().max_positions;
  std::vector<Prompt> prompts;
  for (const int64_t length : {int64_t{1}, positions - 9, positions - 8, positions - 7, positions - 2, positions - 1}) {
    prompts.push_back({std::vector<int32_t>(static_cast<size_t>(length), 2), 1});
  }
  Engine engine(decoder_, {.end_tokens = {kNoEnd}});
  for (const int64_t limit : {int64_t{8}, int64_t{1}, std::numeric_limits<int64_t>::max()}) {
    const std::vector<Completion> completions = Answers(engine, prompts, {.temperature = 0, .max_new_tokens = limit});
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto room = positions - static_cast<int64_t>(prompts[i].tokens.size());
      EXPECT_EQ(static_cast<int64_t>(completions[i].tokens.size()), std::min(limit, room)) << i;
      EXPECT_FALSE(completions[i].finished);
      ExpectSame(completions[i], NaiveGreedy(prompts[i].tokens, limit, kNoEnd), "prompt " + std::to_string(i));
    }
  }
}

TEST_P(EngineTest, RepeatsItselfForASeedAndNotForAnother) {
  const std::vector<Prompt> prompts = {{{1, 2, 3}, 8}, {{1, 2, 3}, 8}};
  Engine engine(decoder_, {.end_tokens = {kNoEnd}});
  const auto tokens = [&](uint64_t seed) {
    std::vector<std::vector<int32_t>> all;
    for (Completion& c : Answers(engine, prompts, {.temperature = 2.0, .max_new_tokens = 8, .seed = seed})) {
      all.push_back(std::move(c.tokens));
    }
    return all;
  };
  const auto once = tokens(1);
  EXPECT_EQ(once, tokens(1));
  EXPECT_NE(once, tokens(2));
  for (size_t i = 0; i < once.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(once[i], once[j]) << "samples " << j << " and " << i;
  }
}

TEST_P(EngineTest, TheNumberOfThreadsDoesNotChangeABit) {
  if (!GetParam().is_cpu()) GTEST_SKIP() << "a GPU adds up in an order of its own";
  const std::vector<Prompt> prompts = RandomPrompts(30, 20, decoder_.config().vocab_size, 8);
  const SamplingParams params{.temperature = 1.0, .max_new_tokens = 8, .seed = 5};
  std::vector<Completion> expected;
  for (const int threads : {1, 2, 5}) {
    Workers workers(threads, [] { at::set_num_threads(1); });
    at::set_num_threads(1);
    Engine engine(decoder_, {.end_tokens = {5}, .workers = &workers});
    const std::vector<Completion> given = Answers(engine, prompts, params);
    if (expected.empty()) expected = given;
    ASSERT_EQ(given.size(), expected.size());
    for (size_t i = 0; i < given.size(); ++i) {
      EXPECT_EQ(given[i].tokens, expected[i].tokens) << threads << " threads";
      EXPECT_EQ(given[i].log_probs, expected[i].log_probs) << threads << " threads";
    }
  }
}

TEST_P(EngineTest, UsesTheWeightsOfTheMoment) {
  const std::vector<Prompt> prompts = RandomPrompts(5, 10, decoder_.config().vocab_size, 8);
  Engine engine(decoder_, {.end_tokens = {kNoEnd}});
  const SamplingParams params{.temperature = 0, .max_new_tokens = 5};
  Answers(engine, prompts, params);
  const Decoder other = model::TinyDecoder(decoder_.config(), 99, GetParam());
  for (size_t i = 0; i < other.parameters().size(); ++i) decoder_.parameters()[i].copy_(other.parameters()[i]);
  const std::vector<Completion> given = Answers(engine, prompts, params);
  const std::vector<Completion> expected = Answers(Engine(other, {.end_tokens = {kNoEnd}}), prompts, params);
  for (size_t i = 0; i < given.size(); ++i) ExpectSame(given[i], expected[i], "completion " + std::to_string(i));
}

TEST_P(EngineTest, NamesThePromptWhoseLogitsAreNotFinite) {
  decoder_.parameters().front()[7].fill_(std::numeric_limits<float>::quiet_NaN());  // the embedding of token 7
  const std::vector<Prompt> prompts = {{{1, 2}, 3}, {{3}, 2}, {{2, 7, 3}, 2}, {{4}, 1}};
  for (const int64_t max_rows : {1, 100}) {
    for (const double temperature : {0.0, 1.0}) {
      const auto completions = Engine(decoder_, {.end_tokens = {kNoEnd}, .max_rows = max_rows})
                                   .Generate(prompts, {.temperature = temperature, .max_new_tokens = 1});
      EXPECT_THAT(completions.status(),
                  Fails(absl::StatusCode::kInternal, {"prompt 2: ", "position 3", "temperature"}));
    }
  }
}

class EngineRefusals : public testing::Test {
 protected:
  std::string Complaint(const std::vector<Prompt>& prompts, const SamplingParams& params = {.max_new_tokens = 1}) {
    const auto completions = Engine(decoder_, {}).Generate(prompts, params);
    EXPECT_EQ(completions.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(completions.status().message());
  }
  const Decoder decoder_ = model::TinyDecoder(model::TinyConfig(Architecture::kLlama, true), 1, at::kCPU);
};

TEST_F(EngineRefusals, NameThePrompt) {
  EXPECT_THAT(Complaint({{{1}, 1}, {{}, 1}}), Mentions({"prompt 1 ", "empty"}));
  EXPECT_THAT(Complaint({{{1}, 1}, {{1}, 1}, {{2}, 0}}), Mentions({"prompt 2 ", "0 samples"}));
  EXPECT_THAT(Complaint({{{1, 29}, 1}}), Mentions({"prompt 0 ", "token 29", "vocabulary of 29"}));
  EXPECT_THAT(Complaint({{{-1}, 1}}), Mentions({"prompt 0 ", "token -1", "vocabulary of 29"}));
  EXPECT_THAT(Complaint({{{1}, 1}, {std::vector<int32_t>(48, 1), 1}}),
              Mentions({"prompt 1 ", "48 tokens", "48 positions"}));
}

TEST_F(EngineRefusals, NameTheSamplingParameter) {
  EXPECT_THAT(Complaint({{{1}, 1}}, {.max_new_tokens = 0}), Mentions({"max_new_tokens", "at least 1", "not 0"}));
  EXPECT_THAT(Complaint({{{1}, 1}}, {.temperature = -0.5, .max_new_tokens = 1}), Mentions({"temperature", "not -0.5"}));
  for (const double odd : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(Complaint({{{1}, 1}}, {.temperature = odd, .max_new_tokens = 1}),
                Mentions({"temperature", absl::StrCat("not ", odd)}));
  }
}

TEST_F(EngineRefusals, DoNotMeetACallWithoutPrompts) {
  const auto completions = Engine(decoder_, {}).Generate({}, {.max_new_tokens = 1});
  ASSERT_TRUE(completions.ok());
  EXPECT_TRUE(completions->empty());
}

TEST(EngineOnTheCpu, WithWeightsInInt8AnswersNearly) {
  Decoder decoder = model::TinyDecoder(model::TinyConfig(Architecture::kQwen2, false), 21, at::kCPU);
  const std::vector<Prompt> prompts = {{.tokens = {1, 2, 3}}};
  const SamplingParams params{.temperature = 0, .max_new_tokens = 1};
  Engine exact(decoder, {.end_tokens = {kNoEnd}}), rounded(decoder, {.end_tokens = {kNoEnd}, .int8_weights = true});
  const auto expected = exact.Generate(prompts, params), found = rounded.Generate(prompts, params);
  ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
  EXPECT_NE(found->front().log_probs, expected->front().log_probs);
  EXPECT_NEAR(found->front().log_probs[0], expected->front().log_probs[0], 0.1);
  decoder.SetBatchInvariant(false);
  EXPECT_THAT(Engine(decoder, {.end_tokens = {kNoEnd}, .int8_weights = true}).Generate(prompts, params).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"int8_weights", "batch-invariant"}));
}

TEST(EngineOnTheCpu, ADraftOfTheSameWeightsIsRightAndSavesSteps) {
  Decoder decoder = model::TinyDecoder(model::TinyConfig(Architecture::kLlama, false), 5, at::kCPU);
  decoder.SetBatchInvariant(true);
  for (const double temperature : {0.0, 1.0}) {
    const std::vector<Prompt> prompts = {{.tokens = {3, 1, 4}, .samples = 2}};
    const SamplingParams params = {.temperature = temperature, .max_new_tokens = 40, .seed = 2};
    Engine plain(decoder, {.end_tokens = {kNoEnd}});
    Engine guessing(decoder, {.end_tokens = {kNoEnd}, .speculative_tokens = 8, .draft = &decoder});
    Engine repeating(decoder, {.end_tokens = {kNoEnd}, .speculative_tokens = 8});
    const auto expected = *plain.Generate(prompts, params), given = *guessing.Generate(prompts, params);
    ASSERT_TRUE(repeating.Generate(prompts, params).ok());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(given[i].tokens, expected[i].tokens) << temperature;
      EXPECT_EQ(given[i].log_probs, expected[i].log_probs) << temperature;
    }
    EXPECT_LT(guessing.stats().steps, repeating.stats().steps) << temperature;
    EXPECT_GT(guessing.stats().right_guesses, repeating.stats().right_guesses) << temperature;
    EXPECT_LE(guessing.stats().steps, plain.stats().steps * 3 / 4) << temperature;
  }
}

TEST(EngineOnTheCpu, ADraftThatCannotGuessIsRefused) {
  const Decoder decoder = model::TinyDecoder(model::TinyConfig(Architecture::kLlama, false), 5, at::kCPU);
  ModelConfig config = decoder.config();
  config.vocab_size += 16;
  const Decoder of_other_tokens = Decoder::Random(config, 1, at::kCPU);
  config = decoder.config();
  config.rope.type = model::RopeType::kDynamic;
  config.rope.factor = 2;
  const Decoder dynamic = Decoder::Random(config, 1, at::kCPU);
  const auto status = [&](const Decoder& draft, int64_t most) {
    return Engine(decoder, {.speculative_tokens = most, .draft = &draft})
        .Add({.prompt = {.tokens = {1}}, .sampling = {.max_new_tokens = 2}})
        .status();
  };
  EXPECT_EQ(status(decoder, 1), absl::OkStatus());
  EXPECT_THAT(status(decoder, 0), Fails(absl::StatusCode::kInvalidArgument, {"speculative_tokens"}));
  EXPECT_THAT(status(of_other_tokens, 1), Fails(absl::StatusCode::kInvalidArgument, {"draft", "tokens"}));
  EXPECT_THAT(status(dynamic, 1), Fails(absl::StatusCode::kInvalidArgument, {"draft", "dynamic"}));
}

// Packed weights must not outlive the weights that they are copies of.
TEST(EngineOnTheCpu, SeesWeightsThatHaveChangedSinceTheLastCall) {
  Decoder decoder = model::TinyDecoder(model::TinyConfig(Architecture::kQwen2, false), 21, at::kCPU);
  const std::vector<Prompt> prompts = {{.tokens = {1, 2, 3}}};
  const SamplingParams params{.temperature = 0, .max_new_tokens = 3};
  Engine engine(decoder, {.end_tokens = {kNoEnd}});
  const auto log_probs = [&](Engine& of) {
    const auto completions = of.Generate(prompts, params);
    EXPECT_TRUE(completions.ok()) << completions.status();
    return completions->front().log_probs;
  };
  const std::vector<float> before = log_probs(engine);
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : decoder.NamedWeights()) weight.mul_(1.1);
  Engine fresh(decoder, {.end_tokens = {kNoEnd}});
  EXPECT_NE(log_probs(engine), before);
  EXPECT_EQ(log_probs(engine), log_probs(fresh));
}

}  // namespace
}  // namespace tdock::engine
