// The columns that stages read and write, one row a sample.
//
//   column              type               written by     meaning
//   prompt              ragged int32[*]    the feeder**   tokens
//   initial_prompt      ragged int32[*]    the feeder     with an environment: as the data has it, for the first turn
//   prompt_text         bytes              the feeder
//   truth               bytes              the feeder     the right answer
//   prompt_messages     bytes              the feeder     its turns as JSON, only where a program scores; may be empty
//   data_source         bytes              the feeder     the data set that the sample is from
//   responses           ragged int32[*]    rollout*       tokens, with the end token where it was reached
//   response_mask       ragged uint8[*]    rollout*       1 where the loss counts the token
//   response_text       bytes              rollout        without the end token; other special tokens are spelt out
//   finished            uint8              rollout        the response ended with an end token
//   rollout_log_probs   ragged float32[*]  rollout        of each token, as it was sampled
//   trace               bytes              rollout        with an environment: the turns as JSON, see transcript.h
//   rewards             float32            reward**       before any penalty that the advantage stage adds
//   reward_baselines    float32            baseline       of the likeliest answer to the same prompt
//   ref_log_prob        ragged float32[*]  ref            under the reference model
//   old_log_probs       ragged float32[*]  old_log_prob   under the policy before this step's updates
//   values              ragged float32[*]  values         the critic's, of what comes before each token
//   advantages          ragged float32[*]  advantage      of each token
//   returns             ragged float32[*]  advantage      what the critic should have said; where there is one
//   margin              float32            the feeder     by which a chosen answer is better
//   compared_from       float32            the feeder     the token of a response from which a pair is compared
//
//   ** with an environment: rollout, which writes the prompt as the model was asked, and the environment's rewards.
//   * of recipes that learn from given answers: the feeder. A pair of answers is a group of two rows, the chosen one
//     first.
#pragma once

#include <initializer_list>
#include <vector>

#include "absl/strings/string_view.h"
#include "tdock/rows.h"

namespace tdock::trainer {

inline constexpr char kPrompt[] = "prompt";
inline constexpr char kInitialPrompt[] = "initial_prompt";
inline constexpr char kPromptText[] = "prompt_text";
inline constexpr char kMessages[] = "prompt_messages";
inline constexpr char kTruth[] = "truth";
inline constexpr char kSource[] = "data_source";
inline constexpr char kResponses[] = "responses";
inline constexpr char kResponseMask[] = "response_mask";
inline constexpr char kResponseText[] = "response_text";
inline constexpr char kFinished[] = "finished";
inline constexpr char kRolloutLogProbs[] = "rollout_log_probs";
inline constexpr char kTrace[] = "trace";
inline constexpr char kRewards[] = "rewards";
inline constexpr char kRewardBaselines[] = "reward_baselines";
inline constexpr char kRefLogProb[] = "ref_log_prob";
inline constexpr char kOldLogProbs[] = "old_log_probs";
inline constexpr char kValues[] = "values";
inline constexpr char kAdvantages[] = "advantages";
inline constexpr char kReturns[] = "returns";
inline constexpr char kMargin[] = "margin";
inline constexpr char kComparedFrom[] = "compared_from";

// Whether it is one of the above.
bool IsStageColumn(absl::string_view name);

// The schema of a partition with these columns, each one of the above.
std::vector<ColumnSpec> ColumnsNamed(std::initializer_list<const char*> names);

}  // namespace tdock::trainer
