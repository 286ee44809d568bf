// What models are trained towards that learn from preferences: pairs of answers to the same prompt, of which one was
// chosen. A pair is a group of two rows, the chosen answer first.
#pragma once

#include <memory>
#include <string>

#include "trainer/algo/preference.h"
#include "trainer/stages/objective.h"

namespace tdock::trainer {

struct DpoObjectiveOptions {
  algo::DpoOptions loss;
  bool average = false;  // compares means of log-probabilities over the tokens of an answer instead of sums
  // + nll_coef · the mean of −log π over the tokens of the chosen answer, which DPO's loss alone may make less likely
  // (Pang et al. 2024, "Iterative reasoning preference optimization", arXiv:2404.19733, eq. 1; TRL's rpo_alpha)
  double nll_coef = 0.0;
};

// algo::ComputeDpoLoss(), a mean over the pairs, with the column ref_log_prob. Figures, means over pairs:
//   train/nll                    of the chosen answer, with nll_coef
//   train/loss, train/accuracy   the chosen answer's implicit reward is the higher one; equal ones count half
//   train/margin                 between both; train/rewards/chosen, train/rewards/rejected
std::shared_ptr<const Objective> MakeDpoObjective(const DpoObjectiveOptions& options);

// Which values of an answer, whose tokens are [prompt, response], are its score.
enum class AnswerScore {
  kLastToken,  // that of the last token that the mask counts
  kMean,       // the mean over the tokens that it counts
};

// The scores of sequences from their values [N]: [S], with gradients. Throws for a sequence in which no token counts.
at::Tensor AnswerScores(const at::Tensor& values, const algo::Tokens& tokens, AnswerScore score);

struct RewardObjectiveOptions {
  enum class Loss {
    kBradleyTerry,  // algo::BradleyTerryLoss() of the scores
    // DeepSpeed-Chat's algo::PairLoss(): of the values of all tokens from kComparedFrom on. The answers of a pair must
    // be padded to the same length with tokens that the mask does not count.
    kEveryToken,
  };
  Loss loss = Loss::kBradleyTerry;
  AnswerScore score = AnswerScore::kLastToken;
  algo::BradleyTerryOptions bradley_terry = {};
  bool margins = false;  // reads kMargin, by which the score of the chosen answer should be higher
};

// The loss of a decoder with a value head. Figures, means over pairs: train/loss; train/accuracy, equal scores count
// half; train/margin, between the scores; train/chosen and train/rejected, the scores.
std::shared_ptr<const Objective> MakeRewardObjective(const RewardObjectiveOptions& options);

// The figures of pairs, under `prefix`: accuracy, where equal scores count half, and `margin`, a name.
void ReportPairs(const std::string& prefix, const char* margin, const at::Tensor& chosen, const at::Tensor& rejected,
                 StepMetrics& metrics);

}  // namespace tdock::trainer
