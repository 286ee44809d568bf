#include "trainer/stages/stages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

// What the actor reads of each response token, for three samples.
struct ActorColumns {
  std::vector<std::vector<uint8_t>> mask = {{1, 1}, {1, 0, 1}, {1}};
  std::vector<std::vector<float>> old_log_probs = {{-1.5f, -2.0f}, {-3.0f, -2.5f, -3.5f}, {-2.0f}};
  std::vector<std::vector<float>> ref_log_prob = old_log_probs;
  std::vector<std::vector<float>> advantages = {{1, 1}, {-1, -1, -1}, {0.5f}};
};

class ActorStageTest : public testing::TestWithParam<at::Device> {
 protected:
  struct Result {
    std::vector<at::Tensor> parameters;
    std::map<std::string, double> metrics;
  };

  // One optimizer step on these columns, always from the same weights.
  static Result Step(const ActorColumns& columns) {
    Policy policy{
        model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1, GetParam())};
    policy.decoder.SetTrainable(true);
    Workers workers(2);
    const auto stage = MakeActorStage(policy, {.forward = {.workers = workers, .micro_batch_size = 2},
                                               .kl_loss_coef = 0.1,
                                               .optimizer = {},
                                               .lr = 1e-3,
                                               .schedule = {}});
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    EXPECT_TRUE(dock->CreatePartition({.name = "train", .columns = GrpoColumns(), .group_size = 3}).ok());
    StageRunner runner(*dock, "train");
    EXPECT_TRUE(runner.Add(*stage).ok());
    PutRequest request{.partition = "train", .groups = {0, 0, 0}};
    const auto add = [&](const std::string& name, const auto& rows) {
      EXPECT_TRUE(request.batch.Add(name, Column::FromRows(rows)).ok());
    };
    add("prompt", std::vector<std::vector<int32_t>>(3, {3, 4}));
    add("responses", std::vector<std::vector<int32_t>>{{5, 6}, {7, 8, 9}, {6}});
    add("response_mask", columns.mask);
    add("old_log_probs", columns.old_log_probs);
    add("ref_log_prob", columns.ref_log_prob);
    add("advantages", columns.advantages);
    EXPECT_TRUE(dock->Put(request).ok());
    StepMetrics metrics;
    StageContext context{1, metrics};
    const absl::Status status = runner.Run(*stage, 3, context);
    EXPECT_TRUE(status.ok()) << status;
    return {policy.decoder.parameters(), metrics.Values()};
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ActorStageTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(ActorStageTest, AMaskedTokenChangesNeitherLossNorGradients) {
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

}  // namespace
}  // namespace tdock::trainer
