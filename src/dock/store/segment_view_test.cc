#include "dock/store/segment_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/testing/fails.h"
#include "dock/store/page_sizes.h"
#include "dock/store/testing/other_process.h"

namespace tdock::dock {
namespace {

constexpr size_t kBytes = 8192;

std::shared_ptr<const FileDescriptor> Sealed(size_t bytes = kBytes) {
  auto file = *MakeMemoryFile("segment", bytes);
  EXPECT_EQ(::pwrite(file->fd(), "abc", 3, 0), 3);
  EXPECT_TRUE(Seal(file->fd(), SealedAgainst::kResizingAndFutureWriting).ok());
  return file;
}

TEST(SegmentMap, ShowsTheBytesOfASegment) {
  SegmentMap map;
  ASSERT_TRUE(map.Add(5, Sealed(), kBytes).ok());
  EXPECT_TRUE(map.Has(5));
  Buffer seen = *map.Look(5, 1, 2);
  EXPECT_EQ(std::memcmp(seen.data(), "bc", 2), 0);
  EXPECT_EQ(seen.mutable_data(), nullptr);
  EXPECT_EQ(map.Look(5, kBytes, 0)->size(), 0u);
  EXPECT_EQ(map.Look(5, 0, kBytes)->size(), kBytes);
}

TEST(SegmentMap, LooksAtNothingBeyondTheEnd) {
  SegmentMap map;
  ASSERT_TRUE(map.Add(5, Sealed(), kBytes).ok());
  EXPECT_THAT(map.Look(5, 8190, 3).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"3 bytes at 8190", "segment 5", "8192"}));
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>{0, kBytes + 1},
                                      {kBytes + 1, 0},
                                      {1, UINT64_MAX},
                                      {UINT64_MAX, 1},
                                      {UINT64_MAX, UINT64_MAX}}) {
    EXPECT_EQ(map.Look(5, offset, bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(map.Look(6, 0, 0).status(), Fails(absl::StatusCode::kNotFound, {"segment 6"}));
}

TEST(SegmentMap, MapsTheBytesThatItWasTold) {
  SegmentMap map;
  ASSERT_TRUE(map.Add(5, Sealed(), 4096).ok());
  EXPECT_TRUE(map.Look(5, 0, 4096).ok());
  EXPECT_FALSE(map.Look(5, 0, 4097).ok());
}

TEST(SegmentMap, BuffersOutliveTheSegmentAndTheMap) {
  auto map = std::make_unique<SegmentMap>();
  ASSERT_TRUE(map->Add(5, Sealed(), kBytes).ok());
  const Buffer seen = *map->Look(5, 0, 3);
  map->Forget(5);
  map->Forget(6);
  EXPECT_FALSE(map->Has(5));
  EXPECT_FALSE(map->Look(5, 0, 3).ok());
  map.reset();
  EXPECT_EQ(std::memcmp(seen.data(), "abc", 3), 0);
}

TEST(SegmentMap, UnmapsWithTheLastBuffer) {
  SegmentMap map;
  ASSERT_TRUE(map.Add(5, Sealed(), kBytes).ok());
  Buffer seen = *map.Look(5, 0, 3);
  void* const page = const_cast<std::byte*>(seen.data());
  unsigned char resident;
  map.Forget(5);
  EXPECT_EQ(::mincore(page, 1, &resident), 0);
  seen = Buffer();
  EXPECT_EQ(::mincore(page, 1, &resident), -1);
}

TEST(SegmentMap, WritesToPrivateBytesAreSeenNowhereElse) {
  constexpr size_t kLarge = 3 * kHugePageBytes;
  const std::shared_ptr<const FileDescriptor> file = Sealed(kLarge);
  SegmentMap map;
  ASSERT_TRUE(map.Add(5, file, kLarge).ok());
  ASSERT_TRUE(map.Add(6, Sealed(), kBytes).ok());
  // Across the end of a huge page, and from its middle on.
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{1, 2}, {kHugePageBytes - 4, 8}, {0, kLarge}}) {
    const Buffer seen = *map.Look(5, offset, bytes);
    const std::vector<std::byte> before(seen.data(), seen.data() + seen.size());
    Buffer one = map.LookPrivately(seen.bytes()), other = map.LookPrivately(seen.bytes());
    ASSERT_NE(one.mutable_data(), nullptr);
    ASSERT_NE(other.mutable_data(), nullptr);
    EXPECT_EQ(one.size(), bytes);
    EXPECT_EQ(std::memcmp(one.data(), before.data(), bytes), 0);
    std::memset(one.mutable_data(), 7, bytes);
    EXPECT_EQ(std::memcmp(seen.data(), before.data(), bytes), 0);
    EXPECT_EQ(std::memcmp(other.data(), before.data(), bytes), 0);
    EXPECT_EQ(one.data()[bytes - 1], std::byte{7});
  }
}

TEST(SegmentMap, PrivateBytesOutliveTheSegmentAndGoWithTheirBuffer) {
  auto map = std::make_unique<SegmentMap>();
  ASSERT_TRUE(map->Add(5, Sealed(), kBytes).ok());
  Buffer own = map->LookPrivately(map->Look(5, 0, kBytes)->bytes());
  map.reset();
  EXPECT_EQ(std::memcmp(own.data(), "abc", 3), 0);
  own.mutable_data()[kBytes - 1] = std::byte{1};
  void* const page = own.mutable_data();
  unsigned char resident;
  EXPECT_EQ(::mincore(page, 1, &resident), 0);
  own = Buffer();
  EXPECT_EQ(::mincore(page, 1, &resident), -1);
}

TEST(SegmentMap, HasNoPrivateBytesOfWhatIsNotItsOwn) {
  SegmentMap map;
  ASSERT_TRUE(map.Add(5, Sealed(), kBytes).ok());
  const std::byte here{};
  EXPECT_EQ(map.LookPrivately({&here, 1}).data(), nullptr);
  const Buffer seen = *map.Look(5, 0, kBytes);
  EXPECT_EQ(map.LookPrivately({seen.data() + 1, kBytes}).data(), nullptr);
  map.Forget(5);
  EXPECT_EQ(map.LookPrivately(seen.bytes()).data(), nullptr);
}

TEST(SegmentMap, LeavesHalfOfTheDescriptorsToTheProgram) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto few = Sealed();
  rlimit less = limit;
  less.rlim_cur = static_cast<rlim_t>(few->fd()) * 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &less), 0);
  SegmentMap map;
  EXPECT_TRUE(map.Add(5, few, kBytes).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(few.use_count(), 1);
  EXPECT_EQ(map.LookPrivately(map.Look(5, 0, 1)->bytes()).data(), nullptr);
  ASSERT_TRUE(map.Add(6, few, kBytes).ok());
  EXPECT_EQ(few.use_count(), 2);
}

TEST(SegmentMap, RefusesWhatCouldShrinkOrIsTooSmall) {
  SegmentMap map;
  const auto unsealed = *MakeMemoryFile("unsealed", kBytes);
  EXPECT_THAT(map.Add(5, unsealed, kBytes), Fails(absl::StatusCode::kInvalidArgument, {"segment 5", "sealed"}));
  EXPECT_THAT(map.Add(5, Sealed(), kBytes + 1),
              Fails(absl::StatusCode::kInvalidArgument, {"segment 5", "8192 bytes", "8193"}));
  EXPECT_EQ(map.Add(5, Sealed(), 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Add(5, Sealed(), SIZE_MAX).code(), absl::StatusCode::kInvalidArgument);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_EQ(map.Add(5, std::make_shared<const FileDescriptor>(pipe[0]), kBytes).code(),
            absl::StatusCode::kInvalidArgument);
  ::close(pipe[1]);
  EXPECT_THAT(map.Add(5, std::make_shared<const FileDescriptor>(-1), kBytes),
              Fails(absl::StatusCode::kUnavailable, {"segment 5", strerror(EBADF)}));
  EXPECT_FALSE(map.Has(5));
}

TEST(UploadArea, BothSidesSeeWhatEitherWrites) {
  const UploadArea server = *UploadArea::Make(3, 5000);
  const UploadArea client = *UploadArea::Map(server.file()->fd(), 3, 5000);
  const std::span<std::byte> given = *client.Slot(2, 5000), taken = *server.Slot(2, 5000);
  std::memset(given.data(), 6, given.size());
  EXPECT_EQ(taken.front(), std::byte{6});
  EXPECT_EQ(taken.back(), std::byte{6});
  EXPECT_EQ(server.Slot(1, 5000)->back(), std::byte{0});
  taken[0] = std::byte{7};
  EXPECT_EQ(given[0], std::byte{7});
  EXPECT_EQ(given.data(), client.Slot(0, 1)->data() + 10'000);
  EXPECT_EQ(client.file(), nullptr);
}

TEST(UploadArea, GivesNoSlotThatIsNotThere) {
  const UploadArea area = *UploadArea::Make(3, 5000);
  EXPECT_THAT(area.Slot(3, 1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"1 bytes", "slot 3", "3 slots of 5000"}));
  for (const auto& [slot, bytes] :
       {std::pair<uint64_t, uint64_t>{2, 5001}, {UINT64_MAX, 0}, {0, UINT64_MAX}, {UINT64_MAX / 5000 + 1, 1}}) {
    EXPECT_EQ(area.Slot(slot, bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(UploadArea, RefusesSizesThatMakeNoArea) {
  for (const auto& [slots, bytes] : {std::pair<uint64_t, uint64_t>{0, 1},
                                     {1, 0},
                                     {UINT64_MAX, UINT64_MAX},
                                     {uint64_t{1} << 32, uint64_t{1} << 32},
                                     {1, (uint64_t{1} << 48) + 1}}) {
    EXPECT_EQ(UploadArea::Make(slots, bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const UploadArea area = *UploadArea::Make(2, 4096);
  EXPECT_THAT(UploadArea::Map(area.file()->fd(), 3, 4096).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"upload area", "8192 bytes", "12288"}));
  const auto unsealed = *MakeMemoryFile("unsealed", kBytes);
  EXPECT_EQ(UploadArea::Map(unsealed->fd(), 1, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
}

// A client may write, and put zeros where the server reads; but no size changes, so the server reads memory that is
// there.
TEST(UploadArea, AnotherProcessCannotChangeItsSize) {
  const UploadArea area = *UploadArea::Make(2, 4096);
  EXPECT_EQ(TryChangesInAnotherProcess(area.file()->fd()),
            kMapToWrite | kMapReopenedToWrite | kMakeMappingWritable | kWrite | kPunchHole);
  EXPECT_EQ(area.Slot(1, 4096)->back(), std::byte{0});
  // Its own descriptor is no better.
  EXPECT_EQ(::ftruncate(area.file()->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

}  // namespace
}  // namespace tdock::dock
