#include "trainer/run_log/report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "trainer/run_log/report_template.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostPoints = 1000;
constexpr size_t kMostSampleSteps = 6;
constexpr size_t kMostSamplesOfAStep = 12;
constexpr size_t kMostTextBytes = 4000;
constexpr absl::string_view kPlaceOfData = "{{run}}";

struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;  // NaN where the line says null
};

// Of one phase; both in the order of their first appearance.
struct Phase {
  std::string name;
  std::vector<std::pair<std::string, Series>> series;
  int64_t last_step = 0;
};

template <class T>
T& FindOrAdd(std::vector<std::pair<std::string, T>>& entries, const std::string& name) {
  for (auto& [key, value] : entries) {
    if (key == name) return value;
  }
  return entries.emplace_back(name, T{}).second;
}

// Calls `take` with every line that is a JSON object and returns how many are not. What follows the last newline is
// no line.
template <class Function>
int64_t ForEachRecord(absl::string_view lines, Function take) {
  int64_t unreadable = 0;
  for (size_t end; (end = lines.find('\n')) != absl::string_view::npos; lines.remove_prefix(end + 1)) {
    const Json record = Json::parse(lines.begin(), lines.begin() + end, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.contains("step") && record["step"].is_number_integer()) {
      take(record);
    } else {
      ++unreadable;
    }
  }
  return unreadable;
}

std::string TextOf(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

// Six significant digits are more than a plot can show, and keep the page small.
Json Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

Json StepAndValue(const Series& series, size_t index) {
  return Json::array({series.steps[index], Rounded(series.values[index])});
}

// {"last", "min", "max"}: points of the whole series, or nothing where no value is finite.
Json Extremes(const Series& series) {
  std::optional<size_t> last, least, most;
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (!std::isfinite(series.values[i])) continue;
    last = i;
    if (!least || series.values[i] < series.values[*least]) least = i;
    if (!most || series.values[i] > series.values[*most]) most = i;
  }
  if (!last) return Json::object();
  return {{"last", StepAndValue(series, *last)},
          {"min", StepAndValue(series, *least)},
          {"max", StepAndValue(series, *most)}};
}

// {"x", "y"}, the points to draw; of a long series {"x", "y", "low", "high"}, the mean, least and most of each run of
// points, at the run's last step.
Json Points(const Series& series) {
  const size_t count = series.values.size();
  const size_t run = (count + kMostPoints - 1) / kMostPoints;
  Json x = Json::array(), y = Json::array(), low = Json::array(), high = Json::array();
  for (size_t begin = 0; begin < count; begin += run) {
    const size_t end = std::min(begin + run, count);
    double sum = 0, least = std::numeric_limits<double>::infinity(), most = -least;
    size_t finite = 0;
    for (size_t i = begin; i < end; ++i) {
      const double value = series.values[i];
      if (!std::isfinite(value)) continue;
      sum += value;
      least = std::min(least, value);
      most = std::max(most, value);
      ++finite;
    }
    x.push_back(series.steps[end - 1]);
    y.push_back(finite > 0 ? Rounded(sum / static_cast<double>(finite)) : Json());
    low.push_back(Rounded(least));
    high.push_back(Rounded(most));
  }
  Json points = {{"x", std::move(x)}, {"y", std::move(y)}};
  if (run > 1) points.update({{"low", std::move(low)}, {"high", std::move(high)}});
  return points;
}

struct MetricsLog {
  std::vector<Phase> phases;
  int64_t unreadable = 0;
};

MetricsLog ReadMetrics(absl::string_view metrics_jsonl) {
  std::vector<Phase> phases;
  const int64_t unreadable = ForEachRecord(metrics_jsonl, [&](const Json& record) {
    const std::string name = TextOf(record, "phase");
    auto phase = std::find_if(phases.begin(), phases.end(), [&](const Phase& p) { return p.name == name; });
    if (phase == phases.end()) phase = phases.insert(phases.end(), Phase{.name = name, .series = {}});
    const int64_t step = record["step"].get<int64_t>();
    phase->last_step = std::max(phase->last_step, step);
    for (const auto& [tag, value] : record.items()) {
      if (tag == "phase" || tag == "step" || (!value.is_number() && !value.is_null())) continue;
      Series& series = FindOrAdd(phase->series, tag);
      series.steps.push_back(step);
      series.values.push_back(value.is_null() ? std::nan("") : value.get<double>());
    }
  });
  return {std::move(phases), unreadable};
}

// {"name", "last_step", "steps": [[…], …], "series": [{"tag", "x": index into steps, "y", "low"?, "high"?, "last"?,
// "min"?, "max"?}, …]}. Most series have the same steps, which therefore appear once.
Json PhaseData(const Phase& phase) {
  std::map<Json, size_t> indexes;
  Json steps = Json::array(), all = Json::array();
  for (const auto& [tag, series] : phase.series) {
    Json entry = {{"tag", tag}};
    entry.update(Points(series));
    const auto [place, is_new] = indexes.emplace(entry["x"], indexes.size());
    if (is_new) steps.push_back(entry["x"]);
    entry["x"] = place->second;
    entry.update(Extremes(series));
    all.push_back(std::move(entry));
  }
  return {{"name", phase.name}, {"last_step", phase.last_step}, {"steps", steps}, {"series", all}};
}

// Shortened between characters, not within one.
std::string Shortened(std::string text) {
  if (text.size() <= kMostTextBytes) return text;
  size_t end = kMostTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + " …";
}

struct SamplesLog {
  Json groups;
  int64_t unreadable = 0;
};

// The answers of a few steps, evenly spread from the first to the last; one array for each step.
SamplesLog ReadSamples(absl::string_view samples_jsonl) {
  std::vector<std::pair<std::string, std::vector<Json>>> groups;
  const int64_t unreadable = ForEachRecord(samples_jsonl, [&](const Json& record) {
    const std::string phase = TextOf(record, "phase");
    std::vector<Json>& group = FindOrAdd(groups, absl::StrFormat("%s %d", phase, record["step"].get<int64_t>()));
    if (group.size() == kMostSamplesOfAStep) return;
    const auto reward = record.find("reward");
    const auto correct = record.find("correct");
    group.push_back({{"phase", phase},
                     {"step", record["step"]},
                     {"prompt", Shortened(TextOf(record, "prompt"))},
                     {"response", Shortened(TextOf(record, "response"))},
                     {"truth", Shortened(TextOf(record, "truth"))},
                     {"reward", reward != record.end() && reward->is_number() ? *reward : Json()},
                     {"correct", correct != record.end() && correct->is_boolean() ? *correct : Json()}});
  });
  Json chosen = Json::array();
  const size_t count = std::min(groups.size(), kMostSampleSteps);
  for (size_t i = 0; i < count; ++i) {
    const size_t index = count > 1 ? i * (groups.size() - 1) / (count - 1) : 0;
    chosen.push_back(std::move(groups[index].second));
  }
  return {std::move(chosen), unreadable};
}

}  // namespace

std::string RenderReport(const ReportHead& head, const ReportSource& source) {
  const MetricsLog metrics = ReadMetrics(source.metrics_jsonl);
  const SamplesLog samples = ReadSamples(source.samples_jsonl);
  Json phases = Json::array(), facts = Json::array();
  for (const Phase& phase : metrics.phases) phases.push_back(PhaseData(phase));
  for (const auto& [name, value] : head.facts) facts.push_back(Json::array({name, value}));
  const Json data = {{"title", head.title},
                     {"problem", head.problem},
                     {"facts", facts},
                     {"seconds", absl::ToDoubleSeconds(source.elapsed)},
                     {"phases", phases},
                     {"samples", samples.groups},
                     {"unreadable", metrics.unreadable + samples.unreadable},
                     {"config", std::string(source.config_yaml)}};
  std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Inside a script element only "<" can end the element or open a comment; in JSON it stands in strings alone.
  text = absl::StrReplaceAll(text, {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kReportTemplate, {{kPlaceOfData, text}});
}

}  // namespace tdock::trainer
