// Puts: admission, the copy, and publication.
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "dock/local/nan.h"
#include "dock/local/partition.h"
#include "dock/local/text.h"
#include "dock/table/limits.h"

namespace tdock::dock {
namespace {

int64_t PayloadOf(const Batch& batch) {
  int64_t bytes = 0;
  for (const NamedColumn& column : batch.columns()) bytes += column.column.payload_bytes();
  return bytes;
}

}  // namespace

Budget::Use Partition::Use() const {
  return {.rows = table_->pages.rows() + table_->groups.rows_to_come(),
          .held = blocks_.held->load(),
          .rows_ever = table_->pages.next_row(),
          .rows_here = table_->pages.rows()};
}

uint32_t Partition::WriterUnder(LeaseId lease) {
  return writers_.NumberOf(table_->consumer((*FindLease(*table_, lease))->consumer).options().name);
}

int64_t Partition::BytesOf(CellRef cell) const {
  return static_cast<int64_t>(store_.BlockOf(cell)->Row(store_.RowOf(cell)).size());
}

absl::Status Partition::CheckValues(const Batch& batch) const {
  std::vector<size_t> texts;
  for (size_t i = 0; i < batch.columns().size(); ++i) {
    if (IsText(batch.columns()[i].column.type())) texts.push_back(i);
  }
  TDOCK_RETURN_IF_ERROR(CheckText(batch, texts));
  return refuses_nan_ ? CheckNoNan(batch) : absl::OkStatus();
}

std::vector<size_t> Partition::BytesForText(const Batch& batch, std::span<const uint32_t> columns) const {
  std::vector<size_t> places;
  for (size_t i = 0; i < columns.size(); ++i) {
    const ColumnType& given = batch.columns()[i].column.type();
    if (columns[i] == Schema::kNone || given.kind != ColumnKind::kBytes || IsText(given)) continue;
    const Schema::Column& column = table_->schema[columns[i]];
    if (column.typed && IsText(column.spec.type)) places.push_back(i);
  }
  return places;
}

absl::StatusOr<bool> Partition::Fits(const PutRequest& request, const Waiter* waiter, const Claim& claim) {
  // The rest of groups that were admitted as a whole.
  if (claim.rows == 0) return true;
  // Before the held bytes are read, so that a decrease after that is noticed.
  if (budget_.limits_bytes()) blocks_.held->Watch();
  const Budget::Use use = Use();
  TDOCK_RETURN_IF_ERROR(budget_.CheckEver(claim, use));
  if (waits_.IsFirst(waiter) && budget_.Fits(claim, use)) return true;
  TDOCK_RETURN_IF_ERROR(CheckNeedsNoCommit(*table_, claim.rows));
  if (request.cancel.stop_requested()) return absl::CancelledError("the put was cancelled");
  if (request.deadline <= clock_.Now()) return absl::DeadlineExceededError(budget_.Explain(claim, use));
  if (waiter != nullptr || waits_.puts() < kMaxWaitingPuts) return false;
  return absl::ResourceExhaustedError(absl::StrCat("partition '", table_->options.name, "' has ", kMaxWaitingPuts,
                                                   " puts waiting for room, the limit"));
}

Partition::Outcome<Partition::Admitted> Partition::Look(const PutRequest& request, const Waiter* waiter,
                                                        Cleanup& cleanup) {
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  TDOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> columns, CheckPut(*table_, request));
  Claim claim;
  if (limited_) {
    claim = {.rows = RowsClaimedBy(*table_, request), .bytes = PayloadOf(request.batch)};
    TDOCK_ASSIGN_OR_RETURN(const bool fits, Fits(request, waiter, claim));
    if (!fits) return Wait{AwaitedRoom{&request, claim}, request.deadline};
  }
  return Admit(request, std::move(columns), claim);
}

absl::Status Partition::Fill(const FillRequest& request) {
  TDOCK_RETURN_IF_ERROR(CheckValues(request.batch));
  return Finish<verbs::Fill>(request, OrNoMemory("a fill", [&]() -> absl::StatusOr<Admitted> {
                               Cleanup cleanup{*this};
                               MutexLock lock(mu_);
                               TDOCK_RETURN_IF_ERROR(Begin(cleanup));
                               TDOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> columns, CheckPut(*table_, request));
                               return Admit(request, std::move(columns), Claim());
                             }));
}

template <class Request>
Partition::Admitted Partition::Admit(const Request& request, std::vector<uint32_t> columns, const Claim& claim) {
  uint32_t writer = Writers::kNobody;
  if constexpr (std::is_same_v<Request, FillRequest>) {
    if (request.lease != kNoLease) writer = WriterUnder(request.lease);
  }
  Admitted admitted{
      .claim = claim, .columns = std::move(columns), .placements = {}, .for_text = {}, .checked_at = table_->changes};
  admitted.placements = store_.Reserve(request.batch, admitted.columns, request.weights_version, writer);
  admitted.for_text = BytesForText(request.batch, admitted.columns);
  budget_.Begin(claim);
  return admitted;
}

template <class V>
ResultOf<V> Partition::Finish(const typename V::Request& request, absl::StatusOr<Admitted>&& admitted) noexcept {
  if (!admitted.ok()) return admitted.status();
  auto& [claim, columns, placements, for_text, checked_at] = *admitted;
  const absl::Status written = Write(request.batch, for_text, placements);

  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  absl::Status status = written.ok() ? Begin(cleanup) : written;
  // What was allowed before the copy may no longer be: leases expire, and others put.
  if (status.ok() && table_->changes != checked_at) {
    absl::StatusOr<std::vector<uint32_t>> again = CheckPut(*table_, request);
    status = again.status();
    if (again.ok()) columns = *std::move(again);
    // Under the lock, for once: another put has made a column of text meanwhile.
    if (status.ok()) {
      const std::vector<size_t> now_for_text = BytesForText(request.batch, columns);
      if (now_for_text != for_text) status = CheckText(request.batch, now_for_text);
    }
  }
  budget_.End(claim);
  if (!status.ok()) {
    store_.Abandon(placements);
    End(cleanup);
    return status;
  }
  std::vector<RowId> rows = Publish(request, columns, placements);
  budget_.CountPut(PayloadOf(request.batch));
  End(cleanup);
  if constexpr (std::is_same_v<V, verbs::Put>) {
    return PutResult{std::move(rows)};
  } else {
    return absl::OkStatus();
  }
}

absl::Status Partition::Write(const Batch& batch, std::span<const size_t> for_text,
                              std::span<BlockStore::Placement> placements) {
  TDOCK_RETURN_IF_ERROR(CheckText(batch, for_text));
  try {
    BlockStore::Write(batch, blocks_, placements);
    return absl::OkStatus();
  } catch (const std::bad_alloc& error) {
    return NoMemory(absl::StrCat("the ", PayloadOf(batch), " bytes of this put beside the ", blocks_.held->load(),
                                 " bytes that the partition holds"),
                    error);
  }
}

template <class Request>
std::vector<RowId> Partition::Publish(const Request& request, std::span<uint32_t> columns,
                                      std::span<BlockStore::Placement> placements) {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i] != Schema::kNone && table_->schema[columns[i]].typed) continue;
    const NamedColumn& given = request.batch.columns()[i];
    table_.Apply(ColumnAdded{{given.name, given.column.type()}});
    columns[i] = table_->schema.Find(given.name);
  }
  const std::vector<CellRef> cells = store_.Publish(request.batch, columns, placements);
  RowsPut event{.columns = columns, .first_cells = cells, .weights_version = request.weights_version};
  std::vector<std::shared_ptr<const Tags>> tags;
  for (const Tags& each : request.tags) tags.push_back(std::make_shared<const Tags>(each));
  event.tags = tags;
  std::vector<RowId> rows;
  std::vector<int64_t> lengths;
  if constexpr (std::is_same_v<Request, PutRequest>) {
    event.new_rows = RowsOf(request);
    event.groups = request.groups;
    event.group_size = GroupSizeFor(*table_, request);
    event.keys = request.keys;
    rows.resize(static_cast<size_t>(event.new_rows));
    std::iota(rows.begin(), rows.end(), table_->pages.next_row());
  } else {
    for (size_t i = 0; (request.partial || !table_->histories.empty()) && i < columns.size(); ++i) {
      const Column& column = request.batch.columns()[i].column;
      const bool is_list = column.type().kind != ColumnKind::kDense;
      for (int64_t row = 0; row < column.rows(); ++row) lengths.push_back(is_list ? column.Length(row) : 1);
    }
    event.lengths = lengths;
    event.rows = request.rows;
    event.partial = request.partial;
    event.anew = request.overwrite;
    if (!request.keep) (request.partial ? event.returns : event.completes) = request.lease;
    event.step = request.step;
  }
  table_.Apply(event);
  return rows;
}

template ResultOf<verbs::Put> Partition::Finish<verbs::Put>(const PutRequest&, absl::StatusOr<Admitted>&&) noexcept;

}  // namespace tdock::dock
