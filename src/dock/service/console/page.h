// The status page of a dock: one HTML document that needs nothing else, and keeps itself up to date.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dock/service/console/metrics.h"
#include "dock/service/console/partition_statuses.h"

namespace tdock::console {

// Text as it may stand in HTML, in an attribute's value too. Names of partitions, columns and consumers are whatever
// users call them.
std::string EscapeHtml(absl::string_view text);
// Text as it may stand in the query of a URL.
std::string EscapeQuery(absl::string_view text);

struct PageFacts {
  ProcessFacts process = {};
  std::vector<Reading> readings = {};
  // What the page's script is known by to the browser; another for each page: letters and digits.
  std::string nonce = {};
  // What stands still, in sentences.
  std::vector<std::string> stalls = {};
};

// All partitions.
std::string OverviewPage(const std::vector<NamedPartition>& partitions, const PageFacts& facts);

// Instead of it, where the server does not answer.
std::string StalledPage(const PageFacts& facts);

// One partition, with what Explain() says about each consumer, in the order of the status.
std::string PartitionPage(const NamedPartition& partition, const std::vector<std::string>& explanations,
                          const PageFacts& facts);

}  // namespace tdock::console
