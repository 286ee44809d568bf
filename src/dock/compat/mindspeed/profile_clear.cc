// How indexes are cleared, what is carried over, and status.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/compat/mindspeed/profile.h"

namespace tdock::mindspeed {

// ---- Clearing.

absl::StatusOr<bool> Profile::Empty(const Snapshot& snapshot, const std::vector<bool>& emptied, Generation next,
                                    std::vector<bool> complete) {
  const Generation& old = *snapshot.generation;
  std::vector<RowId> cleared;
  for (size_t i = 0; i < emptied.size(); ++i) {
    if (emptied[i]) cleared.push_back(old.rows[i]);
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<RowId> fresh, NewRows(static_cast<int64_t>(cleared.size())));
  // In `next`, the rows to be cleared are still at their positions.
  absl::flat_hash_map<RowId, RowId> replacement;
  for (size_t i = 0; i < cleared.size(); ++i) replacement[cleared[i]] = fresh[i];
  for (size_t i = 0; i < next.rows.size(); ++i) {
    const auto it = replacement.find(next.rows[i]);
    if (it != replacement.end()) {
      next.rows[i] = it->second;
      complete[i] = false;
    }
    next.index_of[next.rows[i]] = static_cast<int64_t>(i);
  }
  const Snapshot changed{std::make_shared<const Generation>(std::move(next)),
                         std::make_shared<const std::vector<bool>>(std::move(complete))};
  bool current = false;
  {
    MutexLock lock(mu_);
    current = now_.generation == snapshot.generation && now_.complete == snapshot.complete;
    if (current) {
      now_ = changed;
      for (auto& held : held_) {
        for (const RowId row : cleared) held.erase(row);
      }
    }
  }
  // Callers that still have the old rows get an error from here on.
  TDOCK_RETURN_IF_ERROR(
      dock_->Clear({.partition = options_.partition, .rows = current ? std::move(cleared) : std::move(fresh)})
          .status());
  NoteChange();
  return current;
}

absl::StatusOr<bool> Profile::ClearAll(const Snapshot& snapshot) {
  const std::vector<bool> all(static_cast<size_t>(max_len_), true);
  const std::vector<int32_t> ages(static_cast<size_t>(max_len_), 0);
  return Empty(snapshot, all, {.rows = snapshot.generation->rows, .index_of = {}, .ages = ages}, *snapshot.complete);
}

// The largest age in each group; -1: all its rows are cleared.
std::vector<int32_t> Profile::GroupAges(const Generation& generation, const std::vector<bool>& emptied, int64_t n) {
  const size_t size = static_cast<size_t>(n);
  std::vector<int32_t> age_of(generation.ages.size() / size, -1);
  for (size_t i = 0; i < generation.ages.size(); ++i) {
    if (!emptied[i]) age_of[i / size] = std::max(age_of[i / size], generation.ages[i]);
  }
  return age_of;
}

// The old groups in their new order. Cleared ones come last: the feeder puts the next prompts at the end.
std::vector<size_t> Profile::OldestFirst(const std::vector<int32_t>& age_of) {
  std::vector<size_t> order(age_of.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return age_of[a] > age_of[b]; });
  return order;
}

absl::StatusOr<bool> Profile::CarryOver(const Snapshot& snapshot, const Consumer& consumer) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<bool> trained, Filter(*snapshot.generation, consumer.options.name, {}));
  trained.flip();
  if (std::find(trained.begin(), trained.end(), true) == trained.end()) return true;
  std::vector<bool> older(trained.size());
  if (CheckColumns({"input_ids"}).ok()) {
    TDOCK_ASSIGN_OR_RETURN(older, Filter(*snapshot.generation, {}, {"input_ids"}));
  }
  Generation aged = *snapshot.generation;
  for (size_t i = 0; i < aged.ages.size(); ++i) aged.ages[i] += older[i] ? 1 : 0;
  Generation next;
  std::vector<bool> complete;
  const std::vector<int32_t> age_of = GroupAges(aged, trained, n_);
  for (const size_t group : OldestFirst(age_of)) {
    const size_t first = group * static_cast<size_t>(n_);
    for (size_t i = first; i < first + static_cast<size_t>(n_); ++i) {
      next.rows.push_back(aged.rows[i]);
      next.ages.push_back(std::max(age_of[group], 0));
      complete.push_back((*snapshot.complete)[i]);
    }
  }
  return Empty(snapshot, trained, std::move(next), std::move(complete));
}

absl::Status Profile::Clear(absl::string_view name) {
  const Consumer* consumer = nullptr;
  // A dock without consumers is cleared by the name that is the default.
  if (partial_rollout_ || !consumers_.empty()) {
    TDOCK_ASSIGN_OR_RETURN(consumer, FindConsumer(name));
  }
  for (bool cleared = false; !cleared;) {
    // Another clear may come between; then it is repeated for the current rows.
    TDOCK_ASSIGN_OR_RETURN(cleared, partial_rollout_ ? CarryOver(Look(), *consumer) : ClearAll(Look()));
  }
  MutexLock lock(mu_);
  next_request_ = 0;
  metrics_.clear();
  return absl::OkStatus();
}

absl::Status Profile::ClearIndexes(const std::optional<std::vector<int64_t>>& indexes) {
  if (indexes.has_value()) TDOCK_RETURN_IF_ERROR(CheckIndexes(*indexes));
  for (bool cleared = false; !cleared;) {
    const Snapshot snapshot = Look();
    std::vector<bool> emptied(static_cast<size_t>(max_len_), !indexes.has_value());
    for (const int64_t index : indexes.value_or(std::vector<int64_t>())) emptied[static_cast<size_t>(index)] = true;
    std::vector<int32_t> ages = snapshot.generation->ages;
    for (size_t i = 0; i < ages.size(); ++i) ages[i] = emptied[i] ? 0 : ages[i];
    TDOCK_ASSIGN_OR_RETURN(
        cleared, Empty(snapshot, emptied, {.rows = snapshot.generation->rows, .index_of = {}, .ages = std::move(ages)},
                       *snapshot.complete));
  }
  return absl::OkStatus();
}

// ---- Status.

absl::StatusOr<bool> Profile::AllConsumed(absl::string_view name) {
  TDOCK_ASSIGN_OR_RETURN(const Consumer* consumer, FindConsumer(name));
  if (!consumer->resumes) {
    TDOCK_ASSIGN_OR_RETURN(const int64_t consumed, CountConsumed(*consumer));
    return consumed >= (partial_rollout_ ? options_.gbs_train * n_ : max_len_);
  }
  // In order, so that none overwrites what a later one has read.
  MutexLock check(checking_);
  const Snapshot snapshot = Look();
  TDOCK_ASSIGN_OR_RETURN(std::vector<bool> complete, Filter(*snapshot.generation, {}, {"responses"}));
  int64_t groups = 0;
  for (int64_t first = 0; first < max_len_; first += n_) {
    const auto begin = complete.begin() + first;
    const bool all = std::find(begin, begin + n_, false) == begin + n_;
    if (!all) std::fill(begin, begin + n_, false);
    groups += all ? 1 : 0;
  }
  bool changed = false;
  {
    MutexLock lock(mu_);
    if (now_.generation == snapshot.generation) {
      changed = complete != *now_.complete;
      if (changed) now_.complete = std::make_shared<const std::vector<bool>>(std::move(complete));
    }
  }
  if (changed) NoteChange();
  return groups >= options_.gbs_train;
}

absl::StatusOr<std::optional<std::vector<int64_t>>> Profile::PrefetchRequestIndex(int64_t count) {
  if (count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("asked for ", count, " row numbers; ask for at least 1"));
  }
  MutexLock lock(mu_);
  if (next_request_ == max_len_) return std::nullopt;
  std::vector<int64_t> indexes(static_cast<size_t>(std::min(count, max_len_ - next_request_)));
  std::iota(indexes.begin(), indexes.end(), next_request_);
  next_request_ += static_cast<int64_t>(indexes.size());
  return indexes;
}

absl::StatusOr<int64_t> Profile::GetIncompleteResponseNum() {
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, dock_->GetStatus(options_.partition));
  int64_t prompts = 0, complete = 0;
  for (const ColumnStatus& column : status.columns) {
    if (column.name == "prompts") prompts = column.ready_cells;
    if (column.name == "responses") complete = column.ready_cells;
  }
  return prompts - complete;
}

absl::StatusOr<std::map<std::string, ReadyCells>> Profile::GetExperienceData() {
  const Snapshot snapshot = Look();
  std::map<std::string, ReadyCells> data;
  for (const std::string& name : columns_) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<bool> ready, Filter(*snapshot.generation, {}, {name}));
    FetchRequest request{.partition = options_.partition, .columns = {name}};
    std::vector<int64_t> indexes;
    for (size_t i = 0; i < ready.size(); ++i) {
      if (!ready[i]) continue;
      indexes.push_back(static_cast<int64_t>(i));
      request.rows.push_back(snapshot.generation->rows[i]);
    }
    if (indexes.empty()) continue;
    TDOCK_ASSIGN_OR_RETURN(const Rows rows, dock_->Fetch(request));
    TDOCK_ASSIGN_OR_RETURN(Column column, rows.ToColumn(name));
    data.emplace(name, ReadyCells{std::move(indexes), std::move(column)});
  }
  return data;
}

absl::StatusOr<std::map<std::string, std::vector<bool>>> Profile::GetExperienceStatus() {
  const Snapshot snapshot = Look();
  std::map<std::string, std::vector<bool>> status;
  for (const std::string& name : columns_) {
    TDOCK_ASSIGN_OR_RETURN(status[name], Filter(*snapshot.generation, {}, {name}));
  }
  return status;
}

absl::StatusOr<std::map<std::string, std::vector<bool>>> Profile::GetConsumerStatus() {
  for (;;) {
    const Snapshot snapshot = Look();
    std::map<std::string, std::vector<bool>> status;
    for (const auto& consumer : consumers_) {
      std::vector<bool>& consumed = status[consumer->options.name];
      TDOCK_ASSIGN_OR_RETURN(consumed, Filter(*snapshot.generation, consumer->options.name, {}));
      consumed.flip();
    }
    // Rows that were cleared meanwhile look as if they were handed out.
    if (Look().generation == snapshot.generation) return status;
  }
}

std::vector<int32_t> Profile::GetAges() { return Look().generation->ages; }

// ---- Metrics.

std::map<std::string, std::vector<double>> Profile::GetMetrics() {
  MutexLock lock(mu_);
  return metrics_;
}

void Profile::UpdateMetrics(absl::string_view key, double value, bool cumulate) {
  MutexLock lock(mu_);
  std::vector<double>& values = metrics_[std::string(key)];
  if (!cumulate) values.clear();
  values.push_back(value);
}

}  // namespace tdock::mindspeed
