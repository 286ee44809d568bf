// What `tdock dock` tells about a dock, and does to it, for people and for programs.
//
// Each function asks the dock, then writes to `out`: a text of at most about 100 columns, or, with `json`, one JSON
// document and a line end, whose names stay what they are. An error of the dock is returned as it is, and nothing is
// written then.
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

// One row: its cells and who put them, and how it stands with each consumer.
struct RowOptions {
  std::string partition = {};
  RowId row = 0;
  bool json = false;
  // The one by which the dock's leases end.
  Clock& clock = Clock::Real();
};
absl::Status PrintRow(Dock& dock, const RowOptions& options, std::ostream& out);

// As many rows as `request.limit`, however many pages that takes; then where to go on.
struct ListOptions {
  ListRequest request = {};
  bool json = false;
};
absl::Status PrintList(Dock& dock, const ListOptions& options, std::ostream& out);

// Refuses to clear everything without `yes`, saying what would go: InvalidArgument.
struct ClearOptions {
  ClearRequest request = {};
  bool yes = false;
  bool json = false;
};
absl::Status ClearRows(Dock& dock, const ClearOptions& options, std::ostream& out);

// Numbers of rows or groups: "3", "3,5" and "3-7", each list together. InvalidArgument begins with `what`, also for
// more than a million of them.
absl::StatusOr<std::vector<uint64_t>> ParseNumbers(absl::string_view what, const std::vector<std::string>& lists);
// "name=value", once for each name. InvalidArgument begins with `what`.
absl::StatusOr<Tags> ParseTags(absl::string_view what, const std::vector<std::string>& pairs);

}  // namespace tdock::console
