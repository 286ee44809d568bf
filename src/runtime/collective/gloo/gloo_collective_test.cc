#include "runtime/collective/gloo/gloo_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "runtime/launch/port.h"

namespace tdock::runtime {
namespace {

using Code = absl::StatusCode;

Buffer GlooBytes(absl::string_view text) { return Buffer::CopyOf(std::as_bytes(std::span(text.data(), text.size()))); }
std::string GlooText(const Buffer& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

absl::Time In(absl::Duration time) { return Clock::Real().Now() + time; }

// Ranks that are threads here, but know each other through sockets only. (trainer/distributed tests processes.)
class GlooCollectiveTest : public testing::Test {
 protected:
  GlooCollectiveTest() {
    const absl::StatusOr<int> port = FreePort();
    EXPECT_TRUE(port.ok()) << port.status();
    auto opened = Rendezvous::Open(
        {.rank = 0, .world_size = 4, .master_addr = "127.0.0.1", .master_port = port.value_or(0)}, kPatience);
    EXPECT_TRUE(opened.ok()) << opened.status();
    rendezvous_ = *std::move(opened);
  }

  absl::StatusOr<std::unique_ptr<TensorCollective>> Open(int rank, int size, absl::Time deadline) {
    return OpenGlooCollective(
        {.rendezvous = *rendezvous_, .name = "replica 1", .rank = rank, .size = size, .host = "127.0.0.1"}, deadline);
  }

  void OnRanks(int size, const std::function<void(std::unique_ptr<TensorCollective>)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = Open(rank, size, In(kPatience));
        ASSERT_TRUE(group.ok()) << group.status();
        body(*std::move(group));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<Rendezvous> rendezvous_;
};

TEST_F(GlooCollectiveTest, DoesWhatAGroupDoes) {
  OnRanks(3, [](std::unique_ptr<TensorCollective> rank) {
    const absl::Time deadline = In(kPatience);
    for (int root = 0; root < rank->size(); ++root) {
      for (const size_t size : {size_t{0}, size_t{5}, size_t{3} << 20}) {
        const auto bytes =
            rank->Broadcast(GlooBytes(std::string(size, static_cast<char>('a' + rank->rank()))), root, deadline);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        EXPECT_EQ(GlooText(*bytes), std::string(size, static_cast<char>('a' + root)));
      }
    }
    EXPECT_EQ(*rank->AllReduceMax(rank->rank() == 1 ? -5 : -9, deadline), -5);
    EXPECT_EQ(rank->Barrier(deadline), absl::OkStatus());
  });
}

TEST_F(GlooCollectiveTest, AGroupOfOneNeedsNobody) {
  OnRanks(1, [](std::unique_ptr<TensorCollective> rank) {
    EXPECT_EQ(GlooText(*rank->Broadcast(GlooBytes("a"), 0, In(kPatience))), "a");
    EXPECT_EQ(*rank->AllReduceMax(-7, In(kPatience)), -7);
    EXPECT_EQ(rank->Barrier(In(kPatience)), absl::OkStatus());
  });
}

TEST_F(GlooCollectiveTest, NamesTheRanksThatAreNotThereWhenItIsOpened) {
  const auto group = Open(0, 3, In(absl::Milliseconds(300)));
  EXPECT_THAT(group.status(), Fails(Code::kDeadlineExceeded, {"replica 1", "ranks 1, 2 of 3", "connections"}));
}

// Rank 2 does not come until the others have given up; then it cannot go on either.
TEST_F(GlooCollectiveTest, NamesTheRankThatDoesNotComeInTimeAndEnds) {
  std::atomic<int> ended = 0, named_alone = 0;
  absl::Time deadline;
  std::latch both(2);
  std::once_flag set;
  OnRanks(3, [&](std::unique_ptr<TensorCollective> rank) {
    if (rank->rank() == 2) {
      while (ended < 2) std::this_thread::yield();
      EXPECT_FALSE(rank->AllReduceMax(1, In(absl::Milliseconds(300))).ok());
      return;
    }
    both.arrive_and_wait();
    std::call_once(set, [&] { deadline = In(absl::Milliseconds(300)); });
    const absl::Status failed = rank->AllReduceMax(1, deadline).status();
    // On a loaded machine, one of the two may come late, too, but the later one finds the other there.
    EXPECT_THAT(failed, Fails(Code::kDeadlineExceeded, {" 2 of 3", "maximum"}));
    if (absl::StrContains(failed.message(), "rank 2 of 3")) ++named_alone;
    EXPECT_EQ(rank->Barrier(In(kPatience)), failed);
    ++ended;
    while (ended < 2) std::this_thread::yield();  // a rank that goes closes its connections
  });
  EXPECT_GE(named_alone, 1);
}

TEST_F(GlooCollectiveTest, NamesTheRankThatHasLeft) {
  OnRanks(2, [&](std::unique_ptr<TensorCollective> rank) {
    ASSERT_EQ(rank->Barrier(In(kPatience)), absl::OkStatus());
    if (rank->rank() == 1) return;
    EXPECT_THAT(rank->Broadcast({}, 1, In(kPatience)).status(),
                Fails(Code::kUnavailable, {"rank 1 of 2 left", "broadcast"}));
  });
}

}  // namespace
}  // namespace tdock::runtime
