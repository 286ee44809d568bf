#include "dock/local/partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/table/table_text.h"

namespace tdock::dock {

void Partition::WakeAll(WakeList wake, WorkQueue* work) {
  // More than this many calls take long.
  constexpr size_t kFew = 32;
  // The list grows meanwhile: a call that has checked may leave units or room to others.
  for (size_t i = 0; i < wake.size(); ++i) {
    if (i == kFew && work != nullptr) {
      wake.erase(wake.begin(), wake.begin() + kFew);
      work->Post(work, [wake = std::move(wake), work]() mutable { WakeAll(std::move(wake), work); });
      return;
    }
    const std::shared_ptr<Waiter> waiter = std::move(wake[i]);
    waiter->Look(wake);
  }
}

Partition::Cleanup::~Cleanup() {
  if (!wake.empty()) {
    // No thread waits for what other calls do when they look.
    std::erase_if(wake, [](const std::shared_ptr<Waiter>& waiter) { return waiter->WakeThread(); });
    if (more == nullptr) {
      WakeAll(std::move(wake), partition.work_);
    } else {
      more->insert(more->end(), wake.begin(), wake.end());
    }
  }
  if (compactions.empty()) return;
  constexpr int64_t kMuchToCopy = 1 << 20;
  int64_t bytes = 0;
  for (const BlockStore::Compaction& compaction : compactions) bytes += compaction.block->bytes();
  if (bytes <= kMuchToCopy || partition.work_ == nullptr || WorkQueue::OnWorker()) {
    partition.Compact(std::move(compactions));
    return;
  }
  partition.work_->Post(&partition, [self = partition.shared_from_this(),
                                     taken = std::make_shared<std::vector<BlockStore::Compaction>>(
                                         std::move(compactions))] { self->Compact(std::move(*taken)); });
}

void Partition::Compact(std::vector<BlockStore::Compaction> compactions) {
  // While a block is copied, so many of its rows may be removed that the copy is sparse, too.
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

absl::Status Partition::Begin(Cleanup& cleanup) {
  if (dropped_) return absl::NotFoundError(absl::StrCat("partition '", table_->options.name, "' was dropped"));
  if (table_->leases.NextExpiry() == absl::InfiniteFuture()) return absl::OkStatus();
  const absl::Time now = clock_.Now();
  bool any = false;
  while (const std::optional<LeaseId> lease = table_->leases.NextExpired(now)) {
    table_.Apply(LeaseExpired{*lease});
    any = true;
  }
  if (any) ChooseWakes(cleanup.wake);
  if (any) NoteLoad();
  return absl::OkStatus();
}

void Partition::End(Cleanup& cleanup) {
  const std::vector<CellRef> removed = table_.TakeRemovedCells(), replaced = table_.TakeReplacedCells();
  if (budget_.limits_bytes()) {
    for (CellRef cell : removed) budget_.CountGone(BytesOf(cell));
    for (CellRef cell : replaced) budget_.CountPut(-BytesOf(cell));
  }
  store_.Drop(removed);
  store_.Drop(replaced);
  store_.LookForSparse(blocks_.memory->IsScarce());
  cleanup.garbage = store_.TakeGarbage();
  cleanup.compactions = store_.TakeCompactions();
  ChooseWakes(cleanup.wake);
  NoteLoad();
}

void Partition::NoteLoad() {
  const auto note = [](std::atomic<int64_t>& noted, auto value) {
    noted.store(static_cast<int64_t>(value), std::memory_order_relaxed);
  };
  note(rows_, table_->pages.rows());
  note(columns_, table_->schema.size());
  note(consumers_, table_->registered.size() + table_->options.retain_for.size());
  note(group_size_, table_->largest_group);
  note(next_expiry_ns_, absl::ToUnixNanos(table_->leases.NextExpiry()));
}

ServedDock::Load Partition::LoadNow() const {
  ServedDock::Load load{.busy = long_under_way_ > 0,
                        .scarce = blocks_.memory->IsScarce(),
                        .rows = rows_,
                        .columns = columns_,
                        .consumers = consumers_,
                        .group_size = group_size_};
  const int64_t next_expiry_ns = next_expiry_ns_;
  // The next call ends expired leases, however many rows they hold.
  if (next_expiry_ns != INT64_MAX) load.busy |= absl::ToUnixNanos(clock_.Now()) >= next_expiry_ns;
  return load;
}

ServedDock::Load Partition::LoadOf(LeaseId lease) {
  ServedDock::Load load = LoadNow();
  if (load.busy || lease == kNoLease) return load;
  MutexLock lock(mu_);
  if (const Lease* const found = table_->leases.Find(lease); found != nullptr) load.held_rows = found->held;
  return load;
}

std::shared_ptr<void> Partition::BeginLong(std::shared_ptr<Partition> partition) {
  ++partition->long_under_way_;
  Partition* const raw = partition.get();
  return std::shared_ptr<void>(raw, [partition = std::move(partition)](void*) { --partition->long_under_way_; });
}

absl::Status Partition::Matches(const PartitionOptions& options) {
  MutexLock lock(mu_);
  const std::string differences = Differences(table_->options, options);
  if (differences.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("partition '", options.name, "' exists with different ", differences));
}

absl::Status Partition::CheckSamplerThere(const ConsumerOptions& options) const {
  if (options.sampler != Sampler::kCustom || samplers_->contains(options.custom_sampler)) return absl::OkStatus();
  std::vector<std::string> names;
  for (const auto& [name, sampler] : *samplers_) names.push_back(name);
  return absl::InvalidArgumentError(
      absl::StrCat("consumer '", options.name, "': there is no sampler '", EscapeForMessage(options.custom_sampler),
                   "'; the dock was given ", names.empty() ? "none" : EscapeUnprintable(absl::StrJoin(names, ", "))));
}

absl::Status Partition::On(verbs::RegisterConsumer, const RegisterRequest& request, Cleanup&) {
  const ConsumerOptions& options = request.options;
  TDOCK_ASSIGN_OR_RETURN(const bool is_new, CheckConsumer(*table_, options));
  if (!is_new) return absl::OkStatus();
  TDOCK_RETURN_IF_ERROR(CheckSamplerThere(options));
  table_.Apply(ConsumerRegistered{options});
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(*table_, options.name));
  if (index == specs_.size()) specs_.emplace_back();
  specs_[index] = nullptr;
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::DropConsumer, const ConsumerRequest& request, Cleanup& cleanup) {
  TDOCK_RETURN_IF_ERROR(CheckDropConsumer(*table_, request.consumer));
  // Calls that wait for its rows will fail, as it no longer exists.
  if (const auto index = FindConsumer(*table_, request.consumer); index.ok()) waits_.WakeTakes(*index, cleanup.wake);
  table_.Apply(ConsumerDropped{request.consumer});
  if (const std::optional<uint32_t> writer = writers_.Find(request.consumer)) store_.CloseFor(*writer);
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::Complete, const LeaseRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, CheckLease(*table_, request));
  TDOCK_RETURN_IF_ERROR(CheckStep(*table_, request.lease, request.step));
  table_.Apply(RowsCompleted{request.lease, rows, request.step});
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::Release, const LeaseRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, CheckLease(*table_, request));
  table_.Apply(RowsReturned{request.lease, rows});
  return absl::OkStatus();
}

absl::StatusOr<absl::Time> Partition::On(verbs::Renew, const LeaseRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const Lease* found, FindLease(*table_, request.lease));
  const absl::Time expires = clock_.Now() + table_->consumer(found->consumer).options().lease_duration;
  table_.Apply(LeaseRenewed{request.lease, expires});
  return expires;
}

absl::Status Partition::ExpireLeases(std::span<const LeaseId> leases) {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  for (LeaseId lease : leases) {
    if (table_->leases.Find(lease) != nullptr) table_.Apply(LeaseExpired{lease});
  }
  End(cleanup);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LeaseId>> Partition::LiveLeases(std::span<const LeaseId> leases) {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  std::vector<LeaseId> live;
  for (LeaseId lease : leases) {
    if (table_->leases.Find(lease) != nullptr) live.push_back(lease);
  }
  return live;
}

absl::Status Partition::On(verbs::Drop, const LeaseRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, CheckDrop(*table_, request));
  table_.Apply(RowsDropped{rows});
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::Requeue, const RequeueRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, FindConsumer(*table_, request.consumer));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, CheckRequeue(*table_, request));
  table_.Apply(RowsRequeued{consumer, rows});
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::Commit, const StepRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, CheckCommit(*table_, request));
  table_.Apply(StepCommitted{consumer, request.step});
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::Rollback, const StepRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t consumer, CheckRollback(*table_, request));
  StaleRows later;
  if (request.weights_version != kNoWeightsVersion) {
    TDOCK_ASSIGN_OR_RETURN(later, FindLater(*table_, request.weights_version, VersionOf()));
  }
  table_.Apply(StepsRolledBack{consumer, request.step});
  if (request.weights_version != kNoWeightsVersion) table_.Apply(WeightsPublished{request.weights_version});
  if (!later.dropped.empty()) table_.Apply(RowsDropped{later.dropped});
  for (const SendBack& plan : later.sent_back) {
    table_.Apply(RowsSentBack{plan.rows, plan.columns, plan.consumers});
  }
  return absl::OkStatus();
}

absl::Status Partition::On(verbs::PublishWeights, const PublishRequest& request, Cleanup&) {
  TDOCK_RETURN_IF_ERROR(CheckPublish(*table_, request.version));
  if (request.version != table_->weights_version) table_.Apply(WeightsPublished{request.version});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowId>> Partition::On(verbs::FindRows, const FindRequest& request, Cleanup&) {
  return FindRows(*table_, request.keys);
}

absl::StatusOr<ListResult> Partition::On(verbs::List, const ListRequest& request, Cleanup&) {
  return List(*table_, request);
}

absl::Status Partition::On(verbs::Seal, const PartitionRequest&, Cleanup&) {
  if (table_->sealed) return absl::OkStatus();
  TDOCK_RETURN_IF_ERROR(CheckSeal(*table_));
  table_.Apply(SealChanged{true});
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Partition::On(verbs::Clear, const ClearRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const ClearPlan plan, CheckClear(*table_, request));
  table_.Apply(RowsCleared{plan.rows, plan.groups});
  if (request.everything && table_->sealed) table_.Apply(SealChanged{false});
  return static_cast<int64_t>(plan.rows.size());
}

absl::StatusOr<PartitionStatus> Partition::On(verbs::GetStatus, const PartitionRequest&, Cleanup&) {
  PartitionStatus status = StatusOf(*table_);
  status.held_bytes = blocks_.held->load();
  return status;
}

absl::StatusOr<ConsumerStatus> Partition::On(verbs::GetConsumerStatus, const ConsumerRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(*table_, request.consumer));
  return table_->consumer(index).status();
}

absl::StatusOr<RowStatus> Partition::On(verbs::GetRowStatus, const RowRequest& request, Cleanup&) {
  return StatusOfRow(*table_, request.row, [this](CellRef cell, RowCellStatus& status) TDOCK_REQUIRES(mu_) {
    const BlockShape& shape = store_.BlockOf(cell)->shape();
    status.bytes = BytesOf(cell);
    status.weights_version = shape.weights_version;
    status.writer = writers_.NameOf(shape.writer);
  });
}

absl::StatusOr<std::string> Partition::On(verbs::Explain, const ConsumerRequest& request, Cleanup&) {
  TDOCK_ASSIGN_OR_RETURN(const uint32_t index, FindConsumer(*table_, request.consumer));
  return Explain(*table_, index, clock_.Now());
}

}  // namespace tdock::dock
