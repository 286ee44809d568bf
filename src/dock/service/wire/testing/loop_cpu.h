// For tests: what event loops cost.
#pragma once

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace tdock::service {

// CPU time of the loops of this process.
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

// CPU time of all threads of this process.
inline double ProcessCpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// CPU time of some work of a client and a server in this process: of its loops, and of all threads.
class LoopCost {
 public:
  // The work begins.
  LoopCost() : loops_(LoopCpuSeconds()), process_(ProcessCpuSeconds()) {}
  // The work is done.
  void Stop() {
    loops_ = LoopCpuSeconds() - loops_;
    process_ = ProcessCpuSeconds() - process_;
  }
  double loop_seconds() const { return loops_; }

  // Success if the loops have used less than this time, or less than a quarter of the process's. On a loaded machine
  // the same work takes more CPU time, on loops and elsewhere.
  testing::AssertionResult IsLittle(double seconds) const {
    if (loops_ < std::max(seconds, process_ / 4)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "the loops have used " << loops_ << " s of the processors, and the process "
                                       << process_ << " s";
  }

 private:
  double loops_, process_;
};

}  // namespace tdock::service
