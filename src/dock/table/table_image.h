// Everything that a table knows, as plain data: to be written down, and to make an equal table of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "dock/table/history.h"
#include "dock/table/labels.h"
#include "dock/table/page.h"
#include "tdock/dock.h"
#include "tdock/fields.h"

namespace tdock::dock {

// What follows from the rest is not there: which rows are waiting or ready, counts, and the order of what can be taken.
// Nor are leases: their rows count as given back. Tables that are equal but for leases have equal images.
struct TableImage {
  struct Cell {
    RowId row = 0;
    CellRef ref;
  };
  // In the order in which they were first named, those of the partition's options first.
  struct Column {
    ColumnSpec spec = {};
    bool typed = false;
    std::vector<Cell> cells = {};  // ascending
  };
  // By ordinal.
  struct GroupState {
    GroupId id = kNoGroup;
    int64_t size = 0;
    int64_t arrived = 0;
    RowId leader = 0;
    int32_t age = 0;
    uint64_t ordinal = 0;

    TDOCK_FIELDS(GroupState, id, size, arrived, leader, age, ordinal)
  };
  // Ascending.
  struct Row {
    RowId id = 0;
    GroupId group = kNoGroup;
    // Done also for consumers that register later.
    bool dropped = false;
    Labels::Label label = {};
    Histories::History history = {};
  };
  struct DoneRow {
    RowId row = 0;
    int64_t step = kNoStep;  // kNoStep: it is done for good
  };
  struct Redelivery {
    RowId row = 0;
    int32_t count = 0;  // with the consumer's max_deliveries it is quarantined
  };
  // In the order of their registration.
  struct ConsumerState {
    ConsumerOptions options = {};
    // Only those of ForEachKeptCount().
    ConsumerStatus counts = {};
    std::vector<uint64_t> takes = {};  // by rank
    // Ascending; without dropped rows.
    std::vector<DoneRow> done = {};
    std::vector<Redelivery> redeliveries = {};

    TDOCK_FIELDS(ConsumerState, options, counts, takes, done, redeliveries)
  };

  bool sealed = false;
  int64_t weights_version = kNoWeightsVersion;
  int64_t newest_version = kNoWeightsVersion;
  RowId next_row = 0;
  LeaseId last_lease = kNoLease;
  uint64_t groups_begun = 0;
  int64_t largest_group = 1;
  // The consumers that rows are still retained for.
  std::vector<std::string> retained_for = {};
  std::vector<Column> columns = {};
  std::vector<GroupState> groups = {};
  std::vector<Row> rows = {};
  std::vector<ConsumerState> consumers = {};

  TDOCK_FIELDS(TableImage, sealed, weights_version, newest_version, next_row, last_lease, groups_begun, largest_group,
               retained_for, columns, groups, rows, consumers)
};

// Calls visit(name, count…) for each count of a consumer that does not follow from the states of its rows.
template <class Visit, class... Status>
void ForEachKeptCount(Visit&& visit, Status&... of) {
  const auto keep = [&](const char* name, auto&... count) {
    constexpr absl::string_view kFollow[] = {"waiting", "ready",       "leased",  "quarantined",
                                             "done",    "uncommitted", "takeable"};
    if (std::find(std::begin(kFollow), std::end(kFollow), name) == std::end(kFollow)) visit(name, count...);
  };
  ForEachField(keep, of...);
}

}  // namespace tdock::dock
