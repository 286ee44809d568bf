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

// A figure of the server that the dock does not know, such as how many sessions there are.
struct Reading {
  // As Prometheus has it: letters, digits and underscores; that of a counter ends in _total.
  std::string name = {};
  // What it is, for people: also on the status page.
  std::string help = {};
  // A counter only rises.
  bool counter = false;
  double value = 0;
  // Readings of one name stand next to each other and differ in their labels.
  std::vector<std::pair<std::string, std::string>> labels = {};
};

// Thread-safe, and quick: it is called for each request.
using Readings = std::function<std::vector<Reading>()>;

// Whether what is shown still answers. None of these waits for what hangs.
struct Liveness {
  // Within two seconds: Unavailable, with what stands still. Empty: nobody knows.
  std::function<absl::Status()> check = {};
  // What stands still, in sentences.
  std::function<std::vector<std::string>()> current_stalls = {};
  // How often something did since the start.
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
