// Producers and consumers that write down what they do, apart from the dock, so that a test can hold the dock to it.
//
// Each writes lines to a file of its own before and after a call: "? put 1 2" is about to happen, "+ put 1 2" was
// acknowledged, "- done 3" was refused, and "! …" is wrong in itself. A mark is the number of a row, which its other
// columns are made of.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tdock/dock.h"

namespace tdock::fault {

// The partition and its consumer: a table with room for few rows, which go when they are done.
absl::Status CreateRecorded(Dock& dock);

// Rows with these marks.
Batch RecordedBatch(const std::vector<int64_t>& marks);
// The marks of rows that were handed out; DataLoss if a column is not what its mark says.
absl::StatusOr<std::vector<int64_t>> MarksOf(const Rows& rows);

// Puts rows with marks from `first` on, without end. Returns if it cannot go on.
absl::Status ProduceRecorded(Dock& dock, const std::string& file, int64_t first);
// Takes rows without end and completes them, publishes something of them, gives them back, or holds them for a while.
absl::Status ConsumeRecorded(Dock& dock, const std::string& file, uint64_t seed);

// What the files of all say together.
struct Recorded {
  std::set<int64_t> intended, put, maybe_done;
  // How often each was acknowledged as done.
  std::map<int64_t, int> done;
  std::vector<std::string> wrong;

  void Read(const std::string& file);
};

}  // namespace tdock::fault
