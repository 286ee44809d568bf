// Shapes: R rows, V vocabulary.
#include "engine/sampling/sampler.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/rng.h"
#include "engine/sampling/filters.h"
#include "kernels/log_probs.h"

namespace tdock::engine {
namespace {

using testing::ElementsAre;
using Numbers = std::vector<double>;
using Tokens = std::vector<int32_t>;

constexpr double kOut = -std::numeric_limits<double>::infinity();

std::vector<at::Device> Devices() {
  at::set_num_threads(1);
  if (at::hasCUDA()) return {at::Device(at::kCPU), at::Device(at::kCUDA, 0)};
  return {at::Device(at::kCPU)};
}

std::string NameOf(const testing::TestParamInfo<at::Device>& info) { return info.param.is_cpu() ? "Cpu" : "Cuda"; }

// What a row has seen.
struct Seen {
  Tokens prompt;
  Tokens answer;
};

TokenCounts CountsOf(const Seen& seen) {
  TokenCounts counts(seen.prompt);
  for (const int32_t token : seen.answer) counts.AddToAnswer(token);
  return counts;
}

Numbers Softmax(const Numbers& scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  Numbers shares;
  for (const double score : scores) shares.push_back(std::exp(score - highest));
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  return shares;
}

bool Holds(const Tokens& tokens, size_t token) {
  return std::find(tokens.begin(), tokens.end(), static_cast<int32_t>(token)) != tokens.end();
}

// Scores after all but the last three steps, token by token.
Numbers PlainScores(const Numbers& logits, const SamplingParams& params, const Seen& seen, const Tokens& ends) {
  Numbers scores = logits;
  for (size_t token = 0; token < scores.size(); ++token) {
    double& score = scores[token];
    const auto id = static_cast<int32_t>(token);
    if (params.logit_bias.contains(id)) score += params.logit_bias.at(id);
    if (!params.allowed_tokens.empty() && !Holds(params.allowed_tokens, token)) score = kOut;
    const auto times = static_cast<double>(std::count(seen.answer.begin(), seen.answer.end(), id));
    if (times > 0 || Holds(seen.prompt, token)) {
      score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
    }
    score -= params.frequency_penalty * times + (times > 0 ? params.presence_penalty : 0);
    const bool is_end = Holds(ends, token) || Holds(params.stop_tokens, token);
    if (is_end && std::cmp_less(seen.answer.size(), params.min_new_tokens)) score = kOut;
    if (params.temperature > 0) score /= params.temperature;
  }
  return scores;
}

// The distribution that is sampled from, token by token.
Numbers PlainDistribution(const Numbers& logits, const SamplingParams& params, const Seen& seen, const Tokens& ends) {
  Numbers scores = PlainScores(logits, params, seen, ends);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) scores[order[i]] = kOut;
  }
  Numbers shares = Softmax(scores);
  double sum = 0;
  for (const size_t token : order) {
    if (sum >= params.top_p) scores[token] = kOut;
    sum += shares[token];
  }
  shares = Softmax(scores);
  const double border = params.min_p * *std::max_element(shares.begin(), shares.end());
  for (size_t token = 0; token < shares.size(); ++token) {
    if (shares[token] < border) scores[token] = kOut;
  }
  return Softmax(scores);
}

struct Case {
  std::string name;
  SamplingParams params;
};

std::vector<Case> Cases() {
  return {{"temperature", {.temperature = 0.7}},
          {"high temperature", {.temperature = 1.6}},
          {"top_k", {.top_k = 5}},
          {"top_p", {.top_p = 0.8}},
          {"min_p", {.min_p = 0.15}},
          {"repetition_penalty", {.repetition_penalty = 1.5}},
          {"presence_penalty", {.presence_penalty = 0.9}},
          {"frequency_penalty", {.frequency_penalty = 0.6}},
          {"logit_bias", {.logit_bias = {{2, 1.5}, {3, -2}, {11, 3}}}},
          {"allowed_tokens", {.allowed_tokens = {1, 2, 5, 7, 8}}},
          {"min_new_tokens", {.min_new_tokens = 9, .stop_tokens = {2}}},
          {"all",
           {.temperature = 1.3,
            .top_k = 9,
            .top_p = 0.95,
            .min_p = 0.05,
            .repetition_penalty = 1.2,
            .presence_penalty = 0.3,
            .frequency_penalty = 0.2,
            .logit_bias = {{4, 1}}}}};
}

class SamplerTest : public testing::TestWithParam<at::Device> {
 protected:
  at::Tensor LogitsOf(const std::vector<Numbers>& rows) const {
    std::vector<at::Tensor> tensors;
    for (const Numbers& row : rows) tensors.push_back(at::tensor(row, at::kDouble).to(at::kFloat));
    return at::stack(tensors).to(GetParam());
  }

  // Random logits, as many rows as `uniforms`.
  std::vector<Numbers> RandomLogits(size_t rows, size_t vocab, uint64_t seed) const {
    Rng rng(seed);
    std::vector<Numbers> logits(rows, Numbers(vocab));
    for (Numbers& row : logits) {
      for (double& logit : row) logit = 4 * rng.Uniform() - 2;
    }
    return logits;
  }

  // The distribution of one row.
  Numbers Distribution(const Numbers& logits, const SamplingParams& params, const Seen& seen = {},
                       const Tokens& ends = {}) const {
    const TokenCounts counts = CountsOf(seen);
    const Sampler sampler(params, ends, static_cast<int64_t>(logits.size()), GetParam());
    const Sampler::Row row{0.5, static_cast<int64_t>(seen.answer.size()), &counts};
    const at::Tensor shares = sampler.FilteredLogProbs(LogitsOf({logits}), {&row, 1}).exp().to(at::kDouble).cpu();
    return {shares.const_data_ptr<double>(), shares.const_data_ptr<double>() + shares.numel()};
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, SamplerTest, testing::ValuesIn(Devices()), NameOf);

void ExpectShares(const Numbers& given, const Numbers& expected, const std::string& what) {
  EXPECT_THAT(given, testing::Pointwise(testing::DoubleNear(1e-6), expected)) << what;
}

// Pearson's statistic in standard deviations above what is expected by chance; infinite where what cannot be was drawn.
double ChiSquareExcess(const std::vector<int64_t>& counts, const Numbers& shares) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double statistic = 0;
  double bins = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (shares[i] == 0 && counts[i] > 0) return -kOut;
    if (shares[i] == 0) continue;
    const double expected = total * shares[i];
    statistic += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
    ++bins;
  }
  return (statistic - (bins - 1)) / std::sqrt(2 * (bins - 1));
}

TEST_P(SamplerTest, DrawsFromTheDistributionThatPlainCodeComputes) {
  constexpr int64_t kDraws = 100'000;
  const Numbers logits = RandomLogits(1, 12, 5)[0];
  const Seen seen{.prompt = {1, 4, 4}, .answer = {6, 7, 7, 7, 1}};
  const Tokens ends = {9};
  const TokenCounts counts = CountsOf(seen);
  std::vector<Sampler::Row> rows;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    rows.push_back({UnitInterval(DeriveSeed(DeriveSeed(11, draw), 3)), 5, &counts});
  }
  for (const Case& c : Cases()) {
    const Numbers shares = PlainDistribution(logits, c.params, seen, ends);
    const Sampler sampler(c.params, ends, 12, GetParam());
    const Choices choices = sampler.Choose(LogitsOf({logits}).expand({kDraws, 12}).contiguous(), rows);
    std::vector<int64_t> drawn(12);
    for (const int64_t token : choices.tokens) ++drawn[static_cast<size_t>(token)];
    EXPECT_LT(ChiSquareExcess(drawn, shares), 4) << c.name;
    for (size_t token = 0; token < shares.size(); ++token) {
      Numbers other = shares;
      other[token] += 0.02;
      for (double& share : other) share /= 1.02;
      EXPECT_GT(ChiSquareExcess(drawn, other), 6) << c.name << ": the test sees 0.02 more of token " << token;
    }
  }
}

TEST_P(SamplerTest, HasTheDistributionThatPlainCodeComputes) {
  const Tokens ends = {9, -1};
  for (const Case& c : Cases()) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Numbers logits = RandomLogits(1, 40, seed)[0];
      Rng rng(seed + 100);
      Seen seen;
      for (uint64_t i = 0; i < 10; ++i) seen.prompt.push_back(static_cast<int32_t>(rng.Below(40)));
      for (uint64_t i = 0; i < rng.Below(10); ++i) seen.answer.push_back(static_cast<int32_t>(rng.Below(20)));
      ExpectShares(Distribution(logits, c.params, seen, ends), PlainDistribution(logits, c.params, seen, ends), c.name);
    }
  }
}

TEST_P(SamplerTest, AppliesBiasBeforePenaltiesAndThoseBeforeTheTemperature) {
  // Token 0: (1 - 2) · 2 = -2, then -2 - 0.5 = -2.5, then / 0.5 = -5.
  const SamplingParams params{
      .temperature = 0.5, .repetition_penalty = 2, .presence_penalty = 0.5, .logit_bias = {{0, -2}}};
  ExpectShares(Distribution({1, 0}, params, {.prompt = {}, .answer = {0}}), Softmax({-5, 0}), "");
}

TEST_P(SamplerTest, AppliesMinNewTokensBeforeTopK) {
  const SamplingParams params{.top_k = 1, .min_new_tokens = 1};
  ExpectShares(Distribution({1, 3, 2}, params, {}, {1}), {0, 0, 1}, "");
  ExpectShares(Distribution({1, 3, 2}, params, {.prompt = {}, .answer = {0}}, {1}), {0, 1, 0}, "long enough");
}

TEST_P(SamplerTest, AppliesTheTemperatureThenTopKThenTopPThenMinP) {
  const Numbers logits = {std::log(0.4), std::log(0.3), std::log(0.2), std::log(0.1)};
  // Without the temperature, 0.4 and 0.3 would be enough for 0.6.
  ExpectShares(Distribution(logits, {.temperature = 0.25, .top_p = 0.6}), {1, 0, 0, 0}, "temperature, top_p");
  // Of 0.4 and 0.3, the first has 0.57; of all, it has 0.4.
  ExpectShares(Distribution(logits, {.top_k = 2, .top_p = 0.5}), {1, 0, 0, 0}, "top_k, top_p");
  // 0.4 + 0.3 ≥ 0.5, and 0.3 ≥ 0.6 · 0.4; with min_p first, 0.57 alone would be enough.
  ExpectShares(Distribution(logits, {.top_p = 0.5, .min_p = 0.6}), {4.0 / 7, 3.0 / 7, 0, 0}, "top_p, min_p");
}

TEST_P(SamplerTest, OfEquallyLikelyTokensKeepsTheLowerIds) {
  ExpectShares(Distribution({1, 2, 0, 2, 2}, {.top_k = 2}), {0, 0.5, 0, 0.5, 0}, "top_k");
  ExpectShares(Distribution({1, 1, 1, 1}, {.top_p = 0.5}), {0.5, 0.5, 0, 0}, "top_p");
  ExpectShares(Distribution({1, 1, 1, 1}, {.top_k = 3, .top_p = 0.6}), {0.5, 0.5, 0, 0}, "both");
  ExpectShares(Distribution({2, 1, 2}, {.top_p = 1e-9}), {1, 0, 0}, "one is always left");
}

TEST_P(SamplerTest, RanksAsAStableSortDoes) {
  Rng rng(3);
  std::vector<Numbers> rows(7, Numbers(300));
  for (Numbers& row : rows) {
    for (double& score : row) score = static_cast<double>(rng.Below(40));
  }
  for (const int64_t count : {1, 2, 17, 299, 300, 1000}) {
    const Ranked ranked = RankTokens(LogitsOf(rows), count);
    const at::Tensor tokens = ranked.tokens_RK.cpu();
    for (int64_t r = 0; r < 7; ++r) {
      const Numbers& row = rows[static_cast<size_t>(r)];
      std::vector<size_t> order(row.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
      ASSERT_EQ(tokens.size(1), std::min<int64_t>(count, 300));
      for (int64_t i = 0; i < tokens.size(1); ++i) {
        const auto token = static_cast<size_t>(tokens[r][i].item<int64_t>());
        ASSERT_EQ(token, order[static_cast<size_t>(i)]) << "row " << r << ", place " << i << " of " << count;
        ASSERT_EQ(ranked.scores_RK[r][i].item<double>(), row[token]);
      }
    }
  }
}

TEST_P(SamplerTest, ARowDoesNotDependOnTheOthers) {
  constexpr size_t kRows = 23;
  const std::vector<Numbers> logits = RandomLogits(kRows, 301, 8);
  std::vector<TokenCounts> counts;
  std::vector<Sampler::Row> rows;
  Rng rng(4);
  for (size_t r = 0; r < kRows; ++r) {
    Seen seen;
    for (size_t i = 0; i < 3 * r; ++i) seen.prompt.push_back(static_cast<int32_t>(rng.Below(301)));
    for (size_t i = 0; i < r; ++i) seen.answer.push_back(static_cast<int32_t>(rng.Below(301)));
    counts.push_back(CountsOf(seen));
  }
  for (size_t r = 0; r < kRows; ++r) rows.push_back({rng.Uniform(), static_cast<int64_t>(r), &counts[r]});
  for (Case c : Cases()) {
    c.params.top_log_probs = 4;
    c.params.filtered_log_probs = c.name == "all";
    const Tokens ends = {9};
    const Sampler sampler(c.params, ends, 301, GetParam());
    const Choices together = sampler.Choose(LogitsOf(logits), rows);
    for (size_t r = 0; r < kRows; ++r) {
      const Choices alone = sampler.Choose(LogitsOf({logits[r]}), {&rows[r], 1});
      EXPECT_EQ(alone.tokens[0], together.tokens[r]) << c.name;
      EXPECT_EQ(alone.log_probs[0], together.log_probs[r]) << c.name;
      ASSERT_EQ(alone.top[0].size(), together.top[r].size()) << c.name;
      for (size_t i = 0; i < alone.top[0].size(); ++i) EXPECT_EQ(alone.top[0][i].token, together.top[r][i].token);
    }
  }
}

TEST_P(SamplerTest, TokensOfThePromptThatAreNeverSampledHaveNoEffect) {
  const TokenCounts counts = CountsOf({.prompt = {0, 4, 5}, .answer = {}});
  const std::vector<Sampler::Row> rows(2, {0.5, 0, &counts});
  const Sampler sampler({.repetition_penalty = 2}, {}, 4, GetParam());
  const at::Tensor shares = sampler.FilteredLogProbs(LogitsOf({{4, 3, 2, 1}, {4, 3, 2, 1}}), rows).exp().cpu();
  const Numbers expected = Softmax({2, 3, 2, 1});
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(shares[i / 4][i % 4].item<double>(), expected[static_cast<size_t>(i % 4)], 1e-6);
  }
}

TEST_P(SamplerTest, WithoutATemperatureTakesTheMostLikelyAfterBiasAndPenalties) {
  const TokenCounts counts = CountsOf({.prompt = {0}, .answer = {1, 1}});
  const auto choice = [&](SamplingParams params, const Tokens& ends = {}) {
    params.temperature = 0;
    const Sampler::Row row{0.99, 2, &counts};
    return Sampler(params, ends, 4, GetParam()).Choose(LogitsOf({{4, 3, 2, 1}}), {&row, 1}).tokens[0];
  };
  EXPECT_EQ(choice({}), 0);
  EXPECT_EQ(choice({.top_k = 3, .top_p = 0.9, .min_p = 0.1}), 0);
  EXPECT_EQ(choice({.repetition_penalty = 3}), 2);
  EXPECT_EQ(choice({.presence_penalty = 1.5, .logit_bias = {{0, -5}}}), 2);
  EXPECT_EQ(choice({.frequency_penalty = 0.4, .logit_bias = {{0, -5}}}), 1);
  EXPECT_EQ(choice({.frequency_penalty = 0.6, .logit_bias = {{0, -5}}}), 2);
  EXPECT_EQ(choice({.logit_bias = {{3, 3.5}}}), 3);
  EXPECT_EQ(choice({.allowed_tokens = {3, 2}}), 2);
  EXPECT_EQ(choice({.min_new_tokens = 3}, {0}), 1);
  EXPECT_EQ(choice({.min_new_tokens = 2}, {0}), 0);
}

TEST_P(SamplerTest, RecordsThePolicyOrWhatWasSampledFrom) {
  const Numbers logits = {2, 1, 0, -1};
  const Sampler::Row row{0.1, 0, nullptr};
  const auto choices = [&](const SamplingParams& params) {
    return Sampler(params, {}, 4, GetParam()).Choose(LogitsOf({logits}), {&row, 1});
  };
  const auto tops = [&](const SamplingParams& params) {
    std::vector<std::pair<int32_t, float>> found;
    const Choices made = choices(params);
    for (const TokenLogProb& top : made.top[0]) found.emplace_back(top.token, top.log_prob);
    return found;
  };
  const Numbers policy = Softmax({4, 2, 0, -2});
  const SamplingParams raw{.temperature = 0.5, .top_k = 2, .logit_bias = {{3, 10}}, .top_log_probs = 3};
  EXPECT_NEAR(choices(raw).log_probs[0], std::log(policy[static_cast<size_t>(choices(raw).tokens[0])]), 1e-5);
  const auto near = [](int32_t token, double share) {
    return testing::Pair(token, testing::FloatNear(static_cast<float>(std::log(share)), 1e-5F));
  };
  EXPECT_THAT(tops(raw), ElementsAre(near(0, policy[0]), near(1, policy[1]), near(2, policy[2])));

  SamplingParams filtered = raw;
  filtered.filtered_log_probs = true;
  const Numbers sampled = Softmax({18, 4});
  EXPECT_EQ(choices(filtered).tokens[0], 3);
  EXPECT_NEAR(choices(filtered).log_probs[0], std::log(sampled[0]), 1e-5);
  EXPECT_THAT(tops(filtered), ElementsAre(near(3, sampled[0]), near(0, sampled[1])));  // no third has a probability

  const SamplingParams greedy{.temperature = 0, .logit_bias = {{1, 3}}};
  EXPECT_NEAR(choices(greedy).log_probs[0], std::log(Softmax(logits)[1]), 1e-5);
  SamplingParams greedy_filtered = greedy;
  greedy_filtered.filtered_log_probs = true;
  EXPECT_NEAR(choices(greedy_filtered).log_probs[0], std::log(Softmax({2, 4, 0, -1})[1]), 1e-5);
}

TEST_P(SamplerTest, WithOnlyATemperatureIsOneSoftmax) {
  const at::Tensor logits_RV = LogitsOf(RandomLogits(50, 97, 2));
  std::vector<Sampler::Row> rows;
  at::Tensor uniform_R = at::empty({50}, at::kDouble);
  for (int64_t r = 0; r < 50; ++r) {
    rows.push_back({UnitInterval(DeriveSeed(1, static_cast<uint64_t>(r))), 0, nullptr});
    uniform_R[r] = rows.back().uniform;
  }
  const at::Tensor log_probs_RV = at::log_softmax(logits_RV / 0.7, -1);
  const at::Tensor tokens_R = SampleFromUniform(log_probs_RV, uniform_R.to(GetParam()));
  const Choices choices = Sampler({.temperature = 0.7}, {}, 97, GetParam()).Choose(logits_RV, rows);
  for (int64_t r = 0; r < 50; ++r) {
    EXPECT_EQ(choices.tokens[static_cast<size_t>(r)], tokens_R[r].item<int64_t>());
    EXPECT_NEAR(choices.log_probs[static_cast<size_t>(r)], log_probs_RV[r][tokens_R[r]].item<float>(), 1e-6);
  }
}

TEST_P(SamplerTest, KeepsTheNucleusOfALargeVocabulary) {
  std::vector<Numbers> logits = RandomLogits(2, 3000, 3);  // of these, most tokens are in it,
  for (double& logit : logits[1]) logit *= 8;              // and of these, few
  const std::vector<Sampler::Row> rows(2, {0.5, 0, nullptr});
  for (const double top_p : {0.05, 0.8}) {
    const SamplingParams params{.top_p = top_p};
    const at::Tensor together_RV = Sampler(params, {}, 3000, GetParam()).FilteredLogProbs(LogitsOf(logits), rows);
    for (size_t r = 0; r < 2; ++r) {
      ExpectShares(Distribution(logits[r], params), PlainDistribution(logits[r], params, {}, {}), "nucleus");
      const at::Tensor alone_RV =
          Sampler(params, {}, 3000, GetParam()).FilteredLogProbs(LogitsOf({logits[r]}), {rows.data(), 1});
      EXPECT_TRUE(at::equal(alone_RV[0], together_RV[static_cast<int64_t>(r)]));
    }
  }
}

TEST_P(SamplerTest, ShowsLogitsThatAreNotFinite) {
  const TokenCounts counts;
  const std::vector<Sampler::Row> rows(3, {0.5, 0, &counts});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor logits_RV = LogitsOf({{1, 2, 3}, {1, nan, 3}, {1, -kOut, 3}});  // the last: infinite
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 2, .top_log_probs = 2},
        SamplingParams{.top_p = 0.5, .repetition_penalty = 2, .filtered_log_probs = true}}) {
    const Choices choices = Sampler(params, {}, 3, GetParam()).Choose(logits_RV, rows);
    EXPECT_TRUE(std::isfinite(choices.log_probs[0]));
    EXPECT_FALSE(std::isfinite(choices.log_probs[1]));
    EXPECT_FALSE(std::isfinite(choices.log_probs[2]));
  }
  const SamplingParams huge{.temperature = 1e-3, .logit_bias = {{0, 3e38}}};
  EXPECT_FALSE(
      std::isfinite(Sampler(huge, {}, 3, GetParam()).Choose(LogitsOf({{1, 2, 3}}), {&rows[0], 1}).log_probs[0]));
}

TEST(SamplerOnTheCpu, RecordsTheLogProbabilitiesThatTrainingComputes) {
  const int64_t rows = 5, vocab = 70;
  const at::Tensor logits_RV =
      at::normal(0.0, 3.0, {rows, vocab}, at::make_generator<at::CPUGeneratorImpl>(1), at::kFloat);
  SamplingParams filtered{.temperature = 0.7};
  filtered.top_k = 4;
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0.7}, filtered, SamplingParams{.temperature = 0}}) {
    const Sampler sampler(params, {}, vocab, at::kCPU);
    const std::vector<Sampler::Row> all(static_cast<size_t>(rows), {0.4, 0, nullptr});
    const Choices together = sampler.Choose(logits_RV, all);
    const at::Tensor expected = kernels::TokenLogProbs(logits_RV, at::tensor(together.tokens, at::kLong),
                                                       params.temperature == 0 ? 1.0 : params.temperature)
                                    .log_probs;
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = static_cast<size_t>(r);
      EXPECT_EQ(together.log_probs[row], expected[r].item<float>());
      const Choices alone = sampler.Choose(logits_RV.narrow(0, r, 1), std::span(all).first(1));
      EXPECT_EQ(alone.tokens[0], together.tokens[row]);
      EXPECT_EQ(alone.log_probs[0], together.log_probs[row]);
    }
  }
}

// Each row has tokens that are equally likely, and one without a probability.
at::Tensor LogitsWithTies(at::ScalarType type) {
  at::Tensor logits_RV = (at::arange(60, at::kFloat) * 7 % 11).view({4, 15}).to(type);
  logits_RV.select(1, 6).fill_(-std::numeric_limits<float>::infinity());
  return logits_RV;
}

TEST(ScoreTokens, GivesTheSameByKernelsAndByLibtorch) {
  const at::Tensor tokens_R = at::tensor({0, 14, 7, 3}, at::kLong);
  for (const int64_t top : {0, 1, 4, 15}) {
    const auto by_kernels = ScoreTokens(LogitsWithTies(at::kFloat), tokens_R, top);
    const auto by_libtorch = ScoreTokens(LogitsWithTies(at::kDouble), tokens_R, top);
    ASSERT_EQ(by_kernels.size(), 4u);
    ASSERT_EQ(by_libtorch.size(), 4u);
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_NEAR(by_kernels[r].log_prob, by_libtorch[r].log_prob, 1e-5);
      EXPECT_EQ(by_kernels[r].rank, by_libtorch[r].rank) << r;
      ASSERT_EQ(by_kernels[r].top.size(), static_cast<size_t>(std::min<int64_t>(top, 14)));
      ASSERT_EQ(by_libtorch[r].top.size(), by_kernels[r].top.size());
      for (size_t k = 0; k < by_kernels[r].top.size(); ++k) {
        EXPECT_EQ(by_kernels[r].top[k].token, by_libtorch[r].top[k].token) << r << ", rank " << k + 1;
        EXPECT_NEAR(by_kernels[r].top[k].log_prob, by_libtorch[r].top[k].log_prob, 1e-5);
      }
    }
  }
}

TEST(ScoreTokens, RanksATokenAsItStandsAmongTheLikeliest) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t token : {0, 5, 7, 14}) {
      for (const ScoredToken& scored : ScoreTokens(LogitsWithTies(type), at::full({4}, token, at::kLong), 15)) {
        const TokenLogProb& own = scored.top.at(static_cast<size_t>(scored.rank) - 1);
        EXPECT_EQ(own.token, token);
        EXPECT_EQ(own.log_prob, scored.log_prob);
      }
    }
  }
}

TEST(ScoreTokens, ShowsLogitsThatAreNotFinite) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    at::Tensor logits_RV = LogitsWithTies(type);
    logits_RV[1][2].fill_(std::numeric_limits<double>::quiet_NaN());
    const auto scored = ScoreTokens(logits_RV, at::tensor({6, 0, 0, 0}, at::kLong), 3);
    EXPECT_EQ(scored[0].log_prob, -std::numeric_limits<float>::infinity());
    EXPECT_EQ(scored[0].rank, 15);
    EXPECT_FALSE(std::isfinite(scored[1].log_prob));
    EXPECT_TRUE(std::isfinite(scored[2].log_prob));
  }
}

}  // namespace
}  // namespace tdock::engine
