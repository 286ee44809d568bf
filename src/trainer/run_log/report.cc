#include "trainer/run_log/report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json_text.h"
#include "core/base/status.h"
#include "trainer/run_log/metrics_log.h"
#include "trainer/run_log/page.h"
#include "trainer/run_log/report_template.h"
#include "trainer/run_log/sample_data.h"
#include "trainer/run_log/timeline_log.h"

namespace tdock::trainer {
namespace {

using Json = LogRecord;

constexpr size_t kMostSampleSteps = 6;

// {"name", "first_step", "last_step", "steps": [[…], …], "series": [{"tag", "x": index into steps, "y", "low"?,
// "high"?, "last"?, "min"?, "max"?}, …]}.
Json PhaseData(const PhaseMetrics& phase) {
  StepLists steps;
  Json all = Json::array();
  for (const auto& [tag, series] : phase.series) {
    Json entry = {{"tag", tag}};
    entry.update(SeriesData(series));
    steps.Share(entry);
    all.push_back(std::move(entry));
  }
  return {{"name", phase.name},
          {"first_step", phase.first_step},
          {"last_step", phase.last_step},
          {"steps", steps.lists()},
          {"series", all}};
}

struct SamplesLog {
  Json groups;
  int64_t unreadable = 0;
};

// The answers of a few steps, evenly spread from the first to the last; one array for each step.
SamplesLog ReadSamples(absl::string_view samples_jsonl) {
  std::vector<std::vector<Json>> groups;
  std::map<std::pair<std::string, int64_t>, size_t> places;  // in `groups`, by phase and step
  const int64_t unreadable = ForEachRecord(samples_jsonl, [&](const Json& record) {
    const std::pair key(TextOf(record, "phase"), record["step"].get<int64_t>());
    const auto [place, is_new] = places.try_emplace(key, groups.size());
    if (is_new) groups.emplace_back();
    std::vector<Json>& group = groups[place->second];
    if (group.size() == kMostSamplesOfAStep) return;
    group.push_back(SampleData(record));
  });
  Json chosen = Json::array();
  const size_t count = std::min(groups.size(), kMostSampleSteps);
  for (size_t i = 0; i < count; ++i) {
    const size_t index = count > 1 ? i * (groups.size() - 1) / (count - 1) : 0;
    chosen.push_back(std::move(groups[index]));
  }
  return {std::move(chosen), unreadable};
}

}  // namespace

std::string RenderReport(const ReportHead& head, const ReportSource& source) {
  const MetricsLog metrics = ReadMetrics(source.metrics_jsonl);
  const SamplesLog samples = ReadSamples(source.samples_jsonl);
  TimelineLog timeline = ReadTimeline(source.timeline_jsonl);
  Json phases = Json::array(), facts = Json::array();
  for (const PhaseMetrics& phase : metrics.phases) phases.push_back(PhaseData(phase));
  for (const auto& [name, value] : head.facts) facts.push_back(Json::array({name, value}));
  const Json data = {{"title", head.title},
                     {"problem", head.problem},
                     {"facts", facts},
                     {"seconds", absl::ToDoubleSeconds(source.elapsed)},
                     {"phases", phases},
                     {"samples", samples.groups},
                     {"timeline", std::move(timeline.data)},
                     {"unreadable", metrics.unreadable + samples.unreadable + timeline.unreadable},
                     {"config", std::string(source.config_yaml)}};
  return FilledPage(kReportTemplate, data);
}

}  // namespace tdock::trainer
