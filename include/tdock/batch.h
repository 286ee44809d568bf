// Named columns of the same samples.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/column.h"

namespace tdock {

struct NamedColumn {
  std::string name;
  Column column;
};

// A value; copies share the columns' memory. Thread-compatible. Columns keep the order in which they were added.
class Batch {
 public:
  // Adds a column; given the error of a column that could not be made, returns that error. AlreadyExists if there is a
  // column of this name, InvalidArgument if its number of rows differs from the earlier columns'.
  //
  //   TDOCK_RETURN_IF_ERROR(batch.Add("reward", Column::FromValues<float>(rewards)));
  absl::Status Add(absl::string_view name, absl::StatusOr<Column> column);

  // 0 without columns.
  int64_t rows() const { return columns_.empty() ? 0 : columns_.front().column.rows(); }
  std::span<const NamedColumn> columns() const { return columns_; }
  bool empty() const { return columns_.empty(); }

  // Null if there is no such column.
  const Column* Find(absl::string_view name) const;
  // NotFound, naming the existing columns, if there is no such column.
  absl::StatusOr<Column> Get(absl::string_view name) const;

  // The elements of a column: all of them, or those of one row. Errors name the column.
  template <Element T>
  absl::StatusOr<std::span<const T>> Values(absl::string_view name) const {
    absl::StatusOr<const Column*> column = Look(name);
    if (!column.ok()) return column.status();
    absl::StatusOr<std::span<const T>> values = (*column)->Values<T>();
    if (!values.ok()) return NameColumn(name, values.status());
    return values;
  }
  template <Element T>
  absl::StatusOr<std::span<const T>> Row(absl::string_view name, int64_t row) const {
    absl::StatusOr<const Column*> column = Look(name);
    if (!column.ok()) return column.status();
    absl::StatusOr<std::span<const T>> values = (*column)->Row<T>(row);
    if (!values.ok()) return NameColumn(name, values.status());
    return values;
  }

  // The named columns, in the given order.
  absl::StatusOr<Batch> Select(std::span<const std::string> names) const;
  // Rows [begin, begin + count), sharing memory.
  absl::StatusOr<Batch> Slice(int64_t begin, int64_t count) const;
  // A copy of the given rows, in the given order.
  absl::StatusOr<Batch> SelectRows(std::span<const int64_t> rows) const;
  // All rows of one batch after another; columns in the order of the first. InvalidArgument if the batches differ in
  // names or types, or there are none.
  static absl::StatusOr<Batch> Concat(std::span<const Batch> batches);

 private:
  absl::StatusOr<const Column*> Look(absl::string_view name) const;
  static absl::Status NameColumn(absl::string_view name, const absl::Status& status);

  std::vector<NamedColumn> columns_;
  // The place of each column by its name; empty while there are so few that looking through them is quicker.
  absl::flat_hash_map<std::string, size_t> places_;
};

}  // namespace tdock
