#include "trainer/run_log/comparison.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/spec.h"
#include "trainer/run_log/metrics_log.h"
#include "trainer/run_log/page.h"
#include "trainer/run_log/report_template.h"

namespace tdock::trainer {
namespace {

constexpr absl::string_view kFolderKey = "trainer.run_dir";  // differs between any two runs

struct ComparedRun {
  std::string folder;
  MetricsLog metrics;
  std::map<std::string, std::string> config;
  std::string problem;  // with its configuration
};

absl::StatusOr<ComparedRun> ReadRun(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, "metrics.jsonl");
  if (!env.Exists(path)) {
    return absl::NotFoundError(
        absl::StrCat("there is no metrics.jsonl in ", EscapeUnprintable(folder), ": it is not the folder of a run"));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::string lines, env.ReadFile(path));
  ComparedRun run{.folder = folder, .metrics = ReadMetrics(lines), .config = {}, .problem = {}};
  const std::string config_path = JoinPath(folder, "config.yaml");
  absl::StatusOr<std::string> yaml = env.ReadFile(config_path);
  if (yaml.ok()) {
    auto values = config::ValuesIn(*yaml, config_path);
    if (values.ok()) run.config = *std::move(values);
    run.problem = std::string(values.status().message());
  } else {
    run.problem = std::string(yaml.status().message());
  }
  return run;
}

// Each by the last part of its path, or by the whole path where parts are the same.
std::vector<std::string> Names(std::span<const std::string> run_dirs) {
  std::vector<std::string> names;
  for (absl::string_view folder : run_dirs) {
    while (absl::ConsumeSuffix(&folder, "/")) {
    }
    names.emplace_back(folder.substr(folder.rfind('/') + 1));  // npos + 1 is 0
  }
  if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  return {run_dirs.begin(), run_dirs.end()};
}

// Of all phases, whose steps follow each other.
std::map<std::string, Series> SeriesOf(const MetricsLog& metrics) {
  std::map<std::string, Series> all;
  for (const PhaseMetrics& phase : metrics.phases) {
    for (const auto& [name, series] : phase.series) {
      Series& joined = all[name];
      joined.steps.insert(joined.steps.end(), series.steps.begin(), series.steps.end());
      joined.values.insert(joined.values.end(), series.values.begin(), series.values.end());
    }
  }
  return all;
}

// [{"tag", "lines": [{"run": index, "x": index into `steps`, "y", "low"?, "high"?, "last"?, "min"?, "max"?}, …]}, …],
// in the order of names.
LogRecord CommonMetrics(std::span<const ComparedRun> runs, StepLists& steps) {
  std::map<std::string, LogRecord> lines;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, series] : SeriesOf(runs[i].metrics)) {
      LogRecord line = {{"run", i}};
      line.update(SeriesData(series));
      lines.try_emplace(name, LogRecord::array()).first->second.push_back(std::move(line));
    }
  }
  LogRecord common = LogRecord::array();
  for (auto& [name, of_runs] : lines) {
    if (of_runs.size() < 2) continue;
    for (LogRecord& line : of_runs) steps.Share(line);
    common.push_back({{"tag", name}, {"lines", std::move(of_runs)}});
  }
  return common;
}

// [[key, value of the first run or null, of the second, …], …] for the keys that are not the same in all of them.
LogRecord Differences(std::span<const ComparedRun> runs) {
  std::set<std::string> keys;
  for (const ComparedRun& run : runs) {
    for (const auto& [key, value] : run.config) keys.insert(key);
  }
  LogRecord rows = LogRecord::array();
  for (const std::string& key : keys) {
    LogRecord row = LogRecord::array({key});
    for (const ComparedRun& run : runs) {
      const auto found = run.config.find(key);
      row.push_back(found == run.config.end() ? LogRecord() : LogRecord(found->second));
    }
    const auto differs = [&](const LogRecord& cell) { return cell != row[1]; };
    if (key != kFolderKey && std::any_of(row.begin() + 1, row.end(), differs)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

absl::Status WriteComparison(Env& env, std::span<const std::string> run_dirs, const std::string& path) {
  if (run_dirs.size() < 2 || run_dirs.size() > kMostComparedRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat(run_dirs.size(), " runs were given to compare; 2 to ", kMostComparedRuns, " can be"));
  }
  std::vector<ComparedRun> runs;
  for (const std::string& folder : run_dirs) {
    TDOCK_ASSIGN_OR_RETURN(ComparedRun run, ReadRun(env, folder));
    runs.push_back(std::move(run));
  }
  const std::vector<std::string> names = Names(run_dirs);
  LogRecord heads = LogRecord::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    int64_t last_step = 0;
    for (const PhaseMetrics& phase : runs[i].metrics.phases) last_step = std::max(last_step, phase.last_step);
    heads.push_back({{"name", names[i]},
                     {"folder", runs[i].folder},
                     {"last_step", last_step},
                     {"unreadable", runs[i].metrics.unreadable},
                     {"problem", runs[i].problem}});
  }
  StepLists steps;
  LogRecord metrics = CommonMetrics(runs, steps);
  const LogRecord data = {
      {"runs", heads}, {"metrics", std::move(metrics)}, {"steps", steps.lists()}, {"differences", Differences(runs)}};
  return WriteFileAtomically(env, path, FilledPage(kComparisonTemplate, data));
}

}  // namespace tdock::trainer
