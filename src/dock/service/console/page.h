// The status page of a dock: one self-contained HTML document that keeps itself up to date.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dock/service/console/metrics.h"
#include "dock/service/console/partition_statuses.h"

namespace tdock::console {

// Escapes text for HTML, including attribute values. Names of partitions, columns and consumers are arbitrary.
std::string EscapeHtml(absl::string_view text);
// Escapes text for the query of a URL.
std::string EscapeQuery(absl::string_view text);

struct PageFacts {
  ProcessFacts process = {};
  std::vector<Reading> readings = {};
  // The nonce of the page's script, different for each page: letters and digits.
  std::string nonce = {};
  // What is stalled, in sentences.
  std::vector<std::string> stalls = {};
};

// All partitions.
std::string OverviewPage(const std::vector<NamedPartition>& partitions, const PageFacts& facts);

// Shown instead while the server does not answer.
std::string StalledPage(const PageFacts& facts);

// One partition, with what Explain() says about each consumer, in the order of the status.
std::string PartitionPage(const NamedPartition& partition, const std::vector<std::string>& explanations,
                          const PageFacts& facts);

}  // namespace tdock::console
