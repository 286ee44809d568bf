// Gets: sampling, taking, reading.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/compat/mindspeed/integers.h"
#include "dock/compat/mindspeed/profile.h"
#include "dock/compat/mindspeed/samplers.h"

namespace tdock::mindspeed {
namespace {

constexpr char kAge[] = "age";
// An expiring lease makes rows takeable without any call, so callers that wait for rows check this often.
constexpr absl::Duration kLookAgain = absl::Seconds(1);
// Sums of such lengths over all rows of a dock fit into int64.
constexpr int64_t kMaxLength = int64_t{1} << 32;

// The rows were taken by another call, or cleared: another choice may work.
bool IsLost(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition || status.code() == absl::StatusCode::kNotFound;
}

// A column of rows of which some have no cell: there it is empty, or zero.
absl::StatusOr<Column> WithBlanks(const Rows& rows, absl::string_view name) {
  const absl::StatusOr<size_t> column = rows.FindColumn(name);
  // The column has never been put.
  const ColumnType type = column.ok()           ? rows.columns()[*column].type
                          : name == "responses" ? ColumnType::Ragged(DType::kI64)
                                                : ColumnType::Dense(DType::kI64, {1});
  TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(type));
  const bool dense = type.kind == ColumnKind::kDense;
  // No response is empty, no length is 0: one number also where lengths are ragged.
  const size_t blank = dense || (name == "response_length" && type.kind == ColumnKind::kRagged) ? item : 0;
  const auto size_of = [&](size_t row) -> size_t {
    return column.ok() && rows.Has(row, *column) ? rows.cell(row, *column).bytes.size() : blank;
  };
  size_t total = 0;
  for (size_t row = 0; row < rows.size(); ++row) total += size_of(row);
  Buffer values = Buffer::Allocate(total);
  Buffer offsets = Buffer::Allocate((rows.size() + 1) * sizeof(int64_t));
  int64_t* const offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  std::byte* end = values.mutable_data();
  offset[0] = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    const size_t size = size_of(row);
    if (!dense) offset[row + 1] = offset[row] + static_cast<int64_t>(size) / item;
    if (size == 0) continue;
    const bool there = column.ok() && rows.Has(row, *column);
    if (there) std::memcpy(end, rows.cell(row, *column).bytes.data(), size);
    if (!there) std::memset(end, 0, size);
    end += size;
  }
  if (dense) return Column::MakeDense(type.dtype, type.row_shape, static_cast<int64_t>(rows.size()), std::move(values));
  if (type.kind == ColumnKind::kBytes) {
    return Column::MakeBytes(std::move(values), std::move(offsets), type.dtype);
  }
  return Column::MakeRagged(type.dtype, type.row_shape, std::move(values), std::move(offsets));
}

}  // namespace

// ---- Requests.

absl::StatusOr<Profile::Wanted> Profile::CheckGet(const Consumer& consumer, const std::vector<std::string>& columns,
                                                  const GetOptions& options) const {
  Wanted wanted{.columns = columns, .needed = {}, .count = 0, .options = options};
  // It is handed its ages in any case.
  if (consumer.resumes) std::erase(wanted.columns, kAge);
  TDOCK_RETURN_IF_ERROR(CheckColumns(wanted.columns));
  if (wanted.columns.empty()) return absl::InvalidArgumentError("name at least one column");
  for (const std::string& name : wanted.columns) {
    if (!consumer.resumes || !IsResumed(name)) wanted.needed.push_back(name);
  }
  if (consumer.resumes && options.get_n_samples) {
    return absl::InvalidArgumentError(
        "with max_age above 1, actor_rollout takes rows, not groups: set get_n_samples to false");
  }
  if (options.dp_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("dp_size is ", options.dp_size, "; it must be at least 1"));
  }
  if (options.target_seq_len.has_value() && !std::isfinite(*options.target_seq_len)) {
    return absl::InvalidArgumentError(
        absl::StrCat("target_seq_len is ", *options.target_seq_len, "; it must be a finite number"));
  }
  if (options.indexes.has_value()) return wanted;
  if (!options.experience_count.has_value()) {
    return absl::InvalidArgumentError("without indexes, give the number of rows: experience_count");
  }
  wanted.count = *options.experience_count;
  if (wanted.count < 1 || wanted.count > max_len_) {
    return absl::InvalidArgumentError(
        absl::StrCat("experience_count is ", wanted.count, "; it must be 1 to ", max_len_));
  }
  if (!partial_rollout_ && max_len_ % wanted.count != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("experience_count is ", wanted.count, "; it must divide the ", max_len_, " rows of the dock"));
  }
  if (options.get_n_samples && wanted.count % n_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("experience_count is ", wanted.count, "; to get whole groups it must be a multiple of ", n_));
  }
  return wanted;
}

absl::StatusOr<std::optional<Experience>> Profile::GetExperience(absl::string_view name,
                                                                 const std::vector<std::string>& columns,
                                                                 const GetOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(Consumer * consumer, FindConsumer(name));
  TDOCK_ASSIGN_OR_RETURN(const Wanted wanted, CheckGet(*consumer, columns, options));
  if (options.indexes.has_value()) {
    TDOCK_ASSIGN_OR_RETURN(Experience named, GetNamed(*consumer, wanted));
    return named;
  }
  const bool waits = options.deadline > clock_.Now();
  for (;;) {
    uint64_t seen = 0;
    {
      MutexLock lock(mu_);
      seen = changes_;
    }
    TDOCK_ASSIGN_OR_RETURN(std::optional<Experience> sampled, GetSampled(*consumer, wanted));
    if (sampled.has_value() || !waits) return sampled;
    TDOCK_ASSIGN_OR_RETURN(const bool served, IsServed(*consumer));
    if (served) return std::nullopt;
    if (!AwaitChange(seen, options.deadline)) return ExplainShortage(*consumer, wanted);
  }
}

absl::StatusOr<bool> Profile::IsServed(const Consumer& consumer) {
  if (consumer.resumes) {
    const Snapshot snapshot = Look();
    return std::count(snapshot.complete->begin(), snapshot.complete->end(), true) >= options_.gbs_train * n_;
  }
  TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status,
                         dock_->GetConsumerStatus(options_.partition, consumer.options.name));
  // Leased rows may come back.
  return status.done >= (partial_rollout_ ? options_.gbs_train * n_ : max_len_);
}

bool Profile::AwaitChange(uint64_t since, absl::Time deadline) {
  const absl::Time look_again = clock_.Now() + kLookAgain;
  MutexLock lock(mu_);
  while (changes_ == since) {
    const absl::Time now = clock_.Now();
    if (now >= deadline) return false;
    if (now >= look_again) return true;
    clock_.Wait(changed_, mu_, std::min(deadline, look_again));
  }
  return true;
}

absl::Status Profile::ExplainShortage(const Consumer& consumer, const Wanted& wanted) {
  const Snapshot snapshot = Look();
  const Generation& generation = *snapshot.generation;
  TDOCK_ASSIGN_OR_RETURN(const std::vector<bool> left, Filter(generation, consumer.options.name, {}));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> units, UsableUnits(consumer, wanted, snapshot));
  std::vector<int64_t> indexes;
  std::vector<RowId> rows;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!left[i]) continue;
    indexes.push_back(static_cast<int64_t>(i));
    rows.push_back(generation.rows[i]);
  }
  std::string text = absl::StrCat("consumer '", consumer.options.name, "' waited for ", wanted.count,
                                  wanted.options.get_n_samples ? " rows in whole groups; " : " rows; ", rows.size(),
                                  " are not consumed, and of these ", units.size(),
                                  wanted.options.get_n_samples ? " groups" : "", " can be had");
  if (partial_rollout_ && !consumer.resumes) {
    absl::StrAppend(&text,
                    ", of those groups that were complete when AllConsumed(\"actor_rollout\") was called last, and ",
                    "until ", options_.gbs_train * n_, " rows are taken");
  }
  if (!rows.empty() && !wanted.needed.empty()) {
    const absl::Status missing =
        dock_->Fetch({.partition = options_.partition, .rows = rows, .columns = wanted.needed}).status();
    if (!missing.ok()) absl::StrAppend(&text, ". ", missing.message());
  }
  return InIndexes(absl::DeadlineExceededError(text), indexes, rows);
}

// ---- Sampling.

absl::StatusOr<std::optional<Experience>> Profile::GetSampled(Consumer& consumer, const Wanted& wanted) {
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(std::optional<Chosen> chosen, TakeSample(consumer, wanted));
    if (!chosen.has_value()) return std::nullopt;
    absl::StatusOr<Batch> batch = HandOver(consumer, wanted, *chosen, absl::InfinitePast());
    if (IsLost(batch.status())) continue;
    if (!batch.ok()) return batch.status();
    Experience experience{.batch = *std::move(batch), .indexes = std::move(chosen->indexes)};
    experience.indexes.rows = std::move(chosen->rows);
    if (consumer.leased()) experience.indexes.lease = chosen->taken.lease;
    const int64_t rows = experience.batch.rows();
    const int64_t dp = wanted.options.dp_size;
    if (!consumer.resumes || rows >= wanted.count || rows % dp == 0) return experience;
    experience.indexes.padding_rows = dp - rows % dp;
    std::vector<int64_t> padded;
    for (int64_t i = 0; i < rows + experience.indexes.padding_rows; ++i) padded.push_back(std::min(i, rows - 1));
    TDOCK_ASSIGN_OR_RETURN(experience.batch, experience.batch.SelectRows(padded));
    return experience;
  }
}

absl::StatusOr<std::optional<Profile::Chosen>> Profile::TakeSample(Consumer& consumer, const Wanted& wanted) {
  MutexLock lock(consumer.sampling);
  for (;;) {
    const Snapshot snapshot = Look();
    Chosen chosen;
    absl::StatusOr<std::vector<int64_t>> indexes = Choose(consumer, wanted, snapshot);
    if (on_sampling_) on_sampling_(consumer.options.name);
    // Rows that were cleared while their lengths were read.
    if (absl::IsNotFound(indexes.status()) && Look().generation != snapshot.generation) continue;
    if (!indexes.ok()) return indexes.status();
    chosen.indexes = *std::move(indexes);
    if (chosen.indexes.empty()) return std::nullopt;
    for (const int64_t index : chosen.indexes) {
      chosen.rows.push_back(snapshot.generation->rows[static_cast<size_t>(index)]);
      chosen.ages.push_back(snapshot.generation->ages[static_cast<size_t>(index)]);
    }
    absl::StatusOr<Taken> taken =
        dock_->Take({.partition = options_.partition, .consumer = consumer.options.name, .rows = chosen.rows});
    if (IsLost(taken.status())) continue;
    if (!taken.ok()) return taken.status();
    chosen.taken = *std::move(taken);
    return chosen;
  }
}

// The first row of each available unit, ascending.
absl::StatusOr<std::vector<int64_t>> Profile::UsableUnits(const Consumer& consumer, const Wanted& wanted,
                                                          const Snapshot& snapshot) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<bool> usable,
                         Filter(*snapshot.generation, consumer.options.name, wanted.needed));
  const bool only_complete = partial_rollout_ && !consumer.resumes;
  const int64_t size = wanted.options.get_n_samples ? n_ : 1;
  std::vector<int64_t> units;
  for (int64_t first = 0; first < max_len_; first += size) {
    bool all = true;
    for (int64_t i = first; i < first + size; ++i) {
      const size_t index = static_cast<size_t>(i);
      all = all && usable[index] && (!only_complete || (*snapshot.complete)[index]);
    }
    if (all) units.push_back(first);
  }
  return units;
}

absl::StatusOr<std::vector<int64_t>> Profile::Choose(Consumer& consumer, const Wanted& wanted,
                                                     const Snapshot& snapshot) {
  const int64_t size = wanted.options.get_n_samples ? n_ : 1;
  if (partial_rollout_ && wanted.options.get_n_samples) {
    TDOCK_ASSIGN_OR_RETURN(const int64_t consumed, CountConsumed(consumer));
    if (consumed >= options_.gbs_train * n_) return std::vector<int64_t>();
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> units, UsableUnits(consumer, wanted, snapshot));
  size_t count = static_cast<size_t>(wanted.count / size);
  if (units.size() < count) {
    if (!consumer.resumes) return std::vector<int64_t>();
    count = units.size();
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<size_t> positions, ChooseUnits(consumer, wanted, snapshot, units, count));
  std::vector<int64_t> indexes;
  for (const size_t position : positions) {
    for (int64_t i = 0; i < size; ++i) indexes.push_back(units[position] + i);
  }
  return indexes;
}

absl::StatusOr<std::vector<size_t>> Profile::ChooseUnits(Consumer& consumer, const Wanted& wanted,
                                                         const Snapshot& snapshot, const std::vector<int64_t>& units,
                                                         size_t count) {
  const int64_t size = wanted.options.get_n_samples ? n_ : 1;
  const bool balanced =
      consumer.balances && wanted.options.use_batch_seqlen_balance && count > 0 && units.size() % count == 0;
  if (consumer.resumes || (partial_rollout_ && wanted.options.get_n_samples) || (balanced && units.size() == count)) {
    std::vector<size_t> first(count);
    for (size_t i = 0; i < count; ++i) first[i] = i;
    return first;
  }
  if (balanced) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, LengthsOf(units, size, *snapshot.generation));
    return BalancedSets(lengths, count).front();
  }
  Rng rng(DeriveSeed(DeriveSeed(options_.seed, consumer.number), consumer.draws++));
  if (!wanted.options.target_seq_len.has_value()) return DrawUniformly(units.size(), count, rng);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, LengthsOf(units, size, *snapshot.generation));
  std::vector<double> weights;
  for (const int64_t length : lengths) {
    weights.push_back(WeightNear(static_cast<double>(length), *wanted.options.target_seq_len));
  }
  return DrawByWeight(weights, count, rng);
}

absl::StatusOr<std::vector<int64_t>> Profile::LengthsOf(const std::vector<int64_t>& units, int64_t unit_size,
                                                        const Generation& generation) {
  FetchRequest request{.partition = options_.partition, .columns = {"prompt_length", "response_length"}};
  std::vector<int64_t> indexes;
  for (const int64_t unit : units) {
    for (int64_t i = unit; i < unit + unit_size; ++i) {
      indexes.push_back(i);
      request.rows.push_back(generation.rows[static_cast<size_t>(i)]);
    }
  }
  TDOCK_RETURN_IF_ERROR(CheckColumns(request.columns));
  absl::StatusOr<Rows> rows = dock_->Fetch(request);
  if (absl::IsDeadlineExceeded(rows.status())) {
    return InIndexes(absl::FailedPreconditionError(absl::StrCat(
                         "rows are chosen by their lengths, some of which are missing: ", rows.status().message())),
                     indexes, request.rows);
  }
  if (!rows.ok()) return rows.status();
  std::vector<int64_t> lengths(units.size());
  for (const std::string& name : request.columns) {
    TDOCK_ASSIGN_OR_RETURN(const Column column, rows->ToColumn(name));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> values, IntegersOf(name, column));
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] > kMaxLength) {
        return absl::FailedPreconditionError(absl::StrCat("rows are chosen by their lengths, but '", name,
                                                          "' of index ", indexes[i], " is ", values[i],
                                                          "; it must be 0 to ", kMaxLength));
      }
      lengths[i / static_cast<size_t>(unit_size)] += values[i];
    }
  }
  return lengths;
}

// ---- Rows by their index.

absl::StatusOr<Taken> Profile::TakeUnconsumed(const Consumer& consumer, std::vector<RowId> rows) {
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (;;) {
    absl::StatusOr<Taken> taken =
        dock_->Take({.partition = options_.partition, .consumer = consumer.options.name, .rows = rows});
    if (!absl::IsFailedPrecondition(taken.status())) return taken;
    // Some are consumed. More may be consumed before the next attempt, until none is left.
    std::vector<RowId> ready;
    ListRequest request{
        .partition = options_.partition, .ready_for = consumer.options.name, .from = rows.front(), .limit = max_len_};
    for (std::optional<RowId> next = rows.front(); next.has_value() && *next <= rows.back();) {
      request.from = *next;
      TDOCK_ASSIGN_OR_RETURN(const ListResult page, dock_->List(request));
      for (const ListedRow& row : page.rows) {
        if (std::binary_search(rows.begin(), rows.end(), row.row)) ready.push_back(row.row);
      }
      next = page.next;
    }
    if (ready.empty()) return Taken();
    rows = std::move(ready);
  }
}

absl::StatusOr<Experience> Profile::GetNamed(Consumer& consumer, const Wanted& wanted) {
  Chosen chosen;
  chosen.indexes = wanted.options.indexes->indexes;
  TDOCK_ASSIGN_OR_RETURN(chosen.rows, Resolve(*wanted.options.indexes));
  const Snapshot snapshot = Look();
  for (const RowId row : chosen.rows) {
    const auto it = snapshot.generation->index_of.find(row);
    chosen.ages.push_back(
        it == snapshot.generation->index_of.end() ? 0 : snapshot.generation->ages[static_cast<size_t>(it->second)]);
  }
  // Unfinished responses are visible only to the consumer that takes them.
  absl::StatusOr<Taken> taken =
      consumer.resumes
          ? dock_->Take({.partition = options_.partition, .consumer = consumer.options.name, .rows = chosen.rows})
          : TakeUnconsumed(consumer, chosen.rows);
  if (!taken.ok()) return InIndexes(taken.status(), chosen.indexes, chosen.rows);
  chosen.taken = *std::move(taken);
  absl::StatusOr<Batch> batch = HandOver(consumer, wanted, chosen, clock_.Now() + options_.timeout);
  if (!batch.ok()) return InIndexes(batch.status(), chosen.indexes, chosen.rows);
  Experience experience{.batch = *std::move(batch), .indexes = std::move(chosen.indexes)};
  const absl::flat_hash_set<RowId> distinct(chosen.rows.begin(), chosen.rows.end());
  if (consumer.leased() && chosen.taken.rows.size() == distinct.size()) {
    experience.indexes.lease = chosen.taken.lease;
  }
  experience.indexes.rows = std::move(chosen.rows);
  return experience;
}

absl::StatusOr<Batch> Profile::Get(const std::vector<std::string>& columns, const ExperienceIndexes& indexes) {
  TDOCK_RETURN_IF_ERROR(CheckColumns(columns));
  TDOCK_ASSIGN_OR_RETURN(std::vector<RowId> rows, Resolve(indexes));
  const FetchRequest request{.partition = options_.partition,
                             .rows = std::move(rows),
                             .columns = columns,
                             .deadline = clock_.Now() + options_.timeout};
  const absl::StatusOr<Rows> fetched = dock_->Fetch(request);
  if (!fetched.ok()) return InIndexes(fetched.status(), indexes.indexes, request.rows);
  return fetched->ToBatch();
}

// ---- Results.

absl::StatusOr<Batch> Profile::Read(const Consumer& consumer, const Wanted& wanted, const Chosen& chosen,
                                    absl::Time deadline) {
  Rows rows;
  if (!wanted.needed.empty()) {
    TDOCK_ASSIGN_OR_RETURN(
        rows,
        dock_->Fetch(
            {.partition = options_.partition, .rows = chosen.rows, .columns = wanted.needed, .deadline = deadline}));
  }
  if (!consumer.resumes) return rows.ToBatch();
  Batch batch;
  for (const std::string& name : wanted.columns) {
    TDOCK_RETURN_IF_ERROR(batch.Add(name, IsResumed(name) ? WithBlanks(chosen.taken.rows, name) : rows.ToColumn(name)));
  }
  TDOCK_RETURN_IF_ERROR(batch.Add(kAge, Column::FromValues<int32_t>(chosen.ages)));
  return batch;
}

absl::StatusOr<Batch> Profile::HandOver(const Consumer& consumer, const Wanted& wanted, const Chosen& chosen,
                                        absl::Time deadline) {
  const LeaseId lease = chosen.taken.lease;
  if (lease != kNoLease) {
    const std::span<const RowId> taken = chosen.taken.rows.ids();
    MutexLock lock(mu_);
    for (const RowId row : taken) held_[consumer.number][row] = lease;
  }
  absl::StatusOr<Batch> batch = Read(consumer, wanted, chosen, deadline);
  if (lease == kNoLease || (batch.ok() && consumer.leased())) return batch;
  ForgetLease(lease, chosen.taken.rows.ids());
  const absl::Status ended = batch.ok() ? dock_->Complete(Lease(lease)) : dock_->Release(Lease(lease));
  if (batch.ok() && !ended.ok()) return ended;
  if (!batch.ok()) NoteChange();
  return batch;
}

}  // namespace tdock::mindspeed
