#include "trainer/recipes/reward_model_section.h"

namespace tdock::trainer {

void BindRewardModel(config::Spec& spec, RewardModelSection& section) {
  spec.String(
      "reward_model.model.path", &section.model.path,
      "Folder of a reward model (recipe rm, or …ForSequenceClassification with one label), whose scores are the "
      "rewards. The rules and programs of `reward` then score only the answers of validations. Empty: they are "
      "the rewards.");
  spec.Choice(
      "reward_model.score", &section.score, {{"last_token", AnswerScore::kLastToken}, {"mean", AnswerScore::kMean}},
      "Its score of an answer: the value at the answer's last token, or the mean of the values over the answer. "
      "It should be as in its training (loss.type).");
  spec.Int("reward_model.micro_batch_size_per_gpu", &section.micro_batch_size_per_gpu,
           "Answers in one forward pass of it; 0: as many as have 1,024 tokens on the CPU, 16,384 on a GPU.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  spec.Unused(
      {"reward_model.score", "reward_model.micro_batch_size_per_gpu"}, [&section] { return !section.used(); },
      "there is no reward model (reward_model.model.path)");
}

}  // namespace tdock::trainer
