#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "engine/cache/page_table.h"
#include "engine/open_request.h"

namespace tdock::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Pair;

// Pages without numbers in them.
class PlacesOnly final : public model::KvCache {
 public:
  explicit PlacesOnly(int64_t pages, int64_t page_tokens = 4) : table_(pages, page_tokens) {}
  int64_t Add() override { return table_.Add(); }
  void Remove(int64_t sequence) override { table_.Remove(sequence); }
  bool Reserve(int64_t sequence, int64_t length) override { return table_.Reserve(sequence, length); }
  std::optional<int64_t> Fork(int64_t sequence, int64_t length) override {
    const auto forked = table_.Fork(sequence, length);
    return forked ? std::optional(forked->sequence) : std::nullopt;
  }
  int64_t Share(int64_t sequence, std::span<const int32_t> tokens) override { return table_.Share(sequence, tokens); }
  void Publish(int64_t sequence, std::span<const int32_t> tokens) override { table_.Publish(sequence, tokens); }
  void Forget() override { table_.Forget(); }
  std::unique_ptr<model::CachePass> Begin(std::vector<model::CachedPart> /*parts*/) override { return nullptr; }
  model::CacheUse use() const override { return {}; }
  const PageTable& table() const { return table_; }

 private:
  PageTable table_;
};

class SchedulerTest : public testing::Test {
 protected:
  Sequence& Make(size_t tokens, int64_t priority = 0) {
    auto sequence = std::make_unique<Sequence>();
    sequence->arrival = sequences_.size();
    sequence->priority = priority;
    // No two begin alike.
    sequence->tokens.assign(tokens, static_cast<int32_t>(sequences_.size()));
    sequences_.push_back(std::move(sequence));
    return *sequences_.back();
  }
  Sequence& Add(Scheduler& scheduler, size_t tokens, int64_t priority = 0) {
    Sequence& sequence = Make(tokens, priority);
    scheduler.Add(sequence);
    return sequence;
  }
  // One step: (number of the sequence, tokens) of each piece. Those that are read get a token.
  std::vector<std::pair<uint64_t, int64_t>> Step(Scheduler& scheduler) {
    std::vector<std::pair<uint64_t, int64_t>> taken;
    for (const Piece& piece : scheduler.Next()) {
      taken.emplace_back(piece.sequence->arrival, piece.count);
      scheduler.Done(piece);
      if (piece.sequence->cached == piece.sequence->size()) piece.sequence->tokens.push_back(100);
    }
    return taken;
  }

  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(SchedulerTest, SharesNoMoreThanASequenceMayTake) {
  PlacesOnly cache(100);
  Scheduler scheduler(cache, {.max_rows = 10, .max_step_tokens = 100});
  Sequence& first = Add(scheduler, 20);
  Step(scheduler);
  for (const int64_t most : {0, 3, 4, 11, 1000}) {
    Sequence& next = Make(20);
    next.tokens.assign(first.tokens.begin(), first.tokens.begin() + 20);
    next.max_shared = most;
    scheduler.Add(next);
    const int64_t shared = std::min<int64_t>(most / 4 * 4, 16);
    EXPECT_THAT(Step(scheduler), Contains(Pair(next.arrival, 20 - shared))) << most;
  }
}

TEST_F(SchedulerTest, ReadsPromptsInPiecesBesideAnswersInProgress) {
  PlacesOnly cache(100);
  Scheduler scheduler(cache, {.max_rows = 10, .max_step_tokens = 5});
  Add(scheduler, 3);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 3)));
  Add(scheduler, 10);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(1, 4)));
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(1, 4)));
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(1, 2)));
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(1, 1)));
}

TEST_F(SchedulerTest, LetsOthersInAsSoonAsOneLeaves) {
  PlacesOnly cache(100);
  Scheduler scheduler(cache, {.max_rows = 2, .max_step_tokens = 100});
  Sequence& first = Add(scheduler, 1);
  for (int i = 0; i < 3; ++i) Add(scheduler, 1);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(1, 1)));
  scheduler.Remove(first);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_EQ(scheduler.running(), 2);
  EXPECT_EQ(scheduler.waiting(), 1);
}

TEST_F(SchedulerTest, HeldToOneBatchWaitsUntilItIsThrough) {
  PlacesOnly cache(100);
  Scheduler scheduler(cache, {.max_rows = 2, .max_step_tokens = 1, .one_batch_at_a_time = true});
  Sequence& first = Add(scheduler, 1);
  Sequence& second = Add(scheduler, 1);
  Add(scheduler, 1);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1)));
  scheduler.Remove(first);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(scheduler.running(), 1);
  scheduler.Remove(second);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(2, 1)));
}

TEST_F(SchedulerTest, SendsTheLastOneBackWhereTheCacheIsFull) {
  PlacesOnly cache(4);
  Scheduler scheduler(cache, {.max_rows = 10, .max_step_tokens = 100});
  Add(scheduler, 8);
  Sequence& second = Add(scheduler, 7);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 8), Pair(1, 7)));
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1))) << "the ninth token needs a page of the second's";
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_EQ(second.state, Sequence::State::kWaits);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1))) << "there is no room for it";
  scheduler.Remove(*sequences_[0]);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(1, 4)))
      << "what it had, with the token that was sampled, but for the page that was kept";
  EXPECT_EQ(scheduler.shared_tokens(), 4);
}

TEST_F(SchedulerTest, AHigherPriorityGoesFirstAndTakesAPlace) {
  PlacesOnly cache(100);
  Scheduler scheduler(cache, {.max_rows = 2, .max_step_tokens = 100});
  Add(scheduler, 1);
  Add(scheduler, 1);
  Add(scheduler, 1);
  Step(scheduler);
  Add(scheduler, 2, /*priority=*/1);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(3, 2)));
  EXPECT_EQ(sequences_[1]->state, Sequence::State::kWaits);
  scheduler.Remove(*sequences_[3]);
  EXPECT_THAT(Step(scheduler), ElementsAre(Pair(0, 1), Pair(1, 2))) << "before the one that came later";
}

TEST_F(SchedulerTest, ACopyRunsAtOnceWhereThereIsRoomAndWaitsElse) {
  PlacesOnly cache(3);
  Scheduler scheduler(cache, {.max_rows = 3, .max_step_tokens = 100});
  Sequence& leader = Add(scheduler, 6);
  const std::vector<Piece> pieces = scheduler.Next();
  scheduler.Done(pieces[0]);
  std::vector<Sequence*> copies;
  for (int i = 0; i < 2; ++i) {
    copies.push_back(&Make(6));
    copies.back()->tokens = leader.tokens;
    scheduler.Fork(leader, *copies.back());
  }
  EXPECT_EQ(copies[0]->state, Sequence::State::kRuns);
  EXPECT_EQ(copies[0]->cached, 6);
  EXPECT_EQ(copies[1]->state, Sequence::State::kWaits) << "there is no page for its last tokens";
  EXPECT_EQ(copies[1]->cached, 0);
}

// Whatever comes and goes, everything gets through, the budget holds, and pages are never lost.
TEST_F(SchedulerTest, EverythingGetsThroughAtRandom) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    sequences_.clear();
    const auto pages = static_cast<int64_t>(8 + rng.Below(8));
    PlacesOnly cache(pages);
    const auto max_rows = static_cast<int64_t>(1 + rng.Below(6));
    const auto most = static_cast<int64_t>(1 + rng.Below(20));
    Scheduler scheduler(cache,
                        {.max_rows = max_rows, .max_step_tokens = most, .one_batch_at_a_time = rng.Below(4) == 0});
    std::map<Sequence*, int64_t> wanted;  // tokens in the end
    int64_t left_to_add = 12;
    for (int step = 0; left_to_add > 0 || !wanted.empty(); ++step) {
      ASSERT_LT(step, 5000) << "seed " << seed << " does not get on";
      while (left_to_add > 0 && rng.Below(3) != 0) {
        Sequence& sequence = Make(1 + rng.Below(16), static_cast<int64_t>(rng.Below(3)));
        if (rng.Below(2) == 0) sequence.tokens.assign(sequence.tokens.size(), 7);  // begins as others do
        wanted[&sequence] = sequence.size() + static_cast<int64_t>(1 + rng.Below(16));
        scheduler.Add(sequence);
        --left_to_add;
      }
      if (rng.Below(30) == 0) scheduler.Forget(/*go_on=*/rng.Below(2) == 0);
      int64_t total = 0;
      const int64_t preempted = scheduler.preemptions();
      const bool had_any = scheduler.running() + scheduler.waiting() > 0;
      for (const Piece& piece : scheduler.Next()) {
        ASSERT_EQ(piece.sequence->state, Sequence::State::kRuns);
        ASSERT_GT(piece.count, 0);
        total += piece.count;
        scheduler.Done(piece);
        if (piece.sequence->cached < piece.sequence->size()) continue;
        piece.sequence->tokens.push_back(static_cast<int32_t>(rng.Below(2)));
        if (piece.sequence->size() < wanted.at(piece.sequence) && rng.Below(40) != 0) continue;
        scheduler.Remove(*piece.sequence);
        wanted.erase(piece.sequence);
      }
      ASSERT_LE(total, most);
      ASSERT_LE(scheduler.running(), max_rows);
      ASSERT_EQ(cache.table().Unreachable(), 0);
      // The pages are enough for any one of them.
      ASSERT_EQ(scheduler.too_long(), nullptr);
      if (had_any && preempted == scheduler.preemptions()) {
        ASSERT_GT(total, 0) << "seed " << seed << ": a step does something";
      }
    }
    ASSERT_EQ(cache.table().free() + cache.table().kept(), pages);
  }
}

}  // namespace
}  // namespace tdock::engine
