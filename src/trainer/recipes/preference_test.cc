// Recipes that learn from preferences: rm and dpo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

TEST(RewardModel, LearnsWhichAnswersAreBetter) {
  for (const char* loss : {"last_token", "mean", "every_token"}) {
    SmallRun run("rm", {"model.path=" + AnsweringModel(), absl::StrCat("loss.type=", loss), "optim.lr=3e-3",
                        "trainer.total_training_steps=60"});
    const auto result = run.Train();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_GE(result->last.at("val/accuracy"), 0.9) << loss;
    EXPECT_GT(result->last.at("val/margin/mean"), 1) << loss;
    EXPECT_NEAR(result->last.at("val/chosen/mean") - result->last.at("val/rejected/mean"),
                result->last.at("val/margin/mean"), 1e-5);
    EXPECT_LT(result->last.at("val/pair_loss"), 0.8 * result->first.at("val/pair_loss")) << loss;
    const nlohmann::json config = nlohmann::json::parse(run.File("checkpoint/config.json"));
    EXPECT_EQ(config["architectures"][0], "LlamaForSequenceClassification");
  }
}

TEST(RewardModel, GoesOnFromARewardModelAndFromScratch) {
  SmallRun first("rm", {"trainer.total_training_steps=20", "optim.lr=3e-3"});
  const auto result = first.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  SmallRun second("rm", {"model.path=" + first.run_dir() + "/checkpoint", "trainer.total_training_steps=1"});
  const auto more = second.Train();
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_NEAR(more->first.at("val/pair_loss"), result->last.at("val/pair_loss"), 1e-5);
}

TEST(RewardModel, KeepsTheMarginThatPairsAskFor) {
  const auto train = [](const char* label) {
    SmallRun run("rm", {"model.path=" + AnsweringModel(), "loss.use_margin=true", "optim.lr=3e-3",
                        "trainer.total_training_steps=60"});
    for (const char* file : {"/train.jsonl", "/val.jsonl"}) {
      std::string lines;
      for (absl::string_view line :
           absl::StrSplit(*Env::Real().ReadFile(run.folder() + file), '\n', absl::SkipEmpty())) {
        absl::StrAppend(&lines, line.substr(0, line.size() - 1), R"(, "label": )", label, "}\n");
      }
      EXPECT_EQ(WriteFileAtomically(Env::Real(), run.folder() + file, lines), absl::OkStatus());
    }
    const auto result = run.Train(SmallRun::Outside{.overrides = {"data.columns.label=label"}});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->last.at("val/margin/mean") : 0.0;
  };
  EXPECT_GT(train("6"), train("0") + 2);
}

TEST(RewardModel, NamesPairsThatPreferNothing) {
  SmallRun equal("rm", {"model.path=" + AnsweringModel()});
  EXPECT_EQ(WriteFileAtomically(Env::Real(), equal.folder() + "/train.jsonl",
                                R"({"prompt": "1>", "chosen": "2", "rejected": "3"})"
                                "\n"
                                R"({"prompt": "1>", "chosen": "2", "rejected": "2"})"
                                "\n"),
            absl::OkStatus());
  const std::string message(
      equal.Train(SmallRun::Outside{.overrides = {"data.train_batch_size=2"}}).status().message());
  EXPECT_THAT(message, Mentions({"train.jsonl:2", "chosen", "rejected", "the same"}));
  SmallRun no_pairs("rm", {"model.path=" + AnsweringModel(), "data.columns.chosen=nothing"});
  EXPECT_THAT(std::string(no_pairs.Train().status().message()), Mentions({"nothing"}));
  SmallRun no_margin("rm", {"model.path=" + AnsweringModel(), "loss.use_margin=true"});
  EXPECT_THAT(std::string(no_margin.Train().status().message()), Mentions({"loss.use_margin", "data.columns.label"}));
}

TEST(Dpo, PrefersWhatWasChosen) {
  for (const char* loss : {"sigmoid", "robust", "ipo"}) {
    SmallRun run("dpo", {"model.path=" + AnsweringModel(), absl::StrCat("dpo.loss_type=", loss), "optim.lr=1e-3",
                         "trainer.total_training_steps=40"});
    const auto result = run.Train();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_DOUBLE_EQ(result->first.at("val/accuracy"), 0.5) << "the policy is the reference";
    EXPECT_GE(result->last.at("val/accuracy"), 0.9) << loss;
    const nlohmann::json first = run.Metrics()[1];
    EXPECT_NEAR(first["train/accuracy"].get<double>(), 0.5, 1e-9) << loss;
    EXPECT_NEAR(first["train/margin"].get<double>(), 0, 1e-6);
    const double of_equal = std::string(loss) == "ipo" ? 25 : std::log(2.0);
    EXPECT_NEAR(first["train/loss"].get<double>(), of_equal, 1e-5) << loss;
    EXPECT_NEAR(result->first.at("val/pair_loss"), of_equal, 1e-5) << loss;
  }
}

// It was −log σ of the margin, whatever loss was trained.
TEST(RewardModel, ValidationShowsTheLossThatIsTrained) {
  const auto expect_same = [](std::vector<std::string> loss) {
    const int pairs = 80;  // all of the file, in one step
    loss.insert(loss.end(), {"model.path=" + AnsweringModel(), "trainer.total_training_steps=1",
                             absl::StrCat("data.train_batch_size=", pairs)});
    SmallRun run("rm", loss);
    EXPECT_EQ(WriteFileAtomically(Env::Real(), run.folder() + "/val.jsonl",
                                  *Env::Real().ReadFile(run.folder() + "/train.jsonl")),
              absl::OkStatus());
    const auto result = run.Train();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(run.Metrics()[1]["train/loss"].get<double>(), result->first.at("val/pair_loss"), 1e-5) << loss[0];
  };
  expect_same({"loss.type=last_token", "loss.centre_coef=0.5"});
  expect_same({"loss.type=every_token"});
}

TEST(Dpo, DoesNotDependOnHowItIsCut) {
  const auto last = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {"model.path=" + AnsweringModel(), "optim.lr=1e-3", "model.compute_dtype=float64"});
    SmallRun run("dpo", overrides);
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->last.at("val/margin/mean") : 0.0;
  };
  const double whole = last({});
  EXPECT_NE(whole, 0);
  EXPECT_NEAR(last({"data.micro_batch_size_per_gpu=1"}), whole, std::abs(whole) * 1e-5);
  EXPECT_NEAR(last({"data.micro_batch_size_per_gpu=5", "threads=1"}), whole, std::abs(whole) * 1e-5);
}

TEST(Dpo, RefusesWhatIpoDoesNotTake) {
  SmallRun run("dpo", {"model.path=" + AnsweringModel(), "dpo.loss_type=ipo", "dpo.label_smoothing=0.1"});
  EXPECT_THAT(std::string(run.Train().status().message()),
              Mentions({"dpo.loss_type = ipo", "dpo.label_smoothing = 0.1"}));
}

}  // namespace
}  // namespace tdock::trainer
