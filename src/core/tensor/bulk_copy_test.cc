#include "core/tensor/bulk_copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/base/rng.h"

namespace tdock {
namespace {

TEST(BulkCopy, CopiesThesePiecesAndNothingElseAtAnyAlignment) {
  constexpr size_t kRoom = 20'000;
  Rng rng(3);
  std::vector<std::byte> from(kRoom);
  for (std::byte& byte : from) byte = static_cast<std::byte>(rng.Next());
  for (const size_t total : {size_t{1}, size_t{1} << 40}) {
    const BulkCopy copy(total);
    for (int i = 0; i < 2'000; ++i) {
      const size_t size = rng.Below(3) == 0 ? rng.Below(100) : rng.Below(kRoom - 200);
      const size_t source = rng.Below(100), target = rng.Below(100);
      std::vector<std::byte> to(kRoom, std::byte{7}), expected = to;
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(source), size,
                  expected.begin() + static_cast<ptrdiff_t>(target));
      copy(to.data() + target, from.data() + source, size);
      ASSERT_EQ(to, expected) << size << " bytes from " << source << " to " << target;
    }
  }
}

}  // namespace
}  // namespace tdock
