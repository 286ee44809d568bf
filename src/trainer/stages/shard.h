// Which numbers of a tensor each of several ranks has.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trainer/stages/block_bytes.h"

namespace tdock::trainer {

// Of a tensor's numbers, in their order.
struct Shard {
  int64_t begin = 0, size = 0;
};

// As many as each rank has at most: whole blocks of moments in eight bits.
inline int64_t ShardRoom(int64_t numbers, int ranks) {
  const int64_t share = (numbers + ranks - 1) / ranks;
  return (share + BlockBytes::kBlock - 1) / BlockBytes::kBlock * BlockBytes::kBlock;
}

// Ranks have equal shards, the first ones, and after those one has what is left: a small tensor has none for the last
// ranks, whose shards are empty.
inline Shard ShardOf(int64_t numbers, int rank, int ranks) {
  const int64_t room = ShardRoom(numbers, ranks);
  const int64_t begin = std::min(rank * room, numbers);
  return {begin, std::min(room, numbers - begin)};
}

}  // namespace tdock::trainer
