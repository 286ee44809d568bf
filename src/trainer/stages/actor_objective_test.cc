#include "trainer/stages/actor_objective.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>

#include "core/base/testing/fails.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

std::string RefusalOf(const algo::ActorLossOptions& options) {
  try {
    MakeActorObjective({.loss = options});
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

TEST(ActorObjective, RefusesWhatItCouldNeverRunWith) {
  EXPECT_EQ(RefusalOf({}), "");
  EXPECT_THAT(RefusalOf({.dual_clip = 0.5}), Mentions({"dual_clip", "not 0.5"}));
  EXPECT_THAT(RefusalOf({.kind = algo::PolicyLossKind::kGspo}), Mentions({"GSPO", "seq-mean-token-mean"}));
}

TEST(ActorObjective, ReadsTheReferenceOnlyForAKl) {
  EXPECT_THAT(MakeActorObjective({})->columns(), ElementsAre(kOldLogProbs, kAdvantages, kRolloutLogProbs));
  EXPECT_THAT(MakeActorObjective({.loss = {.kl_coef = 0.1}})->columns(),
              ElementsAre(kOldLogProbs, kAdvantages, kRolloutLogProbs, kRefLogProb));
}

// Two samples of three tokens, the second without its last.
TokenBatch TwoSamples() {
  TokenBatch batch;
  batch.tokens = algo::MakeTokens(at::tensor({1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 0.0f}), std::vector<int64_t>{3, 3});
  batch.counts = algo::CountsOf(batch.tokens);
  batch.columns[kOldLogProbs].values = at::tensor({-1.0f, -2.0f, -3.0f, -1.5f, -2.5f, -9.0f});
  batch.columns[kRolloutLogProbs].values = batch.columns[kOldLogProbs].values;
  batch.columns[kAdvantages].values = at::tensor({1.0f, 1.0f, 1.0f, -1.0f, -1.0f, 5.0f});
  return batch;
}

TEST(ActorObjective, SelectsTokensOfTheWholeMiniBatchBySeed) {
  for (const auto kind : {algo::PolicyLossKind::kClipCov, algo::PolicyLossKind::kKlCov}) {
    const auto objective = MakeActorObjective(
        {.loss = {.kind = kind}, .clip_cov = {.low = -10, .high = 10, .fraction = 0.4}, .kl_cov_fraction = 0.4});
    std::set<std::string> choices;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      TokenBatch batch = TwoSamples();
      StepMetrics metrics;
      objective->Prepare(batch, seed, metrics);
      const at::Tensor selected = batch.columns.at("selected").values;
      EXPECT_EQ(selected.sum().item<int64_t>(), 2);  // of five that count
      EXPECT_FALSE(selected[5].item<bool>());
      std::string choice;
      for (int64_t i = 0; i < 6; ++i) choice += selected[i].item<bool>() ? '1' : '0';
      choices.insert(choice);
    }
    const bool random = kind == algo::PolicyLossKind::kClipCov;
    EXPECT_EQ(choices.size() > 1, random);
  }
}

TEST(ActorObjective, ATokenThatClipCovSelectsHasNoGradient) {
  const auto objective = MakeActorObjective(
      {.loss = {.kind = algo::PolicyLossKind::kClipCov}, .clip_cov = {.low = -10, .high = 10, .fraction = 0.4}});
  TokenBatch batch = TwoSamples();
  StepMetrics metrics;
  objective->Prepare(batch, 3, metrics);
  batch.log_probs = batch.columns.at(kOldLogProbs).values.clone().requires_grad_(true);
  batch.entropy = at::ones({6});
  objective->Loss(batch, metrics).backward();
  const at::Tensor selected = batch.columns.at("selected").values;
  EXPECT_TRUE(at::equal(batch.log_probs.grad() == 0, selected.logical_or(batch.tokens.mask == 0)));
}

}  // namespace
}  // namespace tdock::trainer
