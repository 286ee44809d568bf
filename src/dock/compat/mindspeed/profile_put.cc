// Puts, and which consumers they complete.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/compat/mindspeed/integers.h"
#include "dock/compat/mindspeed/profile.h"

namespace tdock::mindspeed {
namespace {

constexpr char kResponses[] = "responses";
constexpr char kCompleted[] = "rollout_completed";

template <class Keep>
absl::StatusOr<Batch> ColumnsWhere(const Batch& batch, Keep keep) {
  std::vector<std::string> names;
  for (const NamedColumn& column : batch.columns()) {
    if (keep(column.name)) names.push_back(column.name);
  }
  return batch.Select(names);
}

// For each row its last position.
std::vector<int64_t> LastPositions(std::span<const RowId> rows) {
  absl::flat_hash_map<RowId, int64_t> last;
  for (size_t i = 0; i < rows.size(); ++i) last[rows[i]] = static_cast<int64_t>(i);
  std::vector<int64_t> positions;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (last[rows[i]] == static_cast<int64_t>(i)) positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

std::vector<RowId> RowsAt(std::span<const RowId> rows, std::span<const int64_t> positions) {
  std::vector<RowId> selected;
  for (const int64_t position : positions) selected.push_back(rows[static_cast<size_t>(position)]);
  return selected;
}

bool IsOver(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition || status.code() == absl::StatusCode::kNotFound;
}

}  // namespace

absl::Status Profile::PutExperience(const Batch& batch, const ExperienceIndexes& indexes, const PutOptions& options) {
  if (batch.empty()) return absl::InvalidArgumentError("the batch has no columns");
  const bool responses = partial_rollout_ && batch.Find(kResponses) != nullptr;
  std::vector<std::string> names;
  for (const NamedColumn& column : batch.columns()) {
    if (!responses || column.name != kCompleted) names.push_back(column.name);
  }
  TDOCK_RETURN_IF_ERROR(CheckColumns(names));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, Resolve(indexes));
  const int64_t count = static_cast<int64_t>(rows.size());
  if (batch.rows() != count && batch.rows() != count + indexes.padding_rows) {
    return absl::InvalidArgumentError(absl::StrCat("the batch has ", batch.rows(), " rows for ", count, " indexes and ",
                                                   indexes.padding_rows, " rows of padding; give one for each index"));
  }
  TDOCK_ASSIGN_OR_RETURN(Batch cells, batch.Slice(0, count));
  Target target{.rows = rows, .lease = indexes.lease, .keep = options.keep};
  if (const std::vector<int64_t> last = LastPositions(rows); last.size() < rows.size()) {
    TDOCK_ASSIGN_OR_RETURN(cells, cells.SelectRows(last));
    target.rows = RowsAt(rows, last);
  }
  const absl::Status status = responses ? PutResponses(cells, target) : PutCells(cells, target);
  NoteChange();
  return InIndexes(status, indexes.indexes, rows);
}

absl::Status Profile::PutCells(const Batch& batch, const Target& target) {
  TDOCK_RETURN_IF_ERROR(dock_->Fill({.partition = options_.partition,
                                     .batch = batch,
                                     .rows = target.rows,
                                     .lease = target.lease,
                                     .keep = target.keep && target.lease != kNoLease,
                                     .overwrite = true}));
  if (target.keep) return absl::OkStatus();
  if (target.lease == kNoLease) return CompleteHolders(batch, target.rows);
  ForgetLease(target.lease, target.rows);
  return absl::OkStatus();
}

// ---- Unfinished responses.

absl::Status Profile::PutResponses(const Batch& batch, const Target& target) {
  const Column* const flags = batch.Find(kCompleted);
  if (flags == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("with max_age above 1, a put of '", kResponses,
                                                   "' needs the column '", kCompleted,
                                                   "': 1 in each row that is finished, 0 in the others"));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> completed, IntegersOf(kCompleted, *flags));
  TDOCK_ASSIGN_OR_RETURN(const Consumer* rollout, FindConsumer("actor_rollout"));
  TDOCK_RETURN_IF_ERROR(CheckHeld(*rollout, target));
  std::vector<int64_t> finished, unfinished;
  for (size_t i = 0; i < completed.size(); ++i) {
    if (completed[i] != 0 && completed[i] != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", kCompleted, "' of row ", i, " is ", completed[i], "; it must be 0 or 1"));
    }
    (completed[i] == 1 ? finished : unfinished).push_back(static_cast<int64_t>(i));
  }
  if (target.keep && !unfinished.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row ", unfinished.front(), " is unfinished: putting it gives the row back, so keep must be false"));
  }
  TDOCK_ASSIGN_OR_RETURN(const Batch cells, ColumnsWhere(batch, [](const auto& name) { return name != kCompleted; }));
  const auto put = [&](std::span<const int64_t> positions, auto method) -> absl::Status {
    if (positions.empty()) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(const Batch part, cells.SelectRows(positions));
    return (this->*method)(part, {RowsAt(target.rows, positions), target.lease, target.keep});
  };
  // Unfinished ones first: they can be refused.
  TDOCK_RETURN_IF_ERROR(put(unfinished, &Profile::PutUnfinished));
  return put(finished, &Profile::PutFinished);
}

// Two puts of the dock follow: errors that can be foreseen must be reported before the first.
absl::Status Profile::CheckHeld(const Consumer& consumer, const Target& target) {
  if (target.lease == kNoLease) return absl::OkStatus();
  MutexLock lock(mu_);
  const auto& held = held_[consumer.number];
  for (const RowId row : target.rows) {
    const auto it = held.find(row);
    if (it != held.end() && it->second == target.lease) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("consumer '", consumer.options.name, "' does not hold row ", row, " under lease ", target.lease));
  }
  return absl::OkStatus();
}

absl::Status Profile::PutUnfinished(const Batch& batch, const Target& target) {
  TDOCK_ASSIGN_OR_RETURN(const Batch response, ColumnsWhere(batch, IsResumed));
  TDOCK_ASSIGN_OR_RETURN(const Batch others, ColumnsWhere(batch, [](const auto& name) { return !IsResumed(name); }));
  const FillRequest partial{
      .partition = options_.partition, .batch = response, .rows = target.rows, .lease = target.lease, .partial = true};
  const auto put_others = [&]() -> absl::Status {
    if (others.empty()) return absl::OkStatus();
    return PutCells(others, {target.rows, target.lease, /*keep=*/true});
  };
  if (target.lease != kNoLease) {
    // The second put gives the rows back; from then on another consumer may hold them.
    TDOCK_RETURN_IF_ERROR(put_others());
    TDOCK_RETURN_IF_ERROR(dock_->Fill(partial));
    ForgetLease(target.lease, target.rows);
    return absl::OkStatus();
  }
  TDOCK_RETURN_IF_ERROR(dock_->Fill(partial));
  TDOCK_RETURN_IF_ERROR(put_others());
  TDOCK_ASSIGN_OR_RETURN(const Consumer* rollout, FindConsumer("actor_rollout"));
  return EndHeld(*rollout, target.rows, &Dock::Release);
}

absl::Status Profile::PutFinished(const Batch& batch, const Target& target) {
  TDOCK_RETURN_IF_ERROR(PutCells(batch, target));
  if (target.lease != kNoLease || target.keep) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const Consumer* rollout, FindConsumer("actor_rollout"));
  TDOCK_RETURN_IF_ERROR(EndHeld(*rollout, target.rows, &Dock::Complete));
  // Whichever call wrote them, they need no more rollout.
  TDOCK_ASSIGN_OR_RETURN(const Taken taken, TakeUnconsumed(*rollout, target.rows));
  return taken.lease == kNoLease ? absl::OkStatus() : dock_->Complete(Lease(taken.lease));
}

// ---- Held rows.

Profile::HeldRows Profile::TakeHeld(const Consumer& consumer, std::span<const RowId> rows) {
  HeldRows by_lease;
  MutexLock lock(mu_);
  auto& held = held_[consumer.number];
  for (const RowId row : rows) {
    const auto it = held.find(row);
    if (it == held.end()) continue;
    by_lease[it->second].push_back(row);
    held.erase(it);
  }
  return by_lease;
}

void Profile::ForgetLease(LeaseId lease, std::span<const RowId> rows) {
  MutexLock lock(mu_);
  for (auto& held : held_) {
    for (const RowId row : rows) {
      const auto it = held.find(row);
      if (it != held.end() && it->second == lease) held.erase(it);
    }
  }
}

absl::Status Profile::EndHeld(const Consumer& consumer, std::span<const RowId> rows, LeaseCall call) {
  for (auto& [lease, held] : TakeHeld(consumer, rows)) {
    // Rows of an expired lease have come back, and will be handed out again.
    const absl::Status status = ((*dock_).*call)(Lease(lease, std::move(held)));
    if (!status.ok() && !IsOver(status)) return status;
  }
  return absl::OkStatus();
}

absl::Status Profile::CompleteHolders(const Batch& batch, std::span<const RowId> rows) {
  for (const auto& consumer : consumers_) {
    const std::vector<std::string>& writes = consumer->options.writes;
    // Only responses determine whether a rollout is finished.
    const bool writer = !consumer->resumes && std::any_of(writes.begin(), writes.end(), [&](const auto& name) {
      return batch.Find(name) != nullptr;
    });
    if (writer) TDOCK_RETURN_IF_ERROR(EndHeld(*consumer, rows, &Dock::Complete));
  }
  return absl::OkStatus();
}

absl::Status Profile::EndLeases(absl::string_view name, const ExperienceIndexes& indexes, LeaseCall call) {
  TDOCK_ASSIGN_OR_RETURN(const Consumer* consumer, FindConsumer(name));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> rows, Resolve(indexes));
  absl::Status status;
  if (indexes.lease != kNoLease) {
    TDOCK_RETURN_IF_ERROR(CheckHeld(*consumer, {.rows = rows, .lease = indexes.lease}));
    status = ((*dock_).*call)(Lease(indexes.lease, rows));
    if (status.ok()) ForgetLease(indexes.lease, rows);
  } else {
    HeldRows held = TakeHeld(*consumer, rows);
    if (held.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("consumer '", name, "' holds none of these ", rows.size(), " indexes"));
    }
    for (auto& [lease, of_lease] : held) status.Update(((*dock_).*call)(Lease(lease, std::move(of_lease))));
  }
  NoteChange();
  return InIndexes(status, indexes.indexes, rows);
}

absl::Status Profile::Complete(absl::string_view consumer, const ExperienceIndexes& indexes) {
  return EndLeases(consumer, indexes, &Dock::Complete);
}

absl::Status Profile::Release(absl::string_view consumer, const ExperienceIndexes& indexes) {
  return EndLeases(consumer, indexes, &Dock::Release);
}

// ---- Prompts.

absl::StatusOr<ExperienceIndexes> Profile::PutPromptsExperience(const Batch& batch, const PromptsOptions& options) {
  if (options.indexes.has_value() && options.add_another_batch) {
    return absl::InvalidArgumentError(
        "give indexes or add_another_batch, not both: each determines where the prompts go");
  }
  TDOCK_ASSIGN_OR_RETURN(const Column prompts, batch.Get("prompts"));
  TDOCK_ASSIGN_OR_RETURN(Batch samples, RepeatPrompts(prompts, n_));
  std::vector<int64_t> repeated;
  for (int64_t sample = 0; sample < samples.rows(); ++sample) repeated.push_back(sample / n_);
  for (const std::string& name : options.dataset_additional_keys) {
    const Column* const column = batch.Find(name);
    if (column != nullptr) TDOCK_RETURN_IF_ERROR(samples.Add(name, column->Select(repeated)));
  }
  std::vector<int64_t> indexes(repeated.size());
  std::iota(indexes.begin(), indexes.end(), options.add_another_batch ? samples.rows() : 0);
  if (options.indexes.has_value()) indexes = *options.indexes;
  TDOCK_RETURN_IF_ERROR(PutExperience(samples, indexes, {}));
  return ExperienceIndexes(std::move(indexes));
}

}  // namespace tdock::mindspeed
