#include "dock/service/wire/distinct_rows.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dock/table/limits.h"
#include "dock/table/rows_data.h"

namespace tdock::service {
namespace {

// Lists of what rows have may be empty: then no row has it.
template <class T>
std::vector<T> ValuesAt(const std::vector<T>& values, std::span<const uint32_t> positions) {
  std::vector<T> picked;
  if (values.empty()) return picked;
  picked.reserve(positions.size());
  for (uint32_t position : positions) picked.push_back(values[position]);
  return picked;
}

}  // namespace

std::optional<DistinctRows> FindRepeated(const FetchRequest& fetch) {
  const std::vector<RowId>& rows = fetch.rows;
  const bool ascending = std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end();
  if (ascending || rows.size() > dock::kMaxFetchedCells / std::max<size_t>(fetch.columns.size(), 1)) {
    return std::nullopt;
  }
  DistinctRows distinct;
  distinct.positions.reserve(rows.size());
  absl::flat_hash_map<RowId, uint32_t> known;
  for (RowId row : rows) {
    const auto [position, is_new] = known.try_emplace(row, static_cast<uint32_t>(known.size()));
    if (is_new) distinct.rows.push_back(row);
    distinct.positions.push_back(position->second);
  }
  if (distinct.rows.size() == rows.size()) return std::nullopt;
  return distinct;
}

Rows RowsAt(const Rows& rows, std::span<const uint32_t> positions) {
  const Rows::Data& from = Rows::Data::Of(rows);
  Rows::Data data{.ids = ValuesAt(from.ids, positions),
                  .groups = ValuesAt(from.groups, positions),
                  .redeliveries = ValuesAt(from.redeliveries, positions),
                  .keys = ValuesAt(from.keys, positions),
                  .tags = ValuesAt(from.tags, positions),
                  .columns = from.columns,
                  .ages = ValuesAt(from.ages, positions),
                  .epochs = ValuesAt(from.epochs, positions),
                  .pins = from.pins,
                  .memory = from.memory,
                  .look_privately = from.look_privately};
  data.cells.reserve(positions.size() * rows.columns().size());
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    const size_t first = column * rows.size();
    for (uint32_t position : positions) {
      if (!from.pieces.empty()) {
        const auto pieces = from.pieces.find(first + position);
        if (pieces != from.pieces.end()) {
          data.pieces.emplace_hint(data.pieces.end(), data.cells.size(), pieces->second);
        }
      }
      data.cells.push_back(from.cells[first + position]);
    }
  }
  return std::move(data).ToRows();
}

}  // namespace tdock::service
