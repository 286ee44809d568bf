// The recipe that CONTRIBUTING.md shows, as somebody would write it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "trainer/recipes/testing/small_run.h"

// [begin of the recipe]
// Each prompt is answered n times, and the model learns the answer with the best reward (rejection sampling):
// feeder ─► rollout ─► reward ─► choose ─► actor
#include "trainer/loop/feed.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

constexpr char kChosen[] = "chosen";  // ragged float32, for each response token: 1 in the best answer, else 0

// Marks the best answer of each group; a group without any reward is dropped.
class ChooseStage final : public Stage {
 public:
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    StageOutput output;
    std::vector<std::vector<float>> chosen(rows.size());
    for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {  // rows of a group are adjacent
      size_t best = begin;
      for (end = begin; end < rows.size() && rows.groups()[end] == rows.groups()[begin]; ++end) {
        if (Reward(rows, end) > Reward(rows, best)) best = end;
        chosen[end].assign(rows.Get<int32_t>(end, kResponses)->size(), 0.0F);
      }
      std::fill(chosen[best].begin(), chosen[best].end(), 1.0F);
      if (Reward(rows, best) <= 0) output.dropped.push_back(rows.groups()[begin]);
    }
    context.metrics.Sum("choose/dropped", static_cast<double>(output.dropped.size()));
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kChosen, Column::FromRows(chosen)));
    return output;
  }

 private:
  static float Reward(const Rows& rows, size_t row) { return rows.Get<float>(row, kRewards)->front(); }
  const ConsumerOptions consumer_{
      .name = "choose", .reads = {kRewards, kResponses}, .writes = {kChosen}, .unit = Unit::kGroup};
};

class ChosenObjective final : public Objective {
 public:
  std::vector<std::string> columns() const override { return {kChosen}; }
  at::Tensor Loss(const TokenBatch& batch, StepMetrics&) const override {
    return -(batch.log_probs * batch.columns.at(kChosen).values).sum() / batch.counts.tokens;
  }
};

class BestOfN final : public Recipe {
 public:
  BestOfN() { config_.recipe = "best_of_n"; }
  RunConfig& config() override { return config_; }
  void Bind(config::Spec& spec) override {
    BindRun(spec, config_);
    BindRollout(spec, rollout_, /*samples=*/true);
    BindOptim(spec, "actor.optim", config_, optim_);
  }
  data::Phase phase() const override { return data::Phase::kPrompt; }
  int64_t samples_per_prompt() const override { return rollout_.n; }
  int64_t longest_tokens() const override { return config_.data.max_prompt_length + rollout_.max_response_length; }
  std::string longest_keys() const override { return "data.max_prompt_length + data.max_response_length"; }
  StepShape shape() const override { return {.rollout = &rollout_, .optim = optim_}; }
  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    Plan plan{.columns = ColumnsNamed({kPrompt, kPromptText, kTruth, kSource, kResponses, kResponseMask, kResponseText,
                                       kFinished, kRolloutLogProbs, kRewards}),
              .feed = [](std::span<const data::EncodedSample> samples) { return FeedPrompts(samples, {}); },
              .stages = {},
              .evaluations = {},
              .shown = {}};
    plan.columns.push_back({kChosen, ColumnType::Ragged(DType::kF32)});
    plan.stages.push_back(MakeRolloutStage(parts.policy, parts.tokenizer, parts.answers(config_, rollout_),
                                           rollout_.sampling(SeedFor(config_, SeedPurpose::kRollout))));
    plan.stages.push_back(MakeRewardStage(parts.reward));
    plan.stages.push_back(std::make_unique<ChooseStage>());
    plan.stages.push_back(
        MakeUpdateStage(parts.policy, std::make_shared<ChosenObjective>(), parts.update(optim_, parts.forward())));
    return plan;
  }

 private:
  RunConfig config_;
  RolloutSection rollout_;
  OptimSection optim_;
};

}  // namespace

std::unique_ptr<Recipe> MakeBestOfN() { return std::make_unique<BestOfN>(); }

}  // namespace tdock::trainer
// [end of the recipe]

namespace tdock::trainer {
namespace {

// Likes answers that begin with a 7.
class Sevens final : public reward::Reward {
 public:
  absl::StatusOr<reward::Scores> Score(std::span<const reward::Answer> answers) override {
    reward::Scores scores;
    for (const reward::Answer& answer : answers)
      scores.totals.push_back(answer.response.starts_with("7") ? 1.0F : 0.0F);
    return scores;
  }
};

TEST(OwnRecipe, LearnsWhatItsRewardLikes) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder + "/prompts.jsonl", Reversals(false)).ok());
  const std::unique_ptr<Recipe> recipe = MakeBestOfN();
  config::Spec spec;
  recipe->Bind(spec);
  const std::vector<std::string> overrides = {"data.path=" + folder + "/prompts.jsonl",
                                              "trainer.run_dir=" + folder + "/run",
                                              "model.alphabet=0123456789>",
                                              "model.hidden_size=32",
                                              "model.num_hidden_layers=2",
                                              "data.train_batch_size=16",
                                              "data.max_prompt_length=8",
                                              "data.max_response_length=4",
                                              "actor.optim.lr=3e-3",
                                              "trainer.total_training_steps=80"};
  ASSERT_EQ(config::Load(spec, "", "own", overrides), absl::OkStatus());
  Sevens reward;
  Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, Clock::Real());
  const auto run = PrepareRun(*recipe, {Env::Real(), Clock::Real(), progress}, &reward);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto result = (*run)->Train();
  ASSERT_TRUE(result.ok()) << result.status();
  std::vector<double> rewards, dropped;
  const std::string text = *Env::Real().ReadFile(folder + "/run/metrics.jsonl");
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const auto record = nlohmann::json::parse(line);
    if (record["step"] == 0) continue;
    rewards.push_back(record["critic/score/mean"]);
    dropped.push_back(record["choose/dropped"]);
    EXPECT_EQ(record["dock/rows"], 0);
  }
  EXPECT_LT(rewards.front(), 0.3);
  EXPECT_GT(rewards.back(), 0.9);
  EXPECT_GT(dropped.front(), 0) << "a tenth of 8 answers each: some groups have none that is liked";
}

TEST(OwnRecipe, IsWhatTheGuideShows) {
  const std::string source = *Env::Real().ReadFile("src/trainer/recipes/own_recipe_test.cc");
  const std::string begin = "// [begin of the recipe]\n", end = "// [end of the recipe]\n";
  const size_t from = source.find(begin) + begin.size();
  const std::string recipe = source.substr(from, source.find(end) - from);
  std::string indented;
  for (absl::string_view line : absl::StrSplit(recipe, '\n')) {
    absl::StrAppend(&indented, line.empty() ? "" : "    ", line, "\n");
  }
  EXPECT_LT(std::count(recipe.begin(), recipe.end(), '\n'), 100);
  EXPECT_TRUE(absl::StrContains(*Env::Real().ReadFile("CONTRIBUTING.md"), indented.substr(0, indented.size() - 1)));
}

}  // namespace
}  // namespace tdock::trainer
