#include "tdock/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "core/tensor/testing/frame_signing.h"
#include "core/tensor/testing/frames.h"
#include "core/tensor/testing/random_batch.h"

namespace tdock {
namespace {

template <class T>
void Overwrite(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

template <class T>
T ReadAt(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

TEST(Frame, RoundTripsRandomBatches) {
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    const MetaBatch batch = RandomBatch(rng, static_cast<int64_t>(rng.Below(6)), static_cast<int>(rng.Below(6)));
    const std::string bytes = Encode(batch);
    const auto decoded = Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, batch);
    EXPECT_EQ(Encode(*decoded), bytes);
  }
}

TEST(Frame, HasTheDocumentedBytes) {
  const std::string bytes = Encode(Rewards());
  EXPECT_EQ(bytes.substr(0, 8), "\x8aTDK\r\n\x1a\n");
  EXPECT_EQ(ReadAt<uint32_t>(bytes, 8), 1u);   // version
  EXPECT_EQ(ReadAt<uint32_t>(bytes, 12), 2u);  // columns
  EXPECT_EQ(ReadAt<uint64_t>(bytes, 16), 2u);  // rows
  const uint64_t header = ReadAt<uint64_t>(bytes, 24);
  EXPECT_EQ(ReadAt<uint64_t>(bytes, 32), bytes.size());
  EXPECT_EQ(ReadAt<uint32_t>(bytes, 40), 6u);
  EXPECT_EQ(bytes.substr(44, 6), "reward");
  EXPECT_EQ(bytes[50], 0);  // dense
  EXPECT_EQ(bytes[51], static_cast<char>(DType::kF32));
  EXPECT_EQ(ReadAt<uint16_t>(bytes, 52), 0u);    // no dimensions
  EXPECT_EQ(ReadAt<uint64_t>(bytes, 54), 192u);  // its block
  EXPECT_EQ(ReadAt<uint64_t>(bytes, 62), 8u);
  EXPECT_EQ(ReadAt<uint64_t>(bytes, 70), XXH3_64bits(bytes.data() + 192, 8));
  EXPECT_EQ(ReadAt<float>(bytes, 196), 1.0f);
  EXPECT_EQ(ReadAt<int64_t>(bytes, 256 + 8), 2);  // the offsets of "text"
  EXPECT_EQ(bytes.substr(320, 3), "abc");
  EXPECT_EQ(bytes.size(), 384u);
  EXPECT_EQ(ReadAt<uint64_t>(bytes, header - 8), XXH3_64bits(bytes.data(), header - 8));
}

TEST(Frame, WithoutChecksumsHasZerosInTheirPlaces) {
  std::string bytes = Join(*EncodeFrame(Rewards(), {}, FrameChecksums::kNone));
  const uint64_t header = ReadAt<uint64_t>(bytes, 24);
  EXPECT_EQ(ReadAt<uint32_t>(bytes, 8), 2u);   // version
  EXPECT_EQ(ReadAt<uint64_t>(bytes, 70), 0u);  // the checksum of "reward"
  EXPECT_EQ(ReadAt<uint64_t>(bytes, header - 8), XXH3_64bits(bytes.data(), header - 8));
  const std::string checked = Encode(Rewards());
  EXPECT_EQ(bytes.substr(192), checked.substr(192));
  const FrameLimits unchecked = {.allow_unchecked = true};
  EXPECT_EQ(*Decode(bytes, unchecked), Rewards());
  EXPECT_EQ(Decode(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  // No other number there, so that every byte has one meaning.
  Overwrite(bytes, 70, uint64_t{1});
  SignHeader(bytes);
  EXPECT_THAT(Decode(bytes, unchecked).status(),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 78", "checksum"}));
}

TEST(Frame, SharesMemoryBothWays) {
  const MetaBatch batch = Rewards();
  const EncodedFrame frame = *EncodeFrame(batch);
  EXPECT_EQ(frame.blocks[0].data(), batch.columns().Find("reward")->values().data());
  const std::string bytes = Join(frame);
  const Buffer buffer = Buffer::CopyOf(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(DecodeFrame(buffer)->columns().Find("reward")->values().data(), buffer.data() + 192);
}

TEST(Frame, OutlivesTheBatchThatItWasMadeOf) {
  absl::StatusOr<EncodedFrame> frame = EncodeFrame(Rewards());
  EXPECT_EQ(*Decode(Join(*frame)), Rewards());
}

TEST(Frame, IsRefusedWithAnyBitChangedAndAtAnyOtherLength) {
  const std::string bytes = Encode(Rewards());
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(Decode(bytes.substr(0, size)).ok()) << size;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(Decode(changed).ok()) << bit;
  }
  EXPECT_FALSE(Decode(bytes + '\0').ok());
  EXPECT_FALSE(Decode(bytes + bytes).ok());
}

TEST(Frame, SaysWhatIsWrongAndWhere) {
  const std::string bytes = Encode(Rewards());
  const auto error = [&](size_t at, auto value, bool sign = true) {
    std::string changed = bytes;
    Overwrite(changed, at, value);
    if (sign) SignHeader(changed);
    return Decode(changed).status();
  };
  EXPECT_THAT(Decode("a text").status(), Fails(absl::StatusCode::kInvalidArgument, {"byte 0", "magic"}));
  EXPECT_THAT(Decode(bytes.substr(0, 20)).status(), Fails(absl::StatusCode::kDataLoss, {"byte 20", "first 40"}));
  EXPECT_THAT(Decode(bytes.substr(0, 200)).status(), Fails(absl::StatusCode::kDataLoss, {"byte 40", "384", "has 200"}));
  EXPECT_THAT(error(8, uint32_t{3}), Fails(absl::StatusCode::kInvalidArgument, {"byte 12", "version 3", "1 and 2"}));
  EXPECT_THAT(error(12, uint32_t{9999}),
              Fails(absl::StatusCode::kInvalidArgument, {"byte 16", "9999 columns", "limit is 4096"}));
  EXPECT_THAT(error(16, UINT64_MAX),
              Fails(absl::StatusCode::kInvalidArgument, {"18446744073709551615 rows", "limit is 4294967296"}));
  EXPECT_THAT(error(24, uint64_t{1} << 30),
              Fails(absl::StatusCode::kInvalidArgument, {"header", "1073741824", "limit is 16777216"}));
  EXPECT_THAT(error(24, uint64_t{385}), Fails(absl::StatusCode::kDataLoss, {"byte 40", "header of 385"}));
  EXPECT_THAT(error(24, uint64_t{0}), Fails(absl::StatusCode::kDataLoss, {"header of 0"}));
  EXPECT_THAT(error(54, uint64_t{128}), Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 62", "byte 128", "192"}));
  EXPECT_THAT(error(62, UINT64_MAX),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "18446744073709551615", "192 left"}));
  EXPECT_THAT(error(62, uint64_t{7}),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 78", "2 rows of float32[]", "7 bytes"}));
  EXPECT_THAT(error(16, uint64_t{3}),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 78", "3 rows of float32[]"}));
  EXPECT_THAT(error(50, uint8_t{9}), Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 54", "column type"}));
  EXPECT_THAT(error(52, uint16_t{9}), Fails(absl::StatusCode::kDataLoss, {"'reward'", "9 dimensions"}));
  EXPECT_THAT(error(44, '\n'), Fails(absl::StatusCode::kDataLoss, {"'\\neward'", "UTF-8"}));
  EXPECT_THAT(error(40, UINT32_MAX), Fails(absl::StatusCode::kInvalidArgument, {"byte 44", "4294967295"}));
  EXPECT_THAT(error(193, '\1', false),
              Fails(absl::StatusCode::kDataLoss, {"'reward'", "bytes 192 to 200", "checksums"}));
  EXPECT_THAT(error(203, '\1', false), Fails(absl::StatusCode::kDataLoss, {"'reward'", "byte 203", "not zero"}));
  EXPECT_THAT(error(41, '\1', false), Fails(absl::StatusCode::kDataLoss, {"bytes 0 to 163", "header", "checksum"}));
}

// Touches everything that a batch says of itself.
size_t ReadAll(const MetaBatch& batch) {
  size_t sum = 0;
  for (const auto& [name, column] : batch.columns().columns()) {
    for (int64_t row = 0; row < column.rows(); ++row) {
      for (std::byte byte : column.RowBytes(row)) sum += std::to_integer<size_t>(byte);
    }
    if (const auto values = column.Values<bool>(); values.ok()) {
      for (bool value : *values) sum += value ? 1 : 0;
    }
  }
  for (const auto& [key, value] : batch.meta()) sum += ToString(value).size();
  return sum;
}

// The frames that were not refused, each read as a whole. Where they are many, what is behind the checksums was tried.
struct Accepted {
  size_t frames = 0;
  size_t sum = 0;  // printed, so that nothing of the reading is left out

  void Try(const std::string& bytes) {
    const auto decoded = Decode(bytes);
    if (!decoded.ok()) return;
    ++frames;
    sum += ReadAll(*decoded);
  }
};

// Changes a few bytes of the header, often to a number that is large or near to one that is there.
void Mutate(Rng& rng, std::string& bytes) {
  const uint64_t header = ReadAt<uint64_t>(bytes, 24);
  for (uint64_t i = 1 + rng.Below(3); i > 0; --i) {
    const size_t at = 8 + rng.Below(header - 16);
    const uint64_t near = ReadAt<uint64_t>(bytes, at) + rng.Below(130) - 65;
    const uint64_t large = rng.Next() >> rng.Below(64), huge = ~(rng.Next() >> 44);
    switch (rng.Below(6)) {
      case 0:
        bytes[at] = static_cast<char>(rng.Next());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.Below(8)));
        break;
      case 2:
        Overwrite(bytes, at, static_cast<uint32_t>(near));
        break;
      case 3:
        Overwrite(bytes, at, near);
        break;
      case 4:
        Overwrite(bytes, at, large);
        break;
      default:
        Overwrite(bytes, at, huge);
        break;
    }
  }
}

// A frame whose header was changed, but has the right checksum, either is refused or is a batch like any other.
TEST(Frame, SurvivesHostileHeaders) {
  Rng rng(6);
  Accepted accepted;
  for (int round = 0; round < 20'000; ++round) {
    const MetaBatch batch = RandomBatch(rng, static_cast<int64_t>(rng.Below(4)), static_cast<int>(rng.Below(4)));
    std::string bytes = Encode(batch);
    Mutate(rng, bytes);
    if (rng.Below(4) == 0) bytes.resize(rng.Below(bytes.size() + 1));
    if (bytes.size() >= 48) {
      if (rng.Below(2) == 0) Overwrite(bytes, 32, uint64_t{bytes.size()});
      SignHeader(bytes);
    }
    accepted.Try(bytes);
  }
  EXPECT_GT(accepted.frames, 100u) << accepted.sum;
}

// Blocks whose contents were changed, and their checksums with them: offsets, truth values.
TEST(Frame, SurvivesHostileBlocks) {
  Rng rng(7);
  Accepted accepted;
  for (int round = 0; round < 5'000; ++round) {
    Batch columns;
    ASSERT_TRUE(columns.Add("c", RandomColumn(rng, 1 + static_cast<int64_t>(rng.Below(3)))).ok());
    std::string bytes = Encode(MetaBatch(std::move(columns)));
    const size_t dimensions = ReadAt<uint16_t>(bytes, 47), block = 49 + 8 * dimensions;
    const uint64_t at = ReadAt<uint64_t>(bytes, block), size = ReadAt<uint64_t>(bytes, block + 8);
    if (size < 8) continue;
    Overwrite(bytes, at + rng.Below(size / 8) * 8, rng.Next() >> rng.Below(64));
    SignFrame(bytes);
    accepted.Try(bytes);
  }
  EXPECT_GT(accepted.frames, 100u) << accepted.sum;
}

TEST(Frame, RefusesABoolThatIsNoneBehindARightChecksum) {
  Batch columns = Rewards().columns();
  ASSERT_TRUE(columns.Add("mask", Column::FromValues<bool>({true, false})).ok());
  std::string bytes = Encode(MetaBatch(std::move(columns)));
  const size_t mask = bytes.size() - EncodedFrame::kAlignment;
  ASSERT_EQ(bytes.substr(mask, 2), std::string("\1\0", 2));
  Overwrite(bytes, mask + 1, uint8_t{2});
  SignFrame(bytes);
  const absl::Status status = Decode(bytes).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kDataLoss, {"'mask'", "damaged frame: byte ", "value 1", "bool of 2"}));
}

TEST(Frame, RefusesOffsetsThatDescendBehindARightChecksum) {
  std::string bytes = Encode(Rewards());
  Overwrite(bytes, 256 + 8, int64_t{4});
  SignFrame(bytes);
  EXPECT_THAT(Decode(bytes).status(), Fails(absl::StatusCode::kDataLoss, {"'text'", "offset 2 is 3", "after 4"}));
}

TEST(SignFrame, LeavesAFrameAsItIsAndTakesAnyBytes) {
  Rng rng(9);
  for (int round = 0; round < 2'000; ++round) {
    std::string bytes = Encode(RandomBatch(rng, static_cast<int64_t>(rng.Below(4)), static_cast<int>(rng.Below(4))));
    std::string signed_bytes = bytes;
    SignFrame(signed_bytes);
    EXPECT_EQ(signed_bytes, bytes);
    Mutate(rng, bytes);
    bytes.resize(rng.Below(bytes.size() + 1));
    SignFrame(bytes);
  }
}

TEST(Frame, RefusesABoolThatIsNone) {
  const auto odd = Column::MakeDense(DType::kBool, {}, 2, Buffer::CopyOf(std::as_bytes(std::span("\1\2", 2))));
  Batch batch;
  ASSERT_TRUE(batch.Add("mask", odd).ok());
  EXPECT_THAT(EncodeFrame(MetaBatch(batch)).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'mask'", "value 1", "bool of 2"}));
}

TEST(Frame, KeepsItsLimitsWhenWrittenAndWhenRead) {
  MetaValue nested = MetaValue::List{1};
  for (int i = 0; i < 40; ++i) nested = MetaValue::List{nested};
  Batch odd_name;
  ASSERT_TRUE(odd_name.Add("re\nward", Column::FromValues<float>({1})).ok());
  EXPECT_THAT(EncodeFrame(MetaBatch(odd_name)).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"column", "'re\\nward'", "UTF-8"}));
  EXPECT_THAT(EncodeFrame(MetaBatch({}, {{"deep", nested}})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'deep'", "more than 32"}));
  EXPECT_THAT(EncodeFrame(MetaBatch({}, {{std::string(256, 'x'), 1}})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"meta key", "256 bytes"}));

  const FrameLimits tight[] = {{.max_rows = 1},       {.max_columns = 1},       {.max_name_bytes = 3},
                               {.max_meta_depth = 0}, {.max_header_bytes = 64}, {.max_frame_bytes = 383}};
  const MetaBatch batch(Rewards().columns(), {{"list", MetaValue::List{1}}});
  for (const FrameLimits& limits : tight) {
    EXPECT_EQ(EncodeFrame(batch, limits).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Decode(Encode(batch), limits).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Frame, SavesAndLoadsFilesWholeOrNotAtAll) {
  std::string folder = testing::TempDir() + "/frame_testXXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = JoinPath(folder, "batch");
  ASSERT_TRUE(SaveBatch(Env::Real(), path, Rewards()).ok());
  EXPECT_EQ(*LoadBatch(Env::Real(), path), Rewards());

  LimitedEnv full(Env::Real(), 100);
  Rng rng(8);
  EXPECT_EQ(SaveBatch(full, path, RandomBatch(rng, 5, 5)).code(), absl::StatusCode::kResourceExhausted);
  const MetaBatch loaded = *LoadBatch(Env::Real(), path);
  ASSERT_TRUE(SaveBatch(Env::Real(), path, RandomBatch(rng, 5, 5)).ok());
  EXPECT_EQ(loaded, Rewards());  // still reads the file that it was loaded from

  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, Encode(Rewards()).substr(0, 100)).ok());
  EXPECT_THAT(LoadBatch(Env::Real(), path).status(),
              Fails(absl::StatusCode::kDataLoss, {path, "byte 40", "384", "has 100"}));
  const std::string unchecked = Join(*EncodeFrame(Rewards(), {}, FrameChecksums::kNone));
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, unchecked).ok());
  EXPECT_THAT(LoadBatch(Env::Real(), path, {.allow_unchecked = true}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {path, "version 2"}));
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, "").ok());
  EXPECT_EQ(LoadBatch(Env::Real(), path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(LoadBatch(Env::Real(), path + "s").status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tdock
