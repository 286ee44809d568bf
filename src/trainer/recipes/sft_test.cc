#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sft, LearnsWhatItIsShown) {
  SmallRun run("sft", {"trainer.total_training_steps=200", "optim.lr=3e-3"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<nlohmann::json> metrics = run.Metrics();
  EXPECT_NEAR(metrics[1]["train/loss"].get<double>(), std::log(13), 0.5) << "at first all tokens are about as likely";
  EXPECT_LT(metrics.back()["train/loss"].get<double>(), 0.5);
  EXPECT_NEAR(result->last.at("val/perplexity"), std::exp(result->last.at("val/loss")), 1e-9);
  EXPECT_THAT(run.log(), testing::Contains(HasSubstr("80 samples")));
}

TEST(Sft, CountsStepsAndTokensAndEpochs) {
  SmallRun run("sft", {"trainer.total_epochs=2", "trainer.total_training_steps=0", "trainer.test_freq=4"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 10) << "80 samples in batches of 16, twice";
  EXPECT_THAT(result->ended, HasSubstr("epoch 2"));
  std::vector<int> validated;
  for (const nlohmann::json& record : run.Metrics()) {
    if (record.contains("val/loss")) validated.push_back(record["step"]);
    if (record["step"] == 0) continue;
    EXPECT_EQ(record["train/tokens"], 16.0 * 3) << "two digits and the end of text";
    EXPECT_EQ(record["perf/total_num_tokens"], 16.0 * 6);
    EXPECT_EQ(record["train/optimizer_steps"], 1);
  }
  EXPECT_THAT(validated, ElementsAre(0, 4, 8, 10));
}

TEST(Sft, EndsOnceItsRuleIsMet) {
  SmallRun run("sft", {"trainer.total_training_steps=100", "trainer.test_freq=1", "trainer.stop_when=val/loss <= 2.2"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ended, "val/loss <= 2.2");
  EXPECT_LT(result->steps, 100);
  EXPECT_LE(result->last.at("val/loss"), 2.2);
  EXPECT_EQ(result->last.count("val/accuracy"), 0u) << "answers only where trainer.evaluations has the reward";
}

TEST(Sft, ValidatesOnlyAndLeavesNoModelWhereAsked) {
  SmallRun run("sft", {"trainer.val_only=true", "trainer.val_before_train=false"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 0);
  EXPECT_EQ(result->last.count("val/loss"), 1u);
  EXPECT_EQ(run.Metrics().size(), 1u);
  EXPECT_TRUE(result->checkpoint.empty());
  EXPECT_EQ(SmallRun("sft", {"trainer.val_only=true", "data.val_files=[]"}).Train().status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Sft, ValidatesOnAnswersOfItsOwnWhereAsked) {
  SmallRun run("sft", {"trainer.evaluations=[perplexity,reward]", "trainer.log_val_generations=2"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->last.count("val/accuracy"), 1u);
  const auto first = nlohmann::json::parse(run.File("samples.jsonl").substr(0, run.File("samples.jsonl").find('\n')));
  EXPECT_EQ(first["prompt"], "04>");
  EXPECT_EQ(first["truth"], "40");
}

TEST(Sft, SavesTheAverageOfItsWeightsAsAModelOfItsOwn) {
  SmallRun run("sft", {"trainer.total_training_steps=40", "trainer.ema_decay=0.9", "optim.lr=3e-3"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  const auto loss_of = [](const std::string& model) {
    SmallRun again("sft", {"model.path=" + model, "trainer.total_training_steps=1", "optim.lr=1e-12"});
    const auto measured = again.Train();
    EXPECT_TRUE(measured.ok()) << measured.status();
    return measured.ok() ? measured->first.at("val/loss") : 0.0;
  };
  // The average lags behind: better than the beginning, worse than the end.
  EXPECT_NEAR(loss_of(run.run_dir() + "/checkpoint"), result->last.at("val/loss"), 1e-5);
  const double average = loss_of(run.run_dir() + "/checkpoint-ema");
  EXPECT_LT(average, result->first.at("val/loss") - 0.1);
  EXPECT_GT(average, result->last.at("val/loss") + 0.01);
}

TEST(Sft, MeasuresWhatItHasSaved) {
  const auto saved = [](const std::vector<std::string>& overrides) {
    SmallRun run("sft", overrides);
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    const auto evaluation = nlohmann::json::parse(run.File("evaluation.json"));
    EXPECT_EQ(evaluation["before"]["val/loss"], result->first.at("val/loss"));
    EXPECT_EQ(evaluation["after"]["val/loss"], result->last.at("val/loss"));
    return std::pair(evaluation["after"]["val/loss"].get<double>(), evaluation["saved"]["val/loss"].get<double>());
  };
  const auto [exact, same] = saved({});
  EXPECT_EQ(exact, same);
  const auto [wide, rounded] = saved({"model.save_dtype=bfloat16"});
  EXPECT_NE(wide, rounded);
  EXPECT_NEAR(wide, rounded, 0.05);
  const auto [adapted, merged] = saved({"model.path=" + AnsweringModel(), "model.lora_rank=4", "optim.lr=1e-2"});
  EXPECT_NEAR(adapted, merged, 1e-4);
}

TEST(Sft, LeavesTheDtypeOfItsModel) {
  const auto dtype = [](const std::string& folder) {
    return nlohmann::json::parse(*Env::Real().ReadFile(folder + "/config.json"))["torch_dtype"].get<std::string>();
  };
  EXPECT_EQ(dtype(TrainedModel("sft", {})), "float32");
  const std::string half = TrainedModel("sft", {"model.save_dtype=bfloat16"});
  EXPECT_EQ(dtype(half), "bfloat16");
  EXPECT_EQ(dtype(TrainedModel("sft", {"model.path=" + half})), "bfloat16");
  EXPECT_EQ(dtype(TrainedModel("sft", {"model.path=" + half, "model.lora_rank=2"})), "bfloat16");
  EXPECT_EQ(dtype(TrainedModel("sft", {"model.path=" + half, "model.save_dtype=float32"})), "float32");
}

TEST(Sft, InFloat64TrainsAsInFloat32ToItsLastDigits) {
  const auto losses = [](const std::string& type) {
    SmallRun run("sft", {"model.compute_dtype=" + type, "trainer.total_training_steps=5", "optim.lr=1e-3"});
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? std::pair(result->first.at("val/loss"), result->last.at("val/loss")) : std::pair(0.0, 0.0);
  };
  const auto [single_before, single_after] = losses("float32");
  const auto [double_before, double_after] = losses("float64");
  EXPECT_NE(double_after, single_after);
  EXPECT_NEAR(double_before, single_before, 1e-5);
  EXPECT_NEAR(double_after, single_after, 1e-4);
}

TEST(Sft, RefusesLearningRatesOfPartsThatItDoesNotTrain) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return std::string(SmallRun("sft", overrides).Train().status().message());
  };
  EXPECT_THAT(refusal({"optim.lora_lr=1e-3"}), Mentions({"optim.lora_lr: ", "model.lora_rank = 0"}));
  EXPECT_THAT(refusal({"optim.head_lr=1e-3"}), Mentions({"optim.head_lr = 0.001", "tie_word_embeddings"}));
  EXPECT_EQ(refusal({"optim.head_lr=1e-3", "model.tie_word_embeddings=false"}), "");
}

TEST(Sft, LearnsInFloat16AsInFloat32) {
  const auto last = [](const std::string& type) {
    SmallRun run("sft", {"model.compute_dtype=" + type, "trainer.total_training_steps=40", "optim.lr=3e-3"});
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->last.at("val/loss") : 0.0;
  };
  const double exact = last("float32"), half = last("float16");
  EXPECT_NE(half, exact);
  EXPECT_NEAR(half, exact, 0.1);
  EXPECT_THAT(std::string(SmallRun("sft", {"optim.loss_scale=1024"}).Train().status().message()),
              Mentions({"optim.loss_scale: ", "float16"}));
}

TEST(Sft, LearnsWithWeightsOfBfloat16EquallyOnAnyNumberOfThreads) {
  const auto last = [](const std::string& type, const std::string& threads) {
    SmallRun run("sft", {"model.param_dtype=" + type, "model.compute_dtype=" + type, "trainer.total_training_steps=60",
                         "optim.lr=3e-3", "trainer.ema_decay=0.5", "threads=" + threads});
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->last.at("val/loss") : 0.0;
  };
  const double exact = last("float32", "1"), rounded = last("bfloat16", "1");
  EXPECT_NE(rounded, exact);
  EXPECT_NEAR(rounded, exact, 0.15);
  EXPECT_EQ(last("bfloat16", "2"), rounded);
}

TEST(Sft, RefusesToMoveTheOptimizersStateFromTheCpuToTheCpu) {
  EXPECT_THAT(std::string(SmallRun("sft", {"optim.offload=true"}).Train().status().message()),
              Mentions({"optim.offload = true, device = cpu (default): "}));
}

TEST(Sft, LearnsWithMomentsOfEightBits) {
  const auto last_loss = [](const std::string& type) {
    SmallRun run("sft", {"trainer.total_training_steps=60", "optim.lr=3e-3", "model.hidden_size=64",
                         "optim.moment_dtype=" + type});
    const auto result = run.Train();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->last.at("val/loss") : 0.0;
  };
  const double exact = last_loss("float32"), rough = last_loss("int8");
  EXPECT_NE(rough, exact);
  EXPECT_NEAR(rough, exact, 0.15);
}

TEST(Sft, TrainsWithoutValidationData) {
  SmallRun run("sft", {"data.val_files=[]"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->last.empty());
}

TEST(Sft, ValidatesWithSamplesFromAllFilesEachUnderItsName) {
  const std::string folder = NewFolder();
  for (const char* source : {"one", "t\"wo"}) {
    nlohmann::json record = {{"prompt", "12>"}, {"answer", "21"}, {"data_source", source}};
    std::string lines;
    for (int i = 0; i < 30; ++i) lines += record.dump() + "\n";
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder + "/" + source[0] + ".jsonl", lines).ok());
  }
  SmallRun run("sft", {"data.val_files=[" + folder + "/o.jsonl, " + folder + "/t.jsonl]", "trainer.val_max_samples=20",
                       "data.columns.source=data_source"});
  const auto result = run.Train();
  // The training file has no such column.
  EXPECT_FALSE(result.ok());
  SmallRun named("sft",
                 {"data.train_files=" + folder + "/o.jsonl", "data.columns.source=data_source",
                  "data.val_files=[" + folder + "/o.jsonl, " + folder + "/t.jsonl]", "trainer.val_max_samples=20"});
  const auto both = named.Train();
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->last.count("val/loss/one"), 1u);
  EXPECT_EQ(both->last.count("val/loss/t_wo"), 1u);
  EXPECT_THAT(named.log(), testing::Contains(Mentions({"20 of 60 samples"})));
}

TEST(Sft, HoldsOutAShareOfOneFile) {
  SmallRun run("sft", {"data.val_files=[]", "data.val_share=0.2", "trainer.total_training_steps=0"});
  const auto result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 4) << "of 64 samples that are left";
  EXPECT_EQ(result->last.count("val/loss"), 1u);
}

TEST(Sft, AdaptersAloneAreTrainedAndMergedIntoTheCheckpoint) {
  SmallRun first("sft");
  ASSERT_TRUE(first.Train().ok());
  const std::string model = first.run_dir() + "/checkpoint";
  SmallRun adapted("sft", {"model.path=" + model, "model.lora_rank=4"});
  const auto result = adapted.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(Env::Real().Exists(adapted.run_dir() + "/checkpoint/adapter/adapter_config.json"));
  EXPECT_NE(adapted.File("checkpoint/model.safetensors"), *Env::Real().ReadFile(model + "/model.safetensors"));
}

TEST(Sft, ALossThatIsNoNumberNamesTheKeyToLower) {
  SmallRun run("sft", {"optim.lr=1e30", "trainer.total_training_steps=5"});
  EXPECT_THAT(std::string(run.Train().status().message()), Mentions({"(optim.lr)"}));
}

}  // namespace
}  // namespace tdock::trainer
