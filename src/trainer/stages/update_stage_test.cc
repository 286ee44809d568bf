#include "trainer/stages/update_stage.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/testing/fails.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "tdock/local_dock.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// What the actor reads of each response token, for three samples.
struct ActorColumns {
  std::vector<std::vector<uint8_t>> mask = {{1, 1}, {1, 0, 1}, {1}};
  std::vector<std::vector<float>> old_log_probs = {{-1.5f, -2.0f}, {-3.0f, -2.5f, -3.5f}, {-2.0f}};
  std::vector<std::vector<float>> rollout_log_probs = old_log_probs;
  std::vector<std::vector<float>> ref_log_prob = old_log_probs;
  std::vector<std::vector<float>> advantages = {{1, 1}, {-1, -1, -1}, {0.5f}};
};

// The same answers again and again.
class FixedAnswers final : public AnswerSource {
 public:
  explicit FixedAnswers(std::vector<GivenAnswer> answers) : answers_(std::move(answers)) {}
  absl::StatusOr<std::vector<GivenAnswer>> Next() override { return answers_; }
  void Save(State&) const override {}
  absl::Status Load(const State&) override { return absl::OkStatus(); }

 private:
  const std::vector<GivenAnswer> answers_;
};

// Without what was measured of time.
std::map<std::string, double> FiguresOf(const StepMetrics& metrics) {
  std::map<std::string, double> figures = metrics.Values();
  std::erase_if(figures, [](const auto& figure) { return figure.first.starts_with("timing_"); });
  return figures;
}

class UpdateStageTest : public testing::TestWithParam<at::Device> {
 protected:
  struct Result {
    std::vector<at::Tensor> parameters;
    std::map<std::string, double> metrics;
    int64_t version = 0;
    absl::Status status;
  };

  // One optimizer step on these columns after the other, always from the same weights.
  static Result Step(const ActorColumns& columns) { return Steps({columns}); }
  static Result Steps(const std::vector<ActorColumns>& steps, int64_t max_skipped_steps = 3) {
    return Steps(steps, {.loss = {.kl_coef = 0.1}},
                 [&](UpdateOptions& options) { options.max_skipped_steps = max_skipped_steps; });
  }
  using Change = std::function<void(UpdateOptions&)>;
  static Result Steps(const std::vector<ActorColumns>& steps, const ActorObjectiveOptions& objective,
                      const Change& change) {
    Policy policy{
        model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1, GetParam())};
    return Steps(policy, steps, objective, change);
  }
  static Result Steps(Policy& policy, const std::vector<ActorColumns>& steps, const ActorObjectiveOptions& objective,
                      const Change& change) {
    policy.decoder.SetTrainable(true);
    Workers workers(2);
    UpdateOptions options{
        .forward = {.workers = workers, .micro_batch_size = 2}, .optimizer = {}, .lr = 1e-3, .schedule = {}};
    change(options);
    const auto stage = MakeUpdateStage(policy, MakeActorObjective(objective), options);
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    EXPECT_TRUE(dock->CreatePartition({.name = "train",
                                       .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kOldLogProbs,
                                                                kRolloutLogProbs, kRefLogProb, kAdvantages}),
                                       .group_size = 3})
                    .ok());
    StageRunner runner(*dock, "train");
    EXPECT_TRUE(runner.Add(*stage).ok());
    StepMetrics metrics;
    absl::Status status;
    for (size_t i = 0; i < steps.size() && status.ok(); ++i) {
      EXPECT_TRUE(dock->Put(RequestFor(steps[i], static_cast<GroupId>(i))).ok());
      StageContext context{1, metrics};
      status = runner.Run(*stage, 3, context).status();
    }
    return {policy.decoder.parameters(), FiguresOf(metrics), policy.version, status};
  }

  // The same of a model that is less sure of its next tokens, with this precision.
  static Result StepsIn(at::ScalarType compute, const std::vector<ActorColumns>& steps,
                        const ActorObjectiveOptions& objective, const LossScaleOptions& loss_scale) {
    Policy policy{
        model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false), 1, GetParam())};
    policy.decoder.SetComputeType(compute);
    return Steps(policy, steps, objective, [&](UpdateOptions& options) {
      options.max_skipped_steps = 0;
      options.loss_scale = loss_scale;
    });
  }

  static PutRequest RequestFor(const ActorColumns& columns, GroupId group) {
    PutRequest request{.partition = "train", .groups = {group, group, group}};
    const auto add = [&](const std::string& name, const auto& rows) {
      EXPECT_TRUE(request.batch.Add(name, Column::FromRows(rows)).ok());
    };
    add("prompt", std::vector<std::vector<int32_t>>(3, {3, 4}));
    add("responses", std::vector<std::vector<int32_t>>{{5, 6}, {7, 8, 9}, {6}});
    add("response_mask", columns.mask);
    add("old_log_probs", columns.old_log_probs);
    add("rollout_log_probs", columns.rollout_log_probs);
    add("ref_log_prob", columns.ref_log_prob);
    add("advantages", columns.advantages);
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, UpdateStageTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(UpdateStageTest, AMaskedTokenChangesNeitherLossNorGradients) {
  const Result expected = Step({});
  ActorColumns extreme;
  extreme.old_log_probs[1][1] = -100;  // a ratio that no float holds
  extreme.ref_log_prob[1][1] = 100;
  extreme.advantages[1][1] = 1e30f;
  const Result given = Step(extreme);
  EXPECT_EQ(given.metrics, expected.metrics);
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(given.parameters[i], expected.parameters[i])) << "parameter " << i;
  }
  ActorColumns unmasked = extreme;
  unmasked.advantages[1][1] = -2;
  unmasked.ref_log_prob[1][1] = -2;
  unmasked.old_log_probs[1][1] = -2;
  unmasked.mask[1][1] = 1;
  EXPECT_NE(Step(unmasked).metrics, expected.metrics);
}

TEST_P(UpdateStageTest, GradientsThatAreNotFiniteSkipTheStepAndAreCounted) {
  ActorColumns infinite;
  infinite.advantages[0][0] = 3e38f;  // the square of its gradient is no float
  const Result expected = Steps({{}, {}});
  const Result given = Steps({{}, infinite, infinite, {}}, /*max_skipped_steps=*/2);
  ASSERT_EQ(given.status, absl::OkStatus());
  EXPECT_EQ(given.metrics.at("actor/skipped_steps"), 2);
  EXPECT_EQ(given.metrics.at("actor/optimizer_steps"), 2);
  EXPECT_EQ(given.version, 2);
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    // Up to the order in which samples are summed, which follows from the groups' numbers: far less than a step, which
    // is about the learning rate, 1e-3.
    EXPECT_TRUE(at::allclose(given.parameters[i], expected.parameters[i], 1e-6, 1e-5)) << "parameter " << i;
  }
}

TEST_P(UpdateStageTest, AdaptersAndHeadsHaveTheirOwnLearningRatesUnderTheSameSchedule) {
  // The first step of AdamW is in proportion to the learning rate.
  const auto change = [](bool adapters, model::ParameterKind kind, double lora_lr, double head_lr) {
    Policy policy{
        model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false), 1, GetParam())};
    if (adapters) {
      EXPECT_TRUE(policy.decoder.AddAdapters({.rank = 2}, 1).ok());
    }
    const model::Decoder before = policy.decoder.Clone();
    const Result result = Steps(policy, {{}}, {.loss = {.kl_coef = 0.1}}, [&](UpdateOptions& options) {
      options.lora_lr = lora_lr;
      options.head_lr = head_lr;
      options.schedule.warmup_steps = 4;
    });
    const std::vector<at::Tensor> changed = policy.decoder.trainable(kind);
    std::vector<at::Tensor> changes;
    for (size_t i = 0; i < before.parameters().size(); ++i) {
      const at::Tensor& now = policy.decoder.parameters()[i];
      const bool chosen =
          std::any_of(changed.begin(), changed.end(), [&](const at::Tensor& each) { return each.is_same(now); });
      if (chosen) changes.push_back((now.detach() - before.parameters()[i]).view({-1}));
    }
    return std::pair(at::cat(changes), result.metrics);
  };
  const auto expect_factor = [&](double factor, bool adapters, model::ParameterKind kind, double lora_lr,
                                 double head_lr) {
    const auto [same, metrics] = change(adapters, kind, 0, 0);
    EXPECT_DOUBLE_EQ(metrics.at("actor/lr"), 1e-3 / 4);
    const auto [own, own_metrics] = change(adapters, kind, lora_lr, head_lr);
    EXPECT_DOUBLE_EQ(own_metrics.at("actor/lr"), 1e-3 / 4);
    EXPECT_GT(same.abs().max().item<double>(), 1e-4);
    EXPECT_TRUE(at::allclose(own, same * factor, 1e-3, 1e-6)) << "factor " << factor;
    return own_metrics;
  };
  using enum model::ParameterKind;
  const auto of_adapters = expect_factor(5, true, kAdapter, /*lora_lr=*/5e-3, /*head_lr=*/1);
  EXPECT_DOUBLE_EQ(of_adapters.at("actor/lora_lr"), 5e-3 / 4);
  const auto of_head = expect_factor(2, false, kHead, /*lora_lr=*/1, /*head_lr=*/2e-3);
  EXPECT_DOUBLE_EQ(of_head.at("actor/head_lr"), 2e-3 / 4);
  expect_factor(1, false, kBody, /*lora_lr=*/1, /*head_lr=*/1);
}

TEST_P(UpdateStageTest, TooManySkippedStepsInARowEndTheRun) {
  ActorColumns infinite;
  infinite.advantages[0][0] = 3e38f;  // the square of its gradient is no float
  const Result given = Steps({infinite, {}, infinite, infinite, infinite}, /*max_skipped_steps=*/2);
  EXPECT_THAT(given.status, Fails(absl::StatusCode::kInternal,
                                  {"3 optimizer steps", "actor.optim.max_skipped_steps is 2", "actor.optim.lr"}));
  EXPECT_EQ(given.version, 1);
}

TEST_P(UpdateStageTest, SeveralEpochsTrainOnEachSampleAsOften) {
  const auto steps_of = [](int64_t epochs, int64_t mini_batch_size) {
    return Steps({{}}, {.loss = {.kl_coef = 0.1}}, [&](UpdateOptions& options) {
      options.epochs = epochs;
      options.mini_batch_size = mini_batch_size;
    });
  };
  const Result once = steps_of(1, 0), thrice = steps_of(3, 0), in_parts = steps_of(3, 2);
  EXPECT_EQ(once.metrics.at("actor/optimizer_steps"), 1);
  EXPECT_EQ(thrice.metrics.at("actor/optimizer_steps"), 3);
  EXPECT_EQ(thrice.metrics.at("perf/total_num_tokens"), once.metrics.at("perf/total_num_tokens"));
  EXPECT_EQ(in_parts.metrics.at("actor/optimizer_steps"), 6);
  EXPECT_EQ(in_parts.version, 6);
}

TEST_P(UpdateStageTest, AStepEndsBeforeItMovesFartherThanItsTarget) {
  ActorColumns columns;
  const auto steps_until = [&](double target_kl) {
    return Steps({columns}, {.loss = {}}, [&](UpdateOptions& options) {
      options.epochs = 4;
      options.target_kl = target_kl;
    });
  };
  columns.old_log_probs = {{-0.1f, -0.1f}, {-0.1f, -0.1f, -0.1f}, {-0.1f}};
  const Result far = steps_until(0.01);
  EXPECT_EQ(far.metrics.at("actor/optimizer_steps"), 0);
  EXPECT_EQ(far.metrics.at("actor/early_stops"), 1);
  EXPECT_EQ(far.version, 0);
  // The gradients of what was left out are gone: the next step is as if it were the first.
  const auto stopped_or_not = [](bool stops_first) {
    std::vector<ActorColumns> steps(stops_first ? 2 : 1);
    if (stops_first) steps[0].old_log_probs = {{99, 99}, {99, 99, 99}, {99}};
    return Steps(steps, {.loss = {}}, [](UpdateOptions& options) { options.target_kl = 50; });
  };
  const Result after = stopped_or_not(true), first = stopped_or_not(false);
  EXPECT_EQ(after.metrics.at("actor/early_stops"), 1);
  EXPECT_EQ(after.version, 1);
  for (size_t i = 0; i < first.parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(after.parameters[i], first.parameters[i], 1e-6, 1e-7)) << "parameter " << i;
  }
  const Result free = steps_until(1e9);
  EXPECT_EQ(free.metrics.at("actor/optimizer_steps"), 4);
  EXPECT_EQ(free.metrics.at("actor/early_stops"), 0);
}

TEST_P(UpdateStageTest, AnswersBesideTheMiniBatchAddTheirCrossEntropy) {
  const std::vector<GivenAnswer> answers = {{.prompt = {3}, .response = {4, 5, 6}, .mask = {1, 0, 1}},
                                            {.prompt = {7, 8}, .response = {9}, .mask = {1}}};
  const auto step = [&](double coef, const std::vector<GivenAnswer>& given, double temperature = 0.5) {
    return Steps({{}}, {.loss = {}}, [&](UpdateOptions& options) {
      options.ptx_coef = coef;
      options.ptx = std::make_shared<FixedAnswers>(given);
      options.forward.temperature = temperature;
    });
  };
  const Result without = step(0, {}), light = step(0.5, answers), heavy = step(1, answers);
  EXPECT_EQ(without.metrics.count("actor/ptx_loss"), 0u);
  EXPECT_EQ(light.metrics.at("actor/ptx_tokens"), 3);
  EXPECT_EQ(light.metrics.at("actor/ptx_loss"), heavy.metrics.at("actor/ptx_loss")) << "its weight is not in it";
  EXPECT_EQ(step(1, answers, 2).metrics.at("actor/ptx_loss"), heavy.metrics.at("actor/ptx_loss"))
      << "the temperature is the rollout's";
  EXPECT_NE(light.metrics.at("actor/grad_norm"), without.metrics.at("actor/grad_norm"));
  EXPECT_NE(light.metrics.at("actor/grad_norm"), heavy.metrics.at("actor/grad_norm"));
  EXPECT_EQ(light.metrics.at("actor/pg_loss"), without.metrics.at("actor/pg_loss"));
  std::vector<GivenAnswer> masked = answers;
  for (GivenAnswer& answer : masked) std::fill(answer.mask.begin(), answer.mask.end(), 0);
  EXPECT_THAT(step(1, masked).status, Fails(absl::StatusCode::kInvalidArgument, {"no token", "ptx"}));
}

TEST_P(UpdateStageTest, WeightsOfTheRolloutChangeTheLossAndAreReported) {
  const auto step = [](const ActorColumns& columns, bool weighted) {
    ActorObjectiveOptions objective;
    if (weighted) objective.rollout_weights = algo::ImportanceOptions{.cap = 2};
    return Steps({columns}, objective, [](UpdateOptions&) {});
  };
  const Result plain = step({}, false), same = step({}, true);
  EXPECT_EQ(plain.metrics.at("rollout_corr/kl"), 0);
  EXPECT_EQ(plain.metrics.at("rollout_corr/max_abs_diff"), 0);
  EXPECT_EQ(plain.metrics.count("rollout_corr/rollout_is_mean"), 0u);
  EXPECT_EQ(same.metrics.at("rollout_corr/rollout_is_mean"), 1);
  ActorColumns other;
  other.rollout_log_probs[0][0] -= 1;  // training finds the token e times as likely
  const Result weighted = step(other, true);
  EXPECT_NEAR(weighted.metrics.at("rollout_corr/max_abs_diff"), 1, 1e-6);
  EXPECT_NEAR(weighted.metrics.at("rollout_corr/rollout_is_max"), std::exp(1), 1e-5);
  EXPECT_NEAR(weighted.metrics.at("rollout_corr/rollout_is_ratio_fraction_high"), 1.0 / 5, 1e-6);
  for (size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(same.parameters[i], plain.parameters[i])) << "parameter " << i;
  }
  EXPECT_FALSE(at::equal(weighted.parameters[0], plain.parameters[0]));
}

TEST_P(UpdateStageTest, ABonusForEntropyRaisesIt) {
  const auto entropy_after = [](double coef) {
    return Steps(std::vector<ActorColumns>(6), {.loss = {.entropy_coef = coef}},
                 [](UpdateOptions& options) { options.lr = 1e-2; })
        .metrics.at("actor/entropy");
  };
  EXPECT_GT(entropy_after(10), entropy_after(0) + 0.001);
}

// The cosine of the angle between the steps that two runs took.
double CosineOfSteps(const std::vector<at::Tensor>& before, const std::vector<at::Tensor>& a,
                     const std::vector<at::Tensor>& b) {
  std::vector<at::Tensor> of_a, of_b;
  for (size_t i = 0; i < before.size(); ++i) {
    of_a.push_back((a[i] - before[i]).detach().view({-1}));
    of_b.push_back((b[i] - before[i]).detach().view({-1}));
  }
  const at::Tensor x = at::cat(of_a), y = at::cat(of_b);
  return (x.dot(y) / (x.norm() * y.norm())).item<double>();
}

TEST_P(UpdateStageTest, InFloat16AScaledLossKeepsSmallGradients) {
  ActorColumns small;
  for (auto& row : small.advantages) {
    for (float& advantage : row) advantage *= 1e-6f;
  }
  const auto step = [&](at::ScalarType compute, double scale) {
    return StepsIn(compute, {small}, {.loss = {.kl_coef = 0}}, {.initial = scale});
  };
  const std::vector<at::Tensor> before = StepsIn(at::kFloat, {}, {}, {}).parameters;
  const Result expected = step(at::kFloat, 65536), scaled = step(at::kHalf, 65536), plain = step(at::kHalf, 1);
  ASSERT_EQ(scaled.status, absl::OkStatus());
  EXPECT_EQ(scaled.metrics.at("actor/loss_scale"), 65536);
  EXPECT_EQ(expected.metrics.count("actor/loss_scale"), 0u);
  EXPECT_NEAR(scaled.metrics.at("actor/grad_norm") / expected.metrics.at("actor/grad_norm"), 1, 0.02);
  EXPECT_GT(CosineOfSteps(before, expected.parameters, scaled.parameters), 0.95);
  EXPECT_LT(CosineOfSteps(before, expected.parameters, plain.parameters), 0.8);
}

TEST_P(UpdateStageTest, InFloat16TheSearchForAScaleDoesNotEndTheRun) {
  const std::vector<ActorColumns> steps(16);
  const Result given =
      StepsIn(at::kHalf, steps, {.loss = {.kl_coef = 0.1}}, {.initial = 16777216, .growth_interval = 3});
  ASSERT_EQ(given.status, absl::OkStatus());
  const double overflows = given.metrics.at("actor/overflow_steps");
  EXPECT_GE(overflows, 4) << "scales above 655,360 make gradients above 0.1 infinite";
  EXPECT_GE(given.metrics.at("actor/optimizer_steps"), 4);
  EXPECT_EQ(overflows + given.metrics.at("actor/optimizer_steps"), 16);
  EXPECT_EQ(given.metrics.at("actor/skipped_steps"), 0);
  EXPECT_EQ(given.version, given.metrics.at("actor/optimizer_steps"));
  for (const at::Tensor& parameter : given.parameters) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

TEST_P(UpdateStageTest, InFloat16GradientsThatAreNotFiniteAtTheSmallestScaleAreSkippedSteps) {
  ActorColumns infinite;
  infinite.advantages[0][0] = 3e38f;
  const Result given = StepsIn(at::kHalf, {{}, infinite, infinite, infinite}, {.loss = {.kl_coef = 0.1}},
                               {.initial = 3, .minimum = 1.5});
  // No step may be skipped.
  EXPECT_THAT(given.status, Fails(absl::StatusCode::kInternal, {"model.compute_dtype: bfloat16", "float32"}));
  EXPECT_EQ(given.version, 1);
  EXPECT_EQ(given.metrics.at("actor/overflow_steps"), 1);
  EXPECT_EQ(given.metrics.at("actor/skipped_steps"), 1);
}

// Told to stop after an optimizer step, it goes on from its state in another process, to the bit.
TEST_P(UpdateStageTest, GoesOnAmongTheMiniBatchesOfAStep) {
  const auto make_policy = [] {
    Policy policy{
        model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1, GetParam())};
    policy.decoder.SetTrainable(true);
    return policy;
  };
  Workers workers(2);
  const auto make_stage = [&](Policy& policy) {
    return MakeUpdateStage(policy, MakeActorObjective({.loss = {}}),
                           {.forward = {.workers = workers, .micro_batch_size = 2},
                            .optimizer = {},
                            .lr = 1e-2,
                            .schedule = {},
                            .mini_batch_size = 1,
                            .epochs = 2});
  };
  const auto run = [&](Stage& stage, StepMetrics& metrics, int stop_after) {
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    EXPECT_TRUE(dock->CreatePartition({.name = "train",
                                       .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kOldLogProbs,
                                                                kRolloutLogProbs, kRefLogProb, kAdvantages}),
                                       .group_size = 3})
                    .ok());
    StageRunner runner(*dock, "train");
    EXPECT_TRUE(runner.Add(stage).ok());
    EXPECT_TRUE(dock->Put(RequestFor({}, 0)).ok());
    StageContext context{1, metrics};
    context.check_stop = [&] { return stop_after-- == 1 ? absl::CancelledError("stop") : absl::OkStatus(); };
    return runner.Run(stage, 3, context).status();
  };
  Policy whole = make_policy();
  StepMetrics whole_metrics;
  ASSERT_EQ(run(*make_stage(whole), whole_metrics, 0), absl::OkStatus());
  ASSERT_EQ(whole.version, 6);

  for (const int stop_after : {1, 4}) {
    Policy stopped = make_policy();
    StepMetrics metrics;
    const std::unique_ptr<Stage> first = make_stage(stopped);
    ASSERT_EQ(run(*first, metrics, stop_after).code(), absl::StatusCode::kCancelled);
    ASSERT_EQ(stopped.version, stop_after);
    State live;
    live.Set("actor", *first);
    live.Set("metrics", metrics);
    const State state = live.Snapshot();

    Policy resumed{stopped.decoder.Clone()};
    resumed.decoder.SetTrainable(true);
    const std::unique_ptr<Stage> second = make_stage(resumed);
    ASSERT_EQ(state.Get("actor", *second), absl::OkStatus());
    StepMetrics resumed_metrics;
    ASSERT_EQ(state.Get("metrics", resumed_metrics), absl::OkStatus());
    ASSERT_EQ(run(*second, resumed_metrics, 0), absl::OkStatus());
    EXPECT_EQ(resumed.version, 6);
    EXPECT_EQ(FiguresOf(resumed_metrics), FiguresOf(whole_metrics));
    for (size_t i = 0; i < whole.decoder.parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(resumed.decoder.parameters()[i], whole.decoder.parameters()[i])) << "parameter " << i;
    }
  }
}

}  // namespace
}  // namespace tdock::trainer
