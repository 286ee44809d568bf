// For tests: what event loops cost.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace tdock::service {

// What the loops of this process have used of the processors.
inline double LoopCpuSeconds() {
  double seconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "tdock-loop") continue;
    double nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    seconds += 1e-9 * nanoseconds;
  }
  return seconds;
}

}  // namespace tdock::service
