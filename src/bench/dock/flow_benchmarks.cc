// What threads that wait for each other cost.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/dock/dock_benchmarks.h"
#include "core/base/mutex.h"
#include "tdock/local_dock.h"

namespace tdock::bench {
namespace {

constexpr int64_t kCellFloats = 8;  // 32 bytes

std::string ColumnName(int64_t column) { return absl::StrCat("column", column); }
std::string StageName(int64_t stage) { return absl::StrCat("stage", stage); }

// ---- One producer and stages that each read two columns and write the next one.

class Pipeline {
 public:
  static constexpr int64_t kStages = 5, kBatchRows = 64;

  Pipeline(Clock& clock, int64_t rows) : rows_(rows), dock_(MakeLocalDock({.clock = &clock})) {}

  absl::Status Create() {
    PartitionOptions options{.name = kPartition, .retain_for = {StageName(kStages - 1)}};
    for (int64_t c = 0; c < kStages + 2; ++c) {
      options.columns.push_back({ColumnName(c), ColumnType::Dense(DType::kF32, {kCellFloats})});
    }
    TDOCK_RETURN_IF_ERROR(dock_->CreatePartition(options));
    for (int64_t stage = 0; stage < kStages; ++stage) {
      TDOCK_RETURN_IF_ERROR(dock_->RegisterConsumer(kPartition, {.name = StageName(stage),
                                                                 .reads = {ColumnName(stage), ColumnName(stage + 1)},
                                                                 .writes = {ColumnName(stage + 2)}}));
    }
    return absl::OkStatus();
  }

  // Returns when every row has passed every stage. Seven threads: the producer, one for each stage, and a second one
  // for the last, from which rows go.
  absl::Status Run() {
    std::vector<std::thread> threads;
    threads.emplace_back([this] { Note(Produce()); });
    for (int64_t stage = 0; stage < kStages; ++stage) threads.emplace_back([this, stage] { Note(Work(stage)); });
    threads.emplace_back([this] { Note(Work(kStages - 1)); });
    for (std::thread& thread : threads) thread.join();
    TDOCK_RETURN_IF_ERROR(FirstError());
    TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus last, dock_->GetConsumerStatus(kPartition, StageName(kStages - 1)));
    if (last.completed == rows_) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(last.completed, " of ", rows_, " rows have passed"));
  }

 private:
  absl::Status Produce() {
    const std::vector<float> values(kBatchRows * kCellFloats, 1);
    for (int64_t row = 0; row < rows_; row += kBatchRows) {
      PutRequest put{.partition = kPartition};
      TDOCK_RETURN_IF_ERROR(put.batch.Add(ColumnName(0), Column::FromValues<float>(values, {kCellFloats})));
      TDOCK_RETURN_IF_ERROR(put.batch.Add(ColumnName(1), Column::FromValues<float>(values, {kCellFloats})));
      TDOCK_RETURN_IF_ERROR(dock_->Put(put).status());
    }
    return dock_->Seal(kPartition);
  }

  absl::Status Work(int64_t stage) {
    const std::array<std::string, 2> reads = {ColumnName(stage), ColumnName(stage + 1)};
    const TakeRequest take{.partition = kPartition,
                           .consumer = StageName(stage),
                           .min = kBatchRows,
                           .max = kBatchRows,
                           .deadline = absl::InfiniteFuture()};
    for (;;) {
      const absl::StatusOr<Taken> taken = dock_->Take(take);
      if (taken.status().code() == absl::StatusCode::kOutOfRange) return absl::OkStatus();
      TDOCK_RETURN_IF_ERROR(taken.status());
      std::vector<float> sums;
      sums.reserve(taken->rows.size() * kCellFloats);
      for (size_t row = 0; row < taken->rows.size(); ++row) {
        TDOCK_ASSIGN_OR_RETURN(const auto left, taken->rows.Get<float>(row, reads[0]));
        TDOCK_ASSIGN_OR_RETURN(const auto right, taken->rows.Get<float>(row, reads[1]));
        for (size_t i = 0; i < left.size(); ++i) sums.push_back(left[i] + right[i]);
      }
      FillRequest put{.partition = kPartition, .lease = taken->lease};
      put.rows.assign(taken->rows.ids().begin(), taken->rows.ids().end());
      TDOCK_RETURN_IF_ERROR(put.batch.Add(ColumnName(stage + 2), Column::FromValues<float>(sums, {kCellFloats})));
      TDOCK_RETURN_IF_ERROR(dock_->Fill(put));
    }
  }

  void Note(const absl::Status& status) TDOCK_EXCLUDES(mu_) {
    if (status.ok()) return;
    MutexLock lock(mu_);
    if (error_.ok()) error_ = status;
    dock_->DropPartition(kPartition).IgnoreError();  // so that the others stop
  }
  absl::Status FirstError() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return error_;
  }

  const int64_t rows_;
  const std::unique_ptr<Dock> dock_;
  Mutex mu_;
  absl::Status error_ TDOCK_GUARDED_BY(mu_);
};

absl::StatusOr<Prepared> PreparePipeline(const Settings& settings) {
  const int64_t rows = settings.quick ? 1 << 13 : 1 << 18;
  return Prepared{.run = [rows, &clock = settings.clock]() -> absl::StatusOr<Figure> {
    Pipeline pipeline(clock, rows);
    TDOCK_RETURN_IF_ERROR(pipeline.Create());
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return pipeline.Run(); }));
    return static_cast<double>(rows) / seconds;
  }};
}

// ---- A put that wakes a waiter.

// The milliseconds from the beginning of each put to the return of the take that it wakes, ascending.
absl::StatusOr<std::vector<double>> TimeWakes(Clock& clock, int count) {
  const std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &clock});
  TDOCK_RETURN_IF_ERROR(dock->CreatePartition(
      {.name = kPartition, .columns = {{"a", ColumnType::Dense(DType::kF32)}}, .retain_for = {"waiter"}}));
  TDOCK_RETURN_IF_ERROR(dock->RegisterConsumer(kPartition, {.name = "waiter", .reads = {"a"}}));
  std::vector<absl::Time> put, woken;
  absl::Status waited;
  std::atomic<int> waits = 0;
  std::thread waiter([&] {
    for (int i = 0; i < count && waited.ok(); ++i) {
      ++waits;
      const absl::StatusOr<Taken> taken =
          dock->Take({.partition = kPartition, .consumer = "waiter", .deadline = clock.Now() + absl::Seconds(10)});
      woken.push_back(clock.Now());
      waited = taken.ok() ? dock->Complete({.partition = kPartition, .lease = taken->lease}) : taken.status();
    }
    waits = count;  // whatever happened
  });
  absl::Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    while (waits <= i) std::this_thread::yield();
    // It is about to wait; the pause lets it fall asleep, and the machine be idle.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PutRequest request{.partition = kPartition};
    status = request.batch.Add("a", Column::FromValues<float>({1.0f}));
    put.push_back(clock.Now());
    if (status.ok()) status = dock->Put(request).status();
  }
  waiter.join();
  TDOCK_RETURN_IF_ERROR(status);
  TDOCK_RETURN_IF_ERROR(waited);
  std::vector<double> milliseconds;
  for (size_t i = 0; i < put.size(); ++i) milliseconds.push_back(absl::ToDoubleMilliseconds(woken[i] - put[i]));
  std::sort(milliseconds.begin(), milliseconds.end());
  return milliseconds;
}

absl::StatusOr<Prepared> PrepareWake(const Settings& settings) {
  const int count = settings.quick ? 20 : 300;
  return Prepared{.run = [count, &clock = settings.clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<double> wakes, TimeWakes(clock, count));
    const double p50 = wakes[wakes.size() / 2], p99 = wakes[wakes.size() * 99 / 100];
    return Figure(p50, {{"p50", p50}, {"p99", p99}});
  }};
}

}  // namespace

void AddFlowBenchmarks(std::vector<Benchmark>& benchmarks) {
  benchmarks.push_back(
      {.name = "dock/pipeline", .unit = "rows/s", .better = Better::kHigher, .prepare = PreparePipeline});
  benchmarks.push_back({.name = "dock/wake", .unit = "ms", .prepare = PrepareWake});
}

}  // namespace tdock::bench
