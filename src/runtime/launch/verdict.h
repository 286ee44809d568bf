// Which of the ranks of a run has failed, and which only because of that one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/supervised_process.h"

namespace tdock::runtime {

// How a rank ended.
struct RankEnd {
  int rank = 0;
  ProcessEnd end = {};
  absl::Duration after = {};   // its start
  std::vector<int> told = {};  // the signals that the launcher had sent to end it
  std::vector<std::string> last_lines = {};
};

// By itself, that is, neither with code 0 nor as it was told to.
bool HasFailed(const RankEnd& end);

// The first that failed; but one that was killed or crashed rather than one that exited before, because the others
// often notice such an end before the one who waits for it. An abort does not count as a crash: communication libraries
// abort when a peer is gone. `ends` are in the order in which they happened. Null if none has failed.
const RankEnd* CauseOf(std::span<const RankEnd> ends);

// As a shell says it: that of the program, or 128 and the number of the signal; 127 and 126 for one that could not run.
int ExitCodeOf(const ProcessEnd& end);

// "rank 1 exited with code 3, 12.0 s after its start; the last of its output: …", and on a line of its own what became
// of the others, but for those that ended with code 0.
std::string FailureText(std::span<const RankEnd> ends, const RankEnd& cause);

}  // namespace tdock::runtime
