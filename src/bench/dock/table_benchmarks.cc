// What bookkeeping costs: many small rows.
#include <malloc.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/dock/dock_benchmarks.h"
#include "bench/dock/small_rows.h"
#include "bench/harness/machine.h"
#include "core/base/rng.h"
#include "tdock/local_dock.h"

namespace tdock::bench {
namespace {

// One table that grows from benchmark to benchmark, because filling a large one takes longer than measuring it.
class SharedTable {
 public:
  // At least so many rows; exactly, if the sizes asked for ascend.
  absl::StatusOr<std::shared_ptr<SmallRows>> WithRows(Clock& clock, int64_t rows) {
    if (table_ == nullptr || table_->rows() > rows + SmallRows::kTakeRows) {
      table_ = nullptr;
      TDOCK_ASSIGN_OR_RETURN(table_, SmallRows::Create(clock));
    }
    TDOCK_RETURN_IF_ERROR(table_->FillTo(rows));
    return table_;
  }
  // It goes with those who have it.
  void Forget() { table_ = nullptr; }

 private:
  std::shared_ptr<SmallRows> table_;
};

// The mean microseconds of `calls` calls of `once`, which returns the seconds that it took.
absl::StatusOr<Figure> MeanMicroseconds(int64_t calls, const std::function<absl::StatusOr<double>()>& once) {
  double total = 0;
  for (int64_t call = 0; call < calls; ++call) {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, once());
    total += seconds;
  }
  return Figure(total / static_cast<double>(calls) * 1e6);
}

absl::StatusOr<double> TimeStatus(SmallRows& table, Clock& clock) {
  constexpr int kCalls = 1'000;
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                           for (int call = 0; call < kCalls; ++call) TDOCK_RETURN_IF_ERROR(table.ReadStatus());
                           return absl::OkStatus();
                         }));
  return seconds / kCalls;
}

using Operation = std::function<absl::StatusOr<double>(SmallRows& table, Clock& clock)>;

Benchmark OnTable(std::string name, const std::shared_ptr<SharedTable>& shared, int64_t rows, int64_t calls,
                  const Operation& operation) {
  return {.name = std::move(name), .unit = "us", .prepare = [=](const Settings& settings) -> absl::StatusOr<Prepared> {
            TDOCK_ASSIGN_OR_RETURN(const auto table, shared->WithRows(settings.clock, rows));
            return Prepared{.run = [=, &clock = settings.clock] {
              return MeanMicroseconds(calls, [&] { return operation(*table, clock); });
            }};
          }};
}

absl::StatusOr<Prepared> PreparePut(const Settings& settings, int64_t at_a_time) {
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<SmallRows> table, SmallRows::Create(settings.clock));
  const int64_t rows = (settings.quick ? 1 << 8 : 1 << 13) * at_a_time;
  const auto copy = std::make_shared<std::vector<std::byte>>(rows * table->payload_bytes_per_row());
  Clock& clock = settings.clock;
  return Prepared{.run = [=, &clock]() -> absl::StatusOr<Figure> {
                    TDOCK_ASSIGN_OR_RETURN(const double seconds,
                                           Seconds(clock, [&] { return table->FillTo(rows, at_a_time); }));
                    TDOCK_RETURN_IF_ERROR(table->Clear());
                    return static_cast<double>(rows) / seconds;
                  },
                  .reference = [=, &clock]() -> absl::StatusOr<Figure> {
                    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] {
                                             table->Copy(rows, at_a_time, copy->data());
                                             return absl::OkStatus();
                                           }));
                    return static_cast<double>(rows) / seconds;
                  }};
}

absl::StatusOr<Prepared> PrepareRowOverhead(const Settings& settings) {
  const int64_t rows = settings.quick ? 20'000 : 1'000'000;
  return Prepared{.run = [rows, &clock = settings.clock]() -> absl::StatusOr<Figure> {
    ::malloc_trim(0);  // what others have freed must not hide what is allocated now
    const int64_t before = ResidentBytes(Env::Real());
    TDOCK_ASSIGN_OR_RETURN(const auto table, SmallRows::Create(clock, {.columns = 15, .consumers = 10}));
    TDOCK_RETURN_IF_ERROR(table->FillTo(rows));
    const int64_t bytes = ResidentBytes(Env::Real()) - before;
    return static_cast<double>(bytes) / static_cast<double>(rows) - static_cast<double>(table->payload_bytes_per_row());
  }};
}

void AddForSize(std::vector<Benchmark>& benchmarks, const std::shared_ptr<SharedTable>& shared, int64_t rows,
                bool quick) {
  const auto add = [&](absl::string_view name, int64_t calls, const Operation& operation) {
    benchmarks.push_back(
        OnTable(absl::StrCat("dock/", name, "/rows=", rows), shared, rows, quick ? calls / 10 : calls, operation));
  };
  const auto on_rows = [](absl::StatusOr<double> (SmallRows::*time)()) -> Operation {
    return [time](SmallRows& table, Clock&) { return (table.*time)(); };
  };
  const auto take = [](int64_t consumer) -> Operation {
    return [consumer](SmallRows& table, Clock&) { return table.TimeTake(consumer); };
  };
  const auto status = [](SmallRows& table, Clock& clock) { return TimeStatus(table, clock); };
  add("take32", 2'000, take(0));
  add("take32_uniform", 2'000, take(1));
  add("status", 10, status);
  add("growth/put16", 2'000, on_rows(&SmallRows::TimePut));
  add("growth/take32", 2'000, take(0));
  add("growth/take32_uniform", 2'000, take(1));
  add("growth/complete", 2'000, on_rows(&SmallRows::TimeComplete));
  add("growth/release", 2'000, on_rows(&SmallRows::TimeRelease));
  add("growth/fetch", 2'000, on_rows(&SmallRows::TimeFetch));
  add("growth/clear", 2'000, on_rows(&SmallRows::TimeClear));
}

// One key among a million, or among 10,000, in random order. Each run looks for others, so that no cache has them.
absl::StatusOr<Prepared> PrepareKeyLookup(const Settings& settings) {
  constexpr int64_t kRowsOfPut = 1'000;
  const int64_t rows = settings.quick ? 10'000 : 1'000'000;
  const std::shared_ptr<Dock> dock = MakeLocalDock({.clock = &settings.clock});
  TDOCK_RETURN_IF_ERROR(dock->CreatePartition({.name = "keys", .columns = {{"a", ColumnType::Dense(DType::kF32)}}}));
  const auto key = [](uint64_t row) { return absl::StrCat("sample-", row); };
  for (int64_t row = 0; row < rows;) {
    PutRequest put{.partition = "keys", .new_rows = kRowsOfPut};
    for (int64_t i = 0; i < kRowsOfPut; ++i) put.keys.push_back(key(static_cast<uint64_t>(row++)));
    TDOCK_RETURN_IF_ERROR(dock->Put(put).status());
  }
  return Prepared{.run = [dock, key, rows, rng = Rng(1), &clock = settings.clock]() mutable -> absl::StatusOr<double> {
    std::vector<std::string> wanted;
    for (int i = 0; i < 100'000; ++i) wanted.push_back(key(rng.Below(static_cast<uint64_t>(rows))));
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                             for (const std::string& one : wanted) {
                               TDOCK_RETURN_IF_ERROR(dock->FindRows("keys", std::span(&one, 1)).status());
                             }
                             return absl::OkStatus();
                           }));
    return seconds / static_cast<double>(wanted.size()) * 1e6;
  }};
}

}  // namespace

void AddTableBenchmarks(std::vector<Benchmark>& benchmarks, bool quick) {
  for (const int64_t at_a_time : {int64_t{1}, SmallRows::kPutRows}) {
    benchmarks.push_back(
        {.name = absl::StrCat("dock/put", at_a_time),
         .unit = "rows/s",
         .better = Better::kHigher,
         .of = "memcpy",
         .prepare = [at_a_time](const Settings& settings) { return PreparePut(settings, at_a_time); }});
  }
  benchmarks.push_back({.name = "dock/row_overhead", .unit = "B/row", .prepare = PrepareRowOverhead});

  benchmarks.push_back({.name = "dock/key_lookup", .unit = "us", .prepare = PrepareKeyLookup});

  const auto shared = std::make_shared<SharedTable>();
  const std::vector<int64_t> sizes =
      quick ? std::vector<int64_t>{1'000, 10'000} : std::vector<int64_t>{1'000, 10'000, 100'000, 1'000'000, 10'000'000};
  for (const int64_t rows : sizes) AddForSize(benchmarks, shared, rows, quick);
  benchmarks.back().prepare = [shared, prepare = benchmarks.back().prepare](const Settings& settings) {
    absl::StatusOr<Prepared> prepared = prepare(settings);
    shared->Forget();
    return prepared;
  };
}

}  // namespace tdock::bench
