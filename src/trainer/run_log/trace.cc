#include "trainer/run_log/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"

namespace tdock::trainer {

std::string ToTrace(std::span<const TraceSpan> spans) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TraceSpan& span : spans) first = std::min(first, span.began_ns);
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  std::set<int> ranks;
  std::map<std::pair<int, std::string>, int> lanes;  // their numbers in a process
  for (const TraceSpan& span : spans) {
    if (ranks.insert(span.rank).second) {
      events.push_back({{"name", "process_name"},
                        {"ph", "M"},
                        {"pid", span.rank},
                        {"args", {{"name", absl::StrCat("rank ", span.rank)}}}});
    }
    const auto [lane, is_new] = lanes.try_emplace({span.rank, span.lane}, static_cast<int>(lanes.size()));
    if (is_new) {
      events.push_back({{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", span.rank},
                        {"tid", lane->second},
                        {"args", {{"name", span.lane}}}});
    }
    nlohmann::ordered_json details = {{"rows", span.rows}};
    if (span.memory_after > 0) {
      details["memory before (MB)"] = static_cast<double>(span.memory_before) / 1e6;
      details["memory after (MB)"] = static_cast<double>(span.memory_after) / 1e6;
    }
    events.push_back({{"name", span.name},
                      {"ph", "X"},
                      {"pid", span.rank},
                      {"tid", lane->second},
                      {"ts", static_cast<double>(span.began_ns - first) / 1e3},  // microseconds
                      {"dur", static_cast<double>(span.ended_ns - span.began_ns) / 1e3},
                      {"args", std::move(details)}});
  }
  return JsonText(nlohmann::ordered_json({{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}})) + "\n";
}

}  // namespace tdock::trainer
