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

namespace tdock {

// Events carry what was decided, not what was asked for, so that applying the same events to an equal table gives an
// equal table. Some calls are several events, which belong together. They refer to what they carry and own nothing.
// What follows from an event by itself (a row that becomes ready, a row that is released because the last consumer to
// retain it is done) is part of applying it.

// A column is there from now on, or has a type from now on.
struct ColumnAdded {
  const ColumnSpec* spec;
};

struct ConsumerRegistered {
  const ConsumerOptions* options;
};

// Also takes the name out of those that rows must outlive.
struct ConsumerDropped {
  absl::string_view name;
};

struct RowsPut {
  // By column of the put: the column of the table, and the cell of the first row. The other rows' cells follow it.
  std::span<const uint32_t> columns = {};
  std::span<const CellRef> first_cells = {};
  // The rows that were there, or the number of new ones, which get the next ids.
  std::span<const RowId> rows = {};
  int64_t new_rows = 0;
  // Of the new rows, or none; and the size of those that start here.
  std::span<const GroupId> groups = {};
  int64_t group_size = 1;
  // Of the new rows, or none; and of all rows, none or one for all or one for each.
  std::span<const std::string> keys = {};
  std::span<const std::shared_ptr<const Tags>> tags = {};
  // The version that made the cells.
  int64_t weights_version = kNoWeightsVersion;
  // How many items each cell has, column after column; where cells are partial, or may replace some that are.
  std::span<const int64_t> lengths = {};
  // The cells do not go on from partial ones that they replace.
  bool anew = false;
  // The cells are not ready yet; and the lease that gives the rows
  // back, unless there is none.
  bool partial = false;
  LeaseId returns = kNoLease;
  // Completes the rows for the consumer of this lease, unless there is none.
  LeaseId completes = kNoLease;
  int64_t step = kNoStep;
};

struct RowsTaken {
  uint32_t consumer;
  int32_t rank;
  // None: they are done.
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
  // The consumer for which they were too old, if that is why.
  std::optional<uint32_t> stale_for = {};
};

struct WeightsPublished {
  int64_t version;
};

// The cells of these columns are emptied, and these consumers, who write or read them, have all of the rows before them
// again.
struct RowsSentBack {
  std::span<const RowId> rows = {};
  std::span<const uint32_t> columns = {};
  std::span<const uint32_t> consumers = {};
  // The consumer for which they were too old, if that is why.
  std::optional<uint32_t> stale_for = {};
};

struct RowsCleared {
  std::span<const RowId> rows = {};
  // These are forgotten, whatever rows they had before.
  std::span<const GroupId> groups = {};
};

struct SealChanged {
  bool sealed;
};

using Event = std::variant<ColumnAdded, ConsumerRegistered, ConsumerDropped, StepCommitted, StepsRolledBack, RowsPut,
                           RowsTaken, RowsCompleted, RowsReturned, LeaseExpired, LeaseRenewed, RowsRequeued,
                           RowsDropped, RowsSentBack, WeightsPublished, RowsCleared, SealChanged>;

}  // namespace tdock
