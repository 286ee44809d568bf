#include "trainer/run_log/metrics_csv.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/json_text.h"
#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {
namespace {

// The text as a field.
std::string Field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

std::string MetricsCsv(absl::string_view metrics_jsonl) {
  std::map<std::string, size_t> columns;  // metric -> its place after step and phase
  ForEachRecord(metrics_jsonl, [&](const LogRecord& record) {
    for (const auto& [name, value] : record.items()) {
      if (name != "step" && name != "phase" && (value.is_number() || value.is_null())) columns.emplace(name, 0);
    }
  });
  std::string csv = "step,phase";
  size_t count = 0;
  for (auto& [name, place] : columns) {
    place = count++;
    absl::StrAppend(&csv, ",", Field(name));
  }
  csv += "\r\n";
  std::vector<std::string> cells;
  ForEachRecord(metrics_jsonl, [&](const LogRecord& record) {
    cells.assign(count, "");
    for (const auto& [name, value] : record.items()) {
      const auto column = columns.find(name);
      if (column != columns.end() && value.is_number()) cells[column->second] = JsonText(value);
    }
    absl::StrAppend(&csv, JsonText(record["step"]), ",", Field(TextOf(record, "phase")));
    for (const std::string& cell : cells) absl::StrAppend(&csv, ",", cell);
    csv += "\r\n";
  });
  return csv;
}

}  // namespace tdock::trainer
