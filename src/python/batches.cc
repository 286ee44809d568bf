#include "python/batches.h"

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/table/rows_data.h"
#include "python/arguments.h"
#include "python/gil.h"

namespace nb = nanobind;

namespace tdock::python {

absl::StatusOr<IncomingBatch> LookAtBatch(nb::handle data, const ColumnTypes& types) {
  IncomingBatch incoming;
  if (data.is_none()) return incoming;
  // The dict could be changed while methods of its values are called.
  const nb::object copy = nb::steal(PyDict_Copy(data.ptr()));
  if (!copy.is_valid()) throw nb::python_error();
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(copy.ptr(), &position, &key, &value) != 0) {
    if (!PyUnicode_Check(key)) {
      return absl::InvalidArgumentError(absl::StrCat("the name of a column must be a str, not ", Shown(key)));
    }
    std::string name = Utf8(key, "data");
    const auto declared = types.find(name);
    absl::StatusOr<Incoming> column =
        LookAtColumn(value, declared == types.end() ? std::nullopt : std::optional(declared->second));
    if (!column.ok()) return Annotate(column.status(), absl::StrCat("column '", EscapeForMessage(name), "'"));
    incoming.by_schema |= column->by_schema;
    incoming.columns.push_back({std::move(name), *std::move(column)});
  }
  return incoming;
}

absl::StatusOr<Batch> MakeBatch(IncomingBatch incoming) {
  const GilRelease release;
  Batch batch;
  for (IncomingBatch::Named& one : incoming.columns) {
    absl::StatusOr<Column> column = MakeColumn(std::move(one.column));
    if (!column.ok()) return Annotate(column.status(), absl::StrCat("column '", EscapeForMessage(one.name), "'"));
    TDOCK_RETURN_IF_ERROR(batch.Add(one.name, std::move(column)));
  }
  return batch;
}

absl::StatusOr<Batch> BatchOf(nb::handle data, const ColumnTypes& types) {
  TDOCK_ASSIGN_OR_RETURN(IncomingBatch incoming, LookAtBatch(data, types));
  return MakeBatch(std::move(incoming));
}

Rows RowsOf(Batch batch) {
  const auto kept = std::make_shared<const Batch>(std::move(batch));
  const auto rows = static_cast<size_t>(kept->rows());
  Rows::Data data{.ids = std::vector<RowId>(rows), .groups = std::vector<GroupId>(rows, kNoGroup), .pins = {kept}};
  std::iota(data.ids.begin(), data.ids.end(), RowId{0});
  auto specs = std::make_shared<std::vector<ColumnSpec>>();
  for (const NamedColumn& one : kept->columns()) {
    specs->push_back({one.name, one.column.type()});
    for (size_t row = 0; row < rows; ++row) {
      std::span<const std::byte> bytes = one.column.RowBytes(static_cast<int64_t>(row));
      // A null address means that there is no cell.
      static constexpr std::byte kNothing{};
      if (bytes.data() == nullptr) bytes = {&kNothing, 0};
      data.cells.push_back({.bytes = bytes});
    }
  }
  data.columns = std::move(specs);
  return std::move(data).ToRows();
}

}  // namespace tdock::python
