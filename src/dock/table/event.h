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
#include "tdock/fields.h"

namespace tdock::dock {

// Events carry what was decided, not what was requested, so that applying the same events to an equal table gives an
// equal table. Some calls make several events, which belong together. Events refer to their lists, and name columns,
// consumers and rows by their numbers.
// Implied changes (a row that becomes ready, a row that is released because the last consumer that it is retained for
// is done) are part of applying an event.

// A column is added, or gets its type.
struct ColumnAdded {
  ColumnSpec spec = {};

  TDOCK_FIELDS(ColumnAdded, spec)
};

struct ConsumerRegistered {
  ConsumerOptions options = {};

  TDOCK_FIELDS(ConsumerRegistered, options)
};

// Also removes the name from the consumers that rows are retained for.
struct ConsumerDropped {
  std::string name = {};

  TDOCK_FIELDS(ConsumerDropped, name)
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

  TDOCK_FIELDS(RowsPut, columns, first_cells, rows, new_rows, groups, group_size, keys, tags, weights_version, lengths,
               anew, partial, returns, completes, step)
};

struct RowsTaken {
  uint32_t consumer;
  int32_t rank;
  // kNoLease: the rows are done.
  LeaseId lease;
  std::span<const RowId> rows = {};
  absl::Time at = {};
  absl::Time expires = {};

  TDOCK_FIELDS(RowsTaken, consumer, rank, lease, rows, at, expires)
};

struct RowsCompleted {
  LeaseId lease;
  std::span<const RowId> rows = {};
  int64_t step = kNoStep;

  TDOCK_FIELDS(RowsCompleted, lease, rows, step)
};

struct RowsReturned {
  LeaseId lease;
  std::span<const RowId> rows = {};

  TDOCK_FIELDS(RowsReturned, lease, rows)
};

struct LeaseExpired {
  LeaseId lease;

  TDOCK_FIELDS(LeaseExpired, lease)
};

struct LeaseRenewed {
  LeaseId lease;
  absl::Time expires = {};

  TDOCK_FIELDS(LeaseRenewed, lease, expires)
};

struct RowsRequeued {
  uint32_t consumer;
  std::span<const RowId> rows = {};

  TDOCK_FIELDS(RowsRequeued, consumer, rows)
};

struct StepCommitted {
  uint32_t consumer;
  int64_t step;

  TDOCK_FIELDS(StepCommitted, consumer, step)
};

struct StepsRolledBack {
  uint32_t consumer;
  int64_t to_step;

  TDOCK_FIELDS(StepsRolledBack, consumer, to_step)
};

struct RowsDropped {
  std::span<const RowId> rows = {};
  // The consumer that they were too old for, if that is the reason.
  std::optional<uint32_t> stale_for = {};

  TDOCK_FIELDS(RowsDropped, rows, stale_for)
};

struct WeightsPublished {
  int64_t version;

  TDOCK_FIELDS(WeightsPublished, version)
};

// The cells of these columns are emptied, and these consumers, which write or read them, must process all of the rows
// again.
struct RowsSentBack {
  std::span<const RowId> rows = {};
  std::span<const uint32_t> columns = {};
  std::span<const uint32_t> consumers = {};
  // The consumer that they were too old for, if that is the reason.
  std::optional<uint32_t> stale_for = {};

  TDOCK_FIELDS(RowsSentBack, rows, columns, consumers, stale_for)
};

struct RowsCleared {
  std::span<const RowId> rows = {};
  // These groups are forgotten, whatever rows they had.
  std::span<const GroupId> groups = {};

  TDOCK_FIELDS(RowsCleared, rows, groups)
};

struct SealChanged {
  bool sealed;

  TDOCK_FIELDS(SealChanged, sealed)
};

using Event = std::variant<ColumnAdded, ConsumerRegistered, ConsumerDropped, StepCommitted, StepsRolledBack, RowsPut,
                           RowsTaken, RowsCompleted, RowsReturned, LeaseExpired, LeaseRenewed, RowsRequeued,
                           RowsDropped, RowsSentBack, WeightsPublished, RowsCleared, SealChanged>;

}  // namespace tdock::dock
