// Log-probabilities of prompts are those of a pass over the whole prompt, however the engine reads it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "engine/cache/paged_cache.h"
#include "engine/engine.h"
#include "kernels/log_probs.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::engine {
namespace {

using model::Decoder;

constexpr int64_t kTinyVocabulary = 29;

std::vector<int32_t> RandomPrompt(size_t length, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(kTinyVocabulary));
  return tokens;
}

// Asks for nothing but what the prompt is worth.
Request Score(std::vector<int32_t> prompt, int64_t top = 0) {
  Request request;
  request.prompt = {.tokens = std::move(prompt), .identity = 5};
  request.prompt_log_probs = top;
  return request;
}

Request ScoreAndAnswer(std::vector<int32_t> prompt, int64_t max_new_tokens, int64_t samples = 1) {
  Request request = Score(std::move(prompt));
  request.prompt.samples = samples;
  request.sampling = {.temperature = 1.2, .max_new_tokens = max_new_tokens, .seed = 3};
  return request;
}

using AnswersByRequest = std::map<std::pair<RequestId, int64_t>, Answer>;

// Steps until all have ended.
AnswersByRequest EndAll(Engine& engine) {
  AnswersByRequest ended;
  for (int step = 0; engine.HasWork(); ++step) {
    EXPECT_LT(step, 10'000) << "does not get on";
    if (step == 10'000) break;
    for (Answer& answer : engine.Step()) ended[{answer.request, answer.sample}] = std::move(answer);
  }
  return ended;
}

Completion EndOf(Engine& engine, const Request& request) {
  const auto id = engine.Add(request);
  EXPECT_TRUE(id.ok()) << id.status();
  AnswersByRequest ended = EndAll(engine);
  Answer& answer = ended[{id.value_or(0), 0}];
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  return std::move(answer.completion);
}

// By a pass over the whole prompt, without a cache.
std::vector<PromptToken> PlainScores(const Decoder& decoder, const std::vector<int32_t>& prompt, int64_t top,
                                     int64_t version = 0) {
  const at::Tensor tokens = at::tensor(prompt, at::kInt).to(at::kLong).unsqueeze(0).to(decoder.device());
  const at::Tensor logits_TV = model::FullLogits(decoder, tokens)[0].detach();
  const at::Tensor log_probs_TV =
      kernels::TakesLogits(logits_TV) ? kernels::LogSoftmax(logits_TV, 1.0) : at::log_softmax(logits_TV, -1).cpu();
  std::vector<PromptToken> scores;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    const float* const row = log_probs_TV[static_cast<int64_t>(i)].const_data_ptr<float>();
    std::vector<int32_t> ids(static_cast<size_t>(log_probs_TV.size(1)));
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    const auto place = std::find(ids.begin(), ids.end(), prompt[i + 1]);
    PromptToken& score =
        scores.emplace_back(PromptToken{.log_prob = row[*place], .rank = place - ids.begin() + 1, .version = version});
    for (int64_t k = 0; k < top; ++k)
      score.top.push_back({ids[static_cast<size_t>(k)], row[ids[static_cast<size_t>(k)]]});
  }
  return scores;
}

void ExpectScores(const PromptLogProbs& given, const std::vector<PromptToken>& expected, double tolerance = 0) {
  ASSERT_NE(given, nullptr);
  ASSERT_EQ(given->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const PromptToken &token = (*given)[i], &wanted = expected[i];
    ASSERT_NEAR(token.log_prob, wanted.log_prob, tolerance) << "token " << i + 1;
    ASSERT_EQ(token.rank, wanted.rank) << "token " << i + 1;
    ASSERT_EQ(token.version, wanted.version) << "token " << i + 1;
    ASSERT_EQ(token.top.size(), wanted.top.size()) << "token " << i + 1;
    for (size_t k = 0; k < wanted.top.size(); ++k) {
      ASSERT_EQ(token.top[k].token, wanted.top[k].token) << "token " << i + 1 << ", rank " << k + 1;
      ASSERT_NEAR(token.top[k].log_prob, wanted.top[k].log_prob, tolerance);
    }
  }
}

Decoder RandomDecoder(uint64_t seed, const at::Device& device = at::kCPU) {
  Decoder decoder = model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, false), seed, device);
  decoder.SetBatchInvariant(device.is_cpu());
  return decoder;
}

// In batch-invariant mode, so that equal numbers are equal to the bit.
class PromptLogProbsTest : public testing::Test {
 protected:
  Decoder decoder_ = RandomDecoder(21);
};

TEST_F(PromptLogProbsTest, AreThoseOfAPassOverTheWholePromptWhateverThePieces) {
  // Together more than the rows that pass through the head at a time.
  std::vector<Request> requests;
  for (const size_t length : {40, 1, 48, 17, 2, 33, 16}) {
    const auto number = static_cast<int64_t>(requests.size());
    requests.push_back(Score(RandomPrompt(length, length), number == 3 ? kTinyVocabulary : number));
  }
  for (const bool dense : {false, true}) {
    for (const int64_t max_step_tokens : {1, 5, 16, 50, 2048}) {
      Engine engine(decoder_, {.max_step_tokens = max_step_tokens, .dense_cache = dense});
      size_t answers = 0;
      const absl::Status status = engine.AnswerAll(requests, [&](std::span<Answer> ended) {
        for (const Answer& answer : ended) {
          const Request& request = requests[answer.request];
          ExpectScores(answer.completion.prompt_log_probs,
                       PlainScores(decoder_, request.prompt.tokens, *request.prompt_log_probs));
          EXPECT_TRUE(answer.completion.tokens.empty());
          EXPECT_EQ(answer.completion.finish_reason, FinishReason::kLength);
          ++answers;
        }
        return absl::OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(answers, requests.size());
    }
  }
}

TEST_F(PromptLogProbsTest, AreNearOnEveryDeviceAndWithLibtorchsProducts) {
  for (const at::Device& device : model::TestDevices()) {
    Decoder decoder = RandomDecoder(21, device);
    decoder.SetBatchInvariant(false);
    Engine engine(decoder, {.max_step_tokens = 7});
    const std::vector<int32_t> prompt = RandomPrompt(40, 1);
    ExpectScores(EndOf(engine, Score(prompt, 3)).prompt_log_probs, PlainScores(decoder, prompt, 3), 1e-4);
  }
}

TEST_F(PromptLogProbsTest, AreOfTheLogitsWhateverIsSampled) {
  const std::vector<int32_t> prompt = RandomPrompt(20, 2);
  Request request = ScoreAndAnswer(prompt, 2);
  request.sampling.temperature = 0.3;
  request.sampling.top_k = 2;
  request.sampling.repetition_penalty = 3;
  request.sampling.logit_bias = {{4, 50.0}};
  request.sampling.filtered_log_probs = true;
  Engine engine(decoder_, {});
  ExpectScores(EndOf(engine, request).prompt_log_probs, PlainScores(decoder_, prompt, 0));
}

TEST_F(PromptLogProbsTest, NeedTheWholePromptWhichOthersThenShare) {
  const std::vector<int32_t> prompt = RandomPrompt(40, 3);
  Request plain = ScoreAndAnswer(prompt, 1);
  plain.prompt_log_probs.reset();
  Engine engine(decoder_, {});
  const auto computed = [&](const Request& request) {
    const int64_t before = engine.stats().computed_tokens;
    const Completion completion = EndOf(engine, request);
    if (request.prompt_log_probs) ExpectScores(completion.prompt_log_probs, PlainScores(decoder_, prompt, 0));
    return engine.stats().computed_tokens - before;
  };
  EXPECT_EQ(computed(plain), 40);
  EXPECT_EQ(computed(plain), 8) << "two pages of 16 are shared";
  EXPECT_EQ(computed(Score(prompt)), 40);
  engine.Update([] {}, 0);
  EXPECT_EQ(computed(Score(prompt)), 40);
  EXPECT_EQ(computed(plain), 8);
}

TEST_F(PromptLogProbsTest, OfAPromptThatIsSentBackGoOnWhereTheyWere) {
  const std::vector<int32_t> prompt = RandomPrompt(44, 4);
  const int64_t page = PagedCache::PageBytes(decoder_.config(), decoder_.compute_type());
  for (const int64_t pages : {3, 4}) {
    Engine engine(decoder_, {.cache_bytes = pages * page, .max_step_tokens = 20});
    Request low = Score(prompt, 2);
    low.sampling.max_new_tokens = 2;
    const RequestId scored = *engine.Add(low);
    engine.Step();
    Request high = ScoreAndAnswer(RandomPrompt(30, 9), 16);
    high.priority = 1;
    const RequestId other = *engine.Add(high);
    AnswersByRequest ended = EndAll(engine);
    EXPECT_GT(engine.stats().preemptions, 0) << pages;
    ExpectScores(ended.at({scored, 0}).completion.prompt_log_probs, PlainScores(decoder_, prompt, 2));
    ExpectScores(ended.at({other, 0}).completion.prompt_log_probs, PlainScores(decoder_, high.prompt.tokens, 0));
    EXPECT_EQ(ended.at({scored, 0}).completion.tokens.size(), 2u);
  }
}

TEST_F(PromptLogProbsTest, AreFoundOnceForAllSamplesWhoseTokensStayTheSame) {
  Request request = ScoreAndAnswer(RandomPrompt(20, 5), 6, 3), plain = request;
  plain.prompt_log_probs.reset();
  std::vector<std::string> told;
  PromptLogProbs early;
  request.on_prompt = [&](const PromptLogProbs& prompt) {
    told.emplace_back("prompt");
    early = prompt;
  };
  request.on_token = [&](int64_t sample, const NewToken&) { told.push_back(absl::StrCat(sample)); };
  Engine engine(decoder_, {.max_step_tokens = 8}), beside(decoder_, {});
  const RequestId id = *engine.Add(request), other = *beside.Add(plain);
  AnswersByRequest ended = EndAll(engine), expected = EndAll(beside);
  ASSERT_EQ(told.size(), 19u);
  EXPECT_EQ(told[0], "prompt");
  EXPECT_EQ(std::count(told.begin(), told.end(), "prompt"), 1);
  ExpectScores(early, PlainScores(decoder_, request.prompt.tokens, 0));
  for (const int64_t sample : {0, 1, 2}) {
    EXPECT_EQ(ended.at({id, sample}).completion.prompt_log_probs, early);
    EXPECT_EQ(ended.at({id, sample}).completion.tokens, expected.at({other, sample}).completion.tokens);
    EXPECT_EQ(ended.at({id, sample}).completion.log_probs, expected.at({other, sample}).completion.log_probs);
    EXPECT_EQ(expected.at({other, sample}).completion.prompt_log_probs, nullptr);
  }
}

TEST_F(PromptLogProbsTest, WithoutAnswersEndAllSamples) {
  Request request = Score(RandomPrompt(9, 6));
  request.prompt.samples = 3;
  Engine engine(decoder_, {});
  const RequestId id = *engine.Add(request);
  const AnswersByRequest ended = EndAll(engine);
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(engine.stats().computed_tokens, 9);
  for (const int64_t sample : {0, 1, 2}) {
    EXPECT_TRUE(ended.at({id, sample}).completion.tokens.empty());
    EXPECT_EQ(ended.at({id, sample}).completion.prompt_log_probs->size(), 8u);
  }
}

TEST_F(PromptLogProbsTest, OfOneTokenAreNone) {
  Engine engine(decoder_, {});
  bool told = false;
  Request request = Score({7}, 2);
  request.on_prompt = [&](const PromptLogProbs& prompt) { told = prompt->empty(); };
  const Completion completion = EndOf(engine, request);
  ASSERT_NE(completion.prompt_log_probs, nullptr);
  EXPECT_TRUE(completion.prompt_log_probs->empty());
  EXPECT_TRUE(told);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
}

TEST_F(PromptLogProbsTest, OfTokensThatAreEquallyLikelyRankTheLowerIdFirst) {
  for (const auto& [name, weight] : decoder_.NamedWeights()) {
    if (name == "lm_head.weight") at::Tensor(weight)[17].copy_(weight[3]);
  }
  std::vector<int32_t> prompt;
  for (int i = 0; i < 6; ++i) prompt.insert(prompt.end(), {5 + i, 17, 3});
  Engine engine(decoder_, {});
  const PromptLogProbs given = EndOf(engine, Score(prompt, kTinyVocabulary)).prompt_log_probs;
  ExpectScores(given, PlainScores(decoder_, prompt, kTinyVocabulary));
  for (size_t i = 0; i < given->size(); ++i) {
    const std::vector<TokenLogProb>& top = (*given)[i].top;
    const auto lower = std::find_if(top.begin(), top.end(), [](const TokenLogProb& t) { return t.token == 3; });
    ASSERT_LT(lower - top.begin(), std::ssize(top) - 1);
    EXPECT_EQ(lower[1].token, 17);
    if (const int32_t token = prompt[i + 1]; token == 3 || token == 17) {
      EXPECT_EQ((*given)[i].rank, lower - top.begin() + (token == 3 ? 1 : 2));
    }
  }
}

TEST_F(PromptLogProbsTest, AreOfTheWeightsThatReadThePromptLast) {
  const Decoder other = RandomDecoder(99);
  const std::vector<int32_t> prompt = RandomPrompt(40, 7);
  for (const int64_t steps : {0, 2, 5}) {  // 5 of 8 tokens read it to its end
    Engine engine(decoder_, {.max_step_tokens = 8});
    const RequestId id = *engine.Add(ScoreAndAnswer(prompt, 3));
    for (int64_t step = 0; step < steps; ++step) engine.Step();
    engine.Serve(std::make_shared<const Decoder>(other.Clone()), 7);
    const PromptLogProbs given = EndAll(engine).at({id, 0}).completion.prompt_log_probs;
    if (steps < 5) {
      ExpectScores(given, PlainScores(other, prompt, 0, 7));
    } else {
      ExpectScores(given, PlainScores(decoder_, prompt, 0, 0));
    }
  }
}

TEST_F(PromptLogProbsTest, ThatGoOnWithOtherWeightsSayWhichMadeWhich) {
  const Decoder other = RandomDecoder(99);
  const std::vector<int32_t> prompt = RandomPrompt(40, 7);
  Engine engine(decoder_, {.max_step_tokens = 8});
  const RequestId id = *engine.Add(Score(prompt));
  engine.Step();
  engine.Step();
  engine.Serve(std::make_shared<const Decoder>(other.Clone()), 7, InProgress::kGoOn);
  const PromptLogProbs given = EndAll(engine).at({id, 0}).completion.prompt_log_probs;
  ASSERT_EQ(given->size(), 39u);
  const std::vector<PromptToken> expected = PlainScores(decoder_, prompt, 0);
  for (size_t i = 0; i < given->size(); ++i) {
    EXPECT_EQ((*given)[i].version, i < 16 ? 0 : 7) << i;
    const bool same = (*given)[i].log_prob == expected[i].log_prob;
    EXPECT_TRUE(same || i >= 16) << i;
  }
}

TEST_F(PromptLogProbsTest, OfAnAnswerThatWasCutOffComeWithItsRest) {
  Request request = ScoreAndAnswer(RandomPrompt(20, 8), 6);
  request.token_budget = 4;
  Engine engine(decoder_, {});
  const Completion begun = EndOf(engine, request);
  EXPECT_EQ(begun.finish_reason, FinishReason::kBudget);
  request.so_far = {begun};
  const Completion whole = EndOf(engine, request);
  EXPECT_EQ(whole.tokens.size(), 6u);
  for (const Completion* completion : {&begun, &whole}) {
    ExpectScores(completion->prompt_log_probs, PlainScores(decoder_, request.prompt.tokens, 0));
  }
}

TEST_F(PromptLogProbsTest, AreNotThereWhereTheAnswerEndsBeforeThePromptIsRead) {
  FakeClock clock;
  Engine engine(decoder_, {.max_step_tokens = 8, .clock = &clock});
  const std::vector<int32_t> prompt = RandomPrompt(20, 9);
  for (const int steps : {0, 1, 3}) {  // the third reads it to its end
    Request late = ScoreAndAnswer(prompt, 20);
    const RequestId aborted = *engine.Add(late);
    for (int step = 0; step < steps; ++step) engine.Step();
    ASSERT_TRUE(engine.Abort(aborted).ok());
    AnswersByRequest ended = EndAll(engine);
    EXPECT_EQ(ended.at({aborted, 0}).completion.finish_reason, FinishReason::kAborted);
    EXPECT_EQ(ended.at({aborted, 0}).completion.prompt_log_probs != nullptr, steps == 3);
    late.deadline = clock.Now() + absl::Seconds(1);
    const RequestId expired = *engine.Add(late);
    for (int step = 0; step < steps; ++step) engine.Step();
    clock.Advance(absl::Seconds(1));
    ended = EndAll(engine);
    EXPECT_EQ(ended.at({expired, 0}).completion.finish_reason, FinishReason::kDeadline);
    EXPECT_EQ(ended.at({expired, 0}).completion.prompt_log_probs != nullptr, steps == 3);
  }
}

TEST_F(PromptLogProbsTest, OfLogitsThatAreNotFiniteEndTheRequestAlone) {
  decoder_.parameters().front()[7].fill_(std::numeric_limits<float>::quiet_NaN());  // the embedding of token 7
  Engine engine(decoder_, {});
  Request bad = ScoreAndAnswer({7, 2, 3, 1}, 4, 2);
  bool told = false;
  bad.on_prompt = [&](const PromptLogProbs&) { told = true; };
  const RequestId a = *engine.Add(bad), b = *engine.Add(Score({1, 2, 3}));
  const AnswersByRequest ended = EndAll(engine);
  for (const int64_t sample : {0, 1}) {
    EXPECT_THAT(ended.at({a, sample}).status, Fails(absl::StatusCode::kInternal, {"position 1", "prompt"}));
  }
  EXPECT_FALSE(told);
  ExpectScores(ended.at({b, 0}).completion.prompt_log_probs, PlainScores(decoder_, {1, 2, 3}, 0));
}

TEST_F(PromptLogProbsTest, MayTakeAllPositionsOfTheModelWhereNoAnswerIsAskedFor) {
  Engine engine(decoder_, {});
  EXPECT_EQ(EndOf(engine, Score(RandomPrompt(48, 1))).prompt_log_probs->size(), 47u);
  EXPECT_THAT(engine.Add(Score(RandomPrompt(49, 1))).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"prompt", "49 tokens", "48 positions"}));
  EXPECT_THAT(engine.Add(ScoreAndAnswer(RandomPrompt(48, 1), 1)).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"prompt", "48 tokens", "48 positions"}));
}

TEST_F(PromptLogProbsTest, ThatCannotBeAreRefusedByName) {
  decoder_.LimitVocabulary(20);
  Engine engine(decoder_, {});
  Request request = Score({1, 2});
  for (const int64_t top : {-1, 21}) {
    request.prompt_log_probs = top;
    EXPECT_THAT(engine.Add(request).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"prompt_log_probs", "20", absl::StrCat(top)}));
  }
  EXPECT_THAT(engine.Add(Score({1, 2, 25})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"prompt_log_probs", "token 25", "position 2"}));
  EXPECT_TRUE(engine.Add(Score({25, 2, 1})).ok()) << "nothing is asked of the first token";
  request.prompt_log_probs.reset();
  EXPECT_THAT(engine.Add(request).status(), Fails(absl::StatusCode::kInvalidArgument, {"max_new_tokens", "not 0"}));
  request = Score({1, 2});
  request.sampling.max_new_tokens = -1;
  EXPECT_THAT(engine.Add(request).status(), Fails(absl::StatusCode::kInvalidArgument, {"max_new_tokens", "not -1"}));
}

}  // namespace
}  // namespace tdock::engine
