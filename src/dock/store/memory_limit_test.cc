// What counts for the limit of a server's memory, and what it takes from the system beside that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/no_memory.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "dock/store/page_sizes.h"
#include "dock/store/segment_memory.h"
#include "dock/store/testing/open_files.h"

namespace tdock::dock {
namespace {

constexpr size_t kLimit = 64 * kMebibyte;

absl::StatusOr<Buffer> TryAllocate(SegmentMemory& memory, size_t bytes) {
  return OrNoMemory("a put", [&]() -> absl::StatusOr<Buffer> { return memory.Allocate(bytes); });
}

// As many as there is room for.
std::vector<Buffer> Fill(SegmentMemory& memory, size_t bytes) {
  std::vector<Buffer> buffers;
  for (absl::StatusOr<Buffer> buffer = TryAllocate(memory, bytes); buffer.ok(); buffer = TryAllocate(memory, bytes)) {
    buffers.push_back(*std::move(buffer));
  }
  return buffers;
}

void KeepEverySecond(std::vector<Buffer>& buffers) {
  std::vector<Buffer> kept;
  for (size_t i = 0; i < buffers.size(); i += 2) kept.push_back(std::move(buffers[i]));
  buffers = std::move(kept);
}

TEST(MemoryLimit, IsOfWhatBuffersOccupyInAllPartitionsTogether) {
  SegmentPool pool({.limit_bytes = kLimit, .limit_name = "--memory"});
  SegmentMemory a(pool), b(pool);
  const Buffer one = a.Allocate(10), two = b.Allocate(kLimit / 2);
  EXPECT_EQ(pool.held_bytes(), 64 + kLimit / 2);
  Buffer three = a.Allocate(kLimit / 2 - 64);
  EXPECT_EQ(pool.held_bytes(), kLimit);
  EXPECT_THAT(TryAllocate(b, 1).status(),
              Fails(absl::StatusCode::kResourceExhausted, {"a put", "67108864 of 67108864", "--memory"}));
  EXPECT_THROW(a.Allocate(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW(a.Allocate(SIZE_MAX / 2), std::bad_alloc);
  EXPECT_EQ(pool.held_bytes(), kLimit);
  // What is given back in one partition makes room for another.
  three = Buffer();
  EXPECT_EQ(b.Allocate(kLimit / 2 - 64).size(), kLimit / 2 - 64);
}

TEST(MemoryLimit, HundredsOfPartitionsWithOneSmallRowHaveNoSegments) {
  SegmentPool pool({.limit_bytes = kLimit});
  std::vector<std::unique_ptr<SegmentMemory>> partitions;
  std::vector<Buffer> buffers;
  const ptrdiff_t files = OpenFiles();
  for (size_t i = 0; i < 1'000; ++i) {
    partitions.push_back(std::make_unique<SegmentMemory>(pool));
    buffers.push_back(partitions.back()->Allocate(4'096));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % Buffer::kAlignment, 0u);
    EXPECT_TRUE(partitions.back()->Holds(buffers.back().data()));
    EXPECT_FALSE(partitions.front()->Holds(buffers.back().data()) && i > 0);
    EXPECT_FALSE(partitions.back()->Locate(buffers.back().data()));
  }
  EXPECT_EQ(OpenFiles(), files);
  EXPECT_EQ(pool.held_bytes(), 4'096'000u);
  EXPECT_EQ(pool.warm_bytes(), 0u);
  partitions.clear();
  buffers.clear();
  EXPECT_EQ(pool.held_bytes(), 0u);
}

TEST(MemoryLimit, APartitionThatGrowsMovesFromTheHeapToSegments) {
  SegmentPool pool;
  SegmentMemory memory(pool);
  std::vector<Buffer> buffers;
  for (size_t held = 0; held < 256 << 10; held += 4'096) buffers.push_back(memory.Allocate(4'096));
  for (const Buffer& buffer : buffers) EXPECT_FALSE(memory.Locate(buffer.data()));
  const Buffer next = memory.Allocate(4'096);
  EXPECT_TRUE(memory.Locate(next.data()));
  // Once it has a segment, all that it needs is taken from there.
  buffers.clear();
  EXPECT_TRUE(memory.Locate(memory.Allocate(64).data()));
  // Large buffers are looked at where they are from the beginning.
  SegmentMemory other(pool);
  const Buffer large = other.Allocate(64 << 10);
  EXPECT_TRUE(other.Locate(large.data()));
}

// Buffers of one size after another, without anything freed.
TEST(MemoryLimit, SegmentsGrowWithTheirPartition) {
  for (const size_t bytes : {64, 4'096, 100'000, 150'000, 3'000'000}) {
    SegmentPool pool;
    SegmentMemory memory(pool);
    std::vector<Buffer> buffers;
    const ptrdiff_t files = OpenFiles();
    while (pool.held_bytes() < std::min(48 * kMebibyte, 50'000 * bytes)) {
      buffers.push_back(memory.Allocate(bytes));
      const size_t held = pool.held_bytes();
      ASSERT_LE(pool.warm_bytes(), std::max(3 * bytes, held / 4) + held / 20 + (256 << 10)) << held << " of " << bytes;
    }
    EXPECT_LE(OpenFiles() - files, 60) << bytes;
  }
}

TEST(MemoryLimit, CellsOf150KilobytesFitWhereEverySecondOf100WasCleared) {
  SegmentPool pool({.limit_bytes = kLimit});
  SegmentMemory memory(pool);
  std::vector<Buffer> small = Fill(memory, 100'000);
  EXPECT_GT(pool.held_bytes(), kLimit - 100'032);
  KeepEverySecond(small);
  const std::vector<Buffer> large = Fill(memory, 150'000);
  EXPECT_GT(pool.held_bytes(), kLimit - 150'016);
  EXPECT_GE(large.size(), 220u);
  EXPECT_LE(pool.held_bytes() + pool.warm_bytes(), 2 * kLimit);
}

TEST(MemoryLimit, DroppedPartitionsCountAsWhatViewsKeep) {
  SegmentPool pool({.limit_bytes = kLimit});
  std::vector<Buffer> views;
  for (int round = 0; round < 10; ++round) {
    SegmentMemory memory(pool);
    std::vector<Buffer> cells;
    for (int i = 0; i < 250; ++i) cells.push_back(memory.Allocate(100'000));
    views.push_back(memory.Allocate(8));
    for (int i = 0; i < 250; ++i) cells.push_back(memory.Allocate(100'000));
  }
  EXPECT_EQ(pool.held_bytes(), 640u);
  EXPECT_LE(pool.warm_bytes(), kLimit);
  SegmentMemory memory(pool);
  EXPECT_GE(Fill(memory, 100'000).size(), 600u);
}

TEST(MemoryLimit, WhatIsKeptWarmRefusesNothing) {
  FakeClock clock;
  SegmentPool pool({.limit_bytes = kLimit, .clock = clock});
  SegmentMemory a(pool), b(pool);
  for (const size_t bytes : {100'000, 150'000, 70'000, 1'000'000, 50'000'000}) {
    for (SegmentMemory* memory : {&a, &b}) {
      {
        const std::vector<Buffer> freed = Fill(*memory, bytes);
      }
      EXPECT_EQ(pool.held_bytes(), 0u);
      EXPECT_GT(pool.warm_bytes(), kLimit / 4);
      // It goes before more than the limit is taken.
      EXPECT_LE(pool.warm_bytes(), kLimit + kLimit / 4);
    }
  }
}

// The worst that can be done: what is freed lies between what stays, and what is asked for next is twice as large.
TEST(MemoryLimit, TakesAtMostTwiceAsMuchHoweverItIsFragmented) {
  SegmentPool pool({.limit_bytes = kLimit, .limit_name = "--memory"});
  SegmentMemory memory(pool);
  std::vector<Buffer> buffers;
  absl::Status refused;
  for (size_t bytes = 70'000; bytes < 2'000'000; bytes *= 2) {
    for (Buffer& buffer : Fill(memory, bytes)) buffers.push_back(std::move(buffer));
    ASSERT_LE(pool.held_bytes(), kLimit);
    ASSERT_LE(pool.held_bytes() + pool.warm_bytes(), 2 * kLimit);
    refused = TryAllocate(memory, bytes).status();
    KeepEverySecond(buffers);
  }
  EXPECT_THAT(refused, Fails(absl::StatusCode::kResourceExhausted, {"a put", "67108864", "--memory", "free space"}));
  // With nothing left, everything can be had again.
  buffers.clear();
  EXPECT_EQ(memory.Allocate(kLimit).size(), kLimit);
}

TEST(MemoryLimit, AgreesWithWhatRandomBuffersOccupy) {
  SegmentPool pool({.limit_bytes = kLimit});
  std::vector<std::unique_ptr<SegmentMemory>> partitions;
  for (int i = 0; i < 20; ++i) partitions.push_back(std::make_unique<SegmentMemory>(pool));
  Rng rng(5);
  std::vector<Buffer> buffers;
  size_t held = 0;
  const auto rounded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  for (int step = 0; step < 20'000; ++step) {
    if (!buffers.empty() && rng.Below(5) < 2) {
      std::swap(buffers[rng.Below(buffers.size())], buffers.back());
      held -= rounded(buffers.back().size());
      buffers.pop_back();
    } else {
      const size_t bytes = 1 + rng.Below(size_t{1} << rng.Below(18));
      absl::StatusOr<Buffer> buffer = TryAllocate(*partitions[rng.Below(partitions.size())], bytes);
      ASSERT_TRUE(buffer.ok() || held + rounded(bytes) > kLimit) << buffer.status();
      if (buffer.ok()) {
        held += rounded(bytes);
        buffers.push_back(*std::move(buffer));
      }
    }
    ASSERT_EQ(pool.held_bytes(), held);
  }
}

TEST(MemoryLimit, ACopyThatReplacesMayExceedItForAWhile) {
  SegmentPool pool({.limit_bytes = kLimit});
  SegmentMemory memory(pool);
  EXPECT_FALSE(memory.IsScarce());
  const Buffer old = memory.Allocate(kLimit);
  EXPECT_TRUE(memory.IsScarce());
  EXPECT_THROW(memory.Allocate(kLimit / 2), std::bad_alloc);
  EXPECT_EQ(memory.AllocateToReplace(kLimit / 2).size(), kLimit / 2);
  EXPECT_EQ(pool.held_bytes(), kLimit);
}

TEST(MemoryLimit, RunningOutOfDescriptorsNamesTheirLimit) {
  const DescriptorLimit few(256);
  SegmentPool pool({.heap_bytes = 0, .least_segment_bytes = kPageBytes, .most_segment_bytes = kPageBytes});
  SegmentMemory memory(pool);
  const std::vector<Buffer> buffers = Fill(memory, kPageBytes);
  EXPECT_THAT(TryAllocate(memory, kPageBytes).status(),
              Fails(absl::StatusCode::kResourceExhausted, {"may have 256", "last 64", "RLIMIT_NOFILE", "ulimit -n"}));
  EXPECT_LE(OpenFiles(), 256 - 60);
  EXPECT_GE(buffers.size(), 100u);
}

}  // namespace
}  // namespace tdock::dock
