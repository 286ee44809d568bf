// What a partition is: its rows and cells, and what each consumer has done with them. No bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "dock/table/consumer.h"
#include "dock/table/group.h"
#include "dock/table/history.h"
#include "dock/table/labels.h"
#include "dock/table/leases.h"
#include "dock/table/pages.h"
#include "dock/table/schema.h"
#include "tdock/dock.h"

namespace tdock::dock {

// Changed by a Table only.
struct TableState {
  const PartitionOptions options;
  bool sealed = false;
  // The number of events applied: while it is unchanged, so is the result of every decision.
  uint64_t changes = 0;

  Schema schema = {};
  Pages pages = {};
  Groups groups = {};
  Labels labels = {};
  Histories histories = {};
  bool any_group_aged = false;  // ever
  int64_t largest_group = 1;    // so far
  int64_t weights_version = kNoWeightsVersion;
  Leases leases = Leases();
  // Null for a dropped consumer, until the next one reuses the index; and the indexes in use, in the order of
  // registration.
  std::vector<std::unique_ptr<Consumer>> consumers = {};
  std::vector<uint32_t> registered = {};
  absl::flat_hash_map<std::string, uint32_t> consumer_by_name = {};
  // Which indexes into Group::counts are in use.
  std::vector<bool> group_slots = {};
  // The consumers that rows are retained for, unset while they are not registered.
  struct Retainer {
    std::string name;
    std::optional<uint32_t> consumer;
  };
  std::vector<Retainer> retainers = {};
  // Over all cells that were ever put.
  int64_t newest_version = kNoWeightsVersion;

  const Consumer& consumer(uint32_t index) const { return *consumers[index]; }
  std::vector<Place> Locate(std::span<const RowId> rows) const { return pages.Locate(rows); }
  // Whether the row still exists and still lacks this cell.
  bool Lacks(RowId row, uint32_t column) const;
  bool Holds(const Lease& lease, const Place& place) const {
    return place.state(lease.consumer) == kLeased && place.lease(lease.consumer) == lease.key();
  }
  std::vector<RowId> HeldRows(const Lease& lease) const;
  // The age of a row in the order of takeable rows.
  int32_t AgeOf(const Place& place) const {
    const Group* const group = place.group();
    return group != nullptr ? group->age : histories.Of(place.row()).age;
  }
  // The smallest and the largest version among the pieces of a cell, or twice none; `of_block` is that of its block.
  struct Versions {
    int64_t oldest = kNoWeightsVersion;
    int64_t newest = kNoWeightsVersion;
  };
  Versions VersionsOf(RowId row, uint32_t column, int64_t of_block) const;
};

}  // namespace tdock::dock
