#include "bench/dock_benchmarks.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tdock/local_dock.h"

namespace tdock::bench {
namespace {

constexpr int64_t kColumns = 9;
constexpr int64_t kConsumers = 5;
constexpr int64_t kCellFloats = 8;  // 32 bytes
constexpr int64_t kPutRows = 16;
constexpr size_t kPutFloats = kPutRows * kCellFloats;
constexpr int64_t kTakeRows = 32;
constexpr char kPartition[] = "bench";

std::string ColumnName(int64_t column) { return absl::StrCat("column", column); }
std::string ConsumerName(int64_t consumer) { return absl::StrCat("consumer", consumer); }

// A table of 9 columns of 32 bytes and 5 consumers, each of two columns, that together read all.
class SmallRows {
 public:
  static absl::StatusOr<std::unique_ptr<SmallRows>> Create(Clock& clock) {
    std::unique_ptr<SmallRows> table(new SmallRows(clock));
    // Rows live until consumer 0 is done with them: taking and completing makes room for new ones.
    PartitionOptions partition{.name = kPartition, .retain_for = {ConsumerName(0)}};
    for (int64_t c = 0; c < kColumns; ++c) {
      partition.columns.push_back({ColumnName(c), ColumnType::Dense(DType::kF32, {kCellFloats})});
    }
    TDOCK_RETURN_IF_ERROR(table->dock_->CreatePartition(partition));
    for (int64_t c = 0; c < kConsumers; ++c) {
      TDOCK_RETURN_IF_ERROR(table->dock_->RegisterConsumer(
          kPartition,
          {.name = ConsumerName(c), .reads = {ColumnName(2 * c % kColumns), ColumnName((2 * c + 1) % kColumns)}}));
    }
    return table;
  }

  // Builds a batch of 16 rows and puts it.
  absl::Status Put() {
    PutRequest request{.partition = kPartition};
    for (int64_t c = 0; c < kColumns; ++c) {
      TDOCK_RETURN_IF_ERROR(request.batch.Add(columns_[static_cast<size_t>(c)],
                                              Column::FromValues<float>(std::span(values_), {kCellFloats})));
    }
    return dock_->Put(request).status();
  }

  // In puts of 16, the last one whole.
  absl::Status Fill(int64_t rows) {
    for (int64_t row = 0; row < rows; row += kPutRows) TDOCK_RETURN_IF_ERROR(Put());
    return absl::OkStatus();
  }

  // Copies the bytes of so many rows, a column of 16 rows at a time as Put does, and nothing else.
  absl::Status Copy(int64_t rows, std::byte* to) const {
    for (int64_t piece = 0; piece < rows / kPutRows * kColumns; ++piece, to += sizeof values_) {
      std::memcpy(to, values_.data(), sizeof values_);
    }
    return absl::OkStatus();
  }

  absl::Status Clear() { return dock_->Clear({.partition = kPartition, .everything = true}).status(); }

  // The seconds that it takes consumer 0 to have 32 rows as views, and to drop these. The rows are then replaced by new
  // ones at the end of the table, so that the next take finds as many, and finds them as cold as takers do.
  absl::StatusOr<double> TakeAndReplace() {
    const TakeRequest request{.partition = kPartition, .consumer = ConsumerName(0), .min = kTakeRows, .max = kTakeRows};
    LeaseId lease = kNoLease;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(const Taken taken, dock_->Take(request));
                             lease = taken.lease;
                             return absl::OkStatus();
                           }));
    TDOCK_RETURN_IF_ERROR(dock_->Complete({.partition = kPartition, .lease = lease}));
    TDOCK_RETURN_IF_ERROR(Fill(kTakeRows));
    return seconds;
  }

  absl::Status ReadStatus() { return dock_->GetConsumerStatus(kPartition, consumers_[0]).status(); }

 private:
  explicit SmallRows(Clock& clock) : clock_(clock), dock_(MakeLocalDock({.clock = &clock})) {
    for (int64_t c = 0; c < kColumns; ++c) columns_.push_back(ColumnName(c));
    for (int64_t c = 0; c < kConsumers; ++c) consumers_.push_back(ConsumerName(c));
  }

  Clock& clock_;
  const std::unique_ptr<Dock> dock_;
  std::vector<std::string> columns_, consumers_;
  const std::array<float, kPutFloats> values_ = {};  // of one column of a put
};

absl::StatusOr<Prepared> PreparePut16(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<SmallRows> table, SmallRows::Create(settings.clock));
  const int64_t rows = settings.quick ? 1 << 12 : 1 << 17;
  const auto copy = std::make_shared<std::vector<std::byte>>(rows * kColumns * kCellFloats * sizeof(float));
  Clock& clock = settings.clock;
  return Prepared{.run = [table, rows, &clock]() -> absl::StatusOr<double> {
                    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return table->Fill(rows); }));
                    TDOCK_RETURN_IF_ERROR(table->Clear());
                    return static_cast<double>(rows) / seconds;
                  },
                  .reference = [table, rows, copy, &clock]() -> absl::StatusOr<double> {
                    TDOCK_ASSIGN_OR_RETURN(const double seconds,
                                           Seconds(clock, [&] { return table->Copy(rows, copy->data()); }));
                    return static_cast<double>(rows) / seconds;
                  }};
}

absl::StatusOr<Prepared> PrepareTake32(const Settings& settings, int64_t rows) {
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<SmallRows> table, SmallRows::Create(settings.clock));
  TDOCK_RETURN_IF_ERROR(table->Fill(rows));
  const int64_t takes = settings.quick ? 200 : 2000;
  return Prepared{.run = [table, takes]() -> absl::StatusOr<double> {
    double total = 0;
    for (int64_t take = 0; take < takes; ++take) {
      TDOCK_ASSIGN_OR_RETURN(const double seconds, table->TakeAndReplace());
      total += seconds;
    }
    return total / static_cast<double>(takes) * 1e6;
  }};
}

absl::StatusOr<Prepared> PrepareStatus(const Settings& settings, int64_t rows) {
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<SmallRows> table, SmallRows::Create(settings.clock));
  TDOCK_RETURN_IF_ERROR(table->Fill(rows));
  return Prepared{.run = [table, &clock = settings.clock]() -> absl::StatusOr<double> {
    constexpr int kCalls = 10'000;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                             for (int call = 0; call < kCalls; ++call) TDOCK_RETURN_IF_ERROR(table->ReadStatus());
                             return absl::OkStatus();
                           }));
    return seconds / kCalls * 1e6;
  }};
}

}  // namespace

std::vector<Benchmark> DockBenchmarks(bool quick) {
  std::vector<Benchmark> benchmarks;
  benchmarks.push_back(
      {.name = "dock/put16", .unit = "rows/s", .better = Better::kHigher, .of = "memcpy", .prepare = PreparePut16});
  const std::vector<int64_t> sizes =
      quick ? std::vector<int64_t>{1'000, 10'000} : std::vector<int64_t>{1'000, 10'000, 100'000, 1'000'000};
  for (int64_t rows : sizes) {
    benchmarks.push_back({.name = absl::StrCat("dock/take32/rows=", rows),
                          .unit = "us",
                          .prepare = [rows](const Settings& settings) { return PrepareTake32(settings, rows); }});
  }
  for (int64_t rows : {sizes.front(), sizes.back()}) {
    benchmarks.push_back({.name = absl::StrCat("dock/status/rows=", rows),
                          .unit = "us",
                          .prepare = [rows](const Settings& settings) { return PrepareStatus(settings, rows); }});
  }
  return benchmarks;
}

}  // namespace tdock::bench
