// The lines of timeline.jsonl, read back for a page. Internal to this module.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {

struct TimelineLog {
  // {"lanes": names of stages, in the order of their first appearance in the run; "steps": [[step, second of its end],
  // …]; "spans": [[index into lanes, index into steps, 1 if it worked or 0 if it waited, begin, end, rows], …], seconds
  // since the run began; "left_out": whether there were earlier steps}.
  LogRecord data;
  int64_t unreadable = 0;  // lines, of those that were read
};

// The last steps that have at most 2,000 spans together, but at least the last one's last 2,000: only the end of the
// file is read, and its beginning for the order of the stages.
TimelineLog ReadTimeline(absl::string_view timeline_jsonl);

// Whether a stage can have done something from `begin` to `end`, in seconds. Beyond 10^12 of them an axis cannot have
// marks: the distance between two would be lost in rounding.
bool IsTimeOfSpan(double begin, double end);

}  // namespace tdock::trainer
