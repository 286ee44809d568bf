#include "engine/sampling/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/testing/fails.h"

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
  EXPECT_THAT(Complaint({.temperature = -0.5, .max_new_tokens = 1}),
              Mentions({"temperature", "at least 0", "not -0.5"}));
  EXPECT_THAT(Complaint({.temperature = kNan, .max_new_tokens = 1}),
              Mentions({"temperature", "at least 0", "not nan"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .top_p = 0}), Mentions({"top_p", "above 0", "at most 1", "not 0"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .top_p = 1.5}), Mentions({"top_p", "above 0", "at most 1", "not 1.5"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .min_p = 1}), Mentions({"min_p", "at least 0", "below 1", "not 1"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .min_p = -0.1}),
              Mentions({"min_p", "at least 0", "below 1", "not -0.1"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .repetition_penalty = 0}),
              Mentions({"repetition_penalty", "finite", "above 0", "not 0"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .presence_penalty = kInfinity}),
              Mentions({"presence_penalty", "finite", "not inf"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .frequency_penalty = 1e39}),
              Mentions({"frequency_penalty", "finite", "not 1e+39"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .logit_bias = {{3, -kInfinity}}}),
              Mentions({"logit_bias", "token 3", "finite", "not -inf"}));
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
  EXPECT_THAT(Complaint({}), Mentions({"max_new_tokens", "at least 1", "not 0"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 8, .min_new_tokens = 9}),
              Mentions({"min_new_tokens", "max_new_tokens (8)", "not 9"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 8, .min_new_tokens = -1}),
              Mentions({"min_new_tokens", "between 0", "max_new_tokens (8)", "not -1"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .top_k = -1}), Mentions({"top_k", "at least 1", "or 0", "not -1"}));
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .top_k = 1000}), "");
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .top_log_probs = 30}),
              Mentions({"top_log_probs", "vocabulary (29)", "not 30"}));
}

TEST(SamplingParams, TokensOutsideOfTheVocabularyAreRefused) {
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .logit_bias = {{29, 1}}}),
              Mentions({"logit_bias", "token 29", "vocabulary of 29", "0 to 28"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .allowed_tokens = {1, -2}}),
              Mentions({"allowed_tokens", "token -2", "vocabulary of 29", "0 to 28"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .stop_tokens = {100}}),
              Mentions({"stop_tokens", "token 100", "vocabulary of 29", "0 to 28"}));
}

TEST(SamplingParams, SomeTokenMustBeLeftBeforeMinNewTokens) {
  SamplingParams params{.max_new_tokens = 8, .allowed_tokens = {5, 7}, .min_new_tokens = 2, .stop_tokens = {7}};
  EXPECT_THAT(Complaint(params), Mentions({"allowed_tokens", "2 tokens", "min_new_tokens", "stop tokens"}));
  params.allowed_tokens.push_back(8);
  EXPECT_EQ(Complaint(params), "");
  params.allowed_tokens.clear();
  for (int32_t token = 0; token < 29; ++token) params.stop_tokens.push_back(token);
  EXPECT_THAT(Complaint(params), Mentions({"stop_tokens", "2 tokens", "min_new_tokens", "whole vocabulary"}));
}

TEST(SamplingParams, StopTextsAreCharacters) {
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .stop = {"a", ""}}), Mentions({"stop ", "empty text"}));
  EXPECT_THAT(Complaint({.max_new_tokens = 1, .stop = {"a\xC3"}}), Mentions({"stop ", "\"a\\xc3\"", "UTF-8"}));
  EXPECT_EQ(Complaint({.max_new_tokens = 1, .stop = {"é\n"}}), "");
}

}  // namespace
}  // namespace tdock::engine
