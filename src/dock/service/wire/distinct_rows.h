// Rows that a fetch names several times travel once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tdock/requests.h"
#include "tdock/rows.h"

namespace tdock::service {

struct DistinctRows {
  // In the order in which they are first named.
  std::vector<RowId> rows = {};
  // The position among them of each row that is named.
  std::vector<uint32_t> positions = {};
};

// The distinct rows of a fetch that names some more than once; nothing if all are different, or if the fetch is larger
// than a dock carries out.
std::optional<DistinctRows> FindRepeated(const FetchRequest& fetch);

// The rows at these positions, in this order. They share their cells and what keeps those.
Rows RowsAt(const Rows& rows, std::span<const uint32_t> positions);

}  // namespace tdock::service
