// How the next token is chosen, and where an answer ends.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tdock::engine {

// The defaults change nothing. Steps apply in this order, which is that of `transformers` (_get_logits_processor):
//
//   logits ─► logit_bias, allowed_tokens ─► repetition, frequency, presence penalty ─► min_new_tokens
//          ─► temperature ─► top_k ─► top_p ─► min_p ─► softmax
//
// vLLM's order (vllm/v1/sample/sampler.py) differs in one step: min_p comes before top_k and top_p.
// Sources: top_k: Fan et al. 2018, arXiv:1805.04833. top_p: Holtzman et al. 2019, arXiv:1904.09751. min_p: Nguyen et
// al. 2024, arXiv:2407.01082. repetition_penalty: Keskar et al. 2019, arXiv:1909.05858, which transformers and vLLM
// extend to negative logits.
struct SamplingParams {
  double temperature = 1.0;    // 0: the most likely token, after the first three steps; the others then change nothing
  int64_t max_new_tokens = 0;  // at least 1, unless a request asks for something else than tokens
  uint64_t seed = 0;

  int64_t top_k = 0;   // the k most likely tokens, of equal ones those with lower ids; 0, or beyond the vocabulary: all
  double top_p = 1.0;  // the fewest of the most likely tokens whose probabilities sum to p, equal ones as in top_k
  double min_p = 0.0;  // tokens with at least this share of the highest probability

  // Positive logits of tokens in the prompt or the answer are divided by it, negative ones multiplied.
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;   // subtracted from the logits of tokens in the answer
  double frequency_penalty = 0.0;  // the same, as many times as the answer has the token

  std::map<int32_t, double> logit_bias = {};  // token to what is added to its logit
  std::vector<int32_t> allowed_tokens = {};   // no other is sampled; empty: all are

  int64_t min_new_tokens = 0;             // nothing but the limit of the model ends an answer with fewer
  bool ignore_eos = false;                // the engine's end tokens do not end an answer
  std::vector<int32_t> stop_tokens = {};  // these do
  std::vector<std::string> stop = {};     // and so does the first of these in its text

  int64_t top_log_probs = 0;  // how many of the most likely tokens are recorded at each position
  // The recorded log-probabilities are those of the distribution that is sampled from: after all steps, or, where the
  // temperature is 0, after the first three. Otherwise they are those of the policy at its temperature.
  bool filtered_log_probs = false;

  bool operator==(const SamplingParams&) const = default;
};

// InvalidArgument names the parameter, what it is and what would be right. `end_tokens` are the engine's,
// `least_new_tokens` is the least that max_new_tokens may be.
absl::Status CheckSamplingParams(const SamplingParams& params, int64_t vocab_size, std::span<const int32_t> end_tokens,
                                 int64_t least_new_tokens = 1);

}  // namespace tdock::engine
