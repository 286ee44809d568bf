// Timed runs over few large rows: in GB/s, of a class that has columns() of bytes() together, and Put() and Clear().
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "bench/harness/benchmark.h"
#include "dock/store/warm_memory.h"
#include "tdock/column.h"

namespace tdock::bench {

inline constexpr double kGigabyte = 1e9;

// The bytes that it frees are warm for the next run.
template <class LargeRows>
TimedRun TimePut(std::shared_ptr<LargeRows> rows, Clock& clock) {
  return [rows = std::move(rows), &clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return rows->Put(); }));
    TDOCK_RETURN_IF_ERROR(rows->Clear());
    return static_cast<double>(rows->bytes()) / seconds / kGigabyte;
  };
}

// Copies the same bytes, a column at a time, and does nothing else.
template <class LargeRows>
TimedRun TimeCopy(std::shared_ptr<LargeRows> rows, Clock& clock) {
  const auto to = std::make_shared<Buffer>(dock::WarmMemory().Allocate(static_cast<size_t>(rows->bytes())));
  return [rows = std::move(rows), to, &clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] {
                             std::byte* end = to->mutable_data();
                             for (const Column& column : rows->columns()) {
                               const auto bytes = column.PayloadBytes();
                               std::memcpy(end, bytes.data(), bytes.size());
                               end += bytes.size();
                             }
                             return absl::OkStatus();
                           }));
    return static_cast<double>(rows->bytes()) / seconds / kGigabyte;
  };
}

// What `time` makes of so many columns, beside what it makes of one.
inline absl::StatusOr<Prepared> PrepareSweep(int64_t columns,
                                             const std::function<absl::StatusOr<TimedRun>(int64_t columns)>& time) {
  Prepared prepared;
  TDOCK_ASSIGN_OR_RETURN(prepared.run, time(columns));
  if (columns > 1) {
    TDOCK_ASSIGN_OR_RETURN(prepared.reference, time(1));
  }
  return prepared;
}

}  // namespace tdock::bench
