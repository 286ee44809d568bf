// A metric over the steps of a run, in a bounded number of buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {

// Numbers what happens to all runs of a page, so that one number says what a reader has seen. 0: nothing.
struct Sequence {
  uint64_t last = 0;
  uint64_t Next() { return ++last; }
};

// Points are added one after the other, whose count need not be known. Each bucket has as many of them, with their
// mean, least and most, so that no spike is lost; when the buckets are full, pairs of them are joined. Not thread-safe.
class BucketSeries {
 public:
  static constexpr size_t kMostBuckets = 512;

  // `number` is that of the event, and does not decrease; `value` need not be finite.
  void Add(uint64_t number, int64_t step, double value);

  // What a page has to know that has seen everything up to event `seen`: {"from", "x", "y", "low"?, "high"?, "last"?,
  // "min"?, "max"?}, the buckets from index "from" on and everything else as SeriesData() has it. Nothing if nothing
  // has changed.
  std::optional<LogRecord> Since(uint64_t seen) const;

  // [step, value] of the last finite one.
  std::optional<LogRecord> LastPoint() const;

  size_t points() const { return points_; }

 private:
  struct Bucket {
    int64_t step = 0;  // the last one
    double sum = 0, low = 0, high = 0;
    uint32_t points = 0, finite = 0;
    uint64_t changed = 0;
  };
  struct Point {
    int64_t step = 0;
    double value = 0;
  };
  void JoinPairs(uint64_t number);

  std::vector<Bucket> buckets_;
  uint32_t points_of_bucket_ = 1;
  uint64_t joined_ = 0;  // the event at which buckets were last joined
  size_t points_ = 0;
  std::optional<Point> last_, least_, most_;
};

}  // namespace tdock::trainer
