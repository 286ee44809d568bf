// The verbs of `tdock dock` that query or change a dock, for people and for programs.
//
// Each function asks the dock, then writes to `out`: text of at most about 100 columns, or with `json` one JSON
// document and a line end, whose names are stable. An error of the dock is returned unchanged, and then nothing is
// written.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/clock.h"
#include "tdock/dock.h"

namespace tdock::console {

// One partition in full; without a name, all of them with one line each (as JSON, all in full).
struct StatusOptions {
  std::string partition = {};
  bool json = false;
};
absl::Status PrintStatus(Dock& dock, const StatusOptions& options, std::ostream& out);

struct ExplainOptions {
  std::string partition = {};
  std::string consumer = {};
  bool json = false;
};
absl::Status PrintExplanation(Dock& dock, const ExplainOptions& options, std::ostream& out);

// One row: its cells, which consumers put them, and its state for each consumer.
struct RowOptions {
  std::string partition = {};
  RowId row = 0;
  bool json = false;
  // The clock of the dock's leases.
  Clock& clock = Clock::Real();
};
absl::Status PrintRow(Dock& dock, const RowOptions& options, std::ostream& out);

// Up to `request.limit` rows, in as many pages as that takes; then how to continue.
struct ListOptions {
  ListRequest request = {};
  bool json = false;
};
absl::Status PrintList(Dock& dock, const ListOptions& options, std::ostream& out);

// Refuses to clear everything without `yes`, saying what would be removed: InvalidArgument.
struct ClearOptions {
  ClearRequest request = {};
  bool yes = false;
  bool json = false;
};
absl::Status ClearRows(Dock& dock, const ClearOptions& options, std::ostream& out);

// Removes a partition. Refuses to without `yes`, saying what would be removed: InvalidArgument.
struct DropOptions {
  std::string partition = {};
  bool yes = false;
  bool json = false;
};
absl::Status DropPartition(Dock& dock, const DropOptions& options, std::ostream& out);

// Row or group ids: "3", "3,5" and "3-7", all lists combined. InvalidArgument begins with `what`, also for more than a
// million ids.
absl::StatusOr<std::vector<uint64_t>> ParseNumbers(absl::string_view what, const std::vector<std::string>& lists);
// "name=value", once for each name. InvalidArgument begins with `what`.
absl::StatusOr<Tags> ParseTags(absl::string_view what, const std::vector<std::string>& pairs);

}  // namespace tdock::console
