// A line of samples.jsonl, read back for pages.
#pragma once

#include <cstddef>

#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {

constexpr size_t kMostSamplesOfAStep = 12;

// {"phase", "step", "prompt", "response", "truth", "message", "reward": number or null, "correct": bool or null}. Texts
// end with " …" after 4,000 bytes.
LogRecord SampleData(const LogRecord& record);

}  // namespace tdock::trainer
