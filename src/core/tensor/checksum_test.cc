#include "core/tensor/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/base/rng.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tdock {
namespace {

TEST(Checksum, IsXxh3HoweverTheBytesAreCut) {
  Rng rng(41);
  RunningChecksum running;
  for (int round = 0; round < 500; ++round) {
    std::vector<std::byte> bytes(rng.Below(size_t{1} << rng.Below(16)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next());
    // By the inlined header, which asks for no particular processor.
    const uint64_t expected = XXH3_64bits(bytes.data(), bytes.size());
    EXPECT_EQ(Checksum(bytes), expected);
    running.Reset();
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), rng.Below(2'000));
      running.Add(rest.first(size));
      rest = rest.subspan(size);
    }
    EXPECT_EQ(running.Value(), expected);
  }
}

TEST(Checksum, OfNothingIsTheDocumentedNumber) {
  EXPECT_EQ(Checksum({}), 0x2D06800538D394C2u);
  EXPECT_EQ(RunningChecksum().Value(), 0x2D06800538D394C2u);
}

}  // namespace
}  // namespace tdock
