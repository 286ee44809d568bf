#include "tdock/rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/bulk_copy.h"
#include "dock/table/rows_data.h"

namespace tdock {
namespace {

std::span<const Cell> CellsOfColumn(const Rows::Data& data, size_t column) {
  return std::span(data.cells).subspan(column * data.ids.size(), data.ids.size());
}

// The first row without the column, or the number of rows.
size_t FirstWithout(const Rows::Data& data, size_t column) {
  const std::span<const Cell> cells = CellsOfColumn(data, column);
  return static_cast<size_t>(
      std::find_if(cells.begin(), cells.end(), [](const Cell& cell) { return cell.bytes.data() == nullptr; }) -
      cells.begin());
}

size_t BytesOf(std::span<const Cell> cells) {
  size_t bytes = 0;
  for (const Cell& cell : cells) bytes += cell.bytes.size();
  return bytes;
}

absl::StatusOr<Column> Gather(const Rows::Data& data, size_t column, const BulkCopy& copy, Memory* memory) {
  if (memory == nullptr) memory = data.memory.get();
  const auto allocate = [&](size_t bytes) {
    return memory == nullptr ? Buffer::Allocate(bytes) : memory->Allocate(bytes);
  };
  const ColumnType& type = (*data.columns)[column].type;
  const size_t rows = data.ids.size();
  TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(type));
  const std::span<const Cell> cells = CellsOfColumn(data, column);
  Buffer values = allocate(BytesOf(cells));
  std::byte* end = values.mutable_data();
  for (size_t i = 0; i < cells.size();) {
    // Cells that were put together lie one behind the other, and are copied as one.
    const std::byte* const first = cells[i].bytes.data();
    size_t run = cells[i].bytes.size();
    for (++i; i < cells.size() && cells[i].bytes.data() == first + run; ++i) run += cells[i].bytes.size();
    copy(end, first, run);
    end += run;
  }
  if (type.kind == ColumnKind::kDense) {
    return Column::MakeDense(type.dtype, type.row_shape, static_cast<int64_t>(rows), std::move(values));
  }
  Buffer offsets = allocate((rows + 1) * sizeof(int64_t));
  int64_t* offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  *offset = 0;
  for (const Cell& cell : cells) {
    offset[1] = offset[0] + static_cast<int64_t>(cell.bytes.size()) / item;
    ++offset;
  }
  if (type.kind == ColumnKind::kBytes) {
    return Column::MakeBytes(std::move(values), std::move(offsets), type.dtype);
  }
  return Column::MakeRagged(type.dtype, type.row_shape, std::move(values), std::move(offsets));
}

}  // namespace

Rows::Rows() : Rows(Data()) {}

Rows::Rows(Data data) {
  if (data.columns == nullptr) data.columns = std::make_shared<const std::vector<ColumnSpec>>();
  data_ = std::make_shared<const Data>(std::move(data));
}

size_t Rows::size() const { return data_->ids.size(); }
std::span<const RowId> Rows::ids() const { return data_->ids; }
std::span<const GroupId> Rows::groups() const { return data_->groups; }
std::span<const ColumnSpec> Rows::columns() const { return *data_->columns; }
const Cell& Rows::cell(size_t row, size_t column) const { return data_->cells[column * size() + row]; }

int32_t Rows::redeliveries(size_t row) const { return data_->redeliveries.empty() ? 0 : data_->redeliveries[row]; }
int32_t Rows::age(size_t row) const { return data_->ages.empty() ? 0 : data_->ages[row]; }
uint32_t Rows::epoch(size_t row) const { return data_->epochs.empty() ? 0 : data_->epochs[row]; }
absl::string_view Rows::key(size_t row) const { return data_->keys.empty() ? absl::string_view() : data_->keys[row]; }

const Tags& Rows::tags(size_t row) const {
  static const Tags kNone;
  return data_->tags.empty() || data_->tags[row] == nullptr ? kNone : *data_->tags[row];
}

absl::StatusOr<size_t> Rows::FindColumn(absl::string_view name) const {
  const std::vector<ColumnSpec>& specs = *data_->columns;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return i;
  }
  return absl::NotFoundError(
      absl::StrCat("these rows have no column '", EscapeForMessage(name), "'; they have ",
                   specs.empty() ? "none" : absl::StrJoin(specs, ", ", [](std::string* out, const ColumnSpec& spec) {
                     *out += EscapeUnprintable(spec.name);
                   })));
}

absl::StatusOr<size_t> Rows::FindCell(size_t row, absl::string_view column) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t index, FindColumn(column));
  if (row >= size()) return absl::OutOfRangeError(absl::StrCat("column '", column, "': row ", row, " of ", size()));
  if (!Has(row, index)) {
    return absl::NotFoundError(absl::StrCat("column '", column, "': row ", ids()[row], " does not have it"));
  }
  return index;
}

absl::StatusOr<std::span<const std::byte>> Rows::Look(size_t row, absl::string_view column, DType dtype) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t index, FindCell(row, column));
  const ColumnType& type = columns()[index].type;
  if (type.dtype != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", column, "': holds ", ToString(type), ", not ", Name(dtype)));
  }
  return cell(row, index).bytes;
}

absl::StatusOr<absl::string_view> Rows::Text(size_t row, absl::string_view column) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t index, FindCell(row, column));
  const ColumnType& type = columns()[index].type;
  if (type.kind != ColumnKind::kBytes) {
    return absl::InvalidArgumentError(absl::StrCat("column '", column, "': holds ", ToString(type), ", not bytes"));
  }
  const std::span<const std::byte> bytes = cell(row, index).bytes;
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::StatusOr<int64_t> Rows::WeightsVersion(size_t row, absl::string_view column) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t index, FindCell(row, column));
  return cell(row, index).weights_version;
}

absl::StatusOr<std::vector<Piece>> Rows::Pieces(size_t row, absl::string_view column) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t index, FindCell(row, column));
  if (const auto it = data_->pieces.find(index * size() + row); it != data_->pieces.end()) return it->second;
  const int64_t item_bytes = std::max<int64_t>(*ItemBytes((*data_->columns)[index].type), 1);
  const Cell& one = cell(row, index);
  return std::vector<Piece>{{static_cast<int64_t>(one.bytes.size()) / item_bytes, one.weights_version}};
}

absl::StatusOr<Column> Rows::ToColumn(absl::string_view name, Memory* memory) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t index, FindColumn(name));
  if (const size_t row = FirstWithout(*data_, index); row < size()) return FindCell(row, name).status();
  return Gather(*data_, index, BulkCopy(BytesOf(CellsOfColumn(*data_, index))), memory);
}

absl::StatusOr<Batch> Rows::ToBatch(Memory* memory) const {
  Batch batch;
  const BulkCopy copy(BytesOf(data_->cells));
  for (size_t i = 0; i < columns().size(); ++i) {
    if (FirstWithout(*data_, i) < size()) continue;
    TDOCK_RETURN_IF_ERROR(batch.Add(columns()[i].name, Gather(*data_, i, copy, memory)));
  }
  return batch;
}

}  // namespace tdock
