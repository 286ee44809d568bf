// Takes and fetches: waiting, choosing rows, and their views.
#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "dock/local/partition.h"
#include "dock/table/limits.h"
#include "dock/table/rows_data.h"

namespace tdock::dock {
namespace {

// The number of items of a cell.
int64_t LengthIn(const Block& block, std::span<const std::byte> cell) {
  return static_cast<int64_t>(cell.size()) / std::max<int64_t>(block.shape().item_bytes, 1);
}

absl::Status Cancelled(const TakeRequest& request) {
  return absl::CancelledError(absl::StrCat("the take of consumer '", request.consumer, "' was cancelled"));
}

}  // namespace

absl::StatusOr<bool> Partition::AreEnough(const TakeRequest& request, AwaitedRows& awaited) {
  TDOCK_ASSIGN_OR_RETURN(awaited.least, LeastToTake(*table_, awaited.consumer, request.rank, request.min));
  if (table_->consumer(awaited.consumer).share(request.rank).takeable.size() >= awaited.least) return true;
  if (request.cancel.stop_requested()) return Cancelled(request);
  const absl::Time now = clock_.Now();
  if (request.deadline <= now) {
    const bool groups = table_->consumer(awaited.consumer).by_group();
    return absl::DeadlineExceededError(absl::StrCat(
        "waited for ", awaited.least, groups ? " groups: " : " rows: ", Explain(*table_, awaited.consumer, now)));
  }
  if (IsFull()) TDOCK_RETURN_IF_ERROR(CheckCanCome(*table_, awaited.consumer, request.rank, awaited.least));
  return false;
}

absl::StatusOr<std::vector<RowId>> Partition::ChooseRows(const TakeRequest& request, AwaitedRows& awaited,
                                                         Cleanup& cleanup) {
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  // It may be dropped, and even be registered again, during the wait.
  TDOCK_ASSIGN_OR_RETURN(awaited.consumer, FindConsumer(*table_, request.consumer));
  TDOCK_RETURN_IF_ERROR(CheckTake(*table_, awaited.consumer, request));
  if (!request.rows.empty()) {
    TDOCK_RETURN_IF_ERROR(CheckTakeOfRows(*table_, awaited.consumer, request));
    return request.rows;
  }
  TDOCK_ASSIGN_OR_RETURN(const bool enough, AreEnough(request, awaited));
  if (!enough) return std::vector<RowId>();
  const auto length_of = [this](CellRef cell) TDOCK_REQUIRES(mu_) {
    const Block& block = *store_.BlockOf(cell);
    return LengthIn(block, block.Row(store_.RowOf(cell)));
  };
  return Choose(*table_, awaited.consumer, request.rank, awaited.least, request.max, *samplers_, length_of);
}

Partition::Outcome<Taken> Partition::Look(const TakeRequest& request, const Waiter*, Cleanup& cleanup) {
  AwaitedRows awaited{.rank = request.rank, .max = request.max};
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, ChooseRows(request, awaited, cleanup));
  if (rows.empty()) return Wait{awaited, request.deadline};
  TDOCK_ASSIGN_OR_RETURN(const bool fresh, AreFresh(awaited.consumer, rows, cleanup));
  if (fresh) return HandOut(awaited.consumer, rows, request.rank, cleanup);
  if (request.cancel.stop_requested()) return Cancelled(request);
  // There may be many rows that are too old.
  return Again();
}

absl::StatusOr<bool> Partition::AreFresh(uint32_t consumer, std::span<const RowId> rows, Cleanup& cleanup) {
  TDOCK_ASSIGN_OR_RETURN(const StaleRows stale, FindStale(*table_, consumer, rows, VersionOf()));
  if (stale.empty()) return true;
  if (!stale.dropped.empty()) table_.Apply(RowsDropped{stale.dropped, consumer});
  for (const SendBack& plan : stale.sent_back) {
    table_.Apply(RowsSentBack{plan.rows, plan.columns, plan.consumers, consumer});
  }
  End(cleanup);
  return false;
}

absl::StatusOr<Taken> Partition::HandOut(uint32_t consumer, std::span<const RowId> rows, int32_t rank,
                                         Cleanup& cleanup) {
  Taken taken;
  // Before the rows are taken, because rows that are done at once may be released at once.
  const std::vector<uint32_t> columns = ColumnsFor(consumer);
  absl::StatusOr<Rows::Data> data = TryToView(rows, columns, &table_->consumer(consumer));
  if (!data.ok()) return data.status();
  data->columns = SpecOf(consumer, columns);
  data->redeliveries = RedeliveriesOf(*table_, consumer, rows);
  taken.rows = (*std::move(data)).ToRows();
  if (table_->consumer(consumer).options().at_most_once) {
    table_.Apply(RowsTaken{consumer, rank, kNoLease, rows});
    End(cleanup);
    return taken;
  }
  const absl::Time now = clock_.Now();
  taken.lease = table_->leases.Next();
  taken.expires = now + table_->consumer(consumer).options().lease_duration;
  table_.Apply(RowsTaken{consumer, rank, taken.lease, rows, now, taken.expires});
  // Waiting calls may get these rows when the lease expires.
  WatchExpiry(consumer, cleanup.wake);
  NoteLoad();
  return taken;
}

std::vector<uint32_t> Partition::ColumnsFor(uint32_t consumer) const {
  std::vector<uint32_t> columns = table_->consumer(consumer).reads();
  for (uint32_t column : table_->consumer(consumer).reads_optional()) {
    if (table_->schema[column].typed) columns.push_back(column);
  }
  return columns;
}

std::shared_ptr<const std::vector<ColumnSpec>> Partition::SpecOf(uint32_t consumer, std::span<const uint32_t> columns) {
  std::shared_ptr<const std::vector<ColumnSpec>>& spec = specs_[consumer];
  if (spec == nullptr || spec->size() != columns.size()) {
    auto fresh = std::make_shared<std::vector<ColumnSpec>>();
    for (uint32_t column : columns) fresh->push_back(table_->schema[column].spec);
    spec = std::move(fresh);
  }
  return spec;
}

void Partition::Describe(std::span<const RowId> rows, Rows::Data& data) {
  for (size_t i = 0; !table_->labels.empty() && i < rows.size(); ++i) {
    const Labels::Label& label = table_->labels.Of(rows[i]);
    data.keys.push_back(label.key);
    data.tags.push_back(label.tags);
  }
  for (size_t i = 0; !table_->histories.empty() && i < rows.size(); ++i) {
    const Histories::History& history = table_->histories.Of(rows[i]);
    data.ages.push_back(history.age);
    data.epochs.push_back(history.epoch);
  }
}

// The pieces of a cell that was made in several.
void Partition::DescribePieces(RowId row, uint32_t column, Rows::Data& data) {
  const std::vector<Piece>* const pieces = table_->histories.PiecesOf(row, column);
  if (pieces == nullptr || pieces->empty()) return;
  Cell& cell = data.cells.back();
  cell.weights_version = table_->VersionsOf(row, column, cell.weights_version).oldest;
  data.pieces[data.cells.size() - 1] = *pieces;
}

Rows::Data Partition::View(std::span<const RowId> rows, std::span<const uint32_t> columns, const Consumer* viewer) {
  Rows::Data data;
  data.memory = copies_;
  data.ids.assign(rows.begin(), rows.end());
  data.groups.reserve(rows.size());
  data.cells.reserve(rows.size() * columns.size());
  const std::vector<Place> places = table_->Locate(rows);
  for (const Place& place : places) data.groups.push_back(place.group_id());
  Describe(rows, data);
  // All rows follow the references to their bytes in lockstep, so that their cache misses overlap.
  const bool any_histories = !table_->histories.empty();
  std::vector<CellRef> cells(rows.size());
  std::vector<const std::shared_ptr<Block>*> blocks(rows.size());
  for (uint32_t column : columns) {
    const bool writer = viewer != nullptr && viewer->Writes(column);
    for (size_t i = 0; i < rows.size(); ++i) {
      cells[i] = places[i].cell(column);
      if (cells[i].partial()) cells[i] = writer ? cells[i].plain() : CellRef();
    }
    for (size_t i = 0; i < rows.size(); ++i) blocks[i] = &store_.BlockOf(cells[i]);
    for (size_t i = 0; i < rows.size(); ++i) __builtin_prefetch(blocks[i]->get());
    uint32_t pinned = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (cells[i].empty()) {
        data.cells.emplace_back();
        continue;
      }
      const Block& block = **blocks[i];
      if (cells[i].block != pinned) {
        pinned = cells[i].block;
        data.pins.push_back(*blocks[i]);
      }
      data.cells.push_back({block.Row(store_.RowOf(cells[i])), block.shape().weights_version,
                            writer && places[i].cell(column).partial()});
      if (any_histories) DescribePieces(rows[i], column, data);
    }
  }
  return data;
}

absl::StatusOr<Rows::Data> Partition::TryToView(std::span<const RowId> rows, std::span<const uint32_t> columns,
                                                const Consumer* viewer) {
  try {
    return View(rows, columns, viewer);
  } catch (const std::bad_alloc& error) {
    return NoMemory(absl::StrCat("views of ", rows.size(), " rows with ", columns.size(), " columns"), error);
  }
}

Partition::Outcome<Rows> Partition::Look(const FetchRequest& request, const Waiter* waiter, Cleanup& cleanup) {
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  TDOCK_ASSIGN_OR_RETURN(const FetchPlan plan, CheckFetch(*table_, request));
  if (plan.missing_cells == 0) {
    auto spec = std::make_shared<std::vector<ColumnSpec>>();
    for (uint32_t column : plan.columns) spec->push_back(table_->schema[column].spec);
    TDOCK_ASSIGN_OR_RETURN(Rows::Data data, TryToView(request.rows, plan.columns, nullptr));
    data.columns = std::move(spec);
    return std::move(data).ToRows();
  }
  if (request.cancel.stop_requested()) return absl::CancelledError("the fetch was cancelled");
  const absl::Time now = clock_.Now();
  if (request.deadline <= now) return absl::DeadlineExceededError(ExplainFetch(*table_, request, plan, now));
  if (waiter == nullptr && waits_.fetches() >= kMaxWaitingFetches) {
    return absl::ResourceExhaustedError(absl::StrCat("partition '", table_->options.name, "' has ", kMaxWaitingFetches,
                                                     " fetches waiting, the limit: wait for fewer at once"));
  }
  return Wait{AwaitedCell{plan.missing_row, plan.missing_column}, request.deadline};
}

}  // namespace tdock::dock
