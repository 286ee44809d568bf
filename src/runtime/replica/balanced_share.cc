#include "runtime/replica/balanced_share.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tdock/plans.h"

namespace tdock::runtime {

absl::StatusOr<std::vector<RowId>> BalancedShare(Dock& dock, absl::string_view partition, std::span<const RowId> rows,
                                                 absl::string_view length_column, int64_t dp_rank, int64_t dp,
                                                 absl::Time deadline) {
  if (dp_rank < 0 || dp_rank >= dp) {
    return absl::OutOfRangeError(absl::StrCat("there is no replica ", dp_rank, " of ", dp));
  }
  TDOCK_ASSIGN_OR_RETURN(const Rows fetched, dock.Fetch({.partition = std::string(partition),
                                                         .rows = {rows.begin(), rows.end()},
                                                         .columns = {std::string(length_column)},
                                                         .deadline = deadline}));
  TDOCK_ASSIGN_OR_RETURN(const int64_t item_bytes, ItemBytes(fetched.columns().front().type));
  std::vector<int64_t> lengths;
  for (size_t row = 0; row < fetched.size(); ++row) {
    const auto bytes = static_cast<int64_t>(fetched.cell(row, 0).bytes.size());
    lengths.push_back(item_bytes == 0 ? 0 : bytes / item_bytes);
  }
  TDOCK_ASSIGN_OR_RETURN(const Plan plan, BalanceRanks(lengths, dp));
  std::vector<RowId> share;
  for (const int64_t place : plan[static_cast<size_t>(dp_rank)]) share.push_back(rows[static_cast<size_t>(place)]);
  return share;
}

}  // namespace tdock::runtime
