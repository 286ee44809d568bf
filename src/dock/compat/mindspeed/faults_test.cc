// What is known to be wrong with the original, and must not be here.
#include <atomic>
#include <cmath>
#include <thread>

#include "dock/compat/mindspeed/testing/fixture.h"

namespace tdock::mindspeed {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class Faults : public MindSpeedTest {
 protected:
  void MakeWith(int64_t prompts, absl::Duration timeout) { Make(GrpoDock(prompts, 1), timeout); }
};

TEST_F(Faults, APutNeedsAsManyRowsAsIndexes) {
  Make(GrpoDock(4, 1));
  EXPECT_THAT(Put({0, 1, 2}, {{"responses", Ones({0, 1})}}), Fails(Code::kInvalidArgument, {"2 rows for 3 indexes"}));
  EXPECT_THAT(Put({0}, {{"responses", Ones({0, 1})}}), Fails(Code::kInvalidArgument, {"2 rows for 1 indexes"}));
  EXPECT_THAT(dock_->GetExperienceStatus()->at("responses"), ElementsAre(false, false, false, false));
}

TEST_F(Faults, AWaitingReadEndsAtItsDeadlineAndNamesTheMissingCells) {
  MakeWith(4, absl::Seconds(300));
  ASSERT_EQ(Put({0, 1}, {{"responses", Ones({0, 1})}}), absl::OkStatus());
  Sample("rule_reward", {"responses"}, {.experience_count = 2});
  absl::Status by_index, by_consumer;
  std::thread reader([&] { by_index = dock_->Get({"responses", "rm_scores"}, {0, 3}).status(); });
  std::thread trainer(
      [&] { by_consumer = TryGet("actor_train", {"rm_scores"}, {.indexes = ExperienceIndexes{1}}).status(); });
  clock_.AwaitWaiters(2);
  clock_.Advance(absl::Seconds(300));
  reader.join();
  trainer.join();
  EXPECT_THAT(by_index,
              Fails(Code::kDeadlineExceeded, {"'rm_scores'", "'responses'", "is index 3", "'rule_reward' has held"}));
  EXPECT_THAT(by_consumer, Fails(Code::kDeadlineExceeded, {"'rm_scores'", "is index 1"}));
  EXPECT_THAT(Consumed("actor_train"), ElementsAre(false, false, false, false)) << "what was not read is not consumed";
}

TEST_F(Faults, AWaitingReadWakesWhenItsCellsCome) {
  MakeWith(2, absl::Seconds(300));
  absl::StatusOr<Batch> got;
  std::thread reader([&] { got = dock_->Get({"responses"}, {1, 0}); });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(Put({0, 1}, {{"responses", Ones({5, 6})}}), absl::OkStatus());
  reader.join();
  ASSERT_EQ(got.status(), absl::OkStatus());
  EXPECT_EQ(TokensOf(*got, "responses"), Ones({6, 5}));
}

TEST_F(Faults, PaddingIsNeverWritten) {
  MakePartial(8, 1, 2);
  ASSERT_EQ(Put({3, 5, 6}, {{"prompts", Ones({3, 5, 6})}}), absl::OkStatus());
  const Experience got =
      Sample("actor_rollout", {"prompts"}, {.experience_count = 8, .dp_size = 2, .get_n_samples = false});
  ASSERT_EQ(got.indexes.padding_rows, 1);
  ASSERT_EQ(PutResponses(got.indexes, Ones({3, 5, 6, 99}), {1, 1, 1, 1}), absl::OkStatus());
  EXPECT_THAT(dock_->GetExperienceStatus()->at("responses"),
              ElementsAre(false, false, false, true, false, true, true, false));
  EXPECT_EQ(Read("responses", {3, 5, 6}), Ones({3, 5, 6}));
}

TEST_F(Faults, NegativeIndexesDoNotWrap) {
  Make(GrpoDock(4, 1));
  for (const int64_t index : {-1, -2}) {
    const auto refused = Fails(Code::kInvalidArgument, {"index " + std::to_string(index), "'train'", "0 to 3"});
    EXPECT_THAT(Put({0, index}, {{"responses", Ones({0, 9})}}), refused);
    EXPECT_THAT(TryGet("rule_reward", {"responses"}, {.indexes = ExperienceIndexes{index}}).status(), refused);
  }
  EXPECT_THAT(*dock_->GetExperienceData(), testing::IsEmpty());
  EXPECT_THAT(Consumed("rule_reward"), ElementsAre(false, false, false, false));
}

TEST_F(Faults, ATargetLengthChoosesInsteadOfFailing) {
  Make(GrpoDock(4, 2));
  const Ints all = {0, 1, 2, 3, 4, 5, 6, 7};
  ASSERT_EQ(
      Put(all, {{"prompt_length", Ones(Ints(8, 10))}, {"response_length", Ones({0, 10, 20, 30, 40, 50, 60, 70})}}),
      absl::OkStatus());
  const GetOptions near{.experience_count = 4, .get_n_samples = false, .target_seq_len = 40};
  EXPECT_EQ(Sample("actor_train", {"response_length"}, near).batch.rows(), 4);
  EXPECT_EQ(
      Sample("compute_advantage", {"response_length"}, {.experience_count = 4, .target_seq_len = 40}).batch.rows(), 4);
}

TEST_F(Faults, ATargetLengthPrefersWhatIsNearIt) {
  constexpr int kDraws = 500;
  for (const int64_t n : {1, 2}) {
    int near = 0;
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      dock_.reset();
      MindSpeedOptions options = GrpoDock(2, n);
      options.seed = seed;
      Make(options);
      for (int64_t i = 0; i < 2 * n; ++i) {
        ASSERT_EQ(Put({i}, {{"prompt_length", {{10}}}, {"response_length", {{i < n ? 1'000'000 : 5}}}}),
                  absl::OkStatus());
      }
      const GetOptions draw{.experience_count = n, .target_seq_len = 15.0 * static_cast<double>(n)};
      near += Sample("compute_advantage", {"response_length"}, draw).indexes.indexes.front() == n;
    }
    // The weights are 1 and, far from the target, 1/2. Equal ones would be 8 deviations off.
    const double p = 2.0 / 3;
    EXPECT_NEAR(near, kDraws * p, 4 * std::sqrt(kDraws * p * (1 - p))) << n;
  }
}

TEST_F(Faults, AllConsumedHoldsWhenMoreWasTakenThanABatch) {
  MakePartial(4, 2, 1);
  const Ints all = {0, 1, 2, 3, 4, 5, 6, 7};
  ASSERT_EQ(PutResponses(all, Ones(all), Ints(8, 1)), absl::OkStatus());
  EXPECT_TRUE(AllConsumed("actor_rollout"));
  EXPECT_FALSE(AllConsumed("actor_log_prob"));
  SampleRows("actor_log_prob", {"responses"}, 3);  // of the two that are a batch
  EXPECT_TRUE(AllConsumed("actor_log_prob"));
}

TEST_F(Faults, ASecondPutThroughAHandleIsRefused) {
  Make(GrpoDock(2, 1));
  ASSERT_EQ(Put({0, 1}, {{"responses", Ones({0, 1})}}), absl::OkStatus());
  const Experience got = Sample("rule_reward", {"responses"}, {.experience_count = 2});
  ASSERT_EQ(Put(got.indexes, {{"rm_scores", Ones({1, 2})}}), absl::OkStatus());
  // Another rank of the same replica writes the same.
  EXPECT_THAT(Put(got.indexes, {{"rm_scores", Ones({3, 4})}}), Fails(Code::kFailedPrecondition, {"lease"}));
  EXPECT_EQ(Read("rm_scores", got.indexes.indexes), Ones({1, 2}));
}

TEST_F(Faults, BlockedReadersDoNotHoldUpWriters) {
  constexpr int64_t kReaders = 40;
  MakeWith(kReaders, absl::Seconds(300));
  std::atomic<int> read = 0;
  std::vector<std::thread> readers;
  for (int64_t i = 0; i < kReaders; ++i) {
    readers.emplace_back([&, i] {
      if (Read("responses", {i}) == Ones({i})) ++read;
    });
  }
  clock_.AwaitWaiters(static_cast<int>(kReaders));
  for (int64_t i = 0; i < kReaders; ++i) ASSERT_EQ(Put({i}, {{"responses", Ones({i})}}), absl::OkStatus());
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(read, kReaders);
}

TEST_F(Faults, AGetCanWaitInsteadOfSpinning) {
  std::atomic<int> samplings = 0;
  on_sampling_ = [&](absl::string_view) { ++samplings; };
  Make(GrpoDock(4, 1));
  ASSERT_EQ(Put({2}, {{"responses", Ones({2})}}), absl::OkStatus());
  Experience got;
  std::thread reader([&] {
    got = Sample("rule_reward", {"responses"}, {.experience_count = 2, .deadline = clock_.Now() + absl::Seconds(10)});
  });
  clock_.AwaitWaiters(1);
  EXPECT_EQ(samplings, 1);
  ASSERT_EQ(Put({0}, {{"responses", Ones({0})}}), absl::OkStatus());
  reader.join();
  EXPECT_EQ(samplings, 2);
  EXPECT_THAT(got.indexes.indexes, UnorderedElementsAre(0, 2));

  absl::Status late;
  std::thread other([&] {
    late = TryGet("rule_reward", {"responses"}, {.experience_count = 2, .deadline = clock_.Now() + absl::Seconds(10)})
               .status();
  });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(10));
  other.join();
  EXPECT_THAT(late, Fails(Code::kDeadlineExceeded, {"'rule_reward'", "2 rows", "2 are", "'responses'", "is index 1"}));
}

TEST_F(Faults, AWaitingGetEndsWhenOthersHaveDoneEverything) {
  Make(GrpoDock(1, 1));
  ASSERT_EQ(Put({0}, {{"prompts", Ones({0})}}), absl::OkStatus());
  bool nothing = false;
  std::thread reader([&] {
    const GetOptions waiting{.experience_count = 1, .deadline = clock_.Now() + absl::Hours(1)};
    nothing = NothingYet("rule_reward", {"responses"}, waiting);
  });
  clock_.AwaitWaiters(1);
  const Experience got = Sample("rule_reward", {"prompts"}, {.experience_count = 1});
  ASSERT_EQ(Put(got.indexes, {{"rm_scores", Ones({0})}}), absl::OkStatus());
  reader.join();
  EXPECT_TRUE(nothing);
}

TEST_F(Faults, AWaitingGetSeesRowsWhoseLeaseEnds) {
  MindSpeedOptions options = GrpoDock(1, 1);
  options.lease_duration = absl::Seconds(5);
  Make(options);
  ASSERT_EQ(Put({0}, {{"responses", Ones({0})}}), absl::OkStatus());
  Sample("rule_reward", {"responses"}, {.experience_count = 1});
  Experience got;
  std::thread reader([&] {
    got = Sample("rule_reward", {"responses"}, {.experience_count = 1, .deadline = clock_.Now() + absl::Minutes(1)});
  });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(6));
  reader.join();
  EXPECT_THAT(got.indexes.indexes, ElementsAre(0));
}

TEST_F(Faults, AWaitingGetEndsWhenOthersHaveDoneABatch) {
  MakePartial(4, 1, 2);  // the other two prompts never come
  ASSERT_EQ(Put({0, 1}, {{"prompts", Ones({0, 1})}, {"prompt_length", Ones({1, 1})}}), absl::OkStatus());
  std::vector<std::thread> waiters;
  std::atomic<int> nothing = 0;
  const GetOptions rows{.experience_count = 1, .get_n_samples = false, .deadline = clock_.Now() + absl::Hours(1)};
  const Experience rollout = SampleRows("actor_rollout", {"prompts"}, 2);
  waiters.emplace_back([&] { nothing += NothingYet("actor_rollout", {"prompts"}, rows); });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(PutResponses(rollout.indexes, Ones({0, 1}), {1, 1}), absl::OkStatus());
  EXPECT_TRUE(AllConsumed("actor_rollout"));
  waiters.back().join();
  const Experience judged = Sample("rule_reward", {"responses"}, {.experience_count = 2});
  waiters.emplace_back(
      [&] { nothing += NothingYet("rule_reward", {"responses"}, {.experience_count = 1, .deadline = rows.deadline}); });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(Put(judged.indexes, {{"rm_scores", Ones({1, 1})}}), absl::OkStatus());
  waiters.back().join();
  EXPECT_EQ(nothing, 2);
}

TEST_F(Faults, ALatePutOfRowsThatWereNamedIsRefused) {
  Make(GrpoDock(2, 1));
  ASSERT_EQ(Put({0, 1}, {{"responses", Ones({0, 1})}}), absl::OkStatus());
  const Experience late = Sample("rule_reward", {"responses"}, {.indexes = ExperienceIndexes{0, 1}});
  clock_.Advance(absl::Hours(1));
  const Experience now = Sample("rule_reward", {"responses"}, {.experience_count = 2});
  EXPECT_THAT(Put(late.indexes, {{"rm_scores", Ones({0, 0})}}), Fails(Code::kFailedPrecondition, {"lease"}));
  ASSERT_EQ(Put(now.indexes, {{"rm_scores", Ones({1, 1})}}), absl::OkStatus());
  EXPECT_EQ(Read("rm_scores", {0, 1}), Ones({1, 1}));
}

TEST_F(Faults, OneConsumerDoesNotCompleteWhatAnotherHolds) {
  Make(GrpoDock(1, 1));
  ASSERT_EQ(Put({0}, {{"responses", Ones({0})}}), absl::OkStatus());
  const Experience got = Sample("rule_reward", {"responses"}, {.experience_count = 1});
  EXPECT_THAT(dock_->Complete("ref_log_prob", got.indexes), Fails(Code::kFailedPrecondition, {"'ref_log_prob'"}));
  EXPECT_EQ(dock_->Complete("rule_reward", got.indexes), absl::OkStatus());
  EXPECT_EQ(dock_->Clear("actor_trian").code(), Code::kNotFound);
  EXPECT_EQ(Read("responses", {0}), Ones({0})) << "nothing was cleared";
}

TEST_F(Faults, RowsOfACrashedConsumerComeBack) {
  Make(GrpoDock(2, 2));
  ASSERT_EQ(Put({0, 1, 2, 3}, {{"responses", Ones({0, 1, 2, 3})}}), absl::OkStatus());
  const Experience lost = Sample("rule_reward", {"responses"}, {.experience_count = 4});
  EXPECT_TRUE(AllConsumed("rule_reward"));
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(AllConsumed("rule_reward"));
  const Experience again = Sample("rule_reward", {"responses"}, {.experience_count = 4});
  EXPECT_THAT(Put(lost.indexes, {{"rm_scores", Ones({0, 0, 0, 0})}}), Fails(Code::kFailedPrecondition, {"lease"}));
  ASSERT_EQ(Put(again.indexes, {{"rm_scores", Ones({1, 1, 1, 1})}}), absl::OkStatus());
  EXPECT_EQ(Read("rm_scores", {0, 1, 2, 3}), Ones({1, 1, 1, 1}));
}

TEST_F(Faults, APutSaysWhatWentWrong) {
  Make(GrpoDock(2, 1));
  ASSERT_EQ(Put({0}, {{"responses", Ones({0})}}), absl::OkStatus());
  Batch floats;
  ASSERT_EQ(floats.Add("responses", Column::FromValues<float>(std::vector<float>{1})), absl::OkStatus());
  EXPECT_THAT(dock_->PutExperience(floats, {1}), Fails(Code::kInvalidArgument, {"'responses'", "int64", "float32"}));
}

TEST_F(Faults, ALatePutDoesNotLandAfterAClear) {
  Make(GrpoDock(2, 1));
  ASSERT_EQ(Put({0, 1}, {{"responses", Ones({0, 1})}}), absl::OkStatus());
  const Experience leased = Sample("rule_reward", {"responses"}, {.experience_count = 2});
  const Experience done = Sample("actor_train", {"responses"}, {.experience_count = 2});
  const Experience named = Sample("ref_log_prob", {"responses"}, {.indexes = ExperienceIndexes{0, 1}});
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  for (const Experience* late : {&leased, &done, &named}) {
    EXPECT_THAT(Put(late->indexes, {{"rm_scores", Ones({7, 7})}}), Fails(Code::kNotFound, {"index", "was cleared"}));
    EXPECT_THAT(dock_->Get({"responses"}, late->indexes).status(), Fails(Code::kNotFound, {"index", "was cleared"}));
  }
  EXPECT_THAT(*dock_->GetExperienceData(), testing::IsEmpty());
  ASSERT_EQ(Put({0, 1}, {{"rm_scores", Ones({8, 8})}}), absl::OkStatus());  // plain indexes mean what is there now
}

TEST_F(Faults, SamplingHoldsUpNobodyElse) {
  Mutex mu;
  CondVar changed;
  bool inside = false, leave = false;
  on_sampling_ = [&](absl::string_view consumer) {
    if (consumer != "rule_reward") return;
    MutexLock lock(mu);
    inside = true;
    changed.NotifyAll();
    while (!leave) changed.Wait(mu);
  };
  Make(GrpoDock(4, 1));
  ASSERT_EQ(Put({0, 1, 2}, {{"responses", Ones({0, 1, 2})}}), absl::OkStatus());
  Experience held;
  std::thread sampling([&] { held = SampleRows("rule_reward", {"responses"}, 2); });
  {
    MutexLock lock(mu);
    while (!inside) changed.Wait(mu);
  }
  // Another consumer samples; all others read, write and look.
  EXPECT_EQ(SampleRows("ref_log_prob", {"responses"}, 2).batch.rows(), 2);
  EXPECT_EQ(Sample("rule_reward", {"responses"}, {.indexes = ExperienceIndexes{1}}).batch.rows(), 1);
  EXPECT_EQ(Read("responses", {0}), Ones({0}));
  ASSERT_EQ(Put({3}, {{"responses", Ones({3})}}), absl::OkStatus());
  EXPECT_FALSE(AllConsumed("rule_reward"));
  EXPECT_THAT(Consumed("rule_reward"), ElementsAre(false, true, false, false));
  EXPECT_TRUE(dock_->PrefetchRequestIndex(1)->has_value());
  dock_->UpdateMetrics("loss", 1);
  ASSERT_EQ(dock_->ClearIndexes(Ints{0}), absl::OkStatus());
  {
    MutexLock lock(mu);
    leave = true;
    changed.NotifyAll();
  }
  sampling.join();
  // Of what it had chosen, one at least went elsewhere: it chose again.
  EXPECT_THAT(held.indexes.indexes, UnorderedElementsAre(2, 3));
}

TEST_F(Faults, RowsTravelWithoutPadding) {
  Make(GrpoDock(2, 1));
  ASSERT_EQ(Put({0, 1}, {{"responses", {{1}, {2, 2, 2, 2, 2}}}}), absl::OkStatus());
  const Experience got = Sample("rule_reward", {"responses"}, {.experience_count = 2});
  EXPECT_EQ(got.batch.Find("responses")->payload_bytes(), 6 * 8);
}

// Threads of several consumers, writers and clears, for the sanitizers.
TEST_F(Faults, ThreadsShareADock) {
  MindSpeedOptions options = GrpoDock(16, 2);
  Make(options);
  std::atomic<bool> stop = false;
  std::atomic<int64_t> handed_out = 0;
  std::vector<std::thread> threads;
  for (const char* consumer : {"rule_reward", "rule_reward", "ref_log_prob", "actor_train"}) {
    threads.emplace_back([&, consumer] {
      const char* const writes = consumer[0] == 'r' && consumer[1] == 'u' ? "rm_scores" : "ref_log_prob";
      while (!stop) {
        const auto got = TryGet(consumer, {"responses"}, {.experience_count = 4});
        ASSERT_EQ(got.status(), absl::OkStatus());
        if (!got->has_value()) continue;
        ++handed_out;
        EXPECT_EQ((*got)->batch.rows(), 4);
        if (consumer[0] != 'r') continue;
        const absl::Status put = Put((*got)->indexes, {{writes, Ones({0, 0, 0, 0})}});
        EXPECT_THAT(put.code(), testing::AnyOf(Code::kOk, Code::kNotFound, Code::kFailedPrecondition)) << put;
      }
    });
  }
  for (int round = 0; round < 30; ++round) {
    for (int64_t i = 0; i < 32; i += 2) ASSERT_EQ(Put({i, i + 1}, {{"responses", Ones({i, i})}}), absl::OkStatus());
    if (round % 3 == 0) {
      EXPECT_EQ(dock_->GetConsumerStatus()->size(), 10);
    }
    ASSERT_EQ(round % 2 == 0 ? dock_->Clear() : dock_->ClearIndexes(Ints{1, 30}), absl::OkStatus());
  }
  const Ints all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  ASSERT_EQ(Put(all, {{"responses", Ones(all)}}), absl::OkStatus());
  while (handed_out == 0) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(core_->GetStatus("train")->rows, 32);
}

}  // namespace
}  // namespace tdock::mindspeed
