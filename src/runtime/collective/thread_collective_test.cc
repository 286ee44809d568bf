#include "runtime/collective/thread_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"

namespace tdock::runtime {
namespace {

using Code = absl::StatusCode;
using Group = std::vector<std::unique_ptr<Collective>>;

Buffer BytesOf(absl::string_view text) { return Buffer::CopyOf(std::as_bytes(std::span(text.data(), text.size()))); }
std::string TextOf(const Buffer& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Every rank on a thread of its own.
void OnAll(Group& group, const std::function<void(Collective&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& rank : group) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadCollective, GivesEveryRankTheBytesOfEachRoot) {
  Group group = MakeThreadCollectives(3, "g");
  OnAll(group, [](Collective& rank) {
    for (int root = 0; root < rank.size(); ++root) {
      const auto bytes =
          rank.Broadcast(BytesOf(std::string(static_cast<size_t>(rank.rank()), 'x')), root, absl::InfiniteFuture());
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(TextOf(*bytes), std::string(static_cast<size_t>(root), 'x'));
    }
  });
}

TEST(ThreadCollective, FindsTheLargestValueOfEachOfManyMeetings) {
  Group group = MakeThreadCollectives(4, "g");
  OnAll(group, [](Collective& rank) {
    for (int64_t i = 0; i < 500; ++i) {
      EXPECT_EQ(*rank.AllReduceMax(i % 4 == rank.rank() ? -i : -1000, absl::InfiniteFuture()), -i);
      EXPECT_EQ(rank.Barrier(absl::InfiniteFuture()), absl::OkStatus());
    }
  });
}

TEST(ThreadCollective, AGroupOfOneNeedsNobody) {
  Group group = MakeThreadCollectives(1, "g");
  EXPECT_EQ(TextOf(*group[0]->Broadcast(BytesOf("a"), 0, absl::InfinitePast())), "a");
  EXPECT_EQ(*group[0]->AllReduceMax(-7, absl::InfinitePast()), -7);
  EXPECT_EQ(group[0]->Barrier(absl::InfinitePast()), absl::OkStatus());
}

TEST(ThreadCollective, NamesTheRanksThatDoNotComeInTimeAndEnds) {
  FakeClock clock;
  Group group = MakeThreadCollectives(4, "replica 1", clock);
  const absl::Time deadline = clock.Now() + absl::Seconds(5);
  const auto fails = Fails(Code::kDeadlineExceeded, {"replica 1", "ranks 1, 3 of 4", "from rank 2"});
  std::thread first([&] { EXPECT_THAT(group[0]->Broadcast({}, 2, deadline).status(), fails); });
  std::thread third([&] { EXPECT_THAT(group[2]->Broadcast({}, 2, deadline + absl::Hours(1)).status(), fails); });
  clock.AwaitWaiters(2);
  clock.Advance(absl::Seconds(5));
  first.join();
  third.join();
  EXPECT_THAT(group[1]->Broadcast({}, 2, deadline).status(), fails);
  EXPECT_THAT(group[3]->Barrier(absl::InfiniteFuture()), fails);
}

TEST(ThreadCollective, EndsWhenARankLeaves) {
  FakeClock clock;
  Group group = MakeThreadCollectives(2, "g", clock);
  std::thread waits([&] {
    EXPECT_THAT(group[0]->Barrier(absl::InfiniteFuture()), Fails(Code::kUnavailable, {"rank 1 of 2 has left"}));
  });
  clock.AwaitWaiters(1);
  group[1].reset();
  waits.join();
}

TEST(ThreadCollective, RefusesDifferentOperationsAtTheSameTime) {
  FakeClock clock;
  Group group = MakeThreadCollectives(2, "g", clock);
  const auto fails = Fails(Code::kInternal, {"'g': rank 1 does", "from rank 1", "from rank 0"});
  std::thread waits([&] { EXPECT_THAT(group[0]->Broadcast({}, 0, absl::InfiniteFuture()).status(), fails); });
  clock.AwaitWaiters(1);
  EXPECT_THAT(group[1]->Broadcast({}, 1, absl::InfiniteFuture()).status(), fails);
  waits.join();
}

}  // namespace
}  // namespace tdock::runtime
