// What bytes cost: few large rows, beside memcpy.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/dock/dock_benchmarks.h"
#include "bench/dock/payload_columns.h"
#include "bench/dock/payload_runs.h"
#include "dock/local/partition.h"
#include "dock/store/warm_memory.h"

namespace tdock::bench {
namespace {

constexpr size_t kConsumers = 5;

// Warm memory that remembers where it is. Not thread-safe.
class Arena final : public dock::CellMemory {
 public:
  Buffer Allocate(size_t size_bytes) override {
    Buffer buffer = warm_.Allocate(size_bytes);
    ranges_.push_back(buffer.bytes());
    return buffer;
  }
  bool Contains(std::span<const std::byte> bytes) const {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](std::span<const std::byte> range) {
      return bytes.data() >= range.data() && bytes.data() + bytes.size() <= range.data() + range.size();
    });
  }
  void Forget() { ranges_.clear(); }

 private:
  dock::WarmMemory warm_;
  std::vector<std::span<const std::byte>> ranges_;
};

// A partition, and the columns that a producer puts in it, all at once.
class LargeRows {
 public:
  static absl::StatusOr<std::shared_ptr<LargeRows>> Create(Clock& clock, std::vector<Column> columns) {
    std::shared_ptr<LargeRows> rows(new LargeRows(clock, std::move(columns)));
    // Together they read all columns.
    const size_t count = rows->names_.size();
    for (size_t c = 0; c < std::min(kConsumers, count); ++c) {
      ConsumerOptions consumer{.name = absl::StrCat("consumer", c)};
      for (size_t read = c; read < count; read += kConsumers) consumer.reads.push_back(rows->names_[read]);
      TDOCK_RETURN_IF_ERROR(rows->partition_->Ask<verbs::RegisterConsumer>({kPartition, consumer}));
    }
    return rows;
  }

  int64_t bytes() const { return bytes_; }
  const std::vector<Column>& columns() const { return columns_; }
  int64_t cells() const { return static_cast<int64_t>(columns_.size()) * columns_.front().rows(); }

  // Builds a batch around the columns, and puts it.
  absl::Status Put() {
    PutRequest request{.partition = kPartition};
    for (size_t c = 0; c < columns_.size(); ++c) {
      TDOCK_RETURN_IF_ERROR(request.batch.Add(names_[c], columns_[c]));
    }
    TDOCK_ASSIGN_OR_RETURN(PutResult result, partition_->Ask<verbs::Put>(request));
    rows_ = std::move(result.rows);
    return absl::OkStatus();
  }
  absl::StatusOr<Rows> Read() {
    return partition_->Ask<verbs::Fetch>({.partition = kPartition, .rows = rows_, .columns = names_});
  }
  absl::Status Clear() {
    arena_->Forget();
    return partition_->Ask<verbs::Clear>({.partition = kPartition, .everything = true}).status();
  }
  const Arena& arena() const { return *arena_; }

 private:
  LargeRows(Clock& clock, std::vector<Column> columns) : columns_(std::move(columns)) {
    PartitionOptions options{.name = kPartition};
    for (size_t c = 0; c < columns_.size(); ++c) {
      names_.push_back(absl::StrCat("column", c));
      options.columns.push_back({names_.back(), columns_[c].type()});
      bytes_ += columns_[c].payload_bytes();
    }
    const dock::PartitionsShare share{.clock = clock,
                                      .work = nullptr,
                                      .copies = arena_,
                                      .samplers = std::make_shared<const dock::CustomSamplers>(),
                                      .notifier = nullptr,
                                      .calls = calls_};
    partition_ = std::make_shared<dock::Partition>(std::move(options), share, arena_);
  }

  const std::vector<Column> columns_;
  std::vector<std::string> names_;
  int64_t bytes_ = 0;
  const std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  dock::WaitingCalls calls_;
  std::shared_ptr<dock::Partition> partition_;
  std::vector<RowId> rows_;  // of the last put
};

using MakeColumns = std::function<absl::StatusOr<std::vector<Column>>(bool quick)>;

absl::StatusOr<std::shared_ptr<LargeRows>> MakeLargeRows(const Settings& settings, const MakeColumns& make) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<Column> columns, make(settings.quick));
  return LargeRows::Create(settings.clock, std::move(columns));
}

absl::StatusOr<TimedRun> TimeRead(std::shared_ptr<LargeRows> rows, Clock& clock) {
  TDOCK_RETURN_IF_ERROR(rows->Put());
  return [rows = std::move(rows), &clock]() -> absl::StatusOr<Figure> {
    Batch batch;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(const Rows views, rows->Read());
                             TDOCK_ASSIGN_OR_RETURN(batch, views.ToBatch());
                             return absl::OkStatus();
                           }));
    return static_cast<double>(rows->bytes()) / seconds / kGigabyte;
  };
}

absl::StatusOr<Prepared> PreparePut(const Settings& settings, const MakeColumns& make) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, MakeLargeRows(settings, make));
  return Prepared{.run = TimePut(rows, settings.clock), .reference = TimeCopy(rows, settings.clock)};
}

absl::StatusOr<Prepared> PrepareRead(const Settings& settings, const MakeColumns& make) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, MakeLargeRows(settings, make));
  TDOCK_ASSIGN_OR_RETURN(TimedRun run, TimeRead(rows, settings.clock));
  return Prepared{.run = std::move(run), .reference = TimeCopy(rows, settings.clock)};
}

absl::StatusOr<Prepared> PrepareReadViews(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, MakeLargeRows(settings, DenseColumns));
  TDOCK_RETURN_IF_ERROR(rows->Put());
  return Prepared{.run = [rows, &clock = settings.clock]() -> absl::StatusOr<Figure> {
    Rows views;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(views, rows->Read());
                             return absl::OkStatus();
                           }));
    for (size_t column = 0; column < views.columns().size(); ++column) {
      for (size_t row = 0; row < views.size(); ++row) {
        if (!rows->arena().Contains(views.cell(row, column).bytes)) return absl::InternalError("a cell is not a view");
      }
    }
    return seconds / static_cast<double>(rows->cells()) * 1e9;
  }};
}

absl::StatusOr<Prepared> PrepareSweepOf(const Settings& settings, int64_t columns, bool put) {
  return PrepareSweep(columns, [&](int64_t of_columns) -> absl::StatusOr<TimedRun> {
    TDOCK_ASSIGN_OR_RETURN(const auto rows,
                           MakeLargeRows(settings, [&](bool quick) { return WideColumns(quick, of_columns); }));
    if (put) return TimePut(rows, settings.clock);
    return TimeRead(rows, settings.clock);
  });
}

}  // namespace

void AddPayloadBenchmarks(std::vector<Benchmark>& benchmarks) {
  const auto add = [&](std::string name, const auto& prepare, const MakeColumns& make) {
    benchmarks.push_back({.name = std::move(name),
                          .unit = "GB/s",
                          .better = Better::kHigher,
                          .of = "memcpy",
                          .prepare = [=](const Settings& settings) { return prepare(settings, make); }});
  };
  add("dock/put_dense", PreparePut, DenseColumns);
  benchmarks.push_back({.name = "dock/read_views", .unit = "ns/cell", .prepare = PrepareReadViews});
  add("dock/read_batch", PrepareRead, DenseColumns);
  add("dock/put_mixed", PreparePut, MixedColumns);
  add("dock/read_mixed", PrepareRead, MixedColumns);
  for (const bool put : {true, false}) {
    for (const int64_t columns : {1, 8, 32}) {
      benchmarks.push_back(
          {.name = absl::StrCat(put ? "dock/sweep_put" : "dock/sweep_get", "/columns=", columns),
           .unit = "GB/s",
           .better = Better::kHigher,
           .of = columns > 1 ? "columns=1" : "",
           .prepare = [=](const Settings& settings) { return PrepareSweepOf(settings, columns, put); }});
    }
  }
}

}  // namespace tdock::bench
