#include "cli/runs/run_tables.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "cli/runs/checkpoints_of_run.h"
#include "cli/runs/text_table.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/preflight/grouped.h"

namespace tdock::cli {
namespace {

using trainer::MetricSummary;
using trainer::RunSummary;

// The figures that say how good a model is: first one of validation, then two of training, then others of validation.
constexpr const char* kKeyMetrics[] = {"val/accuracy", "critic/score/mean", "train/loss", "val/reward/mean",
                                       "val/loss"};
constexpr size_t kMostKeyMetrics = 2;
constexpr size_t kMostPathBytes = 1000;

std::string Number(double value) { return absl::StrFormat("%.4g", value); }

// "0.97 (step 20)" of a validation, whose last step may be long ago.
std::string LastText(absl::string_view name, const MetricSummary& metric) {
  const bool validated = absl::StartsWith(name, "val/");
  return absl::StrCat(Number(metric.last), validated ? absl::StrCat(" (step ", metric.last_step, ")") : "");
}

std::string TimeText(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M", time, absl::LocalTimeZone()); }

std::string Size(uint64_t bytes) {
  constexpr uint64_t kMebibyte = 1 << 20;
  if (bytes < kMebibyte) return absl::StrCat((bytes + 1023) / 1024, " KiB");
  return trainer::Mebibytes(static_cast<int64_t>(bytes));
}

std::string Path(absl::string_view path) { return EscapeForMessage(path, kMostPathBytes); }

bool IsShown(absl::string_view metric, bool all) {
  return all || !(absl::StartsWith(metric, "timing") || absl::StartsWith(metric, "perf/") ||
                  absl::StartsWith(metric, "dock/"));
}

// "val/accuracy 0.97, val/loss 0.1", of what has values, `first` before the others.
template <class Map, class TextOf>
std::string KeyMetricsText(const Map& metrics, const std::string& first, TextOf text_of) {
  std::vector<std::string> names = {first};
  for (const char* name : kKeyMetrics) {
    if (name != first) names.push_back(name);
  }
  std::vector<std::string> texts;
  for (const std::string& name : names) {
    const auto found = metrics.find(name);
    if (found == metrics.end() || texts.size() == kMostKeyMetrics) continue;
    texts.push_back(absl::StrCat(EscapeForMessage(name), " ", text_of(name, found->second)));
  }
  return absl::StrJoin(texts, ", ");
}

// "60", or "60 of 200" where the configuration says how many there are at most.
std::string StepText(const RunSummary& run) {
  if (!run.last_step) return "";
  const auto planned = run.config.find("trainer.total_training_steps");
  if (planned == run.config.end() || planned->second == "0") return absl::StrCat(*run.last_step);
  return absl::StrCat(*run.last_step, " of ", EscapeForMessage(planned->second));
}

std::string CheckpointTable(const RunSummary& run, const std::vector<StoredCheckpoint>& checkpoints) {
  std::vector<std::vector<std::string>> rows = {{"CHECKPOINT", "SIZE", "SAVED", "METRICS", "FOLDER"}};
  const BestRule rule = BestRuleOf(run, checkpoints, "");
  const std::optional<size_t> best = BestCheckpoint(checkpoints, rule);
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const StoredCheckpoint& checkpoint = checkpoints[i];
    const auto& manifest = checkpoint.manifest;
    rows.push_back({absl::StrCat(ToText(checkpoint.place), best == i ? " (best)" : ""), Size(checkpoint.bytes),
                    manifest ? TimeText(manifest->saved) : "its manifest cannot be read",
                    manifest ? KeyMetricsText(manifest->metrics, rule.metric,
                                              [](absl::string_view, double value) { return Number(value); })
                             : "",
                    Path(checkpoint.path)});
  }
  return TableText(rows);
}

std::string MetricTable(const RunSummary& run, bool all) {
  std::vector<std::vector<std::string>> rows = {{"METRIC", "LAST", "AT STEP", "LEAST", "MOST"}};
  for (const auto& [name, metric] : run.metrics) {
    if (!IsShown(name, all)) continue;
    rows.push_back({EscapeForMessage(name), Number(metric.last), absl::StrCat(metric.last_step), Number(metric.least),
                    Number(metric.most)});
  }
  return rows.size() > 1 ? TableText(rows) : "";
}

// Those that are there.
std::string FileLines(Env& env, const RunSummary& run) {
  std::string text;
  for (const auto& [what, name] : {std::pair("model", "checkpoint"), std::pair("average", "checkpoint-ema"),
                                   std::pair("report", "report.html"), std::pair("metrics", "metrics.jsonl"),
                                   std::pair("answers", "samples.jsonl"), std::pair("events", "tensorboard")}) {
    const std::string path = JoinPath(run.path, name);
    if (env.Exists(path)) absl::StrAppend(&text, absl::StrFormat("%-11s %s\n", what, Path(path)));
  }
  return text;
}

std::string HowToGoOn(const RunSummary& run) {
  const std::string command = absl::StrCat("tdock train ", Path(JoinPath(run.path, "config.yaml")));
  switch (run.state) {
    case trainer::RunState::kInterrupted:
      return absl::StrFormat("%-11s %s\n", "to go on", command);
    case trainer::RunState::kFailed:
      return absl::StrFormat("%-11s %s\n", "to repeat", command + " trainer.run_dir=ANOTHER-FOLDER");
    case trainer::RunState::kRunning:
    case trainer::RunState::kFinished:
      return "";
  }
  return "";
}

// A value of a configuration, without the quotation marks of YAML.
std::string ValueCell(absl::string_view yaml) {
  if (yaml == "\"\"") return std::string(yaml);
  if (yaml.size() > 2 && absl::ConsumePrefix(&yaml, "\"")) absl::ConsumeSuffix(&yaml, "\"");
  return EscapeForMessage(yaml, 40);
}

// The text of a key in each run, if they differ.
std::vector<std::vector<std::string>> ConfigRows(std::span<const RunSummary> runs) {
  std::set<std::string> keys;
  for (const RunSummary& run : runs) {
    for (const auto& [key, value] : run.config) keys.insert(key);
  }
  keys.erase("trainer.run_dir");  // the folder, which is the heading
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : keys) {
    std::vector<std::string> row = {EscapeForMessage(key)};
    std::set<std::string> different;
    for (const RunSummary& run : runs) {
      const auto found = run.config.find(key);
      different.insert(found == run.config.end() ? "" : found->second);
      row.push_back(found == run.config.end() ? "–" : ValueCell(found->second));
    }
    if (different.size() > 1) rows.push_back(std::move(row));
  }
  return rows;
}

std::string MetricCell(const std::string& name, const RunSummary& run) {
  const auto found = run.metrics.find(name);
  if (found == run.metrics.end()) return "–";
  const std::optional<double> best = trainer::BestOf(name, found->second);
  return absl::StrCat(LastText(name, found->second), best ? absl::StrCat(" (best ", Number(*best), ")") : "");
}

}  // namespace

std::string ListText(std::span<const RunSummary> runs) {
  std::vector<std::vector<std::string>> rows = {{"RUN", "RECIPE", "STATE", "STEP", "METRICS", "SIZE", "CHANGED"}};
  for (const RunSummary& run : runs) {
    rows.push_back({Path(run.path), EscapeForMessage(run.recipe()), std::string(ToText(run.state)), StepText(run),
                    KeyMetricsText(run.metrics, "", LastText), Size(run.bytes), TimeText(run.changed)});
  }
  return TableText(rows);
}

std::string ListJson(std::span<const RunSummary> runs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RunSummary& run : runs) {
    nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
    for (const auto& [name, metric] : run.metrics) metrics[name] = metric.last;
    list.push_back({{"path", run.path},
                    {"recipe", run.recipe()},
                    {"state", std::string(ToText(run.state))},
                    {"last_step", run.last_step ? nlohmann::ordered_json(*run.last_step) : nullptr},
                    {"metrics", std::move(metrics)},
                    {"bytes", run.bytes},
                    {"changed", absl::FormatTime(absl::RFC3339_sec, run.changed, absl::UTCTimeZone())}});
  }
  return JsonText(list, 1) + "\n";
}

absl::StatusOr<std::string> ShowText(Env& env, const RunSummary& run, bool all) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<StoredCheckpoint> checkpoints, CheckpointsOf(env, run.path));
  std::string text;
  const auto line = [&](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&text, absl::StrFormat("%-11s %s\n", name, value));
  };
  line("run", Path(run.path));
  line("recipe", EscapeForMessage(run.recipe()));
  line("state", ToText(run.state));
  if (run.last_step) line("last step", StepText(run));
  line("changed", TimeText(run.changed));
  line("size", Size(run.bytes));
  absl::StrAppend(&text, FileLines(env, run), HowToGoOn(run));
  if (!checkpoints.empty()) absl::StrAppend(&text, "\n", CheckpointTable(run, checkpoints));
  const std::string metrics = MetricTable(run, all);
  if (!metrics.empty()) absl::StrAppend(&text, "\n", metrics);
  return text;
}

std::string CompareText(std::span<const RunSummary> runs, bool all) {
  std::vector<std::string> headings = {"KEY"};
  for (const RunSummary& run : runs) headings.push_back(Path(run.path));
  std::vector<std::vector<std::string>> config = ConfigRows(runs);
  std::string text = "The configurations are the same.\n";
  if (!config.empty()) {
    config.insert(config.begin(), headings);
    text = TableText(config);
  }
  headings[0] = "METRIC";
  std::vector<std::vector<std::string>> metrics = {headings};
  std::set<std::string> names;
  for (const RunSummary& run : runs) {
    for (const auto& [name, metric] : run.metrics) {
      if (IsShown(name, all)) names.insert(name);
    }
  }
  for (const std::string& name : names) {
    metrics.push_back({EscapeForMessage(name)});
    for (const RunSummary& run : runs) metrics.back().push_back(MetricCell(name, run));
  }
  return metrics.size() > 1 ? absl::StrCat(text, "\n", TableText(metrics)) : text;
}

}  // namespace tdock::cli
