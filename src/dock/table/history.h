// The ages and versions of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "tdock/rows.h"

namespace tdock::dock {

// How often rows came back, and which weights made which part of their cells. Rows that never came back, and whose
// cells were each made at once, take no memory. Not thread-safe.
class Histories {
 public:
  struct History {
    int32_t age = 0;
    uint32_t epoch = 0;
    // For the columns whose cells were made in several pieces, or are partial.
    absl::btree_map<uint32_t, std::vector<Piece>> pieces = {};
  };
  bool empty() const { return by_row_.empty(); }
  const History& Of(RowId row) const {
    static const History kNone;
    if (by_row_.empty()) return kNone;
    const auto it = by_row_.find(row);
    return it == by_row_.end() ? kNone : it->second;
  }
  // Null if the cell was made in one piece.
  const std::vector<Piece>* PiecesOf(RowId row, uint32_t column) const {
    const auto& of_row = Of(row).pieces;
    const auto it = of_row.find(column);
    return it == of_row.end() ? nullptr : &it->second;
  }

  // Returns the new age.
  int32_t Raise(RowId row, bool sent_back) {
    History& history = by_row_[row];
    history.epoch += sent_back;
    return ++history.age;
  }

  // A cell of this many items was put that is partial, or continues a partial one: the items beyond those of the
  // replaced cell were made by `version`. A cell that is not a list is replaced as a whole, but depends on what was
  // there: all versions count.
  void AddPiece(RowId row, uint32_t column, int64_t end, int64_t version, bool is_list) {
    std::vector<Piece>& pieces = MutablePieces(row, column);
    if (is_list) {
      while (!pieces.empty() && BeginOfLast(pieces) >= end) pieces.pop_back();
      if (!pieces.empty()) pieces.back().end = std::min(pieces.back().end, end);
      if ((pieces.empty() ? 0 : pieces.back().end) == end) return;
    }
    Append(pieces, {end, version});
  }
  // The cell is complete, as made by `version`: drops the pieces if they add nothing to that.
  void Complete(RowId row, uint32_t column, int64_t version) {
    const std::vector<Piece>& pieces = *PiecesOf(row, column);
    if (pieces.empty() || (pieces.size() == 1 && pieces[0].weights_version == version)) ForgetCell(row, column);
  }
  void ForgetCell(RowId row, uint32_t column) {
    if (PiecesOf(row, column) == nullptr) return;
    const auto it = by_row_.find(row);
    History& history = it->second;
    history.pieces.erase(column);
    if (history.age == 0 && history.pieces.empty()) by_row_.erase(it);
  }
  void Restore(RowId row, const History& history) {
    if (history.age > 0 || !history.pieces.empty()) by_row_[row] = history;
  }
  void Remove(RowId row) {
    if (!by_row_.empty()) by_row_.erase(row);
  }

 private:
  std::vector<Piece>& MutablePieces(RowId row, uint32_t column) { return by_row_[row].pieces[column]; }
  static int64_t BeginOfLast(const std::vector<Piece>& pieces) {
    return pieces.size() == 1 ? 0 : pieces[pieces.size() - 2].end;
  }
  static void Append(std::vector<Piece>& pieces, Piece piece) {
    if (!pieces.empty() && pieces.back().weights_version == piece.weights_version) {
      pieces.back().end = piece.end;
    } else {
      pieces.push_back(piece);
    }
  }

  absl::flat_hash_map<RowId, History> by_row_;
};

}  // namespace tdock::dock
