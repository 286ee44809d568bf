// The penalty for answers that are nearly too long.
#pragma once

#include <cstdint>

namespace tdock::algo {

struct OverlongOptions {
  int64_t max_length = 0;  // of an answer, in tokens
  int64_t buffer = 0;      // its last tokens, over which the penalty grows; between 1 and max_length − 1
  double factor = 1;       // the penalty of an answer of max_length tokens
};

// What the reward of an answer of `length` tokens gets, at most 0 (Yu et al. 2025, "DAPO", arXiv:2503.14476, eq. 13,
// which cuts answers at max_length; verl's DAPORewardManager):
//
//   min(−(length − (max_length − buffer)) / buffer · factor, 0)
//
// Throws c10::Error for a buffer that is not in its range.
double OverlongPenalty(int64_t length, const OverlongOptions& options);

}  // namespace tdock::algo
