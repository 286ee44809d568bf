// What the docks do.
#include <algorithm>
#include <limits>
#include <set>

#include "dock/compat/mindspeed/samplers.h"
#include "dock/compat/mindspeed/testing/fixture.h"

namespace tdock::mindspeed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using Sets = std::vector<std::vector<size_t>>;

// ---- Putting and reading by index.

TEST_F(MindSpeedTest, ReadsInTheOrderOfTheIndexes) {
  Make(TransferDock(5, 1, {"a", "b"}));
  EXPECT_EQ(dock_->GetExperienceLen(), 5);
  ASSERT_EQ(Put({0, 1, 2, 4}, {{"a", {{1}, {2, 2}, {3}, {4, 4, 4}}}}), absl::OkStatus());
  EXPECT_EQ(Read("a", {4, 0}), (Tokens{{4, 4, 4}, {1}}));
  EXPECT_EQ(Read("a", {4, 4}), (Tokens{{4, 4, 4}, {4, 4, 4}}));
}

TEST_F(MindSpeedTest, TheLastOfEqualIndexesWins) {
  Make(TransferDock(4, 1, {"a"}));
  ASSERT_EQ(Put({1, 0, 1}, {{"a", {{1}, {2}, {3}}}}), absl::OkStatus());
  EXPECT_EQ(Read("a", {0, 1}), (Tokens{{2}, {3}}));
}

TEST_F(MindSpeedTest, TakesAndGivesPaddedColumns) {
  Make(TransferDock(2, 1, {"a", "b"}));
  const Batch rows = TokenBatch({{"a", {{1, 2, 3}, {4}}}, {"b", {{5}, {6, 7}}}});
  const auto padded = PadColumns(rows);
  ASSERT_EQ(padded.status(), absl::OkStatus());
  ASSERT_EQ(dock_->PutExperience(*padded, {0, 1}), absl::OkStatus());
  EXPECT_EQ(Read("a", {0, 1}), (Tokens{{1, 2, 3}, {4}}));
  const auto again = PadColumns(*dock_->Get({"a", "b"}, {0, 1}));
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_THAT(*again->columns.Values<int64_t>("a"), ElementsAre(1, 2, 3, 4, 0, 0));
  EXPECT_THAT(*again->original_length->Values<int64_t>(), ElementsAre(3, 1, 1, 2));
}

TEST_F(MindSpeedTest, APutReplacesWhatIsThere) {
  Make(TransferDock(2, 1, {"a"}));
  ASSERT_EQ(Put({0}, {{"a", {{1}}}}), absl::OkStatus());
  ASSERT_EQ(Put({0}, {{"a", {{2, 3}}}}), absl::OkStatus());
  EXPECT_EQ(Read("a", {0}), (Tokens{{2, 3}}));
}

TEST_F(MindSpeedTest, RefusesWhatItDoesNotKnow) {
  Make(GrpoDock(2, 2));
  EXPECT_THAT(Put({0}, {{"reward", {{1}}}}), Fails(Code::kNotFound, {"'reward'", "rm_scores"}));
  EXPECT_THAT(Put({}, {{"prompts", {}}}), Fails(Code::kInvalidArgument, {"one index"}));
  EXPECT_THAT(Put({4}, {{"prompts", {{1}}}}), Fails(Code::kInvalidArgument, {"index 4", "0 to 3"}));
  EXPECT_THAT(dock_->PutExperience(Batch(), {0}), Fails(Code::kInvalidArgument, {"no columns"}));
  EXPECT_THAT(dock_->Get({"reward"}, {0}).status(), Fails(Code::kNotFound, {"'reward'"}));
  EXPECT_THAT(dock_->Get({"prompts"}, {-3}).status(), Fails(Code::kInvalidArgument, {"index -3"}));
  EXPECT_THAT(TryGet("judge", {"prompts"}, {.experience_count = 2}).status(),
              Fails(Code::kNotFound, {"'judge'", "rule_reward"}));
  EXPECT_THAT(TryGet("rule_reward", {"reward"}, {.experience_count = 2}).status(), Fails(Code::kNotFound));
  EXPECT_THAT(TryGet("rule_reward", {}, {.experience_count = 2}).status(),
              Fails(Code::kInvalidArgument, {"one column"}));
  EXPECT_THAT(dock_->AllConsumed("judge").status(), Fails(Code::kNotFound));
}

TEST_F(MindSpeedTest, ChecksCounts) {
  Make(GrpoDock(3, 2));
  const auto fails = [&](GetOptions options, std::vector<std::string> words) {
    EXPECT_THAT(TryGet("rule_reward", {"prompts"}, options).status(), Fails(Code::kInvalidArgument, words));
  };
  fails({}, {"experience_count"});
  fails({.experience_count = 0}, {"1 to 6"});
  fails({.experience_count = 8}, {"1 to 6"});
  fails({.experience_count = 4}, {"divide", "6"});
  fails({.experience_count = 3}, {"multiple of 2"});
  fails({.experience_count = 2, .dp_size = 0}, {"dp_size"});
  for (const double target : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    fails({.experience_count = 2, .target_seq_len = target}, {"target_seq_len", "finite"});
  }
  EXPECT_TRUE(NothingYet("rule_reward", {"prompts"}, {.experience_count = 3, .get_n_samples = false}));
}

TEST_F(MindSpeedTest, ChecksOptions) {
  const auto fails = [&](auto change, Code code, std::vector<std::string> words) {
    MindSpeedOptions options = GrpoDock(2, 2);
    options.partition = "p";
    change(options);
    EXPECT_THAT(MakeMindSpeedDock(core_, options).status(), Fails(code, words));
  };
  fails([](auto& o) { o.prompts_num = 0; }, Code::kInvalidArgument, {"prompts_num"});
  fails([](auto& o) { o.prompts_num = int64_t{1} << 40; }, Code::kInvalidArgument, {"product"});
  fails([](auto& o) { o.max_age = 0; }, Code::kInvalidArgument, {"max_age"});
  fails([](auto& o) { o.max_age = 2; }, Code::kInvalidArgument, {"gbs_train is 0"});
  fails([](auto& o) { o.lease_duration = o.timeout; }, Code::kInvalidArgument, {"lease_duration"});
  fails([](auto& o) { o.partition = ""; }, Code::kInvalidArgument, {"partition"});
  fails([](auto& o) { o.addition_consumers = {{.name = "x", .writes = {"y"}}}; }, Code::kNotFound, {"'x'", "'y'"});
  fails(
      [](auto& o) {
        o.max_age = 2;
        o.gbs_train = 1;
        o.consumers = {{.name = "actor_rollout", .hand_out = HandOut::kDone}};
      },
      Code::kInvalidArgument, {"max_age", "actor_rollout", "leased"});
  Make(GrpoDock(2, 2));
  fails([](auto& o) { o.partition = "train"; }, Code::kAlreadyExists, {"'train'"});
  dock_.reset();
  Make(GrpoDock(2, 2));  // the first one took its partition with it
}

TEST_F(MindSpeedTest, DocksHaveTheColumnsAndConsumersOfTheOriginal) {
  using Writers = std::vector<std::pair<std::string, Names>>;
  const auto writers = [](const MindSpeedOptions& options) {
    Writers found;
    for (const MindSpeedConsumer& consumer : options.consumers) {
      EXPECT_FALSE(consumer.hand_out.has_value()) << consumer.name;
      found.emplace_back(consumer.name, consumer.writes);
    }
    return found;
  };
  const auto with = [](auto items, const decltype(items)& more) {
    items.insert(items.end(), more.begin(), more.end());
    return items;
  };
  const Names columns = {
      "prompts",      "prompt_length",    "responses",     "response_length", "attention_mask",      "labels",
      "input_ids",    "input_ids_length", "actor_rollout", "rm_scores",       "token_level_rewards", "old_log_prob",
      "ref_log_prob", "advantages",       "returns"};
  const Writers consumers = {{"trainer", {}},
                             {"actor_rollout", {"responses", "input_ids", "response_length"}},
                             {"actor_image_embeds", {}},
                             {"actor_log_prob", {"old_log_prob"}},
                             {"ref_log_prob", {"ref_log_prob"}},
                             {"actor_train", {}},
                             {"compute_advantage", {"advantages", "returns"}},
                             {"rule_reward", {"rm_scores"}},
                             {"reward_scores", {"rm_scores"}},
                             {"grpo_metrics", {}}};
  const MindSpeedOptions grpo = GrpoDock(1, 1), ppo = PpoDock(1, 1), dapo = DapoDock(1, 1);
  EXPECT_EQ(grpo.columns, columns);
  EXPECT_EQ(writers(grpo), consumers);
  EXPECT_EQ(ppo.columns, with(columns, {"values"}));
  EXPECT_EQ(writers(ppo), with(consumers, {{"compute_kl", {"token_level_rewards"}},
                                           {"critic_train", {}},
                                           {"critic_compute_values", {"values"}},
                                           {"ppo_metrics", {}}}));
  EXPECT_EQ(dapo.columns, with(columns, {"metric_for_dapo"}));
  EXPECT_EQ(writers(dapo), with(consumers, {{"dynamic_sampling", {}}, {"dapo_metrics", {}}}));
  EXPECT_EQ(grpo.timeout, absl::Seconds(300));
  EXPECT_EQ(grpo.max_age, 1);
}

TEST_F(MindSpeedTest, AdditionsAreNotDoubled) {
  MindSpeedOptions options = GrpoDock(1, 1);
  options.addition_columns = {"prompts", "label_text", "label_text"};
  options.addition_consumers = {{.name = "trainer"}, {.name = "audit"}, {.name = "audit"}};
  Make(options);
  EXPECT_EQ(dock_->GetExperienceStatus()->size(), 16);
  EXPECT_EQ(dock_->GetConsumerStatus()->size(), 11);
}

// ---- Prompts.

TEST_F(MindSpeedTest, PutsEachPromptNTimes) {
  Make(GrpoDock(4, 2));
  Batch batch = TokenBatch({{"prompts", {{1, 2, 3}, {4, 5}}}, {"labels", {{7}, {8}}}, {"unused", {{0}, {0}}}});
  const auto put = dock_->PutPromptsExperience(batch, {.dataset_additional_keys = {"labels", "absent"}});
  ASSERT_EQ(put.status(), absl::OkStatus());
  EXPECT_THAT(put->indexes, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Read("prompts", {0, 1, 2, 3}), (Tokens{{1, 2, 3}, {1, 2, 3}, {4, 5}, {4, 5}}));
  EXPECT_EQ(Read("labels", {0, 1, 2, 3}), Ones({7, 7, 8, 8}));
  EXPECT_EQ(Read("prompt_length", {0, 1, 2, 3}), Ones({3, 3, 2, 2}));
  EXPECT_EQ(*dock_->GetIncompleteResponseNum(), 4);

  const auto second = dock_->PutPromptsExperience(batch, {.add_another_batch = true});
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_THAT(second->indexes, ElementsAre(4, 5, 6, 7));
  const auto there = dock_->PutPromptsExperience(TokenBatch({{"prompts", {{9}}}}), {.indexes = Ints{2, 3}});
  ASSERT_EQ(there.status(), absl::OkStatus());
  EXPECT_EQ(Read("prompts", {1, 2, 3, 4}), (Tokens{{1, 2, 3}, {9}, {9}, {1, 2, 3}}));
  EXPECT_EQ(*dock_->GetIncompleteResponseNum(), 8);

  const PromptsOptions two_places{.indexes = Ints{0, 1, 2, 3}, .add_another_batch = true};
  EXPECT_THAT(dock_->PutPromptsExperience(TokenBatch({{"prompts", {{8}, {9}}}}), two_places).status(),
              Fails(Code::kInvalidArgument, {"indexes", "add_another_batch"}));
  EXPECT_EQ(Read("prompts", {0, 4}), (Tokens{{1, 2, 3}, {1, 2, 3}})) << "nothing was put";
}

TEST_F(MindSpeedTest, PrefetchesRowNumbers) {
  Make(GrpoDock(2, 2));
  EXPECT_THAT(**dock_->PrefetchRequestIndex(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(**dock_->PrefetchRequestIndex(3), ElementsAre(3));
  EXPECT_FALSE(dock_->PrefetchRequestIndex(3)->has_value());
  EXPECT_THAT(dock_->PrefetchRequestIndex(0).status(), Fails(Code::kInvalidArgument));
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  EXPECT_THAT(**dock_->PrefetchRequestIndex(1), ElementsAre(0));
}

// ---- Sampling.

TEST_F(MindSpeedTest, HandsOutWhatIsReadyInTheColumnsAskedFor) {
  Make(GrpoDock(4, 1));
  ASSERT_EQ(Put({0, 1, 2}, {{"responses", Ones({0, 1, 2})}}), absl::OkStatus());
  ASSERT_EQ(Put({1, 2, 3}, {{"rm_scores", Ones({1, 2, 3})}}), absl::OkStatus());
  EXPECT_TRUE(NothingYet("compute_advantage", {"responses", "rm_scores"}, {.experience_count = 4}));
  const Experience got = Sample("compute_advantage", {"responses", "rm_scores"}, {.experience_count = 2});
  EXPECT_THAT(got.indexes.indexes, UnorderedElementsAre(1, 2));
  EXPECT_EQ(TokensOf(got.batch, "responses"), Ones(got.indexes.indexes));
  EXPECT_THAT(Consumed("compute_advantage"), ElementsAre(false, true, true, false));
  EXPECT_THAT(Consumed("rule_reward"), ElementsAre(false, false, false, false));
  EXPECT_TRUE(NothingYet("compute_advantage", {"responses"}, {.experience_count = 2}));
}

TEST_F(MindSpeedTest, GroupsAreHandedOutWhole) {
  Make(GrpoDock(3, 2));
  ASSERT_EQ(Put({0, 2, 3, 4, 5}, {{"responses", Ones({0, 2, 3, 4, 5})}}), absl::OkStatus());
  EXPECT_TRUE(NothingYet("rule_reward", {"responses"}, {.experience_count = 6}));
  const Experience one = Sample("rule_reward", {"responses"}, {.experience_count = 2});
  EXPECT_THAT(one.indexes.indexes, testing::AnyOf(ElementsAre(2, 3), ElementsAre(4, 5)));
  // A row of the other group that is consumed makes the group unusable.
  const int64_t other = one.indexes.indexes[0] == 2 ? 5 : 2;
  EXPECT_EQ(Sample("rule_reward", {"responses"}, {.indexes = ExperienceIndexes{other}}).batch.rows(), 1);
  EXPECT_TRUE(NothingYet("rule_reward", {"responses"}, {.experience_count = 2}));
}

TEST_F(MindSpeedTest, ChosenGroupsExpandToTheirRows) {
  // Two of three groups, until they come as [2, 0].
  std::set<Ints> seen;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    MindSpeedOptions options = GrpoDock(4, 2);
    options.seed = seed;
    Make(options);
    ASSERT_EQ(Put({0, 1, 2, 3, 4, 5}, {{"responses", Ones({0, 1, 2, 3, 4, 5})}}), absl::OkStatus());
    seen.insert(Sample("rule_reward", {"responses"}, {.experience_count = 4}).indexes.indexes);
    dock_.reset();
  }
  EXPECT_TRUE(seen.contains({4, 5, 0, 1}));
  EXPECT_EQ(seen.size(), 6);  // every ordered pair of three
}

TEST_F(MindSpeedTest, TheSeedDecidesWhatIsDrawn) {
  const auto draws = [&](uint64_t seed) {
    MindSpeedOptions options = GrpoDock(64, 1);
    options.seed = seed;
    Make(options);
    Ints all(64);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    EXPECT_EQ(Put(all, {{"responses", Ones(all)}}), absl::OkStatus());
    Ints drawn;
    for (int i = 0; i < 4; ++i) {
      const Ints part = SampleRows("actor_train", {"responses"}, 16).indexes.indexes;
      drawn.insert(drawn.end(), part.begin(), part.end());
    }
    EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()).size(), 64);
    EXPECT_TRUE(AllConsumed("actor_train"));
    dock_.reset();
    return drawn;
  };
  EXPECT_EQ(draws(1), draws(1));
  EXPECT_NE(draws(1), draws(2));
}

TEST(Samplers, BalanceAsTheOriginalDoes) {
  EXPECT_EQ(BalancedSets(Ints{10, 20, 30, 40}, 2), (Sets{{1, 2}, {0, 3}}));
  EXPECT_EQ(BalancedSets(Ints{8, 7, 6, 5, 4, 3, 2, 1}, 2), (Sets{{3, 4}, {2, 5}, {1, 6}, {0, 7}}));
  EXPECT_EQ(BalancedSets(Ints{4, 4, 4, 4}, 2), (Sets{{1, 3}, {0, 2}}));
}

TEST(Samplers, WeighRowsNearTheTarget) {
  // sigmoid(1000), sigmoid(1 / 1.001), sigmoid(1 / 100.001)
  EXPECT_DOUBLE_EQ(WeightNear(7, 7), 1);
  EXPECT_NEAR(WeightNear(6, 7), 0.730862, 1e-6);
  EXPECT_NEAR(WeightNear(107, 7), 0.5025, 1e-6);
  Rng rng(1);
  const std::vector<double> weights = {WeightNear(7, 7), WeightNear(107, 7), WeightNear(207, 7)};
  std::vector<int> first(3);
  for (int i = 0; i < 30'000; ++i) ++first[DrawByWeight(weights, 2, rng)[0]];
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(first[i] / 30'000.0, weights[i] / (weights[0] + weights[1] + weights[2]), 0.01) << i;
  }
}

TEST_F(MindSpeedTest, BalancesWhereItIsAskedTo) {
  Make(GrpoDock(4, 1));
  const auto fill = [&] {
    ASSERT_EQ(Put({0, 1, 2, 3}, {{"prompt_length", Ones({5, 5, 15, 20})}, {"response_length", Ones({5, 15, 15, 20})}}),
              absl::OkStatus());
  };
  fill();
  const Names columns = {"prompt_length", "response_length"};
  const GetOptions balanced{.experience_count = 2, .get_n_samples = false, .use_batch_seqlen_balance = true};
  EXPECT_THAT(Sample("ref_log_prob", columns, balanced).indexes.indexes, ElementsAre(1, 2));
  EXPECT_THAT(Sample("ref_log_prob", columns, balanced).indexes.indexes, ElementsAre(0, 3));
  GetOptions all = balanced;
  all.experience_count = 4;
  EXPECT_THAT(Sample("actor_train", columns, all).indexes.indexes, ElementsAre(0, 1, 2, 3));
  // A consumer that the original does not balance for draws uniformly.
  std::set<Ints> drawn;
  for (int i = 0; i < 100; ++i) {
    drawn.insert(Sample("compute_advantage", columns, balanced).indexes.indexes);
    ASSERT_EQ(dock_->Clear(), absl::OkStatus());
    fill();
  }
  EXPECT_EQ(drawn.size(), 12);
}

TEST_F(MindSpeedTest, BalancesGroupsByTheSumOfTheirRows) {
  Make(GrpoDock(4, 2));
  ASSERT_EQ(Put({0, 1, 2, 3, 4, 5, 6, 7}, {{"prompt_length", Ones({1, 1, 1, 1, 1, 1, 1, 1})},
                                           {"response_length", Ones({0, 8, 9, 9, 1, 27, 30, 8})}}),
            absl::OkStatus());
  // 10, 20, 30, 40
  EXPECT_THAT(Sample("actor_train", {"response_length"}, {.experience_count = 4, .use_batch_seqlen_balance = true})
                  .indexes.indexes,
              ElementsAre(2, 3, 4, 5));
}

TEST_F(MindSpeedTest, BalancingNeedsTheLengths) {
  Make(GrpoDock(4, 1));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}, {"prompt_length", Ones({0, 1, 2, 3})}}),
            absl::OkStatus());
  EXPECT_THAT(TryGet("actor_train", {"responses"}, {.experience_count = 2, .use_batch_seqlen_balance = true}).status(),
              Fails(Code::kFailedPrecondition, {"lengths", "'response_length'", "is index"}));
}

TEST_F(MindSpeedTest, RowsAreNotChosenByLengthsThatCannotBe) {
  Make(GrpoDock(4, 1));
  const GetOptions balanced{.experience_count = 2, .use_batch_seqlen_balance = true};
  const GetOptions near{.experience_count = 2, .target_seq_len = 3};
  for (const int64_t length : {int64_t{-1}, (int64_t{1} << 32) + 1, std::numeric_limits<int64_t>::max()}) {
    ASSERT_EQ(Put({0, 1, 2, 3},
                  {{"prompt_length", Ones({1, 1, 1, 1})}, {"response_length", Ones({0, 1, length, int64_t{1} << 32})}}),
              absl::OkStatus());
    for (const GetOptions& options : {balanced, near}) {
      EXPECT_THAT(TryGet("actor_train", {"response_length"}, options).status(),
                  Fails(Code::kFailedPrecondition,
                        {"'response_length' of index 2 is " + std::to_string(length), "0 to 4294967296"}));
    }
  }
  EXPECT_THAT(Consumed("actor_train"), ElementsAre(false, false, false, false));
  ASSERT_EQ(Put({2}, {{"response_length", Ones({5})}}), absl::OkStatus());
  EXPECT_EQ(Sample("actor_train", {"response_length"}, balanced).batch.rows(), 2);
}

TEST_F(MindSpeedTest, NamedRowsAreConsumedAndRead) {
  Make(GrpoDock(4, 1));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  const Experience got = Sample("rule_reward", {"responses"}, {.indexes = ExperienceIndexes{3, 1, 3}});
  EXPECT_EQ(TokensOf(got.batch, "responses"), Ones({3, 1, 3}));
  EXPECT_THAT(Consumed("rule_reward"), ElementsAre(false, true, false, true));
  // Once more, with one that is not consumed.
  EXPECT_EQ(Sample("rule_reward", {"responses"}, {.indexes = ExperienceIndexes{0, 1}}).batch.rows(), 2);
  EXPECT_THAT(Consumed("rule_reward"), ElementsAre(true, true, false, true));
  EXPECT_FALSE(AllConsumed("rule_reward"));
  EXPECT_THAT(SampleRows("rule_reward", {"responses"}, 1).indexes.indexes, ElementsAre(2));
  EXPECT_TRUE(AllConsumed("rule_reward"));
}

// ---- Leases.

TEST_F(MindSpeedTest, APutThroughAHandleCompletesIt) {
  Make(GrpoDock(2, 2));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  const Experience got = Sample("rule_reward", {"responses"}, {.experience_count = 4});
  EXPECT_EQ(core_->GetConsumerStatus("train", "rule_reward")->leased, 4);
  ASSERT_EQ(Put(got.indexes.Slice(0, 1), {{"rm_scores", {{1}}}}), absl::OkStatus());
  ASSERT_EQ(
      dock_->PutExperience(TokenBatch({{"attention_mask", Ones({1, 1, 1})}}), got.indexes.Slice(1, 3), {.keep = true}),
      absl::OkStatus());
  EXPECT_EQ(core_->GetConsumerStatus("train", "rule_reward")->leased, 3);
  ASSERT_EQ(Put(got.indexes.Slice(1, 3), {{"rm_scores", Ones({2, 3, 4})}}), absl::OkStatus());
  EXPECT_EQ(core_->GetConsumerStatus("train", "rule_reward")->done, 4);
  clock_.Advance(absl::Hours(2));
  EXPECT_TRUE(AllConsumed("rule_reward"));
}

TEST_F(MindSpeedTest, ALeaseIsForTheColumnsOfItsConsumer) {
  Make(GrpoDock(1, 1));
  ASSERT_EQ(Put({0}, {{"responses", Ones({0})}}), absl::OkStatus());
  const Experience got = Sample("rule_reward", {"responses"}, {.experience_count = 1});
  EXPECT_THAT(Put(got.indexes, {{"rm_scores", {{1}}}, {"returns", {{1}}}}),
              Fails(Code::kInvalidArgument, {"'rule_reward'", "'returns'", "rm_scores"}));
  EXPECT_EQ(Put(got.indexes, {{"rm_scores", {{1}}}, {"token_level_rewards", {{1}}}}), absl::OkStatus());
}

TEST_F(MindSpeedTest, APutByPlainIndexesCompletesWhatItsWritersHold) {
  Make(GrpoDock(2, 2));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  Sample("rule_reward", {"responses"}, {.experience_count = 2});
  Sample("rule_reward", {"responses"}, {.experience_count = 2});
  Sample("ref_log_prob", {"responses"}, {.experience_count = 4});
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"rm_scores", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  EXPECT_EQ(core_->GetConsumerStatus("train", "rule_reward")->done, 4);
  EXPECT_EQ(core_->GetConsumerStatus("train", "ref_log_prob")->leased, 4);
}

TEST_F(MindSpeedTest, WhoWritesNothingIsDoneAtHandOut) {
  Make(GrpoDock(2, 2));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  Sample("actor_train", {"responses"}, {.experience_count = 4});
  clock_.Advance(absl::Hours(2));
  EXPECT_TRUE(AllConsumed("actor_train"));
}

TEST_F(MindSpeedTest, HandOutIsEachConsumersChoice) {
  MindSpeedOptions options = GrpoDock(2, 1);
  for (MindSpeedConsumer& consumer : options.consumers) {
    if (consumer.name == "rule_reward") consumer.hand_out = HandOut::kDone;
    if (consumer.name == "actor_train") consumer.hand_out = HandOut::kLeased;
  }
  Make(options);
  ASSERT_EQ(Put({0, 1}, {{"responses", Ones({0, 1})}}), absl::OkStatus());
  Sample("rule_reward", {"responses"}, {.experience_count = 2});
  EXPECT_EQ(core_->GetConsumerStatus("train", "rule_reward")->done, 2);

  const Experience trained = Sample("actor_train", {"responses"}, {.experience_count = 2});
  ASSERT_EQ(dock_->Release("actor_train", trained.indexes.Slice(0, 1)), absl::OkStatus());
  ASSERT_EQ(dock_->Complete("actor_train", trained.indexes.Slice(1, 1)), absl::OkStatus());
  EXPECT_THAT(dock_->Complete("actor_train", trained.indexes), Fails(Code::kFailedPrecondition));
  const Experience again = SampleRows("actor_train", {"responses"}, 1);
  EXPECT_EQ(again.indexes.indexes[0], trained.indexes.indexes[0]);
  ASSERT_EQ(dock_->Complete("actor_train", again.indexes.indexes), absl::OkStatus());  // by plain indexes
  EXPECT_THAT(dock_->Complete("actor_train", {0, 1}), Fails(Code::kFailedPrecondition, {"'actor_train' holds none"}));
  EXPECT_EQ(core_->GetConsumerStatus("train", "actor_train")->done, 2);
}

// ---- Clearing, and what there is.

TEST_F(MindSpeedTest, ClearEmptiesEverything) {
  Make(GrpoDock(2, 2));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  Sample("rule_reward", {"responses"}, {.experience_count = 4});
  dock_->UpdateMetrics("loss", 1);
  EXPECT_TRUE(dock_->PrefetchRequestIndex(4)->has_value());
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  EXPECT_FALSE(AllConsumed("rule_reward"));
  EXPECT_THAT(dock_->GetMetrics(), IsEmpty());
  EXPECT_THAT(**dock_->PrefetchRequestIndex(1), ElementsAre(0));
  EXPECT_THAT(*dock_->GetExperienceData(), IsEmpty());
  EXPECT_EQ(core_->GetStatus("train")->rows, 4);
  EXPECT_TRUE(NothingYet("rule_reward", {"responses"}, {.experience_count = 4}));
}

TEST_F(MindSpeedTest, ClearsSomeIndexes) {
  Make(GrpoDock(4, 1));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  Sample("rule_reward", {"responses"}, {.experience_count = 4});
  ASSERT_EQ(dock_->ClearIndexes(Ints{1, 3, 1}), absl::OkStatus());
  EXPECT_THAT(dock_->GetExperienceStatus()->at("responses"), ElementsAre(true, false, true, false));
  EXPECT_THAT(Consumed("rule_reward"), ElementsAre(true, false, true, false));
  EXPECT_THAT(dock_->ClearIndexes(Ints{4}), Fails(Code::kInvalidArgument, {"index 4"}));
  EXPECT_THAT(dock_->ClearIndexes(Ints{}), Fails(Code::kInvalidArgument));
  ASSERT_EQ(dock_->ClearIndexes(), absl::OkStatus());
  EXPECT_THAT(dock_->GetExperienceStatus()->at("responses"), ElementsAre(false, false, false, false));
}

TEST_F(MindSpeedTest, ShowsWhatThereIs) {
  Make(GrpoDock(3, 1));
  ASSERT_EQ(Put({2, 0}, {{"responses", {{2}, {0, 0}}}}), absl::OkStatus());
  const auto data = dock_->GetExperienceData();
  ASSERT_EQ(data.status(), absl::OkStatus());
  ASSERT_EQ(data->size(), 1);
  EXPECT_THAT(data->at("responses").indexes, ElementsAre(0, 2));
  EXPECT_THAT(*data->at("responses").column.Values<int64_t>(), ElementsAre(0, 0, 2));
  EXPECT_THAT(dock_->GetExperienceStatus()->at("responses"), ElementsAre(true, false, true));
}

TEST_F(MindSpeedTest, KeepsMetrics) {
  Make(GrpoDock(1, 1));
  dock_->UpdateMetrics("loss", 1);
  dock_->UpdateMetrics("loss", 2);
  dock_->UpdateMetrics("score", 3, /*cumulate=*/true);
  dock_->UpdateMetrics("score", 4, /*cumulate=*/true);
  EXPECT_THAT(dock_->GetMetrics(),
              ElementsAre(testing::Pair("loss", ElementsAre(2)), testing::Pair("score", ElementsAre(3, 4))));
}

}  // namespace
}  // namespace tdock::mindspeed
