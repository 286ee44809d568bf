// Losses over pairs of answers to the same prompt, of which one was chosen and one rejected.
//
// Everything is a vector over the pairs, [P]. A loss per pair becomes one number by PairMean(), whose normaliser is the
// number of pairs of the whole mini-batch, so that it does not matter how that was cut.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/tokens.h"

namespace tdock::algo {

// The part's share of the mean: Σ / pairs. Throws unless `pairs` is positive.
at::Tensor PairMean(const at::Tensor& per_pair, double pairs);

// With Δ = (chosen − ref_chosen) − (rejected − ref_rejected) and ε = label_smoothing, the chance that a label is wrong:
enum class DpoKind {
  // −(1 − ε)·log σ(βΔ) − ε·log σ(−βΔ) (Rafailov et al. 2023, "Direct preference optimization", eq. 7; Mitchell 2023,
  // "A note on DPO with noisy preferences")
  kSigmoid,
  // (−(1 − ε)·log σ(βΔ) + ε·log σ(−βΔ)) / (1 − 2ε) (Chowdhury et al. 2024, "Provably robust DPO", arXiv:2403.00409), ε
  // < ½
  kRobust,
  // (Δ − 1/(2β))² (Azar et al. 2023, "A general theoretical paradigm", eq. 17). Takes no label smoothing. With sums of
  // log-probabilities it is the paper's; with means, TRL's.
  kIpo,
};

struct DpoOptions {
  double beta = 0.1;
  double label_smoothing = 0.0;
  DpoKind kind = DpoKind::kSigmoid;
};

// Log-probabilities of answers, sums or means over the tokens that count (SumBySequence(), MeanBySequence()), [P].
// Those of the reference are constants, computed before or read from a column.
struct DpoInputs {
  at::Tensor chosen, rejected;          // under the policy, with gradients
  at::Tensor ref_chosen, ref_rejected;  // under the reference
};

struct DpoLoss {
  at::Tensor per_pair;                          // [P], with gradients
  at::Tensor chosen_rewards, rejected_rewards;  // [P], constants: β·(policy − reference)
};

// Throws for inputs that are missing, do not fit or are not finite, naming the pair, and for options out of range.
DpoLoss ComputeDpoLoss(const DpoInputs& inputs, const DpoOptions& options = {});

struct BradleyTerryOptions {
  double centre_coef = 0.0;  // + centre_coef·(chosen + rejected)² keeps scores around 0 (Eisenstein et al. 2023)
};

// −log σ(chosen − rejected − margin) (Ouyang et al. 2022, "Training language models to follow instructions", eq. 1; the
// margin: Touvron et al. 2023, "Llama 2", eq. 2). chosen, rejected: scores [P], with gradients. margins: [P], or
// undefined for none. Returns [P]. Throws as ComputeDpoLoss().
at::Tensor BradleyTerryLoss(const at::Tensor& chosen, const at::Tensor& rejected, const at::Tensor& margins = {},
                            const BradleyTerryOptions& options = {});

// The score of each sequence is the value of its last token that counts, [S], differentiable. Throws for a sequence in
// which none does. (For the mean over an answer: MeanBySequence().)
at::Tensor LastTokenScores(const at::Tensor& values, const Tokens& tokens);

}  // namespace tdock::algo
