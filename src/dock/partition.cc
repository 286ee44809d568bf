#include "dock/partition.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dock/nan.h"

namespace tdock {
namespace {

int64_t PayloadOf(const Batch& batch) {
  int64_t bytes = 0;
  for (const NamedColumn& column : batch.columns()) bytes += column.column.payload_bytes();
  return bytes;
}

}  // namespace

Partition::Aftermath::~Aftermath() {
  for (CondVar* condition : wake) condition->NotifyAll();
  if (!compactions.empty()) partition->Compact(std::move(compactions));
}

void Partition::Compact(std::vector<BlockStore::Compaction> compactions) {
  // While one is copied, its rows may have become so few that the copy is sparse in turn.
  while (!compactions.empty()) {
    for (BlockStore::Compaction& compaction : compactions) BlockStore::Copy(compaction, blocks_);
    std::vector<BlockStore::Compaction> more;
    std::vector<std::shared_ptr<Block>> garbage;
    {
      MutexLock lock(mu_);
      for (BlockStore::Compaction& compaction : compactions) store_.Install(compaction);
      more = store_.TakeCompactions();
      garbage = store_.TakeGarbage();
    }
    compactions = std::move(more);
  }
}

absl::Status Partition::Begin() {
  if (dropped_) return absl::NotFoundError(absl::StrCat("partition '", table_.options().name, "' was dropped"));
  if (table_.leases().NextExpiry() == absl::InfiniteFuture()) return absl::OkStatus();
  const absl::Time now = clock_.Now();
  bool any = false;
  while (const std::optional<LeaseId> lease = table_.leases().NextExpired(now)) {
    table_.Apply(LeaseExpired{*lease});
    any = true;
  }
  if (!any) return absl::OkStatus();
  std::vector<CondVar*> wake;
  CollectWakes(wake);
  for (CondVar* condition : wake) condition->NotifyAll();
  return absl::OkStatus();
}

void Partition::End(Aftermath& after) {
  const std::vector<CellRef> dropped = table_.TakeDroppedCells();
  if (budget_.limits_bytes()) {
    for (CellRef cell : dropped) budget_.CountGone(BytesOf(cell));
  }
  store_.Drop(dropped);
  after.garbage = store_.TakeGarbage();
  after.compactions = store_.TakeCompactions();
  after.partition = this;
  CollectWakes(after.wake);
  NotifyRoom();
}

void Partition::CollectWakes(std::vector<CondVar*>& wake) {
  // In a sealed partition every change may lower what a waiter waits for.
  const bool all = dropped_ || table_.sealed();
  for (uint32_t consumer : table_.consumers()) {
    Waiters& waiters = waiters_[consumer];
    const Consumer& state = table_.consumer(consumer);
    const bool any = std::any_of(waiters.waiting.begin(), waiters.waiting.end(), [&](const Waiters::Waiter* waiter) {
      // One that waits for a consumer of this place that was dropped is on its way out.
      if (waiter->rank >= state.options().ranks) return true;
      return all || state.share(waiter->rank).takeable.size() >= waiter->least;
    });
    if (any) wake.push_back(&waiters.changed);
  }
  if (fetches_waiting_ > 0) wake.push_back(&cells_put_);
}

void Partition::Close() {
  Aftermath after;
  MutexLock lock(mu_);
  dropped_ = true;
  CollectWakes(after.wake);
  NotifyRoom();
}

void Partition::WakeAll() {
  Aftermath after;
  MutexLock lock(mu_);
  for (Waiters& waiters : waiters_) after.wake.push_back(&waiters.changed);
  after.wake.push_back(&cells_put_);
}

absl::Status Partition::Matches(const PartitionOptions& options) {
  MutexLock lock(mu_);
  const PartitionOptions& old = table_.options();
  std::vector<absl::string_view> differences;
  if (old.columns != options.columns) differences.push_back("columns");
  if (old.growing != options.growing) differences.push_back("growing");
  if (old.group_size != options.group_size) differences.push_back("group_size");
  if (old.retain_for != options.retain_for) differences.push_back("retain_for");
  if (old.max_rows != options.max_rows) differences.push_back("max_rows");
  if (old.max_bytes != options.max_bytes) differences.push_back("max_bytes");
  if (old.row_bytes != options.row_bytes) differences.push_back("row_bytes");
  if (old.refuse_nan != options.refuse_nan) differences.push_back("refuse_nan");
  if (differences.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("partition '", options.name, "' exists with other ", absl::StrJoin(differences, ", ")));
}

absl::Status Partition::RegisterConsumer(const ConsumerOptions& options) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const bool is_new, table_.CheckConsumer(options));
  if (!is_new) return absl::OkStatus();
  if (options.sampler == Sampler::kOwn && !samplers_->contains(options.own_sampler)) {
    std::vector<std::string> names;
    for (const auto& [name, sampler] : *samplers_) names.push_back(name);
    return absl::InvalidArgumentError(absl::StrCat("consumer '", options.name, "': there is no sampler '",
                                                   options.own_sampler, "'; the dock was given ",
                                                   names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  table_.Apply(ConsumerRegistered{&options});
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, table_.FindConsumer(options.name));
  if (index == waiters_.size()) {
    waiters_.emplace_back();
    specs_.emplace_back();
  }
  specs_[index] = nullptr;
  End(after);
  return absl::OkStatus();
}

absl::Status Partition::DropConsumer(absl::string_view consumer) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_RETURN_IF_ERROR(table_.CheckDropConsumer(consumer));
  // Those who wait for its rows will not find it any more.
  if (const auto index = table_.FindConsumer(consumer); index.ok()) after.wake.push_back(&waiters_[*index].changed);
  table_.Apply(ConsumerDropped{consumer});
  End(after);
  return absl::OkStatus();
}

Budget::Use Partition::Use() const {
  return {.rows = table_.rows() + table_.rows_to_come(),
          .held = blocks_.held->load(),
          .rows_ever = table_.next_row(),
          .rows_here = table_.rows()};
}

int64_t Partition::BytesOf(CellRef cell) const {
  return static_cast<int64_t>(store_.BlockOf(cell)->Row(store_.RowOf(cell)).size());
}

absl::StatusOr<bool> Partition::Fits(const PutRequest& request, Claim& claim) {
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_RETURN_IF_ERROR(table_.CheckPut(request).status());
  claim.rows = table_.RowsClaimedBy(request);
  // The rest of groups that were let in as a whole.
  if (claim.rows == 0) return true;
  const Budget::Use use = Use();
  TDOCK_RETURN_IF_ERROR(budget_.CheckEver(claim, use));
  if ((turns_.empty() || turns_.front() == &claim) && budget_.Fits(claim, use)) return true;
  TDOCK_RETURN_IF_ERROR(table_.CheckNeedsNoCommit(claim.rows));
  if (request.cancel.stop_requested()) return absl::CancelledError("the put was cancelled");
  if (request.deadline <= clock_.Now()) return absl::DeadlineExceededError(budget_.Explain(claim, use));
  return false;
}

absl::StatusOr<bool> Partition::LetIn(const PutRequest& request, Claim& claim) {
  Aftermath after;
  MutexLock lock(mu_);
  const absl::StatusOr<bool> fits = Fits(request, claim);
  const auto turn = std::find(turns_.begin(), turns_.end(), &claim);
  if (fits.ok() && !*fits) {
    if (turn == turns_.end()) turns_.push_back(&claim);
    // Those who wait for rows that cannot come now have to look.
    for (Waiters& waiters : waiters_) after.wake.push_back(&waiters.changed);
    return false;
  }
  if (fits.ok()) budget_.Begin(claim);
  if (turn != turns_.end()) {
    turns_.erase(turn);
    NotifyRoom();
  }
  return fits;
}

absl::StatusOr<Claim> Partition::AwaitRoom(const PutRequest& request) {
  if (!limited_ || !request.rows.empty()) return Claim();
  const std::stop_callback cancelled(request.cancel, [this] { NotifyRoom(); });
  Claim claim{.rows = 0, .bytes = PayloadOf(request.batch)};
  EventCount& freed = blocks_.held->freed;
  for (;;) {
    const EventCount::Key key = freed.Prepare();
    const absl::StatusOr<bool> let_in = LetIn(request, claim);
    if (let_in.ok() && !*let_in) {
      freed.Wait(key, clock_, request.deadline);
      continue;
    }
    freed.Cancel();
    if (!let_in.ok()) return let_in.status();
    return claim;
  }
}

absl::StatusOr<PutResult> Partition::Put(const PutRequest& request) {
  if (refuses_nan_) TDOCK_RETURN_IF_ERROR(CheckNoNan(request.batch));
  TDOCK_ASSIGN_OR_RETURN(const Claim claim, AwaitRoom(request));
  std::vector<uint32_t> columns;
  std::vector<BlockStore::Placement> placements;
  uint64_t checked_at = 0;
  {
    Aftermath after;
    MutexLock lock(mu_);
    absl::Status status = Begin();
    if (status.ok()) {
      absl::StatusOr<std::vector<uint32_t>> checked = table_.CheckPut(request);
      status = checked.status();
      if (checked.ok()) columns = *std::move(checked);
    }
    if (!status.ok()) {
      budget_.End(claim);
      End(after);
      return status;
    }
    placements = store_.Reserve(request.batch, columns, request.weights_version);
    checked_at = table_.changes();
  }

  const absl::Status written = Write(request.batch, placements);

  Aftermath after;
  MutexLock lock(mu_);
  absl::Status status = written.ok() ? Begin() : written;
  // What was allowed before the copy may not be any more: leases expire, others put.
  if (status.ok() && table_.changes() != checked_at) {
    absl::StatusOr<std::vector<uint32_t>> again = table_.CheckPut(request);
    status = again.status();
    if (again.ok()) columns = *std::move(again);
  }
  budget_.End(claim);
  if (!status.ok()) {
    store_.Abandon(placements);
    End(after);
    return status;
  }
  PutResult result;
  result.rows = Publish(request, columns, placements);
  budget_.CountPut(PayloadOf(request.batch));
  End(after);
  return result;
}

absl::Status Partition::Write(const Batch& batch, std::span<BlockStore::Placement> placements) {
  try {
    BlockStore::Write(batch, blocks_, placements);
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("there is no memory for the ", PayloadOf(batch),
                                                     " bytes of this put; ", blocks_.held->load(),
                                                     " bytes of the partition are held"));
  }
}

std::vector<RowId> Partition::Publish(const PutRequest& request, std::span<uint32_t> columns,
                                      std::span<BlockStore::Placement> placements) {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i] != Schema::kNone && table_.schema()[columns[i]].typed) continue;
    const NamedColumn& given = request.batch.columns()[i];
    const ColumnSpec spec{given.name, given.column.type()};
    table_.Apply(ColumnAdded{&spec});
    columns[i] = table_.schema().Find(given.name);
  }
  const std::vector<CellRef> cells = store_.Publish(request.batch, columns, placements);
  RowsPut event{.columns = columns, .first_cells = cells, .rows = request.rows, .groups = request.groups};
  std::vector<std::shared_ptr<const Tags>> tags;
  for (const Tags& each : request.tags) tags.push_back(std::make_shared<const Tags>(each));
  event.tags = tags;
  event.keys = request.keys;
  std::vector<RowId> rows = request.rows;
  if (rows.empty()) {
    event.new_rows = Table::RowsOf(request);
    event.group_size = table_.GroupSizeFor(request);
    rows.resize(static_cast<size_t>(event.new_rows));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = table_.next_row() + i;
  } else {
    event.partial = request.partial;
    if (!request.keep) (request.partial ? event.returns : event.completes) = request.lease;
    event.step = request.step;
  }
  table_.Apply(event);
  return rows;
}

absl::StatusOr<Partition::Awaited> Partition::AwaitRows(const TakeRequest& request) {
  for (;;) {
    TDOCK_RETURN_IF_ERROR(Begin());
    // It may be dropped, and even come back, during the wait.
    TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, table_.FindConsumer(request.consumer));
    TDOCK_RETURN_IF_ERROR(table_.CheckTake(consumer, request));
    TDOCK_ASSIGN_OR_RETURN(const int64_t least, table_.LeastToTake(consumer, request.rank, request.min));
    if (table_.consumer(consumer).share(request.rank).takeable.size() >= least) return Awaited{consumer, least};
    if (request.cancel.stop_requested()) {
      return absl::CancelledError(absl::StrCat("the take of consumer '", request.consumer, "' was cancelled"));
    }
    const absl::Time now = clock_.Now();
    if (request.deadline <= now) {
      const bool groups = table_.consumer(consumer).options().unit == Unit::kGroup;
      return absl::DeadlineExceededError(
          absl::StrCat("waited for ", least, groups ? " groups: " : " rows: ", table_.Explain(consumer, now)));
    }
    if (!turns_.empty() && !budget_.FitsRows(*turns_.front(), Use())) {
      TDOCK_RETURN_IF_ERROR(table_.CheckCanCome(consumer, request.rank, least));
    }
    Waiters& waiters = waiters_[consumer];
    Waiters::Waiter waiter{request.rank, least, std::min(request.deadline, table_.leases().NextExpiry())};
    waiters.waiting.push_back(&waiter);
    clock_.Wait(waiters.changed, mu_, waiter.until);
    std::erase(waiters.waiting, &waiter);
  }
}

absl::StatusOr<std::vector<RowId>> Partition::ChooseRows(const TakeRequest& request, uint32_t& consumer) {
  if (!request.rows.empty()) {
    TDOCK_RETURN_IF_ERROR(Begin());
    TDOCK_ASSIGN_OR_RETURN(consumer, table_.FindConsumer(request.consumer));
    TDOCK_RETURN_IF_ERROR(table_.CheckTake(consumer, request));
    TDOCK_RETURN_IF_ERROR(table_.CheckTakeOfRows(consumer, request));
    return request.rows;
  }
  TDOCK_ASSIGN_OR_RETURN(const Awaited awaited, AwaitRows(request));
  consumer = awaited.consumer;
  const auto length_of = [this](CellRef cell) TDOCK_REQUIRES(mu_) {
    const Block& block = *store_.BlockOf(cell);
    return static_cast<int64_t>(block.Row(store_.RowOf(cell)).size()) / std::max<int64_t>(block.shape().item_bytes, 1);
  };
  return table_.Choose(consumer, request.rank, awaited.least, request.max, *samplers_, length_of);
}

absl::StatusOr<Taken> Partition::Take(const TakeRequest& request) {
  // Outlives the lock: it waits for a callback that runs, which waits for the lock.
  const std::stop_callback cancelled(request.cancel, [this] { WakeAll(); });
  Aftermath after;
  MutexLock lock(mu_);
  uint32_t consumer = 0;
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, ChooseRows(request, consumer));
  Taken taken;
  // Before the rows are taken, because rows that are done at once may be released at once.
  const std::vector<uint32_t> columns = ColumnsFor(consumer);
  RowsData data = View(rows, columns, table_.consumer(consumer).writes());
  data.columns = SpecOf(consumer, columns);
  data.redeliveries = table_.RedeliveriesOf(consumer, rows);
  taken.rows = Rows(std::move(data));
  if (table_.consumer(consumer).options().at_most_once) {
    table_.Apply(RowsTaken{consumer, request.rank, kNoLease, rows});
    End(after);
    return taken;
  }
  const absl::Time now = clock_.Now();
  taken.lease = table_.leases().Next();
  taken.expires = now + table_.consumer(consumer).options().lease_duration;
  table_.Apply(RowsTaken{consumer, request.rank, taken.lease, rows, now, taken.expires});
  Waiters& waiters = waiters_[consumer];
  const bool expires_first = std::any_of(waiters.waiting.begin(), waiters.waiting.end(),
                                         [&](const Waiters::Waiter* other) { return taken.expires < other->until; });
  // They may get these rows when the lease ends, and have to look then.
  if (expires_first) after.wake.push_back(&waiters.changed);
  return taken;
}

std::vector<uint32_t> Partition::ColumnsFor(uint32_t consumer) const {
  std::vector<uint32_t> columns = table_.consumer(consumer).reads();
  for (uint32_t column : table_.consumer(consumer).reads_optional()) {
    if (table_.schema()[column].typed) columns.push_back(column);
  }
  return columns;
}

std::shared_ptr<const std::vector<ColumnSpec>> Partition::SpecOf(uint32_t consumer, std::span<const uint32_t> columns) {
  std::shared_ptr<const std::vector<ColumnSpec>>& spec = specs_[consumer];
  if (spec == nullptr || spec->size() != columns.size()) {
    auto fresh = std::make_shared<std::vector<ColumnSpec>>();
    for (uint32_t column : columns) fresh->push_back(table_.schema()[column].spec);
    spec = std::move(fresh);
  }
  return spec;
}

RowsData Partition::View(std::span<const RowId> rows, std::span<const uint32_t> columns,
                         std::span<const uint32_t> writes) {
  RowsData data;
  data.memory = blocks_.memory;
  data.ids.assign(rows.begin(), rows.end());
  data.groups.reserve(rows.size());
  data.cells.reserve(rows.size() * columns.size());
  const std::vector<Place> places = table_.Locate(rows);
  for (const Place& place : places) data.groups.push_back(place.group_id());
  for (size_t i = 0; !table_.labels().empty() && i < rows.size(); ++i) {
    const Labels::Label& label = table_.labels().Of(rows[i]);
    data.keys.push_back(label.key);
    data.tags.push_back(label.tags);
  }
  // All rows take one step of the chase from row to bytes before any takes the next, so that their misses overlap.
  std::vector<CellRef> cells(rows.size());
  std::vector<const std::shared_ptr<Block>*> blocks(rows.size());
  for (uint32_t column : columns) {
    const bool writer = std::find(writes.begin(), writes.end(), column) != writes.end();
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
    }
  }
  return data;
}

absl::StatusOr<Rows> Partition::Fetch(const FetchRequest& request) {
  const std::stop_callback cancelled(request.cancel, [this] { WakeAll(); });
  MutexLock lock(mu_);
  for (;;) {
    TDOCK_RETURN_IF_ERROR(Begin());
    TDOCK_ASSIGN_OR_RETURN(const Table::FetchPlan plan, table_.CheckFetch(request));
    if (plan.missing_cells == 0) {
      auto spec = std::make_shared<std::vector<ColumnSpec>>();
      for (uint32_t column : plan.columns) spec->push_back(table_.schema()[column].spec);
      RowsData data = View(request.rows, plan.columns, {});
      data.columns = std::move(spec);
      return Rows(std::move(data));
    }
    if (request.cancel.stop_requested()) return absl::CancelledError("the fetch was cancelled");
    const absl::Time now = clock_.Now();
    if (request.deadline <= now) return absl::DeadlineExceededError(table_.ExplainFetch(request, plan, now));
    ++fetches_waiting_;
    // Every change wakes every fetch, and most changes are of other cells.
    do {
      clock_.Wait(cells_put_, mu_, request.deadline);
    } while (!dropped_ && !request.cancel.stop_requested() && clock_.Now() < request.deadline &&
             table_.Lacks(plan.missing_row, plan.missing_column));
    --fetches_waiting_;
  }
}

absl::Status Partition::Complete(const LeaseRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, table_.CheckLease(request));
  TDOCK_RETURN_IF_ERROR(table_.CheckStep(request.lease, request.step));
  table_.Apply(RowsCompleted{request.lease, rows, request.step});
  End(after);
  return absl::OkStatus();
}

absl::Status Partition::Release(const LeaseRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, table_.CheckLease(request));
  table_.Apply(RowsReturned{request.lease, rows});
  End(after);
  return absl::OkStatus();
}

absl::StatusOr<absl::Time> Partition::Renew(LeaseId lease) {
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const Lease* found, table_.FindLease(lease));
  const absl::Time expires = clock_.Now() + table_.consumer(found->consumer).options().lease_duration;
  table_.Apply(LeaseRenewed{lease, expires});
  return expires;
}

absl::Status Partition::Drop(const LeaseRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, table_.CheckDrop(request));
  table_.Apply(RowsDropped{rows});
  End(after);
  return absl::OkStatus();
}

absl::Status Partition::Requeue(const RequeueRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, table_.FindConsumer(request.consumer));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, table_.CheckRequeue(request));
  table_.Apply(RowsRequeued{consumer, rows});
  End(after);
  return absl::OkStatus();
}

absl::Status Partition::Commit(const StepRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, table_.CheckCommit(request));
  table_.Apply(StepCommitted{consumer, request.step});
  End(after);
  return absl::OkStatus();
}

absl::Status Partition::Rollback(const StepRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, table_.CheckRollback(request));
  table_.Apply(StepsRolledBack{consumer, request.step});
  End(after);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowId>> Partition::FindRows(std::span<const std::string> keys) {
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  return table_.FindRows(keys);
}

absl::StatusOr<ListResult> Partition::List(const ListRequest& request) {
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  return table_.List(request);
}

absl::Status Partition::Seal() {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  if (table_.sealed()) return absl::OkStatus();
  TDOCK_RETURN_IF_ERROR(table_.CheckSeal());
  table_.Apply(SealChanged{true});
  End(after);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Partition::Clear(const ClearRequest& request) {
  Aftermath after;
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const Table::ClearPlan plan, table_.CheckClear(request));
  table_.Apply(RowsCleared{plan.rows, plan.groups});
  if (request.everything && table_.sealed()) table_.Apply(SealChanged{false});
  End(after);
  return static_cast<int64_t>(plan.rows.size());
}

absl::StatusOr<PartitionStatus> Partition::GetStatus() {
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  PartitionStatus status = table_.Status();
  status.held_bytes = blocks_.held->load();
  return status;
}

absl::StatusOr<ConsumerStatus> Partition::GetConsumerStatus(absl::string_view consumer) {
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, table_.FindConsumer(consumer));
  return table_.StatusOf(index);
}

absl::StatusOr<std::string> Partition::Explain(absl::string_view consumer) {
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin());
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, table_.FindConsumer(consumer));
  return table_.Explain(index, clock_.Now());
}

}  // namespace tdock
