#include "tdock/batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

// Moving columns while a batch grows costs more than the room for some that do not come. More are found by a hash.
constexpr size_t kUsualColumns = 16;

void AppendName(std::string* out, const NamedColumn& column) { *out += EscapeForMessage(column.name); }

}  // namespace

absl::Status Batch::Add(absl::string_view name, absl::StatusOr<Column> column) {
  if (!column.ok()) return NameColumn(name, column.status());
  if (Find(name) != nullptr)
    return absl::AlreadyExistsError(absl::StrCat("the batch has a column '", EscapeForMessage(name), "'"));
  if (!columns_.empty() && column->rows() != rows()) {
    return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name), "' has ", column->rows(),
                                                   " rows, column '", EscapeForMessage(columns_.front().name), "' has ",
                                                   rows()));
  }
  if (columns_.empty()) columns_.reserve(kUsualColumns);
  columns_.emplace_back(std::string(name), *std::move(column));
  if (columns_.size() <= kUsualColumns) return absl::OkStatus();
  for (size_t i = places_.empty() ? 0 : columns_.size() - 1; i < columns_.size(); ++i) places_[columns_[i].name] = i;
  return absl::OkStatus();
}

const Column* Batch::Find(absl::string_view name) const {
  if (!places_.empty()) {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &columns_[place->second].column;
  }
  for (const NamedColumn& column : columns_) {
    // Names of columns often differ in their last letter only.
    const bool differs = column.name.size() != name.size() || (!name.empty() && column.name.back() != name.back());
    if (!differs && column.name == name) return &column.column;
  }
  return nullptr;
}

absl::StatusOr<Column> Batch::Get(absl::string_view name) const {
  TDOCK_ASSIGN_OR_RETURN(const Column* column, Look(name));
  return *column;
}

absl::StatusOr<Batch> Batch::Select(std::span<const std::string> names) const {
  Batch batch;
  for (const std::string& name : names) TDOCK_RETURN_IF_ERROR(batch.Add(name, Get(name)));
  return batch;
}

absl::StatusOr<Batch> Batch::Slice(int64_t begin, int64_t count) const {
  Batch batch;
  for (const NamedColumn& column : columns_) {
    TDOCK_RETURN_IF_ERROR(batch.Add(column.name, column.column.Slice(begin, count)));
  }
  return batch;
}

absl::StatusOr<Batch> Batch::SelectRows(std::span<const int64_t> rows) const {
  Batch batch;
  for (const NamedColumn& column : columns_) {
    TDOCK_RETURN_IF_ERROR(batch.Add(column.name, column.column.Select(rows)));
  }
  return batch;
}

absl::StatusOr<Batch> Batch::Concat(std::span<const Batch> batches) {
  if (batches.empty()) return absl::InvalidArgumentError("no batches to concatenate");
  const Batch& first = batches.front();
  for (const Batch& batch : batches) {
    const bool same = batch.columns_.size() == first.columns_.size() &&
                      std::all_of(first.columns_.begin(), first.columns_.end(),
                                  [&](const NamedColumn& column) { return batch.Find(column.name) != nullptr; });
    if (!same) {
      return absl::InvalidArgumentError(absl::StrCat("cannot concatenate batches of the columns ",
                                                     absl::StrJoin(first.columns_, ", ", AppendName), " and ",
                                                     absl::StrJoin(batch.columns_, ", ", AppendName)));
    }
  }
  Batch result;
  std::vector<Column> parts;
  for (const NamedColumn& column : first.columns_) {
    parts.clear();
    for (const Batch& batch : batches) parts.push_back(*batch.Find(column.name));
    TDOCK_RETURN_IF_ERROR(result.Add(column.name, Column::Concat(parts)));
  }
  return result;
}

absl::StatusOr<const Column*> Batch::Look(absl::string_view name) const {
  const Column* column = Find(name);
  if (column != nullptr) return column;
  return absl::NotFoundError(absl::StrCat("the batch has no column '", EscapeForMessage(name), "'; it has ",
                                          columns_.empty() ? "none" : absl::StrJoin(columns_, ", ", AppendName)));
}

absl::Status Batch::NameColumn(absl::string_view name, const absl::Status& status) {
  return Annotate(status, absl::StrCat("column '", EscapeForMessage(name), "'"));
}

}  // namespace tdock
