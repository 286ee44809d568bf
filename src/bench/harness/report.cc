#include "bench/harness/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/json_text.h"

namespace tdock::bench {
namespace {

// Three digits or more: 0.0123, 1.23, 12.3, 1,234,567.
std::string Digits(double value) {
  if (value < 1000) {
    const int whole_digits = value >= 1 ? static_cast<int>(std::log10(value)) + 1 : 0;
    return absl::StrFormat("%.*f", std::max(value < 0.1 ? 4 : 3 - whole_digits, 0), value);
  }
  std::string digits = absl::StrFormat("%.0f", value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string Line(const std::string& name, size_t name_width, const std::string& median, const std::string& unit,
                 const std::string& spread, const std::string& ratio, const std::string& of) {
  std::string line = absl::StrFormat("%-*s  %12s  %-9s  %6s  %6s  %s", static_cast<int>(name_width), name, median, unit,
                                     spread, ratio, of);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string TableHead(size_t name_width) { return Line("name", name_width, "median", "unit", "spread", "ratio", "of"); }

std::string TableRow(const Result& result, size_t name_width) {
  const auto [lowest, highest] = std::minmax_element(result.runs.begin(), result.runs.end());
  const std::string spread = absl::StrFormat("%.0f%%", (*highest - *lowest) / result.median * 100);
  const std::string ratio = result.ratio ? absl::StrFormat("%.3f", *result.ratio) : "";
  std::string last = result.of;
  for (const Detail& detail : result.details) {
    absl::StrAppend(&last, last.empty() ? "" : ", ", detail.name, " ", Digits(detail.value));
  }
  return Line(result.name, name_width, Digits(result.median), result.unit, spread, ratio, last);
}

std::string ReportJson(const Machine& machine, const Settings& settings, std::span<const Result> results) {
  using Json = nlohmann::ordered_json;
  Json report;
  report["machine"] = {{"cpu", machine.cpu},
                       {"instructions", machine.instructions},
                       {"cores", machine.cores},
                       {"memory_bytes", machine.memory_bytes},
                       {"kernel", machine.kernel},
                       {"compiler", machine.compiler},
                       {"build_type", machine.build_type},
                       {"libtorch", machine.libtorch},
                       {"load_average", machine.load_average},
                       {"time", machine.time}};
  report["settings"] = {
      {"runs", settings.runs}, {"threads", settings.threads}, {"quick", settings.quick}, {"device", settings.device}};
  report["results"] = Json::array();
  for (const Result& result : results) {
    Json entry = {{"name", result.name}, {"median", result.median}, {"unit", result.unit}, {"runs", result.runs}};
    if (result.ratio) {
      entry["ratio"] = *result.ratio;
      entry["of"] = result.of;
      entry["reference_runs"] = result.reference_runs;
    }
    for (const Detail& detail : result.details) entry[detail.name] = detail.value;
    report["results"].push_back(std::move(entry));
  }
  return JsonText(report, 2) + "\n";
}

}  // namespace tdock::bench
