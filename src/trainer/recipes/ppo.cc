// PPO: reinforcement learning with a critic, which says of each token what is to be expected from there.
//
//   feeder ─► rollout ─► reward ─► ref ─► (old_log_prob) ─► values ─► advantage ─► critic ─► actor
//
// The defaults are DeepSpeed-Chat's: the KL to the reference is taken off the rewards, scores are clamped to ±5,
// answers of at most one token are left out, and the mini-batches are those of a MiniDataset, in another order in each
// epoch.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/nearest_values.h"
#include "trainer/recipes/answers_recipe.h"
#include "trainer/recipes/critic_section.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/critic_objective.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

class PpoRecipe final : public AnswersRecipe {
 public:
  PpoRecipe() : AnswersRecipe("ppo") {
    config_.rollout.n = 1;
    config_.rollout.min_response_tokens = 2;
    config_.actor.optim.lr = 1e-6;
    config_.algorithm.advantage.estimator = AdvantageEstimator::kGae;
    config_.algorithm.use_kl_in_reward = true;
    config_.algorithm.kl.coef = 0.1;
    config_.algorithm.clip_score = 5;
  }

  void Bind(config::Spec& spec) override {
    AnswersRecipe::Bind(spec);
    BindCritic(spec, critic_, config_.actor, config_.algorithm, config_, config_.rollout);
    spec.Int("algorithm.generation_batches", &config_.algorithm.generation_batches,
             "Parts of a step's prompts whose mini-batches are cut apart from each other, as those of a MiniDataset.")
        .AtLeast(1)
        .AtMost(kMaxBatch);
    spec.Check({"algorithm.generation_batches", "data.train_batch_size"}, [this]() -> std::vector<std::string> {
      const int64_t prompts = config_.data.train_batch_size, parts = config_.algorithm.generation_batches;
      if (prompts % parts == 0) return {};
      return {absl::StrCat("the parts must be equal; the nearest number of them is ",
                           config::NearestDivisors(parts, prompts))};
    });
    spec.Check({"actor.ppo_mini_batch_size", "algorithm.generation_batches", "data.train_batch_size"},
               [this]() -> std::vector<std::string> {
                 const int64_t prompts = GenerationGroups();
                 if (config_.actor.ppo_mini_batch_size <= prompts) return {};
                 return {absl::StrCat("a mini-batch has prompts of one generation batch only, which has ", prompts)};
               });
  }

  std::vector<ModelRole> models() const override {
    std::vector<ModelRole> models = AnswersRecipe::models();
    models.push_back(
        {.name = "critic", .section = &critic_.model, .trained = true, .optim = &critic_.optim, .pass = critic_.pass});
    return models;
  }

 private:
  std::vector<ColumnSpec> MoreColumns() const override { return ColumnsNamed({kValues, kReturns}); }

  void AddBeforeAdvantage(const RunParts& parts, Stages& stages) override {
    stages.push_back(
        MakeValueStage("values", kValues, parts.models.at("critic").policy, parts.forward(1.0, critic_.pass)));
  }

  void AddBeforeActor(const RunParts& parts, Stages& stages) override {
    UpdateOptions update = parts.update(critic_.optim, parts.forward(1.0, critic_.pass), "critic");
    const int64_t prompts = critic_.ppo_mini_batch_size > 0 ? critic_.ppo_mini_batch_size : MiniBatchPrompts();
    update.consumer = update.name = "critic";
    update.saves_weights = true;
    update.mini_batch_size = prompts * config_.rollout.n;
    update.seed = SeedFor(config_, SeedPurpose::kMiniBatches);
    update.epochs = critic_.ppo_epochs > 0 ? critic_.ppo_epochs : config_.actor.ppo_epochs;
    update.generation_groups = GenerationGroups();
    update.publish = [](int64_t) { return absl::OkStatus(); };  // nothing answers with it
    stages.push_back(MakeUpdateStage(parts.models.at("critic").policy, MakeCriticObjective(critic_.loss), update));
  }

  void Adapt(UpdateOptions& actor) const override {
    actor.first_step = critic_.warmup + 1;
    actor.schedule.total_steps -= critic_.warmup;
    actor.generation_groups = GenerationGroups();
  }

  int64_t GenerationGroups() const { return config_.data.train_batch_size / config_.algorithm.generation_batches; }

  CriticSection critic_;
};

}  // namespace

std::unique_ptr<Recipe> MakePpoRecipe() { return std::make_unique<PpoRecipe>(); }

}  // namespace tdock::trainer
