// A self-contained HTML page about a run, which loads nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tdock::trainer {

// What the page shows besides the run's logs.
struct ReportHead {
  std::string title = {};
  // Shown in order beside the title, such as {"seed", "1"}, {"parameters", "444,768"}, {"device", "cpu, 2 threads"}.
  std::vector<std::pair<std::string, std::string>> facts = {};
  // Why the run stopped early; empty if it did not.
  std::string problem = {};
  // How long the run had taken before it was resumed; zero if it was not.
  absl::Duration earlier = {};
};

// The logged files of a run directory, as they are on disk.
struct ReportSource {
  absl::string_view config_yaml = {};
  absl::string_view metrics_jsonl = {};
  absl::string_view samples_jsonl = {};
  absl::string_view timeline_jsonl = {};
  absl::Duration elapsed = {};
};

// Text is untrusted: it reaches the page as data, never as markup. Lines that are not records are skipped, and their
// number is shown. Series of more than 1,000 points are shown as means of equal intervals, with their range. Of the
// timeline the last 2,000 spans are shown at most.
std::string RenderReport(const ReportHead& head, const ReportSource& source);

}  // namespace tdock::trainer
