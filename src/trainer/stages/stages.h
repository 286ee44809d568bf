// The stages of recipes that learn from answers of their own. columns.h has the columns between them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "text/tokenizer.h"
#include "trainer/algo/overlong.h"
#include "trainer/reward/reward.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/weight_feed.h"

namespace tdock::trainer {

// Objects that stages share must outlive them.

// How long a prompt and its answer may be together.
struct LengthLimits {
  int64_t max_model_len = 0;          // tokens; 0: as many as the model has positions
  bool leaves_last_position = false;  // one less

  // The limit of an answer: min(max_response_length, max_model_len - prompt_tokens). InvalidArgument if it is below 1.
  absl::StatusOr<int64_t> MaxNewTokens(int64_t max_response_length, int64_t prompt_tokens,
                                       int64_t context_length) const;
};

// What a rollout puts, and when.
struct RolloutPuts {
  std::vector<std::string> log_probs = {kRolloutLogProbs};  // the columns that the log-probabilities of tokens go into
  absl::Duration interval = absl::Milliseconds(250);        // groups that are there within it are put together
  // Where the policy trains meanwhile: the weights to answer with; null: those of the policy. Newer ones are used from
  // the next answers on, or if `in_flight`, from the next token on. Must outlive the stage.
  const WeightFeed* weights = nullptr;
  bool in_flight = false;
  // With those, how often the stage looks whether it can take more while it answers, where it may: see
  // StageContext::more. Without `in_flight` it takes no more once there are newer weights.
  absl::Duration between_takes = absl::Milliseconds(10);
  int64_t max_rows = engine::EngineOptions().max_rows;  // and it takes no more while so many answers are in progress
  // Partial rollouts: the consumer is of rows then, and an answer that has got so many more tokens and is not at its
  // end is put back as it is, to be gone on with when it is taken again, the oldest first. 0: answers are not
  // interrupted.
  int64_t token_budget = 0;
  // Groups with an answer of fewer tokens, its end token included, are dropped; rollout/dropped_groups counts them.
  int64_t min_tokens = 0;
};

// Consumer "rollout", of groups. The random numbers of a response follow from the sampling's seed, its group, its
// number in the group and how often the group was sent back. Groups are put as soon as all of their responses are
// there. A prompt that leaves less room than the sampling's min_new_tokens is answered with as many tokens as fit.
//
// Figures of partial rollouts: rollout/unfinished, answers that were put back, and rollout/continued, those that were
// gone on with.
std::unique_ptr<Stage> MakeRolloutStage(const Policy& policy, const text::Tokenizer& tokenizer,
                                        std::unique_ptr<AnswerEngine> engine, const engine::SamplingParams& sampling,
                                        const LengthLimits& limits = {}, const RolloutPuts& puts = {});

// Consumer "reward", of rows. Each answer is given the columns `more` of its row, which are texts, kMessages as its
// messages. Rows are put as they are scored, those that follow one another shortly together.
std::unique_ptr<Stage> MakeRewardStage(reward::Reward& reward, const std::vector<std::string>& more = {});

// What a row asks of a reward, its answer without a response: prompt_text, truth, data_source, and the texts `more`, of
// which kMessages are its messages.
absl::StatusOr<reward::Answer> QuestionOfRow(const Rows& rows, size_t row, const std::vector<std::string>& more);

// The likeliest answer to a prompt, as text and as tokens.
struct GreedyAnswer {
  reward::Answer text;
  std::vector<int32_t> prompt, response;
};
// The rewards of answers, one for each; NaN: it has none, and the run goes on without its prompt. Called by the thread
// that runs the stage. May throw.
using ScoreGreedy =
    std::function<absl::StatusOr<std::vector<float>>(const std::vector<GreedyAnswer>& answers, StageContext& context)>;
// By a reward, which must outlive the result.
ScoreGreedy ScoredBy(reward::Reward& reward);

struct BaselineOptions {
  int64_t max_new_tokens = 0;
  LengthLimits limits = {};
  std::vector<std::string> more = {};  // as for MakeRewardStage()
  // As for the advantage stage: what becomes of the reward before it is compared with.
  double score_clip = std::numeric_limits<double>::infinity();
  std::optional<algo::OverlongOptions> overlong = {};
};

// Consumer "baseline", of groups: what ReMax compares with (Li et al. 2023, arXiv:2310.10505). Answers each prompt once
// with the likeliest tokens and writes the reward of that answer into reward_baselines of all rows of the prompt. It
// draws no random numbers, so a stage that is stopped begins again. Figure: reward_baseline/mean, over prompts.
std::unique_ptr<Stage> MakeBaselineStage(const Policy& policy, const text::Tokenizer& tokenizer,
                                         std::unique_ptr<AnswerEngine> engine, const ScoreGreedy& score,
                                         const BaselineOptions& options);

// Consumer `name`, of groups. Writes the log-probabilities of the response tokens into `column`.
std::unique_ptr<Stage> MakeLogProbStage(const std::string& name, const std::string& column, const Policy& policy,
                                        const ForwardOptions& forward);

// Consumer `name`, of rows. Writes the values of a critic before each response token into `column`.
std::unique_ptr<Stage> MakeValueStage(const std::string& name, const std::string& column, const Policy& critic,
                                      const ForwardOptions& forward);

// A response as text. Special tokens inside it are spelt out, so that nothing after them can pass for an answer.
absl::StatusOr<std::string> ResponseText(const text::Tokenizer& tokenizer, std::span<const int32_t> response,
                                         bool finished);

}  // namespace tdock::trainer
