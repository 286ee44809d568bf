// Whether the recipe learns, and whether it is the reward that it learns from.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "core/base/rng.h"
#include "core/base/status.h"
#include "trainer/recipes/grpo.h"

namespace tdock::trainer {
namespace {

GrpoConfig ExampleConfig(const std::vector<std::string>& overrides) {
  GrpoConfig config;
  config::Spec spec;
  Bind(spec, config);
  const absl::Status loaded = config::LoadFile(Env::Real(), spec, "examples/arithmetic/grpo.yaml", overrides);
  EXPECT_TRUE(loaded.ok()) << loaded;
  std::string path = testing::TempDir() + "/learning_test_XXXXXX";
  config.trainer.run_dir = ::mkdtemp(path.data());
  return config;
}

absl::StatusOr<GrpoResult> Train(const GrpoConfig& config, reward::Reward* reward = nullptr) {
  Progress progress(ProgressOutput::StandardError(), Clock::Real());
  TDOCK_ASSIGN_OR_RETURN(const auto run, PrepareGrpo(config, {Env::Real(), Clock::Real(), progress}, reward));
  return run->Run();
}

TEST(Learning, TheExampleLearnsAdditionIn120Steps) {
  const auto result = Train(ExampleConfig({"seed=1", "trainer.total_training_steps=120"}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->warmup_accuracy, 0.15);
  EXPECT_LE(result->warmup_accuracy, 0.50);
  EXPECT_GE(result->final_accuracy, 0.80);
}

// Gives each sample the reward of another one of the batch.
class PermutedReward final : public reward::Reward {
 public:
  absl::StatusOr<std::vector<float>> Score(std::span<const reward::Answer> answers) override {
    absl::StatusOr<std::vector<float>> scores = exact_.Score(answers);
    if (scores.ok()) rng_.Shuffle(std::span(*scores));
    return scores;
  }

 private:
  reward::ExactMatch exact_;
  Rng rng_{1};
};

TEST(Learning, RewardsOfOtherSamplesTeachNothing) {
  PermutedReward reward;
  const auto result = Train(ExampleConfig({"seed=1", "trainer.total_training_steps=20"}), &reward);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->final_accuracy, 0.7 * result->warmup_accuracy) << "measured: 0.367 falls to 0.168";
}

}  // namespace
}  // namespace tdock::trainer
