// What the processes of a run did, for viewers of traces.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tdock::trainer {

// A stretch of time of one thread of a process.
struct TraceSpan {
  int rank = 0;           // of the process
  std::string lane = {};  // what stands for the thread, such as a stage
  std::string name = {};
  int64_t began_ns = 0, ended_ns = 0;  // since the epoch
  int64_t rows = 0;
  int64_t memory_before = 0, memory_after = 0;  // bytes that are resident; 0: unknown
};

// In the Trace Event Format, as JSON, which Perfetto (ui.perfetto.dev) and Chrome
// open: a process for each rank, a thread for each lane; times begin with the first span.
std::string ToTrace(std::span<const TraceSpan> spans);

}  // namespace tdock::trainer
