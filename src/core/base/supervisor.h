// The supervising process of a SupervisedProcess. Internal to this module.
#pragma once

#include <array>
#include <span>
#include <type_traits>
#include <utility>

#include "core/base/supervised_process.h"

namespace tdock {

// The highest number that a further descriptor may have in the program; each has another.
inline constexpr int kMostDescriptor = 63;

// What is to be run. Everything that it points to was made before the fork.
struct SupervisorTask {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const char* folder;  // or null
  ProcessLimits limits;
  bool core_dumps;
  std::array<int, 3> standard;  // its standard streams
  std::span<const std::pair<int, int>> descriptors;
  int control;  // a byte from this pipe is a signal for the program; its end means: kill everything
  int report;   // gets one SupervisorReport
};

struct SupervisorReport {
  ProcessEnd end;
};
static_assert(std::is_trivially_copyable_v<SupervisorReport>);

// fork() without the handlers of pthread_atfork(), which belong to libraries that the child does not use.
pid_t ForkWithoutHandlers();

// In the child of ForkWithoutHandlers(), with all signals blocked. Calls only what is safe in signal handlers, because
// this process may have had other threads.
[[noreturn]] void Supervise(const SupervisorTask& task);

}  // namespace tdock
