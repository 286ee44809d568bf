// The order in which a data set is read.
#pragma once

#include <cstdint>
#include <vector>

namespace tdock::text {

// An endless stream of the indexes 0 … size-1: one random permutation (an epoch) after another. Epoch e depends only
// on the seed and e, so a stream continues from a position as if it had never stopped. Not thread-safe.
class ShuffledIndexes {
 public:
  // `size` > 0. `position` is the number of indexes that count as already drawn.
  ShuffledIndexes(int64_t size, uint64_t seed, int64_t position = 0);

  // The next `count` indexes. No index occurs twice within an epoch; a call that passes the end of one continues with
  // the next.
  std::vector<int64_t> Next(int64_t count);

 private:
  void Shuffle();

  uint64_t seed_;
  int64_t position_;            // how many were drawn so far
  std::vector<int64_t> order_;  // of the epoch of position_
};

}  // namespace tdock::text
