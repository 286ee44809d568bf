// The lines of a run's logs, read back for pages and tables.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/json_text.h"

namespace tdock::trainer {

using LogRecord = nlohmann::ordered_json;

// Calls `take` with every line that is a JSON object with a step, and returns how many are not. What follows the last
// newline is no line.
template <class Function>
int64_t ForEachRecord(absl::string_view lines, Function take) {
  int64_t unreadable = 0;
  for (size_t end; (end = lines.find('\n')) != absl::string_view::npos; lines.remove_prefix(end + 1)) {
    const LogRecord record = LogRecord::parse(lines.begin(), lines.begin() + end, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.contains("step") && record["step"].is_number_integer()) {
      take(record);
    } else {
      ++unreadable;
    }
  }
  return unreadable;
}

// The text under `name`; empty if there is none.
std::string TextOf(const LogRecord& record, const char* name);

// Six significant digits, which are more than a plot can show, and keep a page small; null if it is not finite.
LogRecord RoundedForPlot(double value);

struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;  // NaN where the line says null
};

// Of one phase.
struct PhaseMetrics {
  std::string name;
  std::vector<std::pair<std::string, Series>> series;  // by metric, in the order of their first appearance
  int64_t first_step = 0, last_step = 0;
};

struct MetricsLog {
  std::vector<PhaseMetrics> phases;  // in the order of their first appearance
  int64_t unreadable = 0;
};

MetricsLog ReadMetrics(absl::string_view metrics_jsonl);

// What a page needs to draw a series: {"x", "y"}, the points; of a series of more than 1,000 {"x", "y", "low", "high"},
// the mean, least and most of each of as many equal runs of points, at the run's last step. And {"last", "min", "max"},
// points [step, value] of the whole series, unless no value of it is finite.
LogRecord SeriesData(const Series& series);

// The lists of steps of many series, most of which have the same: each is kept once.
class StepLists {
 public:
  // Replaces the list "x" of the data of a series by its index.
  void Share(LogRecord& series_data);
  const LogRecord& lists() const { return lists_; }

 private:
  std::map<LogRecord, size_t> indexes_;
  LogRecord lists_ = LogRecord::array();
};

}  // namespace tdock::trainer
