#include "trainer/run_log/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/str_format.h"

namespace tdock::trainer {
namespace {

constexpr size_t kMostPoints = 1000;

LogRecord StepAndValue(const Series& series, size_t index) {
  return LogRecord::array({series.steps[index], RoundedForPlot(series.values[index])});
}

// {"last", "min", "max"}: points of the whole series, or nothing where no value is finite.
LogRecord Extremes(const Series& series) {
  std::optional<size_t> last, least, most;
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (!std::isfinite(series.values[i])) continue;
    last = i;
    if (!least || series.values[i] < series.values[*least]) least = i;
    if (!most || series.values[i] > series.values[*most]) most = i;
  }
  if (!last) return LogRecord::object();
  return {{"last", StepAndValue(series, *last)},
          {"min", StepAndValue(series, *least)},
          {"max", StepAndValue(series, *most)}};
}

// {"x", "y"}, the points to draw; of a long series {"x", "y", "low", "high"}, the mean, least and most of each run of
// points, at the run's last step.
LogRecord Points(const Series& series) {
  const size_t count = series.values.size();
  const size_t run = (count + kMostPoints - 1) / kMostPoints;
  LogRecord x = LogRecord::array(), y = LogRecord::array(), low = LogRecord::array(), high = LogRecord::array();
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
    y.push_back(finite > 0 ? RoundedForPlot(sum / static_cast<double>(finite)) : LogRecord());
    low.push_back(RoundedForPlot(least));
    high.push_back(RoundedForPlot(most));
  }
  LogRecord points = {{"x", std::move(x)}, {"y", std::move(y)}};
  if (run > 1) points.update({{"low", std::move(low)}, {"high", std::move(high)}});
  return points;
}

}  // namespace

std::string TextOf(const LogRecord& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

LogRecord RoundedForPlot(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

MetricsLog ReadMetrics(absl::string_view metrics_jsonl) {
  std::vector<PhaseMetrics> phases;
  std::vector<std::map<std::string, size_t>> places;  // of each phase, in its series
  const int64_t unreadable = ForEachRecord(metrics_jsonl, [&](const LogRecord& record) {
    const std::string name = TextOf(record, "phase");
    auto phase = std::find_if(phases.begin(), phases.end(), [&](const PhaseMetrics& p) { return p.name == name; });
    const int64_t step = record["step"].get<int64_t>();
    if (phase == phases.end()) {
      phase = phases.insert(phases.end(), PhaseMetrics{.name = name, .series = {}, .first_step = step});
      places.emplace_back();
    }
    std::map<std::string, size_t>& known = places[static_cast<size_t>(phase - phases.begin())];
    phase->first_step = std::min(phase->first_step, step);
    phase->last_step = std::max(phase->last_step, step);
    for (const auto& [tag, value] : record.items()) {
      if (tag == "phase" || tag == "step" || (!value.is_number() && !value.is_null())) continue;
      const auto [place, is_new] = known.try_emplace(tag, phase->series.size());
      if (is_new) phase->series.emplace_back(tag, Series());
      Series& series = phase->series[place->second].second;
      series.steps.push_back(step);
      series.values.push_back(value.is_null() ? std::nan("") : value.get<double>());
    }
  });
  return {std::move(phases), unreadable};
}

void StepLists::Share(LogRecord& series_data) {
  const auto [place, is_new] = indexes_.emplace(series_data["x"], indexes_.size());
  if (is_new) lists_.push_back(series_data["x"]);
  series_data["x"] = place->second;
}

LogRecord SeriesData(const Series& series) {
  LogRecord data = Points(series);
  data.update(Extremes(series));
  return data;
}

}  // namespace tdock::trainer
