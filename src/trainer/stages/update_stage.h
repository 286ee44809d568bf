// The stage that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tdock/dock.h"
#include "trainer/algo/lr_schedule.h"
#include "trainer/stages/loss_scale.h"
#include "trainer/stages/objective.h"
#include "trainer/stages/optimizer.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/training_ranks.h"

namespace tdock::trainer {

// A given answer: what the loss counts of `response` is where `mask` is not 0.
struct GivenAnswer {
  std::vector<int32_t> prompt, response;
  std::vector<uint8_t> mask;  // as long as the response
};

// Where such answers come from, batch by batch. Used by one thread at a time.
class AnswerSource : public Stateful {
 public:
  virtual absl::StatusOr<std::vector<GivenAnswer>> Next() = 0;
};

struct UpdateOptions {
  ForwardOptions forward;
  AdamWOptions optimizer;
  double lr = 1e-6;
  double lora_lr = 0;           // of adapters; 0: as lr
  double head_lr = 0;           // of a value head, or of a token head that is not the embedding; 0: as lr
  algo::LrSchedule schedule;    // in steps of the recipe from the first that trains
  int64_t mini_batch_size = 0;  // samples of one optimizer step; 0: all that are taken
  uint64_t seed = 0;   // of which samples share a mini-batch, and of what is dropped: see Decoder::SetDropout()
  int64_t epochs = 1;  // how often each sample is trained on, in other mini-batches each time
  // Where the mean of old − new log-probabilities of a mini-batch (figure actor/ppo_kl) is above this, its gradients
  // are dropped and nothing more is trained on in this step, which NAME/early_stops counts. 0: never.
  double target_kl = 0;
  std::string consumer = "actor";  // of the stage, and of the metrics perf/flops/CONSUMER
  // Before this step nothing is trained: rows are completed.
  int64_t first_step = 1;
  // Mini-batches as DeepSpeed-Chat's MiniDataset makes them (data/mini_dataset.h): so many prompt groups after the
  // other of those that the stage is given are cut in their order, and each epoch after the first takes all
  // mini-batches of the step in another order. 0: mini-batches are of any samples of the step, other ones in each
  // epoch.
  int64_t generation_groups = 0;
  // Of a model beside the policy, as a critic: its weights are a part of the stage's state, and the tokens of a step,
  // perf/total_num_tokens, are the policy's to count.
  bool saves_weights = false;
  std::string name = "actor";  // of the metrics NAME/grad_norm, NAME/lr (and NAME/lora_lr, NAME/head_lr),
                               // NAME/optimizer_steps, NAME/skipped_steps
  // Gradients that are not finite skip an optimizer step, which NAME/skipped_steps counts. After this many in a row the
  // stage fails: nothing is learned any more.
  int64_t max_skipped_steps = 3;
  // Of policies that compute in float16. Gradients that are not finite halve the scale and skip the step: these steps
  // are not among the skipped ones above, but NAME/overflow_steps counts them, and NAME/loss_scale has the scale. At
  // the smallest scale they end the run.
  LossScaleOptions loss_scale = {};
  // Supervised learning beside the objective ("ptx", Ouyang et al. 2022, "Training language models to follow
  // instructions", eq. 2): each optimizer step adds ptx_coef times the cross-entropy of the answers that `ptx` gives,
  // at temperature 1, in passes of their own. Figures NAME/ptx_loss and NAME/ptx_tokens. 0: none.
  double ptx_coef = 0;
  std::shared_ptr<AnswerSource> ptx = nullptr;
  // Keeps the average of the weights with this decay; 0: none.
  double ema_decay = 0;
  std::string optim_key = "actor.optim";  // of the section that configures it, for messages
  // The ranks that train the policy together: each runs a stage of its own on the same rows, at the same time, and has
  // the same figures.
  TrainingRanks ranks = {};
  // Called after each optimizer step with the policy's new version.
  std::function<absl::Status(int64_t)> publish = [](int64_t) { return absl::OkStatus(); };
};

// A consumer of rows, or of groups where the objective's samples belong together. One optimizer step per mini-batch of
// what it takes. Which samples share a mini-batch follows from the seed, their groups and their numbers in the group:
// single samples, not whole groups, so that a mini-batch has samples of many prompts and its gradient less noise.
// `policy` must outlive the stage.
std::unique_ptr<Stage> MakeUpdateStage(Policy& policy, std::shared_ptr<const Objective> objective,
                                       const UpdateOptions& options);

}  // namespace tdock::trainer
