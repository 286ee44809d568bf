#include "dock/store/segment_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <thread>
#include <vector>

#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/patience.h"
#include "dock/store/page_sizes.h"
#include "dock/store/segment_view.h"
#include "dock/store/testing/open_files.h"
#include "dock/store/testing/other_process.h"

namespace tdock::dock {
namespace {

constexpr size_t kStep = 2 * kMebibyte;

// All of one size, and nothing on the heap.
SegmentPoolOptions EqualSegments(Clock& clock, absl::Duration keep = absl::Seconds(4)) {
  return {.heap_bytes = 0, .least_segment_bytes = kStep, .most_segment_bytes = kStep, .keep = keep, .clock = clock};
}

// Empty segments are kept, however long the test takes.
SegmentPoolOptions EqualSegments() { return EqualSegments(Clock::Real(), kNever); }

TEST(SegmentMemory, BuffersShareSegmentsAndAreFoundByTheirPlace) {
  SegmentPool pool(EqualSegments());
  SegmentMemory memory(pool);
  Buffer a = memory.Allocate(100), b = memory.Allocate(5'000);
  const SegmentPlace at = *memory.Locate(a.data()), bt = *memory.Locate(b.data());
  EXPECT_EQ(at.segment, bt.segment);
  EXPECT_EQ(at.offset % Buffer::kAlignment, 0u);
  EXPECT_EQ(bt.offset, at.offset + 128);
  EXPECT_EQ(memory.Locate(b.data() + 4'999)->offset, bt.offset + 4'999);
  EXPECT_EQ(pool.held_bytes(), 128u + 5'056);
  EXPECT_EQ(pool.warm_bytes(), kStep - 128 - 5'056);
  EXPECT_TRUE(memory.Holds(a.data()));
  EXPECT_TRUE(pool.Exists(at.segment));

  // As a client sees them.
  std::memset(b.mutable_data(), 7, b.size());
  SegmentMap map;
  const SegmentFile file = *memory.Open(bt.segment);
  EXPECT_EQ(file.bytes, kStep);
  ASSERT_TRUE(map.Add(bt.segment, file.file, file.bytes).ok());
  const Buffer seen = *map.Look(bt.segment, bt.offset, b.size());
  EXPECT_NE(seen.data(), b.data());
  EXPECT_EQ(std::memcmp(seen.data(), b.data(), b.size()), 0);
}

TEST(SegmentMemory, HoldsOnlyWhatIsItsOwn) {
  SegmentPool pool(EqualSegments());
  SegmentMemory memory(pool), other(pool);
  const Buffer theirs = other.Allocate(100), heap = Buffer::Allocate(100), none = memory.Allocate(0);
  EXPECT_FALSE(memory.Holds(theirs.data()));
  EXPECT_FALSE(memory.Holds(heap.data()));
  EXPECT_FALSE(memory.Holds(nullptr));
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(pool.held_bytes(), 128u);
  const uint64_t segment = other.Locate(theirs.data())->segment;
  EXPECT_THAT(memory.Open(segment).status(), Fails(absl::StatusCode::kNotFound, {"segment 0"}));
}

TEST(SegmentMemory, PartitionsNeverShareASegment) {
  SegmentPool pool(EqualSegments());
  SegmentMemory a(pool), b(pool);
  const Buffer in_a = a.Allocate(100), in_b = b.Allocate(100);
  EXPECT_NE(a.Locate(in_a.data())->segment, b.Locate(in_b.data())->segment);
}

TEST(SegmentMemory, ALargeBufferHasASegmentOfItsSize) {
  SegmentPool pool(EqualSegments());
  SegmentMemory memory(pool);
  const Buffer large = memory.Allocate(3 * kStep + 1);
  EXPECT_EQ(memory.Open(memory.Locate(large.data())->segment)->bytes, 3 * kStep + kPageBytes);
  EXPECT_TRUE(memory.Locate(large.data() + 3 * kStep));
}

TEST(SegmentMemory, FindsWhatWasFreedAgain) {
  SegmentPool pool(EqualSegments());
  SegmentMemory memory(pool);
  Buffer first = memory.Allocate(kMebibyte);
  const Buffer second = memory.Allocate(1'000);
  const std::byte* const data = first.data();
  first = Buffer();
  EXPECT_EQ(memory.Allocate(kMebibyte).data(), data);
  EXPECT_EQ(memory.Allocate(500).data(), second.data() + 1'024);
}

TEST(SegmentMemory, NothingOverlapsAndEverythingReturns) {
  FakeClock clock;
  SegmentPool pool(EqualSegments(clock));
  SegmentMemory memory(pool);
  Rng rng(31);
  std::map<const std::byte*, std::pair<Buffer, std::byte>> buffers;
  const auto check = [](const std::pair<Buffer, std::byte>& entry) {
    for (const std::byte byte : entry.first.bytes()) {
      if (byte != entry.second) return false;
    }
    return true;
  };
  for (int step = 0; step < 3'000; ++step) {
    if (!buffers.empty() && rng.Below(5) < 2) {
      auto it =
          buffers.lower_bound(std::next(buffers.begin(), static_cast<ptrdiff_t>(rng.Below(buffers.size())))->first);
      ASSERT_TRUE(check(it->second));
      buffers.erase(it);
      continue;
    }
    Buffer buffer = memory.Allocate(1 + rng.Below(size_t{1} << rng.Below(19)));
    const std::byte mark{static_cast<unsigned char>(step)};
    std::memset(buffer.mutable_data(), static_cast<int>(mark), buffer.size());
    const std::byte* const data = buffer.data();
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % Buffer::kAlignment, 0u);
    ASSERT_TRUE(buffers.emplace(data, std::pair(std::move(buffer), mark)).second);
  }
  for (const auto& [data, entry] : buffers) EXPECT_TRUE(check(entry));
  buffers.clear();
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_GT(pool.warm_bytes(), kStep);
  clock.Advance(absl::Seconds(4));
  EXPECT_TRUE(Eventually([&] { return pool.warm_bytes() == 0; }));
}

TEST(SegmentMemory, GivesBackSegmentsThatWereEmptyForAWhile) {
  FakeClock clock;
  SegmentPool pool(EqualSegments(clock));
  SegmentMemory memory(pool);
  Buffer early = memory.Allocate(kStep), late = memory.Allocate(kStep), used = memory.Allocate(kStep);
  const uint64_t early_segment = memory.Locate(early.data())->segment,
                 late_segment = memory.Locate(late.data())->segment;
  early = Buffer();
  clock.Advance(absl::Seconds(2));
  late = Buffer();
  EXPECT_EQ(pool.warm_bytes(), 2 * kStep);
  EXPECT_EQ(pool.closed_segments(), 0u);
  clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(Eventually([&] { return pool.closed_segments() == 1; }));
  EXPECT_EQ(pool.warm_bytes(), kStep);
  EXPECT_FALSE(pool.Exists(early_segment));
  EXPECT_TRUE(pool.Exists(late_segment));
  EXPECT_EQ(memory.Open(early_segment).status().code(), absl::StatusCode::kNotFound);
  // What is used again stays.
  late = memory.Allocate(10);
  EXPECT_EQ(memory.Locate(late.data())->segment, late_segment);
  clock.Advance(absl::Seconds(10));
  EXPECT_TRUE(pool.Exists(late_segment));
  late = Buffer();
  clock.Advance(absl::Seconds(4));
  ASSERT_TRUE(Eventually([&] { return pool.closed_segments() == 2; }));
  EXPECT_TRUE(pool.Exists(memory.Locate(used.data())->segment));
  EXPECT_EQ(pool.warm_bytes(), 0u);
}

TEST(SegmentMemory, NumbersOfSegmentsAreNeverUsedAgain) {
  SegmentPool pool(EqualSegments());
  uint64_t before = 0;
  for (int round = 0; round < 5; ++round) {
    SegmentMemory memory(pool);
    const uint64_t segment = memory.Locate(memory.Allocate(1).data())->segment;
    EXPECT_TRUE(round == 0 || segment > before) << segment;
    before = segment;
  }
  EXPECT_EQ(pool.closed_segments(), 5u);
}

TEST(SegmentMemory, BuffersOutliveItAndThePool) {
  auto pool = std::make_unique<SegmentPool>(EqualSegments());
  auto memory = std::make_unique<SegmentMemory>(*pool);
  Buffer kept = memory->Allocate(kStep), freed = memory->Allocate(kStep), longest = memory->Allocate(kStep);
  freed = Buffer();
  memory.reset();
  EXPECT_EQ(pool->closed_segments(), 1u);
  EXPECT_EQ(pool->warm_bytes(), 0u);
  kept = Buffer();
  EXPECT_EQ(pool->closed_segments(), 2u);
  longest.mutable_data()[kStep - 1] = std::byte{5};
  pool.reset();
  EXPECT_EQ(longest.bytes().back(), std::byte{5});
}

TEST(SegmentMemory, WorksWithoutItsPoolButKeepsNothing) {
  auto pool = std::make_unique<SegmentPool>(EqualSegments());
  SegmentMemory memory(*pool);
  { const Buffer buffer = memory.Allocate(100); }
  const ptrdiff_t files = OpenFiles();
  pool.reset();
  EXPECT_EQ(OpenFiles(), files - 1);
  { const Buffer buffer = memory.Allocate(100); }
  EXPECT_EQ(OpenFiles(), files - 1);
}

TEST(SegmentMemory, ThrowsAndLeaksNothingWithoutFileDescriptors) {
  SegmentPool pool(EqualSegments());
  SegmentMemory memory(pool);
  const Buffer first = memory.Allocate(kStep);
  const ptrdiff_t files = OpenFiles();
  {
    const DescriptorLimit none(0);
    EXPECT_THROW(memory.Allocate(kStep), std::bad_alloc);
  }
  EXPECT_EQ(OpenFiles(), files);
  EXPECT_EQ(pool.held_bytes(), kStep);
  EXPECT_EQ(pool.warm_bytes(), 0u);
  EXPECT_EQ(memory.Allocate(kStep).size(), kStep);
}

TEST(SegmentMemory, ASegmentThatWasSentOutlivesItsClosing) {
  SegmentPool pool(EqualSegments());
  auto memory = std::make_unique<SegmentMemory>(pool);
  Buffer buffer = memory->Allocate(1);
  buffer.mutable_data()[0] = std::byte{9};
  const SegmentPlace place = *memory->Locate(buffer.data());
  const SegmentFile file = *memory->Open(place.segment);
  buffer = Buffer();
  memory.reset();
  EXPECT_FALSE(pool.Exists(place.segment));
  SegmentMap map;
  ASSERT_TRUE(map.Add(place.segment, file.file, file.bytes).ok());
  EXPECT_EQ(map.Look(place.segment, place.offset, 1)->bytes()[0], std::byte{9});
}

TEST(SegmentMemory, AnotherProcessCanChangeNothing) {
  SegmentPool pool(EqualSegments());
  SegmentMemory memory(pool);
  Buffer buffer = memory.Allocate(kStep);
  std::memset(buffer.mutable_data(), 3, buffer.size());
  EXPECT_EQ(TryChangesInAnotherProcess(memory.Open(0)->file->fd()), 0);
  for (const std::byte byte : buffer.bytes()) ASSERT_EQ(byte, std::byte{3});
  // The server writes on.
  std::memset(buffer.mutable_data(), 4, buffer.size());
  // All of it can be done to a file without seals.
  const auto open = *MakeMemoryFile("open", kStep);
  EXPECT_EQ(TryChangesInAnotherProcess(open->fd()), 255);
}

TEST(SegmentMemory, ThreadsAllocateLocateAndFreeTogether) {
  SegmentPool pool(EqualSegments(Clock::Real(), absl::ZeroDuration()));
  {
    SegmentMemory shared(pool);
    std::vector<std::thread> threads;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&, seed] {
        Rng rng(seed);
        SegmentMemory own(pool);
        std::vector<Buffer> buffers(8);
        for (int step = 0; step < 500; ++step) {
          SegmentMemory& memory = rng.Below(2) == 0 ? shared : own;
          Buffer buffer = memory.Allocate(1 + rng.Below(kMebibyte));
          buffer.mutable_data()[0] = buffer.mutable_data()[buffer.size() - 1] = std::byte{1};
          const std::optional<SegmentPlace> place = memory.Locate(buffer.data());
          if (!place || !pool.Exists(place->segment) || !memory.Open(place->segment).ok()) std::abort();
          buffers[rng.Below(buffers.size())] = std::move(buffer);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(pool.held_bytes(), 0u);
  // The pool's own thread may be giving one back just now.
  EXPECT_TRUE(Eventually([&] { return pool.warm_bytes() == 0; }));
}

}  // namespace
}  // namespace tdock::dock
