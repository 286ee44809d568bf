// The machine that a figure was measured on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/env.h"

namespace tdock::bench {

struct Machine {
  std::string cpu;  // the model's name, or the architecture where the system does not tell
  // Of the processor's vector and matrix instructions, those that kernels can use, by the names of /proc/cpuinfo.
  std::vector<std::string> instructions = {};
  int cores = 0;  // that this process may use
  int64_t memory_bytes = 0;
  std::string kernel;
  std::string compiler;
  std::string build_type;
  std::string libtorch;                     // its version; empty in a program without it
  std::array<double, 3> load_average = {};  // over 1, 5 and 15 minutes: what else the machine was doing
  std::string time;                         // RFC 3339, UTC
};

// All but `libtorch`, as it is now.
Machine DescribeMachine(Env& env, Clock& clock);

// The memory of this process that is in use now; 0 where the system does not tell.
int64_t ResidentBytes(Env& env);

}  // namespace tdock::bench
