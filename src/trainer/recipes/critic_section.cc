#include "trainer/recipes/critic_section.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/nearest_values.h"

namespace tdock::trainer {

void BindCritic(config::Spec& spec, CriticSection& critic, const ActorSection& actor, const AlgorithmSection& algorithm,
                const RunConfig& run, const RolloutSection& rollout) {
  spec.String("critic.model.path", &critic.model.path,
              "Folder of the model that the critic begins as: a reward model, or a language model, which gets a fresh "
              "value head. It must have the policy's tokenizer.");
  BindModelOptions(spec, "critic.model.", critic.model);
  BindOptim(spec, "critic.optim", run, critic.optim, &critic.model);
  spec.Int("critic.ppo_mini_batch_size", &critic.ppo_mini_batch_size,
           "Prompts per optimizer step of the critic, each with rollout.n samples; 0: actor.ppo_mini_batch_size.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  BindPass(spec, "critic.ppo_micro_batch_size_per_gpu", "Samples in one pass of the critic",
           "critic.ppo_max_token_len_per_gpu", critic.pass);
  spec.Int("critic.ppo_epochs", &critic.ppo_epochs,
           "How often the critic is trained on each sample in its step; 0: actor.ppo_epochs.")
      .AtLeast(0)
      .AtMost(1000);
  spec.Float("critic.cliprange_value", &critic.loss.clip,
             "How far a value may move from the one before the step; 0: not limited.")
      .AtLeast(0);
  spec.Choice("critic.loss_agg_mode", &critic.loss.reduction.how,
              {{"token-mean", algo::Aggregation::kTokenMean},
               {"seq-mean-token-sum", algo::Aggregation::kSeqMeanTokenSum},
               {"seq-mean-token-mean", algo::Aggregation::kSeqMeanTokenMean}},
              "How the losses of tokens become one number; see actor.loss_agg_mode.");
  spec.Int("trainer.critic_warmup", &critic.warmup, "Steps at the beginning in which only the critic is trained.")
      .AtLeast(0);
  spec.Check({"critic.model.path"}, [&critic]() -> std::vector<std::string> {
    if (!critic.model.path.empty()) return {};
    return {
        "there is no critic: name the folder of a reward model (recipe rm makes one), or of a language model, such "
        "as that of model.path, to begin with a fresh value head"};
  });
  spec.Check({"critic.ppo_mini_batch_size", "data.train_batch_size"}, [&]() -> std::vector<std::string> {
    const int64_t size = critic.ppo_mini_batch_size;
    if (size == 0 || run.data.train_batch_size % size == 0) return {};
    return {absl::StrCat("the mini-batch must divide the batch; the nearest that does is ",
                         config::NearestDivisors(size, run.data.train_batch_size))};
  });
  spec.Check({"critic.ppo_micro_batch_size_per_gpu", "critic.ppo_mini_batch_size", "rollout.n"},
             [&]() -> std::vector<std::string> {
               const int64_t micro = critic.pass.micro_batch_size;
               const int64_t prompts =
                   critic.ppo_mini_batch_size > 0 ? critic.ppo_mini_batch_size : MiniBatchSize(actor, algorithm, run);
               const int64_t samples = prompts * rollout.n;
               if (micro == 0 || samples % micro == 0) return {};
               return {absl::StrCat("the micro-batch must divide the ", samples,
                                    " samples of a mini-batch; the nearest that does is ",
                                    config::NearestDivisors(micro, samples))};
             });
}

}  // namespace tdock::trainer
