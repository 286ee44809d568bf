// The stages of GRPO. Columns of its partition, one row a sample:
//
//   column              type               written by   meaning
//   prompt              ragged int32[*]    the feeder   tokens
//   prompt_text         bytes              the feeder
//   truth               bytes              the feeder   the right answer
//   responses           ragged int32[*]    rollout      tokens, with the end token where it was reached
//   response_mask       ragged uint8[*]    rollout      1 where the model wrote the token
//   finished            uint8              rollout      the response ended with the end token
//   rollout_log_probs   ragged float32[*]  rollout      of each token, as it was sampled
//   rewards             float32            reward
//   ref_log_prob        ragged float32[*]  ref          under the reference model
//   old_log_probs       ragged float32[*]  old_log_prob under the policy before this step's updates
//   advantages          ragged float32[*]  advantage    of each token
#pragma once

#include <functional>
#include <memory>

#include "engine/engine.h"
#include "text/tokenizer.h"
#include "trainer/algo/kl.h"
#include "trainer/reward/reward.h"
#include "trainer/stages/optimizer.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

std::vector<ColumnSpec> GrpoColumns();

// Objects that stages share must outlive them.
std::unique_ptr<Stage> MakeRolloutStage(const Policy& policy, const engine::EngineOptions& engine,
                                        const engine::SamplingParams& sampling);

std::unique_ptr<Stage> MakeRewardStage(reward::Reward& reward, const text::Tokenizer& tokenizer);

// Writes the log-probabilities of the response tokens into `column`.
std::unique_ptr<Stage> MakeLogProbStage(const std::string& name, const std::string& column, const Policy& policy,
                                        const ForwardOptions& forward);

std::unique_ptr<Stage> MakeGrpoAdvantageStage();

struct ActorOptions {
  ForwardOptions forward;
  double clip_ratio_low = 0.2;
  double clip_ratio_high = 0.2;
  double kl_loss_coef = 0.0;
  algo::KlEstimator kl_loss_type = algo::KlEstimator::kK3;
  AdamWOptions optimizer;
  double lr = 1e-6;
  LrSchedule schedule;  // in steps of the recipe
  uint64_t seed = 0;    // of the order of samples in mini-batches
};

// One optimizer step per take. Takes rows at random: mini-batches of whole groups have fewer prompts and noisier
// gradients.
std::unique_ptr<Stage> MakeActorStage(Policy& policy, const ActorOptions& options);

// A response as text. Special tokens inside it are spelt out, so that nothing after them can pass for an answer.
absl::StatusOr<std::string> ResponseText(const text::Tokenizer& tokenizer, std::span<const int32_t> response,
                                         bool finished);

}  // namespace tdock::trainer
