// The tokens of a batch: which of them count, and which sequences they make up.
//
// Tokens are a flat vector [N]: the responses of all samples, one after another, without padding. What counts is said
// by a mask and by nothing else: no function of this module looks at token numbers, so a padding token that equals the
// end token changes nothing. Masked tokens (tool output) may hold anything, infinities included; they contribute
// neither to a value nor to a gradient.
//
// Errors of this module are thrown as c10::Error and name the tensor and the token or sample.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tdock::algo {

struct Tokens {
  at::Tensor mask;           // [N], of any dtype: 0 where the token must not count
  at::Tensor sequence = {};  // int64 [N]: the sequence of each token, 0 … sequences − 1, ascending; undefined: not
                             // known, which functions that need it refuse
  int64_t sequences = 0;
};

// Tokens of sequences with these lengths. A length of 0 is a sequence without tokens.
Tokens MakeTokens(const at::Tensor& mask, std::span<const int64_t> lengths);

// `values` [N] where the mask is not 0, and 0 with a gradient of exactly 0 elsewhere.
at::Tensor Unmasked(const at::Tensor& values, const at::Tensor& mask);

// Per sequence, [S]: the sum or the mean of the tokens that count, in the dtype of `values`, added up in float64.
// Differentiable. A sequence in which none counts has 0.
at::Tensor SumBySequence(const at::Tensor& values, const Tokens& tokens);
at::Tensor MeanBySequence(const at::Tensor& values, const Tokens& tokens);

// How many tokens of each sequence count, float64 [S].
at::Tensor CountBySequence(const Tokens& tokens);

// To each token the value of its sequence: [S] → [N]. Differentiable.
at::Tensor Spread(const at::Tensor& per_sequence, const Tokens& tokens);

// The place of the last token of each sequence that counts, int64 [S]. Throws for a sequence in which none does.
at::Tensor LastCounted(const Tokens& tokens);

// Throws unless `values` is floating-point [N] and finite wherever the mask counts. `name` is that of the message.
void CheckTokens(const char* name, const at::Tensor& values, const Tokens& tokens);

// (x − μ) / √(σ² + 1e-8) over the tokens that count, with the unbiased variance, and 0 elsewhere (verl's
// `masked_whiten`). Equal values, and a single one, give exactly 0. In the dtype of `values`, computed in float64.
at::Tensor Whiten(const at::Tensor& values, const Tokens& tokens);

}  // namespace tdock::algo
