// Unfinished responses: resumed, aged, carried over.
#include <algorithm>

#include "dock/compat/mindspeed/testing/fixture.h"

namespace tdock::mindspeed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PartialRollout : public MindSpeedTest {
 protected:
  const Names kPrompt = {"prompts", "prompt_length", "responses", "response_length", "age"};

  void PutPrompts(const Ints& indexes) {
    ASSERT_EQ(Put(indexes, {{"prompts", Ones(indexes)}, {"prompt_length", Ones(Ints(indexes.size(), 1))}}),
              absl::OkStatus());
  }
  Experience Rollout(int64_t count, int64_t dp_size = 1) {
    return Sample("actor_rollout", kPrompt, {.experience_count = count, .dp_size = dp_size, .get_n_samples = false});
  }
  bool NothingToRollOut() {
    return NothingYet("actor_rollout", kPrompt, {.experience_count = 1, .get_n_samples = false});
  }
  // Rolls out what there is: all finished but those at `unfinished`.
  void RollOutBut(const Ints& unfinished) {
    const Experience got = Rollout(dock_->GetExperienceLen());
    Tokens responses;
    Ints completed;
    for (const int64_t index : got.indexes.indexes) {
      responses.push_back({index, index});
      completed.push_back(std::find(unfinished.begin(), unfinished.end(), index) == unfinished.end() ? 1 : 0);
    }
    ASSERT_EQ(PutResponses(got.indexes, responses, completed), absl::OkStatus());
  }
};

TEST_F(PartialRollout, TakesWhatThereIsAndPadsToRanks) {
  MakePartial(8, 1, 2);
  PutPrompts({3, 5, 6});
  const Experience got = Rollout(8, /*dp_size=*/2);
  EXPECT_THAT(got.indexes.indexes, ElementsAre(3, 5, 6));
  EXPECT_EQ(got.indexes.padding_rows, 1);
  EXPECT_EQ(TokensOf(got.batch, "prompts"), Ones({3, 5, 6, 6}));
  EXPECT_THAT(AgesOf(got.batch), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(TokensOf(got.batch, "responses"), (Tokens{{}, {}, {}, {}}));
  EXPECT_TRUE(NothingToRollOut());
}

TEST_F(PartialRollout, HandsOutALengthOfZeroWhereThereIsNoResponse) {
  MakePartial(2, 1, 1);
  ASSERT_EQ(PutResponses({1}, {{7, 7}}, {1}), absl::OkStatus());
  PutPrompts({0});
  EXPECT_EQ(TokensOf(Rollout(1).batch, "response_length"), Ones({0}));
}

TEST_F(PartialRollout, RefusesToKeepWhatIsGivenBackAndStatesThatAreNone) {
  MakePartial(2, 1, 1);
  PutPrompts({0});
  const Experience got = Rollout(1);
  const Batch unfinished = TokenBatch({{"responses", {{1}}}, {"rollout_completed", {{0}}}});
  EXPECT_THAT(dock_->PutExperience(unfinished, got.indexes, {.keep = true}),
              Fails(Code::kInvalidArgument, {"row 0 is unfinished"}));
  EXPECT_THAT(PutResponses(got.indexes, {{1}}, {2}), Fails(Code::kInvalidArgument, {"'rollout_completed'", "is 2"}));
  EXPECT_EQ(dock_->PutExperience(unfinished, got.indexes), absl::OkStatus());
}

TEST_F(PartialRollout, TakesTheFirstAscending) {
  MakePartial(8, 1, 2);
  PutPrompts({6, 0, 5, 3});
  EXPECT_THAT(Rollout(3).indexes.indexes, ElementsAre(0, 3, 5));
  EXPECT_EQ(Rollout(1, 4).indexes.padding_rows, 0);  // as many as it asked for
}

TEST_F(PartialRollout, RefusesGroupsAndResponsesWithoutTheirState) {
  MakePartial(2, 2, 1);
  EXPECT_THAT(TryGet("actor_rollout", kPrompt, {.experience_count = 2}).status(),
              Fails(Code::kInvalidArgument, {"get_n_samples"}));
  EXPECT_THAT(Put({0}, {{"responses", {{1}}}}), Fails(Code::kInvalidArgument, {"'rollout_completed'"}));
  EXPECT_THAT(Put({0}, {{"rollout_completed", {{1}}}}), Fails(Code::kNotFound, {"'rollout_completed'"}));
  EXPECT_THAT(Put({0}, {{"responses", {{1}}}, {"rollout_completed", {{1, 1}}}}),
              Fails(Code::kInvalidArgument, {"'rollout_completed'", "one integer"}));
  EXPECT_THAT(TryGet("rule_reward", {"prompts", "age"}, {.experience_count = 2}).status(),
              Fails(Code::kNotFound, {"'age'"}));
}

TEST_F(PartialRollout, UnfinishedResponsesComeBackToTheRolloutOnly) {
  MakePartial(2, 1, 1);
  PutPrompts({0, 1});
  const Experience first = Rollout(2);
  ASSERT_EQ(PutResponses(first.indexes, {{7}, {8, 8}}, {0, 1}), absl::OkStatus());
  EXPECT_THAT(Consumed("actor_rollout"), ElementsAre(false, true));
  EXPECT_EQ(*dock_->GetIncompleteResponseNum(), 1);
  EXPECT_THAT(dock_->GetExperienceStatus()->at("responses"), ElementsAre(false, true));
  EXPECT_THAT(dock_->Get({"responses"}, {0}).status(), Fails(Code::kDeadlineExceeded, {"'responses'", "index 0"}));

  const Experience second = Rollout(2);
  EXPECT_THAT(second.indexes.indexes, ElementsAre(0));
  EXPECT_EQ(TokensOf(second.batch, "responses"), (Tokens{{7}}));
  EXPECT_EQ(TokensOf(second.batch, "response_length"), Ones({1}));
  ASSERT_EQ(PutResponses(second.indexes, {{7, 7}}, {0}), absl::OkStatus());
  const Experience third = Rollout(1);
  EXPECT_EQ(TokensOf(third.batch, "responses"), (Tokens{{7, 7}}));
  ASSERT_EQ(PutResponses(third.indexes, {{7, 7, 7}}, {1}), absl::OkStatus());
  EXPECT_EQ(Read("responses", {0, 1}), (Tokens{{7, 7, 7}, {8, 8}}));
  EXPECT_TRUE(NothingToRollOut());
  EXPECT_EQ(*dock_->GetIncompleteResponseNum(), 0);
}

TEST_F(PartialRollout, PlainIndexesDoTheSame) {
  MakePartial(3, 1, 1);
  PutPrompts({0, 1, 2});
  Rollout(2);
  ASSERT_EQ(PutResponses({0, 1}, {{7}, {8}}, {0, 1}), absl::OkStatus());
  // Index 2 was handed to nobody: responses may come from elsewhere.
  ASSERT_EQ(PutResponses({2}, {{9}}, {1}), absl::OkStatus());
  EXPECT_THAT(Consumed("actor_rollout"), ElementsAre(false, true, true));
  const Experience again = Rollout(3);
  EXPECT_THAT(again.indexes.indexes, ElementsAre(0));
  EXPECT_EQ(TokensOf(again.batch, "responses"), (Tokens{{7}}));
  EXPECT_THAT(PutResponses({1}, {{8}}, {0}), Fails(Code::kAlreadyExists, {"'responses'", "is index 1"}));
  EXPECT_EQ(Read("responses", {1}), (Tokens{{8}}));
}

TEST_F(PartialRollout, UnfinishedRowsOfACrashedRolloutComeBack) {
  MakePartial(1, 1, 1);
  PutPrompts({0});
  ASSERT_EQ(PutResponses(Rollout(1).indexes, {{7}}, {0}), absl::OkStatus());
  const Experience lost = Rollout(1);
  EXPECT_TRUE(NothingToRollOut());
  clock_.Advance(absl::Hours(1));
  const Experience again = Rollout(1);
  EXPECT_EQ(TokensOf(again.batch, "responses"), (Tokens{{7}}));
  EXPECT_THAT(PutResponses(lost.indexes, {{7, 7}}, {0}), Fails(Code::kFailedPrecondition, {"lease"}));
  ASSERT_EQ(PutResponses(again.indexes, {{7, 7, 7}}, {1}), absl::OkStatus());
}

TEST_F(PartialRollout, NamedRowsMustBeThereToBeTaken) {
  MakePartial(2, 1, 1);
  PutPrompts({0, 1});
  ASSERT_EQ(PutResponses(Rollout(1).indexes, {{7}}, {0}), absl::OkStatus());
  const GetOptions named{.indexes = ExperienceIndexes{1, 0}, .get_n_samples = false};
  const Experience got = Sample("actor_rollout", kPrompt, named);
  EXPECT_EQ(TokensOf(got.batch, "responses"), (Tokens{{}, {7}}));
  EXPECT_THAT(TryGet("actor_rollout", kPrompt, named).status(), Fails(Code::kFailedPrecondition, {"is index 1"}));
}

TEST_F(PartialRollout, OthersSeeGroupsThatWereCompleteWhenItWasChecked) {
  MakePartial(3, 2, 1);
  PutPrompts({0, 1, 2, 3, 4, 5});
  RollOutBut({3});
  const GetOptions group{.experience_count = 2};
  EXPECT_TRUE(NothingYet("rule_reward", {"prompts"}, group));
  EXPECT_TRUE(AllConsumed("actor_rollout"));  // two groups of the one that is needed
  EXPECT_THAT(Sample("rule_reward", {"prompts"}, group).indexes.indexes, ElementsAre(0, 1));
  // It has had its gbs_train groups, though group 2 is complete.
  EXPECT_TRUE(NothingYet("rule_reward", {"prompts"}, group));
  EXPECT_TRUE(AllConsumed("rule_reward"));
  // Rows are not limited so, but shown only from complete groups.
  EXPECT_EQ(SampleRows("actor_log_prob", {"prompts"}, 4).batch.rows(), 4);
  EXPECT_TRUE(NothingYet("actor_log_prob", {"prompts"}, {.experience_count = 1, .get_n_samples = false}));
}

TEST_F(PartialRollout, ClearCarriesOver) {
  MakePartial(4, 1, 2);
  PutPrompts({0, 1, 2, 3});
  RollOutBut({1, 2});
  EXPECT_TRUE(AllConsumed("actor_rollout"));
  EXPECT_EQ(SampleRows("actor_train", {"responses"}, 2).batch.rows(), 2);
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  // The old rows [1, 2, 0, 3].
  EXPECT_THAT(dock_->GetExperienceStatus()->at("prompts"), ElementsAre(true, true, false, false));
  EXPECT_EQ(Read("prompts", {0, 1}), Ones({1, 2}));
  const Experience got = Rollout(4);
  EXPECT_THAT(got.indexes.indexes, ElementsAre(0, 1));
  EXPECT_EQ(TokensOf(got.batch, "responses"), (Tokens{{1, 1}, {2, 2}}));
  EXPECT_THAT(AgesOf(got.batch), ElementsAre(1, 1));
  PutPrompts({2, 3});
  EXPECT_THAT(AgesOf(Rollout(4).batch), ElementsAre(0, 0));
  for (const char* consumer : {"actor_train", "rule_reward"}) {
    EXPECT_THAT(Consumed(consumer), ElementsAre(false, false, false, false)) << consumer;
  }
}

TEST_F(PartialRollout, ClearMovesWholeGroupsOldestFirstAndEmptiedOnesLast) {
  MakePartial(4, 2, 1);
  PutPrompts({0, 1, 2, 3, 4, 5, 6, 7});
  // Group 0 complete, group 1 not begun, groups 2 and 3 unfinished.
  ASSERT_EQ(PutResponses({0, 1}, {{0}, {1}}, {1, 1}), absl::OkStatus());
  ASSERT_EQ(PutResponses({5, 6}, {{5}, {6}}, {0, 0}), absl::OkStatus());
  EXPECT_TRUE(AllConsumed("actor_rollout"));
  Sample("actor_train", {"responses"}, {.experience_count = 2});
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  EXPECT_EQ(Read("prompts", {0, 1, 2, 3, 4, 5}), Ones({4, 5, 6, 7, 2, 3}));
  EXPECT_THAT(dock_->GetExperienceStatus()->at("prompts"),
              ElementsAre(true, true, true, true, true, true, false, false));
  // All rows of a group have its largest age.
  EXPECT_THAT(AgesOf(Rollout(6).batch), ElementsAre(1, 1, 1, 1, 0, 0));
}

TEST_F(PartialRollout, ClearWithoutTrainedRowsMovesNothing) {
  MakePartial(2, 1, 1);
  PutPrompts({0, 1});
  RollOutBut({0, 1});
  dock_->UpdateMetrics("loss", 1);
  EXPECT_TRUE(dock_->PrefetchRequestIndex(2)->has_value());
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  EXPECT_THAT(AgesOf(Rollout(2).batch), ElementsAre(0, 0));
  EXPECT_THAT(dock_->GetMetrics(), IsEmpty());
  EXPECT_TRUE(dock_->PrefetchRequestIndex(2)->has_value());
  EXPECT_THAT(dock_->Clear("judge"), Fails(Code::kNotFound, {"'judge'"}));
}

TEST_F(PartialRollout, AHandleFollowsItsRowsThroughAClear) {
  MakePartial(3, 1, 1);
  PutPrompts({0, 1, 2});
  ASSERT_EQ(PutResponses({0}, {{0}}, {1}), absl::OkStatus());
  const Experience in_flight = Rollout(2);
  EXPECT_THAT(in_flight.indexes.indexes, ElementsAre(1, 2));
  EXPECT_TRUE(AllConsumed("actor_rollout"));
  Sample("actor_train", {"responses"}, {.experience_count = 1});
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  ASSERT_EQ(PutResponses(in_flight.indexes, {{1}, {2}}, {1, 1}), absl::OkStatus());
  EXPECT_EQ(Read("responses", {0, 1}), Ones({1, 2}));
}

}  // namespace
}  // namespace tdock::mindspeed
