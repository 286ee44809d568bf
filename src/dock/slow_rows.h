// What the plain twin of a partition (slow_dock.h) keeps. For tests.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock {

struct SlowCell {
  int64_t number = 0;
  int64_t weights_version = kNoWeightsVersion;
};

struct SlowRow {
  GroupId group = kNoGroup;
  std::string key;
  Tags tags;
  std::map<std::string, SlowCell> cells;
};
struct SlowGroup {
  int64_t size = 0;
  int64_t arrived = 0;
  RowId leader = 0;
  uint64_t ordinal = 0;
};
struct SlowConsumer {
  ConsumerOptions options;
  std::set<RowId> done;
  std::map<RowId, int64_t> uncommitted;  // of those, with their steps
  int64_t committed_step = kNoStep;
  std::set<RowId> quarantined;
  std::map<RowId, int32_t> redeliveries;
  int64_t completed = 0;
  int64_t expired = 0;

  // It is not to be handed out.
  bool IsOut(RowId row) const { return done.contains(row) || quarantined.contains(row); }
  void Forget(RowId row) {
    done.erase(row);
    uncommitted.erase(row);
    quarantined.erase(row);
    redeliveries.erase(row);
  }
};
struct SlowLease {
  std::string consumer;
  absl::Time expires;
  std::set<RowId> rows;
};

}  // namespace tdock
