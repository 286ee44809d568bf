// What the plain twin of a partition (slow_dock.h) keeps. For tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock::dock {

struct SlowCell {
  int64_t number = 0;
  // The version of each item; of a cell that is no list, of each put that made it.
  std::vector<int64_t> versions = {};
  int64_t last_version = kNoWeightsVersion;
  bool is_list = false;
  std::string writer = {};

  // What a put that replaces this cell and goes on from it makes.
  SlowCell Continued(int64_t new_number, int64_t items, int64_t version) const {
    SlowCell next{new_number, versions, version, is_list};
    const size_t size = is_list ? static_cast<size_t>(items) : versions.size() + 1;
    next.versions.resize(size, version);
    return next;
  }
  int64_t Oldest() const {
    int64_t oldest = kNoWeightsVersion;
    for (int64_t version : versions) {
      if (version != kNoWeightsVersion && (oldest == kNoWeightsVersion || version < oldest)) oldest = version;
    }
    return versions.empty() ? last_version : oldest;
  }
  int64_t Newest() const {
    return versions.empty() ? last_version : *std::max_element(versions.begin(), versions.end());
  }
  std::vector<Piece> Pieces() const {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < versions.size(); ++i) {
      if (pieces.empty() || pieces.back().weights_version != versions[i]) pieces.push_back({0, versions[i]});
      pieces.back().end = is_list ? static_cast<int64_t>(i) + 1 : 1;
    }
    if (pieces.empty()) pieces.push_back({0, last_version});
    return pieces;
  }
};

struct SlowRow {
  GroupId group = kNoGroup;
  std::string key;
  Tags tags;
  std::map<std::string, SlowCell> cells;
  std::map<std::string, SlowCell> partial_cells;
  int32_t age = 0;
  uint32_t epoch = 0;
};
struct SlowGroup {
  int64_t size = 0;
  int64_t arrived = 0;
  RowId leader = 0;
  uint64_t ordinal = 0;
  int32_t age = 0;
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
  int64_t unfinished = 0;
  int64_t sent_back = 0;
  int64_t stale_dropped = 0;
  int64_t reset = 0;

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
  absl::Time taken;
};

}  // namespace tdock::dock
