#include "trainer/loop/gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "tdock/local_dock.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

// Gives each row what the test says: to prompt p the answers whose rewards are rewards[p].
class FakeScoring final : public Stage {
 public:
  FakeScoring(std::string name, std::string column, int64_t version) : version_(version) {
    consumer_ = {.name = std::move(name), .reads = {kPrompt}, .writes = {std::move(column)}, .unit = Unit::kGroup};
  }
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext&) override {
    if (!before.ok()) return std::exchange(before, absl::OkStatus());
    StageOutput output{.columns = {}, .weights_version = version_};
    std::vector<float> values;
    std::vector<std::vector<uint8_t>> masks;
    for (size_t i = 0; i < rows.size(); ++i) {
      const int32_t prompt = rows.Get<int32_t>(i, kPrompt)->front();
      values.push_back(rewards.at(prompt)[i % 2]);
      masks.emplace_back(static_cast<size_t>(1 + i % 2), uint8_t{1});
    }
    if (consumer_.writes[0] == kRewards) {
      TDOCK_RETURN_IF_ERROR(output.columns.Add(kRewards, Column::FromValues(values)));
    } else {
      TDOCK_RETURN_IF_ERROR(output.columns.Add(consumer_.writes[0], Column::FromRows(masks)));
    }
    return output;
  }

  std::map<int32_t, std::vector<float>> rewards = {{1, {0, 1}}, {2, {1, 1}}, {3, {1, 0}},
                                                   {4, {0, 0}}, {5, {2, 1}}, {6, {0, 3}}};
  absl::Status before;  // an error that it returns once

 private:
  ConsumerOptions consumer_;
  const int64_t version_;
};

// Rounds of three prompts, each with two answers.
class GatherTest : public testing::Test {
 protected:
  GatherTest() {
    stages_.push_back(std::make_unique<FakeScoring>("rollout", kResponseMask, 7));
    stages_.push_back(std::make_unique<FakeScoring>("reward", kRewards, kNoWeightsVersion));
    stages_.push_back(std::make_unique<FakeScoring>("advantage", kAdvantages, kNoWeightsVersion));
    EXPECT_EQ(dock_->CreatePartition({.name = "train", .columns = columns_, .group_size = 2, .retain_for = {"actor"}}),
              absl::OkStatus());
  }

  std::unique_ptr<Gather> Make(const Gathering& gathering, bool create = true) {
    auto gather = std::make_unique<Gather>(gathering, *dock_, "train", columns_, 2, stages_);
    if (create) {
      EXPECT_EQ(dock_->CreatePartition(gather->options()), absl::OkStatus());
    }
    EXPECT_EQ(gather->Register(), absl::OkStatus());
    return gather;
  }

  FakeScoring& reward() { return static_cast<FakeScoring&>(*stages_[1]); }

  absl::StatusOr<Gather::Gathered> Run(Gather& gather, int32_t prompts = 6) {
    StageContext context{.step = 1, .metrics = *metrics_};
    return gather.Run(context, meter_, watch_, [&]() -> absl::StatusOr<int64_t> {
      PutRequest request{.partition = gather.partition()};
      std::vector<std::vector<int32_t>> fed;
      for (int i = 0; i < 3 && next_ <= prompts; ++i, ++next_, ++group_) {
        for (int sample = 0; sample < 2; ++sample) {
          fed.push_back({next_});
          request.groups.push_back(group_);
        }
      }
      if (fed.empty()) return 0;
      TDOCK_RETURN_IF_ERROR(request.batch.Add(kPrompt, Column::FromRows(fed)));
      TDOCK_RETURN_IF_ERROR(dock_->Put(request).status());
      return std::ssize(fed);
    });
  }

  // The groups on the partition that is trained on, and their rewards.
  std::vector<std::pair<GroupId, std::vector<float>>> Trained() {
    std::vector<std::pair<GroupId, std::vector<float>>> groups;
    std::vector<RowId> ids;
    const ListResult listed = *dock_->List({.partition = "train"});
    for (const ListedRow& row : listed.rows) ids.push_back(row.row);
    if (ids.empty()) return groups;
    const Rows rows = *dock_->Fetch({.partition = "train", .rows = ids, .columns = {kPrompt, kResponseMask, kRewards}});
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i % 2 == 0) groups.emplace_back(rows.groups()[i], std::vector<float>());
      groups.back().second.push_back(rows.Get<float>(i, kRewards)->front());
      EXPECT_EQ(rows.Get<int32_t>(i, kPrompt)->front(), static_cast<int32_t>(rows.groups()[i]));
      EXPECT_EQ(*rows.WeightsVersion(i, kResponseMask), 7);
      EXPECT_EQ(*rows.WeightsVersion(i, kRewards), kNoWeightsVersion);
    }
    return groups;
  }

  const std::vector<ColumnSpec> columns_ = ColumnsNamed({kPrompt, kResponseMask, kRewards, kAdvantages});
  const std::unique_ptr<Dock> dock_ = MakeLocalDock();
  std::vector<std::unique_ptr<Stage>> stages_;
  PhaseMeter meter_{Clock::Real(), Env::Real(), at::kCPU};
  StageWatch watch_{{.clock = Clock::Real()}};
  std::unique_ptr<StepMetrics> metrics_ = std::make_unique<StepMetrics>();  // of the step
  int32_t next_ = 1;                                                        // prompt
  GroupId first_group_ = 0;                                                 // before that of the first prompt
  GroupId group_ = 1;  // its group, of the same number where it comes for the first time
};

TEST_F(GatherTest, CopiesGroupsWhoseRewardsDifferWithAllThatTheyHaveUntilThereAreEnough) {
  const auto gather = Make({.stages = 2, .groups = 3});
  const auto gathered = Run(*gather);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_EQ(gathered->rows, 6);
  EXPECT_EQ(gathered->first_row, 0u);
  EXPECT_THAT(Trained(), ElementsAre(testing::Pair(1, ElementsAre(0, 1)), testing::Pair(3, ElementsAre(1, 0)),
                                     testing::Pair(5, ElementsAre(2, 1))));
  const auto values = metrics_->Values();
  EXPECT_EQ(values.at("sampling/rounds"), 2);
  EXPECT_EQ(values.at("sampling/groups"), 6);
  EXPECT_EQ(values.at("sampling/kept"), 3);
  EXPECT_EQ(values.at("sampling/surplus"), 1) << "the last";
  EXPECT_NEAR(values.at("sampling/equal_share"), 2.0 / 6, 1e-12);
  EXPECT_EQ(dock_->GetStatus("train-sampling")->rows, 0);
  // A later step counts anew.
  next_ = 1;
  first_group_ = 100;
  metrics_ = std::make_unique<StepMetrics>();
  const auto next = Run(*gather);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->first_row, 6u);
  EXPECT_EQ(metrics_->Values().at("sampling/kept"), 3);
}

TEST_F(GatherTest, TheEndOfTheDataIsTheEnd) {
  const auto gather = Make({.stages = 2, .groups = 3});
  const auto gathered = Run(*gather, 4);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_EQ(gathered->rows, 4);
  next_ = 4;
  const auto nothing = Run(*gather, 4);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_EQ(nothing->rows, 0);
}

TEST_F(GatherTest, RewardsAreComparedWithAPenaltyForLengthWhereThatIsAsked) {
  // The second answer of each prompt has two tokens of at most two.
  const auto gather = Make({.stages = 2, .groups = 4, .overlong = algo::OverlongOptions{.max_length = 2, .buffer = 1}});
  ASSERT_TRUE(Run(*gather).ok());
  // 5 has 2 and 1 − 1, and 1 has 0 and 1 − 1, so its rewards are equal now.
  std::vector<GroupId> groups;
  for (const auto& [group, rewards] : Trained()) groups.push_back(group);
  EXPECT_THAT(groups, ElementsAre(2, 3, 4, 5));
}

TEST_F(GatherTest, RewardsAreComparedAsTheyAreClampedLater) {
  const auto gather = Make({.stages = 2, .groups = 4, .score_clip = 1});
  ASSERT_TRUE(Run(*gather).ok());
  std::vector<GroupId> groups;
  for (const auto& [group, rewards] : Trained()) groups.push_back(group);
  EXPECT_THAT(groups, ElementsAre(1, 3, 6)) << "5 has 2 and 1";
}

TEST_F(GatherTest, TooManyRoundsAreAnError) {
  const auto gather = Make({.stages = 2, .groups = 4, .max_rounds = 1});
  EXPECT_THAT(Run(*gather).status(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    {"1 rounds", "2 of the 4 prompts", "of 3 prompts, 1 had", "equal rewards, 1 on average"}));
}

TEST_F(GatherTest, WhereItWasStoppedItGoesOn) {
  const auto first = Make({.stages = 2, .groups = 3});
  reward().before = absl::CancelledError("interrupted");
  EXPECT_THAT(Run(*first).status(), Fails(absl::StatusCode::kCancelled, {"round 1 of sampling", "stage 'reward'"}));
  State state;
  state.Set("gather", *first);
  const auto second = Make({.stages = 2, .groups = 3}, /*create=*/false);
  ASSERT_EQ(state.Get("gather", *second), absl::OkStatus());
  const auto gathered = Run(*second);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_EQ(Trained().size(), 3u);
  EXPECT_EQ(metrics_->Values().at("sampling/rounds"), 2);
  EXPECT_EQ(metrics_->Values().at("sampling/groups"), 6);

  State wrong;
  wrong.SetInteger("gather/rounds", 1);
  wrong.SetInteger("gather/open", 1);
  wrong.SetInteger("gather/stage", 3);
  wrong.SetInteger("gather/rows", 6);
  wrong.SetInteger("gather/published", 0);
  EXPECT_THAT(wrong.Get("gather", *second), Fails(absl::StatusCode::kInvalidArgument, {"stage 3 of 3"}));
}

}  // namespace
}  // namespace tdock::trainer
