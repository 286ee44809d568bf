// GRPO and its relatives: reinforcement learning with advantages relative to the other answers to the same prompt.
//
//   feeder ─► rollout ─► reward ─► (baseline) ─► (ref) ─► (old_log_prob) ─► advantage ─► actor
#include <memory>

#include "trainer/recipes/answers_recipe.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {
namespace {

class GrpoRecipe final : public AnswersRecipe {
 public:
  GrpoRecipe() : AnswersRecipe("grpo") { config_.actor.optim.lr = 1e-6; }
};

}  // namespace

std::unique_ptr<Recipe> MakeGrpoRecipe() { return std::make_unique<GrpoRecipe>(); }

}  // namespace tdock::trainer
