#include "dock/store/warm_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "core/base/testing/fake_clock.h"
#include "core/base/testing/patience.h"
#include "dock/store/page_sizes.h"

namespace tdock::dock {
namespace {

bool BecomeWarm(const WarmMemory& memory, size_t bytes) {
  return Eventually([&] { return memory.warm_bytes() == bytes; });
}

size_t ResidentBytes() {
  size_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(WarmMemory, HandsOutWhatWasFreed) {
  WarmMemory memory({.keep = kNever});
  Buffer first = memory.Allocate(3 * kMebibyte);
  const std::byte* const data = first.data();
  first.mutable_data()[first.size() - 1] = std::byte{1};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % Buffer::kAlignment, 0u);
  first = Buffer();
  EXPECT_EQ(memory.warm_bytes(), 3 * kMebibyte);
  // It serves what is a little smaller: neither what is much smaller nor what is larger.
  const Buffer small = memory.Allocate(kMebibyte), large = memory.Allocate(3 * kMebibyte + 1'000);
  EXPECT_EQ(memory.warm_bytes(), 3 * kMebibyte);
  EXPECT_NE(small.data(), data);
  EXPECT_NE(large.data(), data);
  EXPECT_EQ(large.size(), 3 * kMebibyte + 1'000);
  const Buffer again = memory.Allocate(3 * kMebibyte - 1'000);
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(again.size(), 3 * kMebibyte - 1'000);
  EXPECT_EQ(memory.warm_bytes(), 0u);
  const Buffer slice = again.Slice(1'000, 10);
  EXPECT_EQ(slice.data(), again.data() + 1'000);
}

TEST(WarmMemory, ServesTheSameSizeFromTheSameMemory) {
  WarmMemory memory({.keep = kNever});
  Buffer buffer = memory.Allocate(100'000);
  const std::byte* const data = buffer.data();
  for (int again = 0; again < 3; ++again) {
    buffer = Buffer();
    buffer = memory.Allocate(99'000);
    EXPECT_EQ(buffer.data(), data);
    EXPECT_EQ(memory.warm_bytes(), 0u);
  }
}

TEST(WarmMemory, GivesBackToTheSystemWhatNobodyUsedForAWhile) {
  FakeClock clock;
  WarmMemory memory({.keep = absl::Seconds(4), .clock = clock});
  Buffer early = memory.Allocate(kMebibyte), late = memory.Allocate(3 * kMebibyte);
  early = Buffer();
  clock.Advance(absl::Seconds(2));
  late = Buffer();
  EXPECT_EQ(memory.warm_bytes(), 4 * kMebibyte);
  clock.Advance(absl::Seconds(2));
  EXPECT_TRUE(BecomeWarm(memory, 3 * kMebibyte));
  clock.Advance(absl::Seconds(2));
  EXPECT_TRUE(BecomeWarm(memory, 0));
  late = memory.Allocate(kMebibyte);
  late = Buffer();
  EXPECT_EQ(memory.warm_bytes(), kMebibyte);
}

TEST(WarmMemory, GivesBackWhatIsTooMuchWhileTheRestIsUsed) {
  FakeClock clock;
  WarmMemory memory({.keep = absl::Seconds(4), .clock = clock});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(memory.Allocate(kMebibyte));
  buffers.clear();
  for (int second = 0; second < 3; ++second) {
    clock.Advance(absl::Seconds(1));
    const Buffer used = memory.Allocate(kMebibyte);
  }
  EXPECT_EQ(memory.warm_bytes(), 3 * kMebibyte);
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(BecomeWarm(memory, kMebibyte));
}

TEST(WarmMemory, TheSystemHasItBackWithinFiveSecondsThoughNobodyCalls) {
  FakeClock clock;
  WarmMemory memory({.clock = clock});
  {
    Buffer buffer = memory.Allocate(64 * kMebibyte);
    std::memset(buffer.mutable_data(), 1, buffer.size());
  }
  const size_t before = ResidentBytes();
  EXPECT_EQ(memory.warm_bytes(), 64 * kMebibyte);
  clock.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return ResidentBytes() <= before - 60 * kMebibyte; }));
  EXPECT_EQ(memory.warm_bytes(), 0u);
}

TEST(WarmMemory, KeepsNoMoreThanItsLimit) {
  WarmMemory memory({.limit_bytes = 5 * kMebibyte / 2, .keep = kNever});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 4; ++i) buffers.push_back(memory.Allocate(kMebibyte));
  buffers.clear();
  EXPECT_EQ(memory.warm_bytes(), 2 * kMebibyte);
}

TEST(WarmMemory, BuffersOutliveIt) {
  auto memory = std::make_unique<WarmMemory>();
  Buffer kept = memory->Allocate(kMebibyte), freed = memory->Allocate(kMebibyte);
  freed = Buffer();
  kept.mutable_data()[kMebibyte - 1] = std::byte{5};
  memory.reset();
  EXPECT_EQ(kept.bytes().back(), std::byte{5});
}

// Fails in the thread that made it, as the allocation of a list's node or the start of a thread may.
class FailingClock final : public Clock {
 public:
  absl::Time Now() override {
    if (fails && std::this_thread::get_id() == maker_) throw std::bad_alloc();
    return absl::UnixEpoch();
  }
  void Wait(CondVar& cv, Mutex& mu, absl::Time) override TDOCK_REQUIRES(mu) { cv.Wait(mu); }
  std::optional<AlarmId> SetAlarm(absl::Time, std::function<void()>) override { return std::nullopt; }
  void CancelAlarm(const AlarmId&) override {}
  std::atomic<bool> fails = true;

 private:
  const std::thread::id maker_ = std::this_thread::get_id();
};

TEST(WarmMemory, WhatItFailsToKeepGoesBackToTheSystem) {
  FailingClock clock;
  WarmMemory memory({.clock = clock});
  { const Buffer buffer = memory.Allocate(kMebibyte); }
  EXPECT_EQ(memory.warm_bytes(), 0u);
  clock.fails = false;
  { const Buffer buffer = memory.Allocate(kMebibyte); }
  EXPECT_EQ(memory.warm_bytes(), kMebibyte);
}

TEST(WarmMemory, LeavesSmallBuffersToTheHeap) {
  WarmMemory memory;
  { const Buffer small = memory.Allocate(1'000); }
  EXPECT_EQ(memory.warm_bytes(), 0u);
  EXPECT_EQ(memory.Allocate(0).size(), 0u);
}

}  // namespace
}  // namespace tdock::dock
