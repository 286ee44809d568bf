// Rows made of other rows: some of them, and those that are pickled.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dock/table/rows_data.h"
#include "python/arguments.h"
#include "python/elements.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/rows.h"
#include "tdock/requests.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// Of a cell without bytes: a null address would mean that there is no cell.
constexpr std::byte kNoBytes{};

// What is told of rows beside their cells, of these positions.
Rows::Data Described(const Rows& from, const std::vector<size_t>& positions) {
  Rows::Data data;
  for (const size_t row : positions) {
    data.ids.push_back(from.ids()[row]);
    data.groups.push_back(from.groups()[row]);
    data.redeliveries.push_back(from.redeliveries(row));
    data.keys.emplace_back(from.key(row));
    data.tags.push_back(std::make_shared<const Tags>(from.tags(row)));
    data.ages.push_back(from.age(row));
    data.epochs.push_back(from.epoch(row));
  }
  return data;
}

// The cells of one column, from end to end.
nb::bytes BytesOf(const Rows& rows, size_t column) {
  size_t size = 0;
  for (size_t row = 0; row < rows.size(); ++row) size += rows.cell(row, column).bytes.size();
  nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!bytes.is_valid()) throw nb::python_error();
  char* end = PyBytes_AsString(bytes.ptr());
  const GilRelease release;
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::span<const std::byte> cell = rows.cell(row, column).bytes;
    if (!cell.empty()) std::memcpy(end, cell.data(), cell.size());
    end += cell.size();
  }
  return nb::borrow<nb::bytes>(bytes);
}

nb::object StateOfColumn(const Rows& rows, size_t column) {
  const ColumnSpec& spec = rows.columns()[column];
  nb::list shape, sizes, versions, pieces;
  for (const int64_t size : spec.type.row_shape) shape.append(size);
  for (size_t row = 0; row < rows.size(); ++row) {
    const Cell& cell = rows.cell(row, column);
    const bool is_there = cell.bytes.data() != nullptr;
    sizes.append(is_there ? static_cast<int64_t>(cell.bytes.size()) : -1);
    versions.append(nb::make_tuple(cell.weights_version, cell.partial));
    nb::list of_cell;
    if (is_there) {
      for (const Piece& piece : ValueOrRaise(rows.Pieces(row, spec.name))) {
        of_cell.append(nb::make_tuple(piece.end, piece.weights_version));
      }
    }
    pieces.append(of_cell);
  }
  const bool is_text = spec.type.kind == ColumnKind::kBytes;
  const std::string dtype(is_text ? KindName(spec.type).data() : Name(spec.type.dtype).data());
  return nb::make_tuple(spec.name, dtype, spec.type.kind == ColumnKind::kRagged, shape, sizes, versions, pieces,
                        BytesOf(rows, column));
}

void AddColumn(nb::handle state, Rows::Data& data, std::vector<ColumnSpec>& specs) {
  std::vector<int64_t> shape;
  for (nb::handle size : nb::object(state[3])) shape.push_back(Int<int64_t>(size, "shape"));
  const ColumnType type = ValueOrRaise(
      ParseColumnType(Utf8(nb::object(state[1]), "dtype"), nb::cast<bool>(state[2]), Shape(std::span(shape))));
  specs.push_back({Utf8(nb::object(state[0]), "column"), type});
  const nb::object bytes = state[7];
  if (PyBytes_Check(bytes.ptr()) == 0) Raise(absl::DataLossError("these are no pickled rows"));
  const auto own = std::make_shared<const Buffer>(Buffer::CopyOf(
      std::as_bytes(std::span(PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))))));
  data.pins.push_back(own);
  size_t begin = 0;
  for (size_t row = 0; row < data.ids.size(); ++row) {
    const int64_t size = nb::cast<int64_t>(state[4][row]);
    Cell cell{.weights_version = nb::cast<int64_t>(state[5][row][0]), .partial = nb::cast<bool>(state[5][row][1])};
    if (size >= 0) {
      if (static_cast<size_t>(size) > own->size() - begin) Raise(absl::DataLossError("pickled rows were cut off"));
      cell.bytes = size == 0 ? std::span(&kNoBytes, 0) : own->bytes().subspan(begin, static_cast<size_t>(size));
      begin += static_cast<size_t>(size);
    }
    std::vector<Piece> pieces;
    for (nb::handle piece : nb::object(state[6][row])) {
      pieces.push_back({.end = nb::cast<int64_t>(piece[0]), .weights_version = nb::cast<int64_t>(piece[1])});
    }
    if (pieces.size() > 1) data.pieces[data.cells.size()] = std::move(pieces);
    data.cells.push_back(cell);
  }
}

}  // namespace

nb::object SelectRows(const SharedRows& from, nb::handle given_rows, nb::handle given_columns) {
  std::vector<size_t> rows;
  for (const uint64_t row : Numbers(given_rows, "rows")) {
    if (row >= from->size()) throw nb::index_error(absl::StrCat("row ", row, " of ", from->size()).c_str());
    rows.push_back(row);
  }
  Rows::Data data = Described(*from, rows);
  auto specs = std::make_shared<std::vector<ColumnSpec>>();
  for (const std::string& name : Strings(given_columns, "columns")) {
    const size_t column = ValueOrRaise(from->FindColumn(name));
    specs->push_back(from->columns()[column]);
    for (const size_t row : rows) {
      const Cell& cell = from->cell(row, column);
      if (cell.bytes.data() != nullptr) {
        std::vector<Piece> pieces = ValueOrRaise(from->Pieces(row, name));
        if (pieces.size() > 1) data.pieces[data.cells.size()] = std::move(pieces);
      }
      data.cells.push_back(cell);
    }
  }
  data.columns = std::move(specs);
  data.memory = Rows::Data::Of(*from).memory;
  data.pins.push_back(from.get());
  return ToPython(std::move(data).ToRows());
}

nb::object StateOfRows(const SharedRows& rows) {
  nb::list described, columns;
  for (size_t row = 0; row < rows->size(); ++row) {
    nb::dict tags;
    for (const auto& [name, value] : rows->tags(row)) tags[nb::str(name.data(), name.size())] = value;
    described.append(nb::make_tuple(rows->ids()[row], rows->groups()[row], rows->redeliveries(row),
                                    nb::str(rows->key(row).data(), rows->key(row).size()), tags, rows->age(row),
                                    rows->epoch(row)));
  }
  for (size_t column = 0; column < rows->columns().size(); ++column) columns.append(StateOfColumn(*rows, column));
  return nb::make_tuple(described, columns);
}

nb::object RowsOfState(nb::handle described, nb::handle columns) {
  Rows::Data data;
  for (nb::handle row : nb::borrow(described)) {
    data.ids.push_back(nb::cast<uint64_t>(row[0]));
    data.groups.push_back(nb::cast<uint64_t>(row[1]));
    data.redeliveries.push_back(nb::cast<int32_t>(row[2]));
    data.keys.push_back(Utf8(nb::object(row[3]), "keys"));
    data.tags.push_back(std::make_shared<const Tags>(TagsOf(nb::object(row[4]))));
    data.ages.push_back(nb::cast<int32_t>(row[5]));
    data.epochs.push_back(nb::cast<uint32_t>(row[6]));
  }
  auto specs = std::make_shared<std::vector<ColumnSpec>>();
  for (nb::handle column : nb::borrow(columns)) AddColumn(column, data, *specs);
  data.columns = std::move(specs);
  return ToPython(std::move(data).ToRows());
}

}  // namespace tdock::python
