// How a consumer's next rows are chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tdock/rows.h"

namespace tdock {

// A row, or for a consumer of groups a group, that a take could hand out.
struct Candidate {
  // Of a group, its first row.
  RowId row = 0;
  GroupId group = kNoGroup;
  // Items of the consumer's length_column, of a group the sum; 0 without such a column.
  int64_t length = 0;
  // How often it was handed out and came back because a lease expired; of a group, the highest.
  int32_t redeliveries = 0;
  // See Rows::age; of a group, the highest.
  int32_t age = 0;
};

// A rule of one's own. The dock calls it under its lock: it must neither block nor call the dock. One that throws or
// chooses wrongly makes the take fail with Internal, and nothing is taken. Calls of one partition do not overlap.
class CustomSampler {
 public:
  virtual ~CustomSampler() = default;

  // How many candidates, the first that kFirstCome would choose, a take of at most `max` needs to see; at least `max`.
  virtual int64_t Window(int64_t max) const = 0;

  // Positions in `candidates`, which are in the order of kFirstCome: at least `min` of them and at most `max`, none
  // twice. They are handed out in this order. `seed` comes from the consumer's and differs from take to take; a take
  // that finds chosen rows too old chooses again, with the same seed. The same calls in the same order are given the
  // same seeds.
  virtual std::vector<size_t> Choose(std::span<const Candidate> candidates, int64_t min, int64_t max,
                                     uint64_t seed) = 0;
};

}  // namespace tdock
