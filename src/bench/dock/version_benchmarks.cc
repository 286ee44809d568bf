// What it costs to send rows back, and to carry unfinished responses over to the next step, in tables of any size.
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/dock/dock_benchmarks.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "tdock/local_dock.h"

namespace tdock::bench {
namespace {

constexpr size_t kRowsAtATime = 32;
constexpr size_t kTokens = 8;

// prompt → rollout → response → reward → score → trainer. Not thread-safe.
class Rollouts {
 public:
  static absl::StatusOr<std::shared_ptr<Rollouts>> Create(Clock& clock, int64_t max_version_lag) {
    const std::shared_ptr<Rollouts> table(new Rollouts(clock));
    TDOCK_RETURN_IF_ERROR(table->dock_->CreatePartition({.name = kPartition,
                                                         .columns = {{"prompt", ColumnType::Ragged(DType::kI64)},
                                                                     {"response", ColumnType::Ragged(DType::kI64)},
                                                                     {"score", ColumnType::Dense(DType::kF32)}}}));
    const std::vector<ConsumerOptions> consumers = {
        {.name = "rollout", .reads = {"prompt"}, .reads_optional = {"response"}, .writes = {"response"}},
        {.name = "reward", .reads = {"response"}, .writes = {"score"}},
        {.name = "trainer", .reads = {"response", "score"}, .max_version_lag = max_version_lag}};
    for (const ConsumerOptions& consumer : consumers) {
      TDOCK_RETURN_IF_ERROR(table->dock_->RegisterConsumer(kPartition, consumer));
    }
    return table;
  }

  absl::Status AddPrompts(size_t count) {
    PutRequest put{.partition = kPartition};
    TDOCK_RETURN_IF_ERROR(put.batch.Add("prompt", Lists(count)));
    TDOCK_ASSIGN_OR_RETURN(const PutResult result, dock_->Put(put));
    rows_.insert(rows_.end(), result.rows.begin(), result.rows.end());
    return absl::OkStatus();
  }
  size_t rows() const { return rows_.size(); }
  // Rows that lie anywhere in the table, and are not drawn again.
  std::vector<RowId> Draw() {
    std::vector<RowId> drawn;
    for (size_t i = 0; i < kRowsAtATime; ++i) {
      std::swap(rows_[rng_.Below(rows_.size())], rows_.back());
      drawn.push_back(rows_.back());
      rows_.pop_back();
    }
    return drawn;
  }

  absl::StatusOr<LeaseId> Take(const std::string& consumer, const std::vector<RowId>& rows) {
    TDOCK_ASSIGN_OR_RETURN(const Taken taken,
                           dock_->Take({.partition = kPartition, .consumer = consumer, .rows = rows}));
    return taken.lease;
  }
  absl::Status Respond(const std::vector<RowId>& rows, LeaseId lease, int64_t version, bool partial = false) {
    FillRequest put{.partition = kPartition, .rows = rows, .lease = lease, .partial = partial};
    put.weights_version = version;
    TDOCK_RETURN_IF_ERROR(put.batch.Add("response", Lists(rows.size())));
    return dock_->Fill(put);
  }
  // Rollout and reward.
  absl::Status Finish(const std::vector<RowId>& rows, int64_t version) {
    TDOCK_ASSIGN_OR_RETURN(const LeaseId rollout, Take("rollout", rows));
    TDOCK_RETURN_IF_ERROR(Respond(rows, rollout, version));
    TDOCK_ASSIGN_OR_RETURN(const LeaseId reward, Take("reward", rows));
    FillRequest put{.partition = kPartition, .rows = rows, .lease = reward};
    TDOCK_RETURN_IF_ERROR(put.batch.Add("score", Column::FromValues<float>(std::vector<float>(rows.size(), 1))));
    return dock_->Fill(put);
  }
  absl::Status Clear(const std::vector<RowId>& rows) {
    return dock_->Clear({.partition = kPartition, .rows = rows}).status();
  }

  Dock& dock() { return *dock_; }
  Clock& clock() { return clock_; }

 private:
  explicit Rollouts(Clock& clock) : clock_(clock), dock_(MakeLocalDock({.clock = &clock})) {}

  static Column Lists(size_t count) {
    return Column::FromRows(std::vector<std::vector<int64_t>>(count, std::vector<int64_t>(kTokens, 7)));
  }

  Clock& clock_;
  const std::unique_ptr<Dock> dock_;
  std::vector<RowId> rows_;
  Rng rng_{1};
};

// A table in which each version of the weights has made 32 rows, which lie anywhere: when the next version is
// published, those of one version are too old, and a take of them sends them back.
absl::StatusOr<Prepared> PrepareSendBack(const Settings& settings, int64_t rows, int calls) {
  TDOCK_ASSIGN_OR_RETURN(const auto table, Rollouts::Create(settings.clock, /*max_version_lag=*/0));
  while (static_cast<int64_t>(table->rows()) < rows) TDOCK_RETURN_IF_ERROR(table->AddPrompts(1'000));
  struct State {
    std::deque<std::vector<RowId>> by_version;
    int64_t oldest = 0;  // of by_version
  };
  const auto state = std::make_shared<State>();
  while (table->rows() >= kRowsAtATime) {
    state->by_version.push_back(table->Draw());
    TDOCK_RETURN_IF_ERROR(table->Finish(state->by_version.back(), static_cast<int64_t>(state->by_version.size()) - 1));
  }
  return Prepared{.run = [=]() -> absl::StatusOr<Figure> {
    double total = 0;
    for (int call = 0; call < calls; ++call) {
      TDOCK_RETURN_IF_ERROR(table->dock().PublishWeights(kPartition, ++state->oldest));
      const std::vector<RowId> old = std::move(state->by_version.front());
      state->by_version.pop_front();
      absl::Status found;
      TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(table->clock(), [&] {
                               found = table->Take("trainer", old).status();
                               return absl::OkStatus();
                             }));
      total += seconds;
      if (found.code() != absl::StatusCode::kFailedPrecondition) {
        return absl::InternalError(absl::StrCat("rows that are too old were handed out: ", found.ToString()));
      }
      state->by_version.push_back(old);
      TDOCK_RETURN_IF_ERROR(table->Finish(old, state->oldest + static_cast<int64_t>(state->by_version.size()) - 1));
    }
    return total / calls * 1e6;
  }};
}

// The end of a step: 32 responses are unfinished and are put so, 32 rows that were trained on are cleared, and the next
// step's rollout is handed the unfinished ones, and drops its views.
absl::StatusOr<double> TimeStepsEnd(Rollouts& table) {
  const std::vector<RowId> carried = table.Draw(), trained = table.Draw();
  TDOCK_RETURN_IF_ERROR(table.Finish(trained, 1));
  TDOCK_ASSIGN_OR_RETURN(const LeaseId rollout, table.Take("rollout", carried));
  const TakeRequest next{.partition = kPartition, .consumer = "rollout", .min = kRowsAtATime, .max = kRowsAtATime};
  bool oldest_first = true;
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(table.clock(), [&]() -> absl::Status {
                           TDOCK_RETURN_IF_ERROR(table.Respond(carried, rollout, 1, /*partial=*/true));
                           TDOCK_RETURN_IF_ERROR(table.Clear(trained));
                           TDOCK_ASSIGN_OR_RETURN(const Taken taken, table.dock().Take(next));
                           for (size_t i = 0; i < kRowsAtATime; ++i) oldest_first &= taken.rows.age(i) == 1;
                           return absl::OkStatus();
                         }));
  if (!oldest_first) return absl::InternalError("the oldest rows were not handed out first");
  TDOCK_RETURN_IF_ERROR(table.Clear(carried));
  TDOCK_RETURN_IF_ERROR(table.AddPrompts(2 * kRowsAtATime));
  return seconds;
}

absl::StatusOr<Prepared> PrepareClearCarry(const Settings& settings, int64_t rows, int calls) {
  TDOCK_ASSIGN_OR_RETURN(const auto table, Rollouts::Create(settings.clock, INT64_MAX));
  while (static_cast<int64_t>(table->rows()) < rows) TDOCK_RETURN_IF_ERROR(table->AddPrompts(1'000));
  return Prepared{.run = [=]() -> absl::StatusOr<Figure> {
    double total = 0;
    for (int call = 0; call < calls; ++call) {
      TDOCK_ASSIGN_OR_RETURN(const double seconds, TimeStepsEnd(*table));
      total += seconds;
    }
    return total / calls * 1e6;
  }};
}

}  // namespace

void AddVersionBenchmarks(std::vector<Benchmark>& benchmarks, bool quick) {
  const std::vector<int64_t> sizes =
      quick ? std::vector<int64_t>{10'000} : std::vector<int64_t>{10'000, 100'000, 1'000'000};
  for (const int64_t rows : sizes) {
    const auto add = [&](absl::string_view name, auto prepare, int calls) {
      benchmarks.push_back({.name = absl::StrCat("dock/", name, "/rows=", rows),
                            .unit = "us",
                            .prepare = [=](const Settings& settings) { return prepare(settings, rows, calls); }});
    };
    add("send_back", PrepareSendBack, quick ? 20 : 200);
    add("clear_carry", PrepareClearCarry, quick ? 20 : 200);
  }
}

}  // namespace tdock::bench
