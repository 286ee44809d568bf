// Whether the example learns, and whether it is the reward that it learns from.
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

// Gives each sample the reward of another one of the batch.
class PermutedReward final : public reward::Reward {
 public:
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    absl::StatusOr<reward::Scores> scores = exact_.Score(answers);
    if (scores.ok() && answers.size() == kBatch) rng_.Shuffle(std::span(scores->totals));
    return scores;
  }

 private:
  static constexpr size_t kBatch = 1024;  // other numbers are validations
  reward::ExactMatch exact_;
  Rng rng_{1};
};

class Learning : public testing::Test {
 protected:
  Learning() : folder_(NewFolder()) {
    const std::string command = "python3 examples/arithmetic/make_data.py " + folder_;
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  absl::StatusOr<RunResult> Train(const std::string& recipe, const std::string& name, const std::string& validation,
                                  std::vector<std::string> overrides, reward::Reward* reward = nullptr) {
    overrides.insert(overrides.end(), {"data.train_files=" + folder_ + "/train.jsonl",
                                       "data.val_files=" + folder_ + "/" + validation + ".jsonl",
                                       "trainer.run_dir=" + folder_ + "/" + name});
    TDOCK_ASSIGN_OR_RETURN(const auto made,
                           LoadRecipe(Env::Real(), "examples/arithmetic/" + recipe + ".yaml", overrides));
    Progress progress(ProgressOutput::StandardError(), Clock::Real());
    TDOCK_ASSIGN_OR_RETURN(const auto run, PrepareRun(*made, {Env::Real(), Clock::Real(), progress}, reward));
    return run->Train();
  }

  const std::string folder_;
};

TEST_F(Learning, TheExampleLearnsAdditionIn120StepsFromItsOwnRewardsAlone) {
  const auto supervised = Train("sft", "sft", "validation", {});
  ASSERT_TRUE(supervised.ok()) << supervised.status();
  EXPECT_EQ(supervised->ended, "val/accuracy >= 0.30");
  const std::string model = "model.path=" + folder_ + "/sft/checkpoint";
  const std::string only_at_the_ends = "trainer.test_freq=0";  // validation takes long

  const auto reinforced = Train("grpo", "grpo", "test", {model, "trainer.total_training_steps=120", only_at_the_ends});
  ASSERT_TRUE(reinforced.ok()) << reinforced.status();
  const double before = reinforced->first.at("val/accuracy");
  EXPECT_GE(before, 0.15);
  EXPECT_LE(before, 0.50);
  EXPECT_GE(reinforced->last.at("val/accuracy"), 0.80);

  PermutedReward reward;
  const auto permuted =
      Train("grpo", "permuted", "test", {model, "trainer.total_training_steps=20", only_at_the_ends}, &reward);
  ASSERT_TRUE(permuted.ok()) << permuted.status();
  EXPECT_LT(permuted->last.at("val/accuracy"), before + 0.05);
}

}  // namespace
}  // namespace tdock::trainer
