// DAPO (Yu et al. 2025, arXiv:2503.14476): GRPO that trains only on prompts whose answers have different rewards, and
// answers more prompts until there are enough of them.
//
//               ┌─────────────────── a round ──────────────────┐
//   feeder ─► rollout ─► reward ─► dynamic_sampling ─┐           partition NAME-sampling
//                                                    ▼
//                            (ref) ─► (old_log_prob) ─► advantage ─► actor         partition NAME
//
// Beside that: ratios are clipped further away above 1 than below, the loss is a mean over tokens, there is no KL to a
// reference model, and reward.overlong_buffer takes reward off answers that are nearly too long.
#include <memory>

#include "trainer/recipes/answers_recipe.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {
namespace {

class DapoRecipe final : public AnswersRecipe {
 public:
  DapoRecipe() : AnswersRecipe("dapo") {
    config_.actor.optim.lr = 1e-6;
    config_.actor.loss.clip_high = 0.28;
    config_.filter_groups.enable = true;
  }
};

}  // namespace

std::unique_ptr<Recipe> MakeDapoRecipe() { return std::make_unique<DapoRecipe>(); }

}  // namespace tdock::trainer
