#include "bench/dock/small_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/dock/dock_benchmarks.h"

namespace tdock::bench {

absl::StatusOr<std::unique_ptr<SmallRows>> SmallRows::Create(Clock& clock, Size size, std::unique_ptr<Dock> dock) {
  if (dock == nullptr) dock = MakeLocalDock({.clock = &clock});
  std::unique_ptr<SmallRows> table(new SmallRows(clock, std::move(dock)));
  PartitionOptions partition{.name = kPartition};
  for (int64_t c = 0; c < size.columns; ++c) {
    table->columns_.push_back(absl::StrCat("column", c));
    partition.columns.push_back({table->columns_.back(), ColumnType::Dense(DType::kF32, {kCellFloats})});
  }
  TDOCK_RETURN_IF_ERROR(table->dock_->CreatePartition(partition));
  for (int64_t c = 0; c < size.consumers; ++c) {
    table->consumers_.push_back(absl::StrCat("consumer", c));
    const auto column = [&](int64_t read) { return table->columns_[static_cast<size_t>(read % size.columns)]; };
    TDOCK_RETURN_IF_ERROR(
        table->dock_->RegisterConsumer(kPartition, {.name = table->consumers_.back(),
                                                    .reads = {column(2 * c), column(2 * c + 1)},
                                                    .sampler = c == 1 ? Sampler::kUniform : Sampler::kFirstCome}));
  }
  return table;
}

absl::Status SmallRows::Put(int64_t rows) {
  PutRequest request{.partition = kPartition};
  const std::span<const float> values(values_.data(), static_cast<size_t>(rows * kCellFloats));
  for (const std::string& column : columns_) {
    TDOCK_RETURN_IF_ERROR(request.batch.Add(column, Column::FromValues<float>(values, {kCellFloats})));
  }
  TDOCK_RETURN_IF_ERROR(dock_->Put(request).status());
  rows_ += rows;
  return absl::OkStatus();
}

absl::Status SmallRows::FillTo(int64_t rows, int64_t at_a_time) {
  while (rows_ < rows) TDOCK_RETURN_IF_ERROR(Put(at_a_time));
  return absl::OkStatus();
}

absl::Status SmallRows::Clear() {
  rows_ = 0;
  return dock_->Clear({.partition = kPartition, .everything = true}).status();
}

void SmallRows::Copy(int64_t rows, int64_t at_a_time, std::byte* to) const {
  const size_t piece = static_cast<size_t>(at_a_time * kCellBytes);
  for (int64_t i = 0; i < rows / at_a_time * static_cast<int64_t>(columns_.size()); ++i, to += piece) {
    std::memcpy(to, values_.data(), piece);
  }
}

absl::StatusOr<SmallRows::Held> SmallRows::Take(int64_t consumer, int64_t rows) {
  TDOCK_ASSIGN_OR_RETURN(
      const Taken taken,
      dock_->Take(
          {.partition = kPartition, .consumer = consumers_[static_cast<size_t>(consumer)], .min = rows, .max = rows}));
  return Held{taken.lease, {taken.rows.ids().begin(), taken.rows.ids().end()}};
}

absl::Status SmallRows::Replace(std::vector<RowId> rows) {
  const int64_t before = rows_;
  rows_ -= static_cast<int64_t>(rows.size());
  TDOCK_RETURN_IF_ERROR(dock_->Clear({.partition = kPartition, .rows = std::move(rows)}).status());
  return FillTo(before);
}

absl::StatusOr<double> SmallRows::TimePut() {
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] { return Put(); }));
  TDOCK_ASSIGN_OR_RETURN(Held held, Take(1, kPutRows));
  rows_ -= kPutRows;
  TDOCK_RETURN_IF_ERROR(dock_->Clear({.partition = kPartition, .rows = std::move(held.rows)}).status());
  return seconds;
}

absl::StatusOr<double> SmallRows::TimeTake(int64_t consumer) {
  Held held;
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&]() -> absl::Status {
                           TDOCK_ASSIGN_OR_RETURN(held, Take(consumer));
                           return absl::OkStatus();
                         }));
  TDOCK_RETURN_IF_ERROR(Replace(std::move(held.rows)));
  return seconds;
}

absl::StatusOr<double> SmallRows::TimeComplete() {
  TDOCK_ASSIGN_OR_RETURN(Held held, Take(1));
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] {
                           return dock_->Complete({.partition = kPartition, .lease = held.lease});
                         }));
  TDOCK_RETURN_IF_ERROR(Replace(std::move(held.rows)));
  return seconds;
}

absl::StatusOr<double> SmallRows::TimeRelease() {
  TDOCK_ASSIGN_OR_RETURN(const Held held, Take(1));
  return Seconds(clock_, [&] { return dock_->Release({.partition = kPartition, .lease = held.lease}); });
}

absl::StatusOr<double> SmallRows::TimeFetch() {
  TDOCK_ASSIGN_OR_RETURN(Held held, Take(1));
  FetchRequest request{.partition = kPartition, .rows = std::move(held.rows), .columns = {columns_[0], columns_[1]}};
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] { return dock_->Fetch(request).status(); }));
  TDOCK_RETURN_IF_ERROR(dock_->Release({.partition = kPartition, .lease = held.lease}));
  return seconds;
}

absl::StatusOr<double> SmallRows::TimeClear() {
  TDOCK_ASSIGN_OR_RETURN(Held held, Take(1));
  const int64_t before = rows_;
  rows_ -= kTakeRows;
  const ClearRequest request{.partition = kPartition, .rows = std::move(held.rows)};
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] { return dock_->Clear(request).status(); }));
  TDOCK_RETURN_IF_ERROR(FillTo(before));
  return seconds;
}

absl::Status SmallRows::ReadStatus() { return dock_->GetConsumerStatus(kPartition, consumers_[0]).status(); }

}  // namespace tdock::bench
