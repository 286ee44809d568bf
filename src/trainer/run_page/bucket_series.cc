#include "trainer/run_page/bucket_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tdock::trainer {

void BucketSeries::Add(uint64_t number, int64_t step, double value) {
  ++points_;
  if (buckets_.empty() || buckets_.back().points == points_of_bucket_) {
    if (buckets_.size() == kMostBuckets) JoinPairs(number);
    if (buckets_.empty() || buckets_.back().points == points_of_bucket_) buckets_.emplace_back();
  }
  Bucket& bucket = buckets_.back();
  bucket.step = step;
  bucket.changed = number;
  ++bucket.points;
  if (!std::isfinite(value)) return;
  bucket.low = bucket.finite > 0 ? std::min(bucket.low, value) : value;
  bucket.high = bucket.finite > 0 ? std::max(bucket.high, value) : value;
  bucket.sum += value;
  ++bucket.finite;
  last_ = {step, value};
  if (!least_ || value < least_->value) least_ = last_;
  if (!most_ || value > most_->value) most_ = last_;
}

void BucketSeries::JoinPairs(uint64_t number) {
  static_assert(kMostBuckets % 2 == 0);
  for (size_t i = 0; i < buckets_.size() / 2; ++i) {
    const Bucket &first = buckets_[2 * i], &second = buckets_[2 * i + 1];
    Bucket joined = second;
    if (second.finite == 0) {
      joined.low = first.low;
      joined.high = first.high;
    } else if (first.finite > 0) {
      joined.low = std::min(first.low, second.low);
      joined.high = std::max(first.high, second.high);
    }
    joined.sum += first.sum;
    joined.points += first.points;
    joined.finite += first.finite;
    buckets_[i] = joined;
  }
  buckets_.resize(buckets_.size() / 2);
  points_of_bucket_ *= 2;
  joined_ = number;
}

std::optional<LogRecord> BucketSeries::Since(uint64_t seen) const {
  if (buckets_.empty() || buckets_.back().changed <= seen) return std::nullopt;
  size_t from = 0;
  if (joined_ <= seen) {
    const auto unseen = [&](const Bucket& bucket) { return bucket.changed <= seen; };
    from = static_cast<size_t>(std::partition_point(buckets_.begin(), buckets_.end(), unseen) - buckets_.begin());
  }
  LogRecord x = LogRecord::array(), y = LogRecord::array(), low = LogRecord::array(), high = LogRecord::array();
  for (size_t i = from; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    const bool has_value = bucket.finite > 0;
    x.push_back(bucket.step);
    y.push_back(has_value ? RoundedForPlot(bucket.sum / bucket.finite) : LogRecord());
    if (points_of_bucket_ == 1) continue;
    low.push_back(has_value ? RoundedForPlot(bucket.low) : LogRecord());
    high.push_back(has_value ? RoundedForPlot(bucket.high) : LogRecord());
  }
  LogRecord data = {{"from", from}, {"x", std::move(x)}, {"y", std::move(y)}};
  if (points_of_bucket_ > 1) data.update({{"low", std::move(low)}, {"high", std::move(high)}});
  const std::pair<const char*, const std::optional<Point>*> extremes[] = {
      {"last", &last_}, {"min", &least_}, {"max", &most_}};
  for (const auto& [name, of] : extremes) {
    if (of->has_value()) data[name] = LogRecord::array({(*of)->step, RoundedForPlot((*of)->value)});
  }
  return data;
}

std::optional<LogRecord> BucketSeries::LastPoint() const {
  if (!last_) return std::nullopt;
  return LogRecord::array({last_->step, RoundedForPlot(last_->value)});
}

}  // namespace tdock::trainer
