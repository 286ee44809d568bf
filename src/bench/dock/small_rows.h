// A table of small rows, as the benchmarks of states use it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "tdock/local_dock.h"

namespace tdock::bench {

// Columns of 32 bytes, and consumers of two columns each that together read all. Consumer 0 takes first come, consumer
// 1 at random. Rows live until they are cleared. The times are of what a caller waits for: building what is put, and
// dropping what is returned, included. Not thread-safe.
class SmallRows {
 public:
  static constexpr int64_t kCellFloats = 8;
  static constexpr int64_t kCellBytes = kCellFloats * sizeof(float);
  static constexpr int64_t kPutRows = 16;
  static constexpr int64_t kTakeRows = 32;

  struct Size {
    int64_t columns = 9;
    int64_t consumers = 5;
  };
  // In `dock`, or else in one of its own.
  static absl::StatusOr<std::unique_ptr<SmallRows>> Create(Clock& clock, Size size = {.columns = 9, .consumers = 5},
                                                           std::unique_ptr<Dock> dock = nullptr);

  // The rows that are there.
  int64_t rows() const { return rows_; }
  int64_t payload_bytes_per_row() const { return static_cast<int64_t>(columns_.size()) * kCellBytes; }

  // Builds a batch of at most 16 rows and puts it.
  absl::Status Put(int64_t rows = kPutRows);
  // Puts so many rows at a time until there are at least `rows`.
  absl::Status FillTo(int64_t rows, int64_t at_a_time = kPutRows);
  absl::Status Clear();

  // Copies the bytes of so many rows, a column of one put at a time as Put does, and nothing else.
  void Copy(int64_t rows, int64_t at_a_time, std::byte* to) const;

  // The seconds of one operation on 32 rows, a put being of 16, and the status of a consumer. The rows are then
  // replaced by new ones, so that the table keeps its size, and the next operation finds its rows as cold as takers do.
  absl::StatusOr<double> TimePut();
  absl::StatusOr<double> TimeTake(int64_t consumer);
  absl::StatusOr<double> TimeComplete();
  absl::StatusOr<double> TimeRelease();
  // Of the columns that the taker did not get.
  absl::StatusOr<double> TimeFetch();
  absl::StatusOr<double> TimeClear();
  absl::Status ReadStatus();

 private:
  SmallRows(Clock& clock, std::unique_ptr<Dock> dock) : clock_(clock), dock_(std::move(dock)) {}

  // Without its rows, the ids of which it returns.
  struct Held {
    LeaseId lease;
    std::vector<RowId> rows;
  };
  absl::StatusOr<Held> Take(int64_t consumer, int64_t rows = kTakeRows);
  absl::Status Replace(std::vector<RowId> rows);

  Clock& clock_;
  const std::unique_ptr<Dock> dock_;
  std::vector<std::string> columns_, consumers_;
  std::array<float, kPutRows* kCellFloats> values_ = {};  // of one column of a put
  int64_t rows_ = 0;
};

}  // namespace tdock::bench
