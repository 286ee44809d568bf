#include "trainer/stages/stage.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "trainer/stages/finite.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/remote_stages.h"

namespace tdock::trainer {
namespace {

std::string RowRange(const Rows& rows) {
  if (rows.empty()) return "no rows";
  const auto [first, last] = std::minmax_element(rows.ids().begin(), rows.ids().end());
  return absl::StrCat(rows.size(), " rows between ", *first, " and ", *last);
}

// Keeps a lease while a stage works, however long it takes, with a thread that mostly waits.
class LeaseKeeper {
 public:
  LeaseKeeper(Dock& dock, const std::string& partition, LeaseId lease, absl::Duration every) {
    if (lease == kNoLease || every == absl::InfiniteDuration()) return;
    keeping_ = std::thread([this, &dock, &partition, lease, every] {
      const MutexLock lock(mu_);
      for (auto next = std::chrono::steady_clock::now();;) {
        next += absl::ToChronoNanoseconds(every);
        while (!over_ && std::chrono::steady_clock::now() < next) changed_.WaitUntil(mu_, next);
        if (over_) return;
        // What is over by then is refused when it is put.
        dock.Renew(partition, lease).status().IgnoreError();
      }
    });
  }
  ~LeaseKeeper() {
    {
      const MutexLock lock(mu_);
      over_ = true;
      changed_.NotifyAll();
    }
    if (keeping_.joinable()) keeping_.join();
  }
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

 private:
  Mutex mu_;
  CondVar changed_;
  bool over_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread keeping_;
};

// What becomes of the rows of a take; and of those that are kept, their places in the output.
struct Sorted {
  StageRunner::Computed rows;
  std::vector<int64_t> kept_indexes;
};

absl::StatusOr<Sorted> Sort(const Rows& rows, const std::vector<bool>& early, const StageOutput& output) {
  const absl::flat_hash_set<GroupId> given(rows.groups().begin(), rows.groups().end());
  const absl::flat_hash_set<GroupId> dropped(output.dropped.begin(), output.dropped.end());
  absl::flat_hash_set<GroupId> requeued(output.requeued.begin(), output.requeued.end());
  for (const absl::flat_hash_set<GroupId>* groups : {&dropped, &std::as_const(requeued)}) {
    for (const GroupId group : *groups) {
      if (!given.contains(group)) {
        return absl::InternalError(absl::StrCat("drops or requeues group ", group, ", which it was not given"));
      }
    }
  }
  for (const GroupId group : dropped) requeued.erase(group);
  Sorted sorted;
  sorted.rows.requeued_groups = requeued.size();
  int64_t index = 0;  // in the output
  for (size_t i = 0; i < rows.size(); ++i) {
    const GroupId group = rows.groups()[i];
    if (early[i]) {
      if (requeued.contains(group)) {
        return absl::InternalError(absl::StrCat("requeues group ", group, ", of which it has put rows"));
      }
      continue;
    }
    if (dropped.contains(group)) {
      sorted.rows.dropped.push_back(rows.ids()[i]);
    } else if (requeued.contains(group)) {
      sorted.rows.requeued.push_back(rows.ids()[i]);
    } else {
      sorted.rows.kept.push_back(rows.ids()[i]);
      sorted.kept_indexes.push_back(index);
    }
    ++index;
  }
  return sorted;
}

// Leaves of the columns, which a stage wrote for `given` rows, those that are put, and checks them.
absl::Status KeepRows(const Sorted& sorted, size_t given, Batch& columns) {
  if (columns.rows() != static_cast<int64_t>(given)) {
    return absl::InternalError(absl::StrCat("gave ", columns.rows(), " rows for the ", given, " that it took"));
  }
  if (sorted.rows.kept.size() < given) {
    TDOCK_ASSIGN_OR_RETURN(columns, columns.SelectRows(sorted.kept_indexes));
  }
  return CheckFinite(columns, sorted.rows.kept);
}

}  // namespace

absl::Status StageRunner::Add(const Stage& stage, bool checkpointed,
                              const std::function<void(ConsumerOptions&)>& change) {
  ConsumerOptions consumer = stage.consumer();
  change(consumer);
  if (checkpointed) {
    consumer.checkpointed = true;
    checkpointed_.insert(consumer.name);
  }
  return Annotate(dock_.RegisterConsumer(partition_, consumer), absl::StrCat("stage '", stage.consumer().name, "'"));
}

absl::StatusOr<int64_t> StageRunner::Run(Stage& stage, int64_t units, StageContext& context, const Options& options) {
  int64_t dropped = 0;
  for (int round = 0; units > 0; ++round) {
    if (round > options.most_requeues) {
      return absl::InternalError(absl::StrCat("stage '", stage.consumer().name, "' gave back ", units, " of its units ",
                                              round, " times in a row; it may do so ", options.most_requeues,
                                              " times"));
    }
    TDOCK_ASSIGN_OR_RETURN(const Round result, RunOnce(stage, units, context, options.deadline));
    dropped += result.dropped_rows;
    units = result.requeued_units;
  }
  return dropped;
}

absl::StatusOr<StageRunner::Round> StageRunner::RunOnce(Stage& stage, int64_t units, StageContext& context,
                                                        absl::Time deadline) {
  const std::string& name = stage.consumer().name;
  absl::StatusOr<Taken> taken =
      dock_.Take({.partition = partition_, .consumer = name, .min = units, .max = units, .deadline = deadline});
  if (deadline == absl::InfinitePast() && absl::IsDeadlineExceeded(taken.status())) {
    taken = absl::FailedPreconditionError(taken.status().message());
  }
  if (!taken.ok()) return Annotate(taken.status(), absl::StrCat("stage '", name, "'"));
  const absl::StatusOr<Round> round = RunTaken(stage, *taken, context);
  if (round.ok()) return round;
  dock_.Release({.partition = partition_, .lease = taken->lease}).IgnoreError();  // the stage's error counts
  return Annotate(round.status(), absl::StrCat("stage '", name, "', ", RowRange(taken->rows)));
}

absl::StatusOr<StageRunner::Round> StageRunner::RunTaken(Stage& stage, const Taken& taken, StageContext& context,
                                                         const TakeMore& take_more) {
  if (remote_ != nullptr && !stage.trains()) TDOCK_RETURN_IF_ERROR(remote_->PrepareWeights(&stage));
  if (remote_ != nullptr && remote_->Carries(stage)) {
    return Guarded([&] { return remote_->Run(stage, partition_, taken, context); });
  }
  TDOCK_ASSIGN_OR_RETURN(Computed computed, Compute(stage, taken, context, /*puts=*/true, take_more));
  return Guarded([&] { return Settle(stage, taken, std::move(computed), context); });
}

absl::StatusOr<StageRunner::Computed> StageRunner::Compute(Stage& stage, const Taken& taken, StageContext& context,
                                                           bool puts, const TakeMore& take_more) {
  absl::StatusOr<Computed> computed = Guarded([&] {
    const LeaseKeeper keeper(dock_, partition_, puts ? taken.lease : kNoLease, stage.consumer().lease_duration / 3);
    return RunStage(stage, taken, context, puts, take_more);
  });
  context.publish = context.put_back = nullptr;
  context.drop = nullptr;
  context.renew = nullptr;
  context.more = nullptr;
  return computed;
}

namespace {

bool AreWholeGroups(const Rows& rows, std::span<const size_t> indexes) {
  const auto rows_of = [&rows](GroupId group) { return std::count(rows.groups().begin(), rows.groups().end(), group); };
  absl::flat_hash_map<GroupId, int64_t> counts;
  for (const size_t i : indexes) ++counts[rows.groups()[i]];
  return std::all_of(counts.begin(), counts.end(),
                     [&](const auto& entry) { return entry.second == rows_of(entry.first); });
}

// The ids of those rows of a take, none of which is through yet.
std::vector<RowId> RowsAt(const Stage& stage, const Rows& rows, std::span<const size_t> indexes,
                          const std::vector<bool>& early) {
  TDOCK_CHECK(stage.consumer().unit == Unit::kRow || AreWholeGroups(rows, indexes),
              "a stage of groups puts whole groups early");
  std::vector<RowId> ids;
  for (const size_t i : indexes) {
    TDOCK_CHECK(i < early.size() && !early[i], "a row is put once");
    ids.push_back(rows.ids()[i]);
  }
  return ids;
}

}  // namespace

void StageRunner::LetPublish(const Stage& stage, const Taken& taken, bool puts, std::vector<bool>& early,
                             StageContext& context) {
  context.renew = [this, &taken, &context, puts]() -> absl::Status {
    context.progress();
    if (!puts) return absl::OkStatus();
    return dock_.Renew(partition_, taken.lease).status();
  };
  context.publish = [&, puts](std::span<const size_t> indexes, Batch columns, int64_t weights_version) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(
        PutEarly(stage, taken, indexes,
                 {.batch = std::move(columns), .step = StepOf(stage, context), .weights_version = weights_version},
                 puts, early));
    context.progress();
    context.on_put();
    context.published += static_cast<int64_t>(indexes.size());
    return absl::OkStatus();
  };
  context.put_back = [&, puts](std::span<const size_t> indexes, Batch columns,
                               int64_t weights_version) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(PutEarly(stage, taken, indexes,
                                   {.batch = std::move(columns), .partial = true, .weights_version = weights_version},
                                   puts, early));
    context.progress();
    context.on_put();
    return absl::OkStatus();
  };
  context.drop = [&, puts](std::span<const size_t> indexes) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(DropEarly(stage, taken, indexes, puts, early));
    context.progress();
    context.on_put();
    return absl::OkStatus();
  };
}

absl::Status StageRunner::PutEarly(const Stage& stage, const Taken& taken, std::span<const size_t> indexes,
                                   FillRequest put, bool puts, std::vector<bool>& early) {
  put.rows = RowsAt(stage, taken.rows, indexes, early);
  TDOCK_RETURN_IF_ERROR(CheckFinite(put.batch, put.rows));
  put.partition = partition_;
  put.lease = taken.lease;
  if (puts) TDOCK_RETURN_IF_ERROR(dock_.Fill(put));
  for (const size_t i : indexes) early[i] = true;
  return absl::OkStatus();
}

absl::Status StageRunner::DropEarly(const Stage& stage, const Taken& taken, std::span<const size_t> indexes, bool puts,
                                    std::vector<bool>& early) {
  const std::vector<RowId> rows = RowsAt(stage, taken.rows, indexes, early);
  if (puts) TDOCK_RETURN_IF_ERROR(dock_.Drop({.partition = partition_, .lease = taken.lease, .rows = rows}));
  for (const size_t i : indexes) early[i] = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowId>> StageRunner::OthersOf(const std::vector<GroupId>& groups,
                                                         const std::vector<RowId>& rows) {
  const absl::flat_hash_set<GroupId> wanted(groups.begin(), groups.end());
  const absl::flat_hash_set<RowId> known(rows.begin(), rows.end());
  std::vector<RowId> others;
  ListRequest request{.partition = partition_};
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const ListResult page, dock_.List(request));
    for (const ListedRow& row : page.rows) {
      if (wanted.contains(row.group) && !known.contains(row.row)) others.push_back(row.row);
    }
    if (!page.next) return others;
    request.from = *page.next;
  }
}

absl::StatusOr<StageRunner::Computed> StageRunner::RunStage(Stage& stage, const Taken& taken, StageContext& context,
                                                            bool puts, const TakeMore& take_more) {
  std::vector<bool> early(taken.rows.size());
  if (take_more != nullptr) {
    context.more = [&, puts, of_stage = context]() -> absl::StatusOr<std::unique_ptr<FurtherRows>> {
      TDOCK_ASSIGN_OR_RETURN(std::optional<Taken> further, take_more());
      if (!further.has_value()) return nullptr;
      auto rows = std::make_unique<FurtherRows>(*std::move(further), of_stage);
      LetPublish(stage, rows->taken, puts, rows->early, rows->context);
      return rows;
    };
  }
  LetPublish(stage, taken, puts, early, context);
  TDOCK_ASSIGN_OR_RETURN(StageOutput output, stage.Run(taken.rows, context));
  TDOCK_ASSIGN_OR_RETURN(Sorted sorted, Sort(taken.rows, early, output));
  const size_t given = taken.rows.size() - static_cast<size_t>(std::count(early.begin(), early.end(), true));
  if (!stage.consumer().writes.empty() && given > 0) {
    TDOCK_RETURN_IF_ERROR(KeepRows(sorted, given, output.columns));
  }
  sorted.rows.output = std::move(output);
  return std::move(sorted.rows);
}

absl::StatusOr<StageRunner::Round> StageRunner::Settle(const Stage& stage, const Taken& taken, Computed computed,
                                                       const StageContext& context) {
  const bool of_groups = stage.consumer().unit == Unit::kGroup;
  if (!computed.dropped.empty()) {
    TDOCK_RETURN_IF_ERROR(dock_.Drop({.partition = partition_, .lease = taken.lease, .rows = computed.dropped}));
  }
  std::vector<RowId> others;
  if (!of_groups && !computed.output.dropped.empty()) {
    TDOCK_ASSIGN_OR_RETURN(others, OthersOf(computed.output.dropped, computed.dropped));
    if (!others.empty()) TDOCK_RETURN_IF_ERROR(dock_.Drop({.partition = partition_, .rows = others}));
  }
  if (!computed.requeued.empty()) {
    TDOCK_RETURN_IF_ERROR(dock_.Release({.partition = partition_, .lease = taken.lease, .rows = computed.requeued}));
  }
  const Round round{.dropped_rows = static_cast<int64_t>(computed.dropped.size() + others.size()),
                    .requeued_units = of_groups ? static_cast<int64_t>(computed.requeued_groups)
                                                : static_cast<int64_t>(computed.requeued.size())};
  if (computed.kept.empty()) return round;
  if (stage.consumer().writes.empty()) {
    TDOCK_RETURN_IF_ERROR(
        dock_.Complete({.partition = partition_, .lease = taken.lease, .step = StepOf(stage, context)}));
    return round;
  }
  TDOCK_RETURN_IF_ERROR(dock_.Fill({.partition = partition_,
                                    .batch = std::move(computed.output.columns),
                                    .rows = std::move(computed.kept),
                                    .lease = taken.lease,
                                    .step = StepOf(stage, context),
                                    .weights_version = computed.output.weights_version}));
  return round;
}

}  // namespace tdock::trainer
