// What a model is worth on data that it is not trained on.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/encode.h"
#include "engine/engine.h"
#include "text/tokenizer.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/model_options.h"
#include "trainer/reward/reward.h"
#include "trainer/run_log/run_directory.h"
#include "trainer/stages/episode_player.h"
#include "trainer/stages/model_scores.h"
#include "trainer/stages/objective.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// Used by one thread at a time.
class Evaluation {
 public:
  virtual ~Evaluation() = default;
  // With the policy's weights as they are. Adds its metrics, and the answers to record. May throw.
  virtual absl::Status Run(StepMetrics& metrics, std::vector<Answer>& answers) = 0;
};

// Where the samples are from 2 to 32 data sets, each has metrics of its own, in whose names all but letters, digits and
// "_-./" of SOURCE is "_".

// val/loss, the mean of −log p over the tokens that the loss counts; val/perplexity = e^loss; val/loss/SOURCE. What it
// is given must outlive it.
std::unique_ptr<Evaluation> MakeLossEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                                               const ForwardOptions& forward);

// The scores of both answers of each pair, or their implicit rewards, [2P], the chosen one first. Also gives `batch`
// the objective's inputs from the policy and a reference. All float64, on the CPU. May throw.
using ScorePairs = std::function<at::Tensor(std::span<const Sequence> answers, TokenBatch& batch)>;

// Of pairs of answers: val/accuracy, the share of pairs whose chosen answer gets more, equal ones count half;
// val/margin/mean, between both, /max and /min; val/chosen/mean and val/rejected/mean; val/pair_loss, the loss
// of the objective; val/accuracy/SOURCE and val/margin/SOURCE. The pairs are fed to it with these columns.
std::unique_ptr<Evaluation> MakePairEvaluation(std::span<const data::EncodedSample> samples, const PairColumns& columns,
                                               std::shared_ptr<const Objective> objective, ScorePairs score);

struct AnswerEvaluationOptions {
  engine::EngineOptions engine;
  int64_t max_new_tokens = 0;
  int64_t recorded = 0;                // answers to the first prompts
  std::vector<std::string> kept = {};  // the names of the samples' further texts
  std::function<absl::Status()> check_stop = [] { return absl::OkStatus(); };  // while answers are scored
};

// Answers each prompt with the most likely tokens and scores the answers: val/reward/mean; val/accuracy, the share
// whose reward is at least 1; val/response_length/mean; and where the samples are from several data sets,
// val/reward/SOURCE and val/accuracy/SOURCE. Samples with answers are asked for their last reply. What it is given must
// outlive it.
std::unique_ptr<Evaluation> MakeAnswerEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                                                 const text::Tokenizer& tokenizer, reward::Reward& reward,
                                                 const AnswerEvaluationOptions& options);

// The same of episodes with an environment, whose rewards are added up; val/turns/mean in addition. `episodes` are
// played with the most likely tokens; those that fail are left out, count as 0 or end the evaluation, as `on_error`
// says.
std::unique_ptr<Evaluation> MakeEpisodeEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                                                  std::unique_ptr<environment::Environment> environment,
                                                  const EpisodeOptions& episodes, environment::OnError on_error,
                                                  const AnswerEvaluationOptions& options);

// Answers each prompt with the most likely tokens of the policy and of `reference`, the policy before training, and has
// both scored by a reward model: val/win_rate, the share of prompts at which the policy's answer scores more, equal
// scores count half; val/score/mean, the policy's scores, /max and /min; val/reference_score/mean; where the samples
// are from several data sets, val/win_rate/SOURCE and val/score/SOURCE. The reference answers once. What it is given
// must outlive it.
std::unique_ptr<Evaluation> MakeWinRateEvaluation(const Policy& policy, const Policy& reference,
                                                  std::span<const data::EncodedSample> samples,
                                                  const text::Tokenizer& tokenizer, const ModelScores& scores,
                                                  const AnswerEvaluationOptions& options);

// What an evaluation says of a model that is loaded from `folder`, for use, instead of the policy, which is back in its
// place afterwards. With the same weights that is `known`, what it has said of the policy. Errors of
// model::LoadCheckpoint(). May throw.
absl::StatusOr<Metrics> EvaluateFolder(Env& env, const std::string& folder, const ModelOptions& options,
                                       std::span<const std::unique_ptr<Evaluation>> evaluations, const Metrics& known,
                                       Policy& policy);

}  // namespace tdock::trainer
