#include "core/tensor/frame_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <new>

#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/tensor/testing/frame_signing.h"
#include "core/tensor/testing/frames.h"
#include "core/tensor/testing/random_batch.h"

namespace tdock {
namespace {

constexpr FrameLimits kUnchecked = {.allow_unchecked = true};

std::span<const std::byte> AsBytes(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }

// Feeds pieces of at most `most` bytes, some of them empty.
absl::StatusOr<MetaBatch> ReadCut(Rng& rng, const std::string& bytes, size_t most, const FrameLimits& limits = {}) {
  FrameReader reader(limits, Buffer::Allocate);
  for (auto rest = AsBytes(bytes); !rest.empty();) {
    const size_t size = std::min<size_t>(rest.size(), rng.Below(most + 1));
    // A piece of its own, which ends where its memory ends and is gone afterwards.
    const std::vector<std::byte> piece(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(size));
    TDOCK_RETURN_IF_ERROR(reader.Feed(piece));
    rest = rest.subspan(size);
  }
  return reader.Finish();
}

TEST(FrameReader, MakesTheSameBatchHoweverTheFrameIsCut) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    const MetaBatch batch = RandomBatch(rng, static_cast<int64_t>(rng.Below(6)), static_cast<int>(rng.Below(6)));
    const auto checksums = rng.Below(2) == 0 ? FrameChecksums::kBlocks : FrameChecksums::kNone;
    const std::string bytes = Encode(batch, checksums);
    const auto read = ReadCut(rng, bytes, size_t{1} << rng.Below(12), kUnchecked);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, batch);
    EXPECT_EQ(Encode(*read, checksums), bytes);
  }
}

TEST(FrameReader, MakesTheSameBatchInWhateverOrderItsBlocksCome) {
  Rng rng(17);
  for (int round = 0; round < 300; ++round) {
    const MetaBatch batch = RandomBatch(rng, static_cast<int64_t>(rng.Below(6)), static_cast<int>(rng.Below(6)));
    const std::string bytes = Encode(batch, rng.Below(2) == 0 ? FrameChecksums::kBlocks : FrameChecksums::kNone);
    FrameReader reader(kUnchecked, Buffer::Allocate);
    uint64_t begin = 0;
    for (; !reader.has_header(); ++begin) ASSERT_TRUE(reader.Place(begin, AsBytes(bytes).subspan(begin, 1)).ok());
    std::vector<std::pair<uint64_t, uint64_t>> pieces;
    for (uint64_t at = begin; at < bytes.size();) {
      const uint64_t size = std::min<uint64_t>(bytes.size() - at, 1 + rng.Below(200));
      pieces.insert(pieces.begin() + static_cast<ptrdiff_t>(rng.Below(pieces.size() + 1)), {at, size});
      at += size;
    }
    for (const auto& [at, size] : pieces) {
      std::vector<iovec> rooms;
      if (rng.Below(2) == 0) reader.RoomsFor(at, size, rooms);
      uint64_t filled = 0;
      for (const iovec& room : rooms) {
        std::memcpy(room.iov_base, bytes.data() + at + filled, room.iov_len);
        filled += room.iov_len;
      }
      ASSERT_TRUE(filled == 0 || reader.Filled(at, filled).ok());
      ASSERT_TRUE(reader.Place(at + filled, AsBytes(bytes).subspan(at + filled, size - filled)).ok());
    }
    ASSERT_TRUE(reader.done());
    const auto read = reader.Finish();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, batch);
  }
}

TEST(FrameReader, RefusesBytesThatComeTwiceOrBeforeTheHeader) {
  const std::string bytes = Encode(Rewards(), FrameChecksums::kNone);
  FrameReader early(kUnchecked, Buffer::Allocate);
  EXPECT_TRUE(absl::IsInvalidArgument(early.Place(192, AsBytes(bytes).subspan(192))));
  FrameReader twice(kUnchecked, Buffer::Allocate);
  ASSERT_TRUE(twice.Place(0, AsBytes(bytes).first(bytes.size() - 1)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(twice.Place(bytes.size() - 2, AsBytes(bytes).last(2))));
  EXPECT_FALSE(twice.Finish().ok());
}

TEST(FrameReader, ReadsBlocksThatAreLargerThanACache) {
  Rng rng(12);
  Batch columns;
  ASSERT_TRUE(columns.Add("x", Column::MakeDense(DType::kU8, {1'000'003}, 3, RandomBytes(rng, 3'000'009, 256))).ok());
  const MetaBatch batch{std::move(columns)};
  const std::string bytes = Encode(batch);
  for (const size_t most : {size_t{1} << 16, size_t{1} << 20, bytes.size()}) {
    EXPECT_EQ(*ReadCut(rng, bytes, most), batch);
  }
}

TEST(FrameReader, SaysHowMuchIsMissing) {
  const std::string bytes = Encode(Rewards());
  FrameReader reader({}, Buffer::Allocate);
  EXPECT_EQ(reader.missing(), 40u);
  ASSERT_TRUE(reader.Feed(AsBytes(bytes).first(39)).ok());
  EXPECT_EQ(reader.missing(), 1u);
  ASSERT_TRUE(reader.Feed(AsBytes(bytes).subspan(39, 1)).ok());
  EXPECT_EQ(reader.missing(), bytes.size() - 40);
  ASSERT_TRUE(reader.Feed(AsBytes(bytes).subspan(40)).ok());
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(*reader.Finish(), Rewards());
  EXPECT_EQ(reader.Finish().status().code(), absl::StatusCode::kFailedPrecondition);
}

// Wherever something is wrong, and however the frame is cut, it says what DecodeFrame() says; of several faults it may
// find another first.
TEST(FrameReader, FindsWhatDecodeFrameFinds) {
  Rng rng(13);
  int refused = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string bytes = Encode(RandomBatch(rng, static_cast<int64_t>(rng.Below(4)), static_cast<int>(rng.Below(4))));
    const uint64_t faults = rng.Below(3);
    for (uint64_t i = faults; i > 0; --i) {
      // Not the size, which DecodeFrame() knows before it looks at anything else.
      const size_t at = rng.Below(bytes.size() - 40);
      bytes[at < 32 ? at : at + 8] = static_cast<char>(rng.Below(2) == 0 ? rng.Next() : rng.Below(4));
    }
    if (rng.Below(2) == 0) SignFrame(bytes);
    const auto decoded = Decode(bytes, kUnchecked), read = ReadCut(rng, bytes, 200, kUnchecked);
    ASSERT_EQ(read.status().code(), decoded.status().code());
    ASSERT_TRUE(faults > 1 || read.status() == decoded.status()) << read.status() << decoded.status();
    if (decoded.ok()) {
      EXPECT_EQ(Encode(*read), Encode(*decoded));
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1'000);
  EXPECT_LT(refused, 4'500);
}

TEST(FrameReader, RefusesAnyBitChangedAndAnyOtherLength) {
  Rng rng(14);
  const std::string bytes = Encode(Rewards());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto read = ReadCut(rng, bytes.substr(0, size), 100);
    EXPECT_EQ(read.status().ToString(), Decode(bytes.substr(0, size)).status().ToString()) << size;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << size;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(ReadCut(rng, changed, 100).ok()) << bit;
  }
  EXPECT_THAT(ReadCut(rng, bytes + '\0', bytes.size() + 1).status(),
              Fails(absl::StatusCode::kDataLoss, {"byte 40", "384", "has 385"}));
}

TEST(FrameReader, StaysAtItsFirstError) {
  std::string bytes = Encode(Rewards());
  bytes[203] = '\1';
  FrameReader reader({}, Buffer::Allocate);
  const absl::Status first = reader.Feed(AsBytes(bytes));
  EXPECT_THAT(first, Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 203", "not zero"}));
  EXPECT_EQ(reader.Feed(AsBytes(bytes).subspan(204)), first);
  EXPECT_EQ(reader.Feed({}), first);
  EXPECT_EQ(reader.Finish().status(), first);
}

TEST(FrameReader, GivesEachBlockThatIsNotEmptyABufferOfItsOwn) {
  Batch columns = Rewards().columns();
  ASSERT_TRUE(columns.Add("none", Column::FromStrings(std::vector<std::string>{"", ""})).ok());
  const std::string bytes = Encode(MetaBatch(std::move(columns)));
  std::vector<size_t> sizes;
  std::vector<const std::byte*> given;
  FrameReader reader({}, [&](size_t size) {
    sizes.push_back(size);
    Buffer buffer = Buffer::Allocate(size);
    given.push_back(buffer.data());
    return buffer;
  });
  ASSERT_TRUE(reader.Feed(AsBytes(bytes)).ok());
  const MetaBatch batch = *reader.Finish();
  EXPECT_THAT(sizes, testing::ElementsAre(8, 24, 3, 24));
  EXPECT_EQ(batch.columns().Find("reward")->values().data(), given[0]);
  EXPECT_EQ(batch.columns().Find("text")->values().data(), given[2]);
}

TEST(FrameReader, AllocatesNothingForAHeaderThatIsWrong) {
  const std::string bytes = Encode(Rewards());
  const auto refuse = [&](size_t at, uint64_t value, const FrameLimits& limits = {}) {
    std::string changed = bytes;
    std::memcpy(changed.data() + at, &value, sizeof(value));
    SignHeader(changed);
    size_t asked = 0;
    FrameReader reader(limits, [&](size_t size) {
      asked += size;
      return Buffer::Allocate(size);
    });
    const absl::Status status = reader.Feed(AsBytes(changed));
    EXPECT_EQ(asked, 0u) << status;
    EXPECT_TRUE(reader.Finish().status() == status);
    return status;
  };
  EXPECT_THAT(refuse(32, uint64_t{1} << 40),
              Fails(absl::StatusCode::kInvalidArgument, {"byte 40", "1099511627776", "limit is 68719"}));
  EXPECT_THAT(refuse(32, UINT64_MAX, {.max_frame_bytes = SIZE_MAX}),
              Fails(absl::StatusCode::kInvalidArgument, {"limit is 4611686018427387904"}));
  EXPECT_THAT(refuse(32, 384, {.max_frame_bytes = 383}),
              Fails(absl::StatusCode::kInvalidArgument, {"frame of 384", "limit is 383"}));
  EXPECT_THAT(refuse(32, uint64_t{1} << 30), Fails(absl::StatusCode::kDataLoss, {"1073741440 bytes", "last column"}));
  EXPECT_THAT(refuse(24, uint64_t{1} << 30), Fails(absl::StatusCode::kInvalidArgument, {"header of 1073741824"}));
  EXPECT_THAT(refuse(16, uint64_t{1} << 31),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "2147483648 rows of float32[]", "8 bytes"}));
  EXPECT_THAT(refuse(62, uint64_t{1} << 60),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "1152921504606846976", "192 left"}));
  EXPECT_THAT(refuse(62, 12), Fails(absl::StatusCode::kDataLoss, {"'reward'", "2 rows of float32[]", "12 bytes"}));
  // The offsets of "text".
  EXPECT_THAT(refuse(98, 16),
              Fails(absl::StatusCode::kDataLoss, {"'text'", "byte 114", "16 bytes", "offsets", "2 rows need 3"}));
}

TEST(FrameReader, SaysWhatItHadNoMemoryFor) {
  const std::string bytes = Encode(Rewards());
  FrameReader reader({}, [](size_t) -> Buffer { throw std::bad_alloc(); });
  EXPECT_THAT(reader.Feed(AsBytes(bytes)),
              Fails(absl::StatusCode::kResourceExhausted, {"8 bytes", "values", "'reward'"}));
  EXPECT_EQ(reader.Finish().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(FrameReader, ReadsFramesWithoutChecksumsOnlyWhereTheyAreAllowed) {
  Rng rng(15);
  const std::string bytes = Encode(Rewards(), FrameChecksums::kNone);
  EXPECT_THAT(ReadCut(rng, bytes, 100).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"byte 12", "version 2", "only version 1"}));
  EXPECT_EQ(ReadCut(rng, bytes, 100).status(), Decode(bytes).status());
  EXPECT_EQ(*ReadCut(rng, bytes, 100, kUnchecked), Rewards());
  EXPECT_EQ(*Decode(bytes, kUnchecked), Rewards());
  // A frame with checksums is checked all the same.
  std::string damaged = Encode(Rewards());
  damaged[193] = '\1';
  EXPECT_EQ(ReadCut(rng, damaged, 100, kUnchecked).status().code(), absl::StatusCode::kDataLoss);
}

TEST(FrameReader, ChecksOffsetsOfFramesWithoutChecksums) {
  Rng rng(16);
  std::string bytes = Encode(Rewards(), FrameChecksums::kNone);
  bytes[256 + 8] = '\4';
  EXPECT_THAT(ReadCut(rng, bytes, 100, kUnchecked).status(),
              Fails(absl::StatusCode::kDataLoss, {"'text'", "byte 138", "offset 2 is 3", "after 4"}));
}

}  // namespace
}  // namespace tdock
