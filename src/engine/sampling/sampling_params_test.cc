#include "engine/sampling/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tdock::engine {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of a vocabulary of 29 with the end tokens 5 and 6.
std::string Complaint(const SamplingParams& params) {
  const int32_t ends[] = {5, 6, -1};
  const absl::Status status = CheckSamplingParams(params, 29, ends);
  EXPECT_EQ(status.code(), status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(SamplingParams, NumbersOutsideOfTheirRangesAreRefused) {
  EXPECT_EQ(Complaint({.temperature = -0.5, .max_new_tokens = 1}),
            "temperature must be a number of at least 0, not -0.5");
  EXPECT_EQ(Complaint({.temperature = kNan, .max_new_tokens = 1}),
            "temperature must be a number of at least 0, not nan");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .top_p = 0}), "top_p must be a number above 0 and at most 1, not 0");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .top_p = 1.5}), "top_p must be a number above 0 and at most 1, not 1.5");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .min_p = 1}), "min_p must be a number of at least 0 and below 1, not 1");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .min_p = -0.1}),
            "min_p must be a number of at least 0 and below 1, not -0.1");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .repetition_penalty = 0}),
            "repetition_penalty must be a finite number above 0, not 0");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .presence_penalty = kInfinity}),
            "presence_penalty must be a finite number, not inf");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .frequency_penalty = 1e39}),
            "frequency_penalty must be a finite number, not 1e+39");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .logit_bias = {{3, -kInfinity}}}),
            "logit_bias of token 3 must be a finite number, not -inf");
}

TEST(SamplingParams, NoParameterMayBeNotANumberOrInfinite) {
  for (double SamplingParams::*number :
       {&SamplingParams::temperature, &SamplingParams::top_p, &SamplingParams::min_p,
        &SamplingParams::repetition_penalty, &SamplingParams::presence_penalty, &SamplingParams::frequency_penalty}) {
    for (const double odd : {kNan, kInfinity, -kInfinity}) {
      SamplingParams params{.max_new_tokens = 1};
      params.*number = odd;
      EXPECT_NE(Complaint(params), "") << odd;
    }
  }
}

TEST(SamplingParams, CountsOutsideOfTheirRangesAreRefused) {
  EXPECT_EQ(Complaint({}), "max_new_tokens must be at least 1, not 0");
  EXPECT_EQ(Complaint({.max_new_tokens = 8, .min_new_tokens = 9}),
            "min_new_tokens must be between 0 and max_new_tokens (8), not 9");
  EXPECT_EQ(Complaint({.max_new_tokens = 8, .min_new_tokens = -1}),
            "min_new_tokens must be between 0 and max_new_tokens (8), not -1");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .top_k = -1}), "top_k must be at least 1, or 0 for all tokens, not -1");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .top_k = 1000}), "");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .top_log_probs = 30}),
            "top_log_probs must be between 0 and the size of the vocabulary (29), not 30");
}

TEST(SamplingParams, TokensOutsideOfTheVocabularyAreRefused) {
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .logit_bias = {{29, 1}}}),
            "logit_bias has token 29, outside of the vocabulary of 29; ids are 0 to 28");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .allowed_tokens = {1, -2}}),
            "allowed_tokens has token -2, outside of the vocabulary of 29; ids are 0 to 28");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .stop_tokens = {100}}),
            "stop_tokens has token 100, outside of the vocabulary of 29; ids are 0 to 28");
}

TEST(SamplingParams, SomeTokenMustBeLeftBeforeMinNewTokens) {
  SamplingParams params{.max_new_tokens = 8, .allowed_tokens = {5, 7}, .min_new_tokens = 2, .stop_tokens = {7}};
  EXPECT_EQ(
      Complaint(params),
      "allowed_tokens has no token for the 2 tokens of min_new_tokens but end and stop tokens; at least one other "
      "is needed");
  params.allowed_tokens.push_back(8);
  EXPECT_EQ(Complaint(params), "");
  params.allowed_tokens.clear();
  for (int32_t token = 0; token < 29; ++token) params.stop_tokens.push_back(token);
  EXPECT_EQ(Complaint(params),
            "stop_tokens has no token for the 2 tokens of min_new_tokens: with the end tokens it is the whole "
            "vocabulary; at least one other is needed");
}

TEST(SamplingParams, StopTextsAreCharacters) {
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .stop = {"a", ""}}),
            "stop has an empty text; each needs at least one character");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .stop = {"a\xC3"}}),
            "stop has \"a\\xc3\", which is not UTF-8, as every text of an answer is");
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .stop = {"é\n"}}), "");
}

}  // namespace
}  // namespace tdock::engine
