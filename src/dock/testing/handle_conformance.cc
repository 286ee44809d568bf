// Handles of one partition.
#include "dock/testing/conformance.h"

namespace tdock::dock {

using testing::ElementsAre;

// A put of one new float of column a, without the partition's name.
static PutRequest OneFloat(std::vector<std::string> keys = {}) {
  PutRequest request{.keys = std::move(keys)};
  EXPECT_EQ(request.batch.Add("a", Column::FromValues<float>({1})), absl::OkStatus());
  return request;
}

TEST_P(DockConformance, AHandleAsksForRowsOfItsPartition) {
  Create();
  ASSERT_EQ(dock_->CreatePartition({.name = "eval", .growing = true}), absl::OkStatus());
  const PartitionHandle train = dock_->partition(kPartition);
  EXPECT_EQ(train.name(), kPartition);
  ASSERT_EQ(train.RegisterConsumer({.name = "x", .reads = {"a"}, .max_deliveries = 1, .checkpointed = true}),
            absl::OkStatus());
  ASSERT_EQ(train.Put(OneFloat({"first"})).status(), absl::OkStatus());
  ASSERT_EQ(train.Put(OneFloat()).status(), absl::OkStatus());
  EXPECT_EQ(*train.FindRows(std::vector<std::string>{"first"}), (std::vector<RowId>{0}));
  EXPECT_EQ(train.List({.ready_for = "x"})->rows.size(), 2u);
  EXPECT_EQ(train.Fetch({.rows = {1}, .columns = {"a"}})->size(), 1u);

  const Taken taken = *train.Take({.consumer = "x", .min = 2, .max = 8, .deadline = In(absl::Seconds(1))});
  EXPECT_THAT(taken.rows.ids(), ElementsAre(0, 1));
  EXPECT_EQ(train.GetRowStatus(1)->consumers[0].state, DeliveryState::kLeased);
  EXPECT_EQ(*train.Renew(taken.lease), taken.expires);
  EXPECT_EQ(train.Complete({.lease = taken.lease, .rows = {0}, .step = 0}), absl::OkStatus());
  EXPECT_EQ(train.Release({.lease = taken.lease}), absl::OkStatus());
  EXPECT_EQ(train.Fill({.batch = Floats({{"b", {5}}}).batch, .rows = {1}}), absl::OkStatus());
  EXPECT_EQ(train.Rollback({.consumer = "x", .step = kNoStep}), absl::OkStatus());
  EXPECT_EQ(train.GetConsumerStatus("x")->ready, 2);
  EXPECT_EQ(dock_->GetStatus("eval")->rows, 0);
}

TEST_P(DockConformance, AHandleAsksForTheStateOfItsPartition) {
  Create();
  const PartitionHandle train = dock_->partition(kPartition);
  ASSERT_EQ(train.RegisterConsumer({.name = "x", .reads = {"a"}, .checkpointed = true}), absl::OkStatus());
  ASSERT_EQ(train.Put(OneFloat()).status(), absl::OkStatus());
  EXPECT_EQ(train.Drop({.rows = {0}}), absl::OkStatus());
  EXPECT_THAT(train.Requeue({.consumer = "x", .rows = {0}}), Fails(Code::kFailedPrecondition, {"not quarantined"}));
  EXPECT_EQ(train.Commit({.consumer = "x", .step = 2}), absl::OkStatus());
  EXPECT_EQ(train.GetConsumerStatus("x")->committed_step, 2);
  EXPECT_EQ(train.PublishWeights(3), absl::OkStatus());
  EXPECT_EQ(train.Seal(), absl::OkStatus());
  EXPECT_TRUE(train.GetStatus()->sealed);
  EXPECT_EQ(train.GetStatus()->weights_version, 3);
  EXPECT_THAT(*train.Explain("x"), testing::HasSubstr("'x'"));
  EXPECT_EQ(*train.Clear({.everything = true}), 1);
  EXPECT_EQ(train.DropConsumer("x"), absl::OkStatus());
  EXPECT_EQ(train.GetConsumerStatus("x").status().code(), Code::kNotFound);
}

TEST_P(DockConformance, AHandleIsANameThatRequestsMayRepeatButNotContradict) {
  const PartitionHandle train = dock_->partition(kPartition);
  EXPECT_THAT(train.GetStatus().status(), Fails(Code::kNotFound, {"'train'"}));
  Create();
  ASSERT_EQ(dock_->CreatePartition({.name = "eval", .growing = true}), absl::OkStatus());
  PutRequest put = OneFloat();
  put.partition = kPartition;
  EXPECT_EQ(train.Put(put).status(), absl::OkStatus());
  put.partition = "eval";
  EXPECT_THAT(train.Put(put).status(), Fails(Code::kInvalidArgument, {"partition 'eval'", "handle of 'train'"}));
  EXPECT_EQ(train.Fill({.partition = "eval", .rows = {0}, .tags = {{{"a", "b"}}}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(train.Clear({.partition = "eval", .everything = true}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(dock_->GetStatus("eval")->rows, 0);
  EXPECT_EQ(train.GetStatus()->rows, 1);
}

}  // namespace tdock::dock
