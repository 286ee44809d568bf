// Custom rules for choosing a consumer's next rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tdock/rows.h"

namespace tdock {

// A row, or for a consumer of groups a group, that a take could return.
struct Candidate {
  // Of a group, its first row.
  RowId row = 0;
  GroupId group = kNoGroup;
  // Items of the consumer's length_column, of a group the sum; 0 without such a column.
  int64_t length = 0;
  // How many times its lease expired; of a group, the highest count of its rows.
  int32_t redeliveries = 0;
  // See Rows::age; of a group, the highest.
  int32_t age = 0;
};

// The dock calls it with its lock held: it must neither block nor call the dock. If it throws or returns an invalid
// choice, the take fails with Internal and takes nothing. Calls for one partition do not overlap.
class CustomSampler {
 public:
  virtual ~CustomSampler() = default;

  // How many candidates a take of at most `max` needs to see: the first ones in the order of kFirstCome; at least
  // `max`.
  virtual int64_t Window(int64_t max) const = 0;

  // Returns positions in `candidates`, which are in the order of kFirstCome: `min` to `max` of them, none twice. They
  // are handed out in this order. `seed` is derived from the consumer's and differs from take to take; a take that
  // finds chosen rows too old chooses again with the same seed. The same calls in the same order get the same seeds.
  virtual std::vector<size_t> Choose(std::span<const Candidate> candidates, int64_t min, int64_t max,
                                     uint64_t seed) = 0;
};

}  // namespace tdock
