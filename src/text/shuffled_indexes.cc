#include "text/shuffled_indexes.h"

#include <numeric>
#include <span>

#include "core/base/rng.h"
#include "core/base/status.h"

namespace tdock::text {

ShuffledIndexes::ShuffledIndexes(int64_t size, uint64_t seed, int64_t position)
    : seed_(seed), position_(position), order_(static_cast<size_t>(size)) {
  TDOCK_CHECK(size > 0 && position >= 0, "a data set has at least one sample");
  Shuffle();
}

std::vector<int64_t> ShuffledIndexes::Next(int64_t count) {
  TDOCK_CHECK(count >= 0, "a count is not negative");
  const auto size = static_cast<int64_t>(order_.size());
  std::vector<int64_t> drawn;
  drawn.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    drawn.push_back(order_[static_cast<size_t>(position_ % size)]);
    if (++position_ % size == 0) Shuffle();
  }
  return drawn;
}

void ShuffledIndexes::Shuffle() {
  std::iota(order_.begin(), order_.end(), int64_t{0});
  Rng rng(DeriveSeed(seed_, static_cast<uint64_t>(position_) / order_.size()));
  rng.Shuffle(std::span(order_));
}

}  // namespace tdock::text
