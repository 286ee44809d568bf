// The state of a dock as Prometheus metrics, in the text format 0.0.4.
//
// docs/service.md lists the names.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "dock/service/console/partition_statuses.h"

namespace tdock::console {

// A metric of the server rather than of the dock, such as the number of sessions.
struct Reading {
  // The Prometheus name: letters, digits and underscores; that of a counter ends in _total.
  std::string name = {};
  // The description, also shown on the status page.
  std::string help = {};
  // A counter only increases.
  bool counter = false;
  double value = 0;
  // Readings with the same name are adjacent and differ in their labels.
  std::vector<std::pair<std::string, std::string>> labels = {};
};

// Thread-safe, and fast: it is called for each request.
using Readings = std::function<std::vector<Reading>()>;

// Whether the server still answers. None of these blocks on what hangs.
struct Liveness {
  // Returns within two seconds: Unavailable, naming what is stalled. Empty: unknown.
  std::function<absl::Status()> check = {};
  // What is stalled, in sentences.
  std::function<std::vector<std::string>()> current_stalls = {};
  // The number of stalls since the start.
  std::function<int64_t()> stalls = {};
};

struct ProcessFacts {
  absl::Duration uptime = absl::ZeroDuration();
  absl::Time started = absl::UnixEpoch();
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
};

// The memory of this process, from /proc.
absl::StatusOr<ProcessFacts> ReadProcess(Env& env, absl::Time started, absl::Time now);

std::string MetricsText(const std::vector<NamedPartition>& partitions, const ProcessFacts& process,
                        const std::vector<Reading>& readings);

}  // namespace tdock::console
