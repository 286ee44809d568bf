// Every change that a partition can undergo.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "dock/table/page.h"
#include "tdock/dock.h"

namespace tdock::dock {

// Events carry what was decided, not what was requested, so that applying the same events to an equal table gives an
// equal table. Some calls make several events, which belong together. Events refer to their data and own nothing.
// Implied changes (a row that becomes ready, a row that is released because the last consumer that it is retained for
// is done) are part of applying an event.
// retain it is done) is part of applying it.

// A column is added, or gets its type.
struct ColumnAdded {
  const ColumnSpec* spec;
};

struct ConsumerRegistered {
  const ConsumerOptions* options;
};

// Also removes the name from the consumers that rows are retained for.
struct ConsumerDropped {
  absl::string_view name;
};

struct RowsPut {
  // For each column of the put: the column of the table, and the cell of the first row. The other rows' cells follow
  // it.
  std::span<const uint32_t> columns = {};
  std::span<const CellRef> first_cells = {};
  // The existing rows, or the number of new ones, which get the next ids.
  std::span<const RowId> rows = {};
  int64_t new_rows = 0;
  // The groups of the new rows, or none; and the size of those that start here.
  std::span<const GroupId> groups = {};
  int64_t group_size = 1;
  // The keys of the new rows, or none; and the tags: none, one for all rows, or one for each.
  std::span<const std::string> keys = {};
  std::span<const std::shared_ptr<const Tags>> tags = {};
  // The version of the weights that made the cells.
  int64_t weights_version = kNoWeightsVersion;
  // The number of items of each cell, column after column; if cells are partial, or may replace partial ones.
  std::span<const int64_t> lengths = {};
  // The cells do not continue the partial ones that they replace.
  bool anew = false;
  // The cells are not ready yet; and the lease that gives the rows back, if any.
  bool partial = false;
  LeaseId returns = kNoLease;
  // Completes the rows for the consumer of this lease, if any.
  LeaseId completes = kNoLease;
  int64_t step = kNoStep;
};

struct RowsTaken {
  uint32_t consumer;
  int32_t rank;
  // kNoLease: the rows are done.
  LeaseId lease;
  std::span<const RowId> rows = {};
  absl::Time at = {};
  absl::Time expires = {};
};

struct RowsCompleted {
  LeaseId lease;
  std::span<const RowId> rows = {};
  int64_t step = kNoStep;
};

struct RowsReturned {
  LeaseId lease;
  std::span<const RowId> rows = {};
};

struct LeaseExpired {
  LeaseId lease;
};

struct LeaseRenewed {
  LeaseId lease;
  absl::Time expires = {};
};

struct RowsRequeued {
  uint32_t consumer;
  std::span<const RowId> rows = {};
};

struct StepCommitted {
  uint32_t consumer;
  int64_t step;
};

struct StepsRolledBack {
  uint32_t consumer;
  int64_t to_step;
};

struct RowsDropped {
  std::span<const RowId> rows = {};
  // The consumer that they were too old for, if that is the reason.
  std::optional<uint32_t> stale_for = {};
};

struct WeightsPublished {
  int64_t version;
};

// The cells of these columns are emptied, and these consumers, which write or read them, must process all of the rows
// again.
struct RowsSentBack {
  std::span<const RowId> rows = {};
  std::span<const uint32_t> columns = {};
  std::span<const uint32_t> consumers = {};
  // The consumer that they were too old for, if that is the reason.
  std::optional<uint32_t> stale_for = {};
};

struct RowsCleared {
  std::span<const RowId> rows = {};
  // These groups are forgotten, whatever rows they had.
  std::span<const GroupId> groups = {};
};

struct SealChanged {
  bool sealed;
};

using Event = std::variant<ColumnAdded, ConsumerRegistered, ConsumerDropped, StepCommitted, StepsRolledBack, RowsPut,
                           RowsTaken, RowsCompleted, RowsReturned, LeaseExpired, LeaseRenewed, RowsRequeued,
                           RowsDropped, RowsSentBack, WeightsPublished, RowsCleared, SealChanged>;

}  // namespace tdock::dock
