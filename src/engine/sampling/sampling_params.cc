#include "engine/sampling/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::engine {
namespace {

absl::Status Require(bool right, absl::string_view name, absl::string_view must, double given) {
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", must, ", not ", given));
}

absl::Status RequireCount(bool right, absl::string_view name, absl::string_view must, int64_t given) {
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", must, ", not ", given));
}

// Logits are float32: what is added to them must be finite there.
bool IsFiniteFloat(double x) { return std::abs(x) <= static_cast<double>(std::numeric_limits<float>::max()); }

absl::Status CheckNumbers(const SamplingParams& p) {
  TDOCK_RETURN_IF_ERROR(Require(p.temperature >= 0 && std::isfinite(p.temperature), "temperature",
                                "a number of at least 0", p.temperature));
  TDOCK_RETURN_IF_ERROR(Require(p.top_p > 0 && p.top_p <= 1, "top_p", "a number above 0 and at most 1", p.top_p));
  TDOCK_RETURN_IF_ERROR(Require(p.min_p >= 0 && p.min_p < 1, "min_p", "a number of at least 0 and below 1", p.min_p));
  TDOCK_RETURN_IF_ERROR(Require(p.repetition_penalty > 0 && IsFiniteFloat(p.repetition_penalty), "repetition_penalty",
                                "a finite number above 0", p.repetition_penalty));
  TDOCK_RETURN_IF_ERROR(
      Require(IsFiniteFloat(p.presence_penalty), "presence_penalty", "a finite number", p.presence_penalty));
  return Require(IsFiniteFloat(p.frequency_penalty), "frequency_penalty", "a finite number", p.frequency_penalty);
}

absl::Status CheckCounts(const SamplingParams& p, int64_t vocab_size, int64_t least_new_tokens) {
  TDOCK_RETURN_IF_ERROR(RequireCount(p.max_new_tokens >= least_new_tokens, "max_new_tokens",
                                     absl::StrCat("at least ", least_new_tokens), p.max_new_tokens));
  TDOCK_RETURN_IF_ERROR(RequireCount(p.min_new_tokens >= 0 && p.min_new_tokens <= p.max_new_tokens, "min_new_tokens",
                                     absl::StrCat("between 0 and max_new_tokens (", p.max_new_tokens, ")"),
                                     p.min_new_tokens));
  TDOCK_RETURN_IF_ERROR(RequireCount(p.top_k >= 0, "top_k", "at least 1, or 0 for all tokens", p.top_k));
  return RequireCount(p.top_log_probs >= 0 && p.top_log_probs <= vocab_size, "top_log_probs",
                      absl::StrCat("between 0 and the size of the vocabulary (", vocab_size, ")"), p.top_log_probs);
}

absl::Status CheckTokens(const SamplingParams& p, int64_t vocab_size) {
  const auto check = [&](absl::string_view name, int32_t token) {
    if (token >= 0 && token < vocab_size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " has token ", token, ", outside of the vocabulary of ",
                                                   vocab_size, "; ids are 0 to ", vocab_size - 1));
  };
  for (const auto& [token, bias] : p.logit_bias) {
    TDOCK_RETURN_IF_ERROR(check("logit_bias", token));
    TDOCK_RETURN_IF_ERROR(
        Require(IsFiniteFloat(bias), absl::StrCat("logit_bias of token ", token), "a finite number", bias));
  }
  for (const int32_t token : p.allowed_tokens) TDOCK_RETURN_IF_ERROR(check("allowed_tokens", token));
  for (const int32_t token : p.stop_tokens) TDOCK_RETURN_IF_ERROR(check("stop_tokens", token));
  return absl::OkStatus();
}

// Before min_new_tokens, end and stop tokens are not sampled, so that others must be left.
absl::Status CheckSomethingIsLeft(const SamplingParams& p, int64_t vocab_size, std::span<const int32_t> end_tokens) {
  if (p.min_new_tokens == 0) return absl::OkStatus();
  std::set<int32_t> ends(p.stop_tokens.begin(), p.stop_tokens.end());
  for (const int32_t token : end_tokens) {
    if (token >= 0 && token < vocab_size) ends.insert(token);
  }
  const auto is_end = [&](int32_t token) { return ends.contains(token); };
  if (p.allowed_tokens.empty() && std::cmp_less(ends.size(), vocab_size)) return absl::OkStatus();
  if (!std::all_of(p.allowed_tokens.begin(), p.allowed_tokens.end(), is_end)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      p.allowed_tokens.empty() ? "stop_tokens has" : "allowed_tokens has", " no token for the ", p.min_new_tokens,
      " tokens of min_new_tokens",
      p.allowed_tokens.empty() ? ": with the end tokens it is the whole vocabulary" : " but end and stop tokens",
      "; at least one other is needed"));
}

absl::Status CheckStopTexts(const SamplingParams& p) {
  for (const std::string& text : p.stop) {
    if (text.empty()) {
      return absl::InvalidArgumentError("stop has an empty text; each needs at least one character");
    }
    if (FindInvalidUtf8(text)) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop has ", Quoted(text), ", which is not UTF-8, as every text of an answer is"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSamplingParams(const SamplingParams& params, int64_t vocab_size, std::span<const int32_t> end_tokens,
                                 int64_t least_new_tokens) {
  TDOCK_RETURN_IF_ERROR(CheckCounts(params, vocab_size, least_new_tokens));
  TDOCK_RETURN_IF_ERROR(CheckNumbers(params));
  TDOCK_RETURN_IF_ERROR(CheckTokens(params, vocab_size));
  TDOCK_RETURN_IF_ERROR(CheckSomethingIsLeft(params, vocab_size, end_tokens));
  return CheckStopTexts(params);
}

}  // namespace tdock::engine
