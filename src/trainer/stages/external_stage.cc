#include "trainer/stages/external_stage.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "trainer/stages/finite.h"

namespace tdock::trainer {
namespace {

// How long an interrupted run goes on waiting at most.
constexpr absl::Duration kBetweenChecks = absl::Milliseconds(200);

absl::StatusOr<std::vector<RowId>> RowsFrom(RowId first, Dock& dock, const std::string& partition) {
  std::vector<RowId> ids;
  for (std::optional<RowId> from = first; from.has_value();) {
    TDOCK_ASSIGN_OR_RETURN(const ListResult page, dock.List({.partition = partition, .from = *from}));
    for (const ListedRow& row : page.rows) ids.push_back(row.row);
    from = page.next;
  }
  return ids;
}

// What there is to say when the time is over, of the last `waited_for` rows.
absl::Status NotDone(Dock& dock, const std::string& partition, const ConsumerOptions& consumer, int64_t waited_for,
                     absl::Duration timeout) {
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus rows, dock.GetStatus(partition));
  TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status, dock.GetConsumerStatus(partition, consumer.name));
  TDOCK_ASSIGN_OR_RETURN(const std::string explanation, dock.Explain(partition, consumer.name));
  int64_t done = rows.rows;
  for (const ColumnStatus& column : rows.columns) {
    const bool written =
        std::find(consumer.writes.begin(), consumer.writes.end(), column.name) != consumer.writes.end();
    if (written) done = std::min(done, column.ready_cells);
  }
  done = std::max<int64_t>(done - (rows.rows - waited_for), 0);  // all before them are
  const bool known = status.leased + status.completed + status.expired + status.unfinished + done > 0;
  return absl::DeadlineExceededError(absl::StrCat(
      "left to another process, which was to put ", absl::StrJoin(consumer.writes, ", "), " within ",
      absl::FormatDuration(timeout), ": ", done, " of ", waited_for, " rows have ",
      consumer.writes.size() > 1 ? "them" : "it", ". ",
      known ? "A process has taken rows of it: look whether it still runs, or give it more time"
            : absl::StrCat("No process holds rows of it or has ever completed one: start the one that takes as "
                           "consumer '",
                           consumer.name, "' from partition '", partition, "'"),
      ". The dock says: ", explanation));
}

absl::StatusOr<int64_t> Await(Dock& dock, const std::string& partition, const Stage& stage, StageContext& context,
                              const AwaitOptions& options) {
  const absl::Time deadline = options.clock.Now() + options.timeout;
  for (;;) {
    // Asked for each time, because the other process may drop rows.
    TDOCK_ASSIGN_OR_RETURN(const std::vector<RowId> ids, RowsFrom(options.first_row, dock, partition));
    if (ids.empty()) return 0;
    const absl::Time now = options.clock.Now();
    const absl::StatusOr<Rows> rows = dock.Fetch({.partition = partition,
                                                  .rows = ids,
                                                  .columns = stage.consumer().writes,
                                                  .deadline = std::min(deadline, now + kBetweenChecks)});
    if (rows.ok()) {
      TDOCK_ASSIGN_OR_RETURN(const Batch written, rows->ToBatch());
      TDOCK_RETURN_IF_ERROR(CheckFinite(written, ids));
      TDOCK_RETURN_IF_ERROR(stage.Report(*rows, context.metrics));
      return static_cast<int64_t>(ids.size());
    }
    if (!absl::IsDeadlineExceeded(rows.status()) && !absl::IsNotFound(rows.status())) return rows.status();
    TDOCK_RETURN_IF_ERROR(options.check_stop());
    if (now >= deadline) return NotDone(dock, partition, stage.consumer(), std::ssize(ids), options.timeout);
  }
}

}  // namespace

absl::StatusOr<int64_t> AwaitStage(Dock& dock, const std::string& partition, const Stage& stage, StageContext& context,
                                   const AwaitOptions& options) {
  absl::StatusOr<int64_t> rows = Await(dock, partition, stage, context, options);
  if (rows.ok()) return rows;
  return Annotate(rows.status(), absl::StrCat("stage '", stage.consumer().name, "'"));
}

}  // namespace tdock::trainer
