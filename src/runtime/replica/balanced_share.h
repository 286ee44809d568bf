// Which rows of a step a data-parallel replica works on, so that all have the same number of rows, and nearly the same
// work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock::runtime {

// Of the rows of a step, which all replicas name in the same order, those of replica `dp_rank` of `dp`, by
// BalanceRanks() of the lengths of their cells in `length_column`: for TakeRequest::rows, of a consumer of rows that
// has one share. Waits for those cells until the deadline; fetches them all, and no others.
//
// Errors are those of Dock::Fetch() and BalanceRanks(); OutOfRange for a rank outside [0, dp).
absl::StatusOr<std::vector<RowId>> BalancedShare(Dock& dock, absl::string_view partition, std::span<const RowId> rows,
                                                 absl::string_view length_column, int64_t dp_rank, int64_t dp,
                                                 absl::Time deadline);

}  // namespace tdock::runtime
