#include "python/rows.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string>
#include <string_view>
#include <utility>

#include "python/elements.h"
#include "python/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tdock::python {
namespace {

// transfer_dock._native.Rows.
struct PyRows {
  SharedRows rows;

  RowsColumn Find(std::string_view name) const {
    return {rows, ValueOrRaise(rows->FindColumn(absl::string_view(name.data(), name.size())))};
  }
};

size_t Position(const RowsColumn& column, Py_ssize_t row) {
  const auto size = static_cast<Py_ssize_t>(column.size());
  if (row < -size || row >= size) {
    throw nb::index_error(("row " + std::to_string(row) + " of " + std::to_string(size)).c_str());
  }
  return static_cast<size_t>(row < 0 ? row + size : row);
}

// What transfer_dock/_rows.py does: nothing that needs speed.
nb::object InPython(const char* function) { return nb::module_::import_("transfer_dock._rows").attr(function); }

nb::object GetItem(nb::handle self, nb::handle key) {
  const auto& column = nb::cast<const RowsColumn&>(self);
  if (!PySlice_Check(key.ptr())) {
    // Arrays of one number have an index, too.
    const bool is_one = PyLong_Check(key.ptr()) || (PyIndex_Check(key.ptr()) && !nb::hasattr(key, "__len__"));
    if (!is_one) return InPython("some_items")(self, key);
    const Py_ssize_t row = PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
    if (row == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return column.Item(Position(column, row));
  }
  Py_ssize_t begin = 0, end = 0, step = 0;
  if (PySlice_Unpack(key.ptr(), &begin, &end, &step) != 0) throw nb::python_error();
  const Py_ssize_t count = PySlice_AdjustIndices(static_cast<Py_ssize_t>(column.size()), &begin, &end, step);
  nb::list items;
  for (Py_ssize_t i = 0; i < count; ++i) items.append(column.Item(static_cast<size_t>(begin + i * step)));
  return items;
}

nb::object Raw(const RowsColumn& column, Py_ssize_t row) {
  const size_t position = Position(column, row);
  if (!column.Has(position)) return nb::none();
  const Rows& rows = *column.rows();
  const auto bytes = rows.cell(position, *rows.FindColumn(column.spec().name)).bytes;
  return nb::bytes(bytes.data(), bytes.size());
}

nb::object RowShape(const RowsColumn& column) {
  nb::list sizes;
  for (const int64_t size : column.type().row_shape) sizes.append(size);
  return nb::tuple(sizes);
}

// Whether every row has the column: it may be optional.
bool IsWhole(const RowsColumn& column) {
  for (size_t row = 0; row < column.size(); ++row) {
    if (!column.Has(row)) return false;
  }
  return true;
}

// What numpy.asarray(column) calls.
nb::object AsArray(const RowsColumn& column, nb::handle dtype, nb::handle copy) {
  nb::object array = column.ToNumpy(copy.ptr() == Py_True);
  if (dtype.is_none()) return array;
  return array.attr("astype")(dtype, "copy"_a = false);
}

// Every column that every row has, by its name.
template <class Of>
nb::dict ForEachColumn(const PyRows& self, Of of) {
  nb::dict all;
  for (size_t index = 0; index < self.rows->columns().size(); ++index) {
    const RowsColumn column(self.rows, index);
    if (IsWhole(column)) all[nb::str(column.spec().name.data(), column.spec().name.size())] = of(column);
  }
  return all;
}

nb::list Strings(const std::vector<std::string>& strings) {
  nb::list list;
  for (const std::string& one : strings) list.append(one);
  return list;
}

template <class T, class Of>
nb::object ForEachRow(const PyRows& rows, Of of) {
  std::vector<T> values(rows.rows->size());
  for (size_t row = 0; row < values.size(); ++row) values[row] = of(row);
  return ArrayOf(std::move(values));
}

nb::object RowsItem(nb::handle self, nb::handle key) {
  if (PyUnicode_Check(key.ptr()) == 0) return InPython("some_rows")(self, key);
  return nb::cast(nb::cast<const PyRows&>(self).Find(nb::cast<std::string_view>(key)));
}

bool HasColumn(const PyRows& self, nb::handle name) {
  if (PyUnicode_Check(name.ptr()) == 0) return false;
  const auto text = nb::cast<std::string_view>(name);
  return self.rows->FindColumn(absl::string_view(text.data(), text.size())).ok();
}

nb::object Pickled(const PyRows& self) { return nb::make_tuple(InPython("unpickled"), StateOfRows(self.rows)); }

nb::list RowKeys(const PyRows& self) {
  nb::list keys;
  for (size_t row = 0; row < self.rows->size(); ++row) {
    const absl::string_view key = self.rows->key(row);
    if (key.empty()) {
      keys.append(nb::none());
    } else {
      keys.append(nb::str(key.data(), key.size()));
    }
  }
  return keys;
}

nb::list AllTags(const PyRows& self) {
  nb::list all;
  for (size_t row = 0; row < self.rows->size(); ++row) {
    nb::dict tags;
    for (const auto& [name, value] : self.rows->tags(row)) tags[nb::str(name.data(), name.size())] = value;
    all.append(tags);
  }
  return all;
}

std::vector<std::string> ColumnNames(const PyRows& self) {
  std::vector<std::string> names;
  for (const ColumnSpec& spec : self.rows->columns()) names.push_back(spec.name);
  return names;
}

nb::list Pieces(const PyRows& self, std::string_view column, size_t row) {
  nb::list pieces;
  for (const auto& piece : ValueOrRaise(self.rows->Pieces(row, absl::string_view(column.data(), column.size())))) {
    pieces.append(nb::make_tuple(piece.end, piece.weights_version));
  }
  return pieces;
}

void BindColumn(nb::module_& module) {
  nb::class_<RowsColumn>(
      module, "Column",
      "One column of rows that were taken or fetched: a sequence with an item for each row.\n\nItem i is a read-only "
      "array view (for dense and ragged columns; a scalar if rows have no dimensions), a str or bytes;\nNone if the "
      "row lacks an optional column. Items are made on access.")
      .def("__len__", &RowsColumn::size)
      .def("__getitem__", &GetItem, "rows"_a.none(),
           "One item; or a list of items, for a slice, an array or list of row numbers, or an array of bool.")
      .def("__iter__",
           [](nb::handle self) {
             PyObject* const items = PySeqIter_New(self.ptr());
             if (items == nullptr) throw nb::python_error();
             return nb::steal(items);
           })
      .def_prop_ro(
          "name", [](const RowsColumn& self) { return self.spec().name; }, "Its name.")
      .def_prop_ro(
          "kind", [](const RowsColumn& self) { return KindName(self.type()); },
          "\"dense\", \"ragged\", \"str\" or \"bytes\".")
      .def_prop_ro(
          "dtype",
          [](const RowsColumn& self) {
            if (self.type().kind == ColumnKind::kBytes) return std::string(KindName(self.type()));
            return std::string(Name(self.type().dtype));
          },
          "PyTorch's name of the element type, such as \"float32\"; or \"str\" or \"bytes\".")
      .def_prop_ro("row_shape", &RowShape, "The shape of a row; of a ragged column without its first dimension.")
      .def("__repr__", [](nb::handle self) { return InPython("text_of_column")(self); })
      .def("_repr_html_", [](nb::handle self) { return InPython("html_of_column")(self); })
      .def("__reduce__", [](nb::handle self) { return InPython("pickled_column")(self); })
      .def(
          "to_arrow", [](nb::handle self) { return InPython("arrow_of_column")(self); },
          "A pyarrow.Array, without a copy where Arrow has the element type and the rows are contiguous; null where a "
          "row\nlacks the column. Needs pyarrow.")
      .def("_rows", [](const RowsColumn& self) { return nb::cast(PyRows{self.rows()}); })
      .def(
          "has", [](const RowsColumn& self, Py_ssize_t row) { return self.Has(Position(self, row)); },
          "Whether the row has the column; False is possible for optional columns only.")
      .def("is_whole", &IsWhole, "Whether every row has the column.")
      .def("raw", &Raw, "The bytes of a row, uninterpreted.")
      .def(
          "tolist", [](const RowsColumn& self) { return self.Items(false); },
          "All items; faster than accessing them one by one.")
      .def("values", &RowsColumn::Values, "copy"_a = false,
           "All elements: for a ragged column an array of shape (items of all rows, *row_shape), for a dense one "
           "numpy().")
      .def("bits", &RowsColumn::Bits,
           "values() for element types that NumPy lacks, as bits: int16 for bfloat16, uint8 for 8-bit floats.")
      .def("lengths", &RowsColumn::Lengths,
           "The size of the first dimension of each row; for str and bytes the number of bytes.")
      .def("numpy", nb::overload_cast<bool>(&RowsColumn::ToNumpy, nb::const_), "copy"_a = false,
           "A dense column as an array of shape (rows, *row_shape): a read-only view if the rows are contiguous, "
           "otherwise\na copy; with copy=True always a copy, which may be written to.")
      .def("torch", &RowsColumn::ToTorch, "copy"_a = false,
           "numpy() as a tensor. Without copy=True it must not be written to, which torch does not prevent: the memory "
           "is\nthe dock's, and over a Unix socket it is mapped read-only, so a write crashes the process.")
      .def("values_torch", &RowsColumn::ValuesTensor, "copy"_a = false, "values() as a tensor.")
      .def("_private_torch", &RowsColumn::PrivateTensor)
      .def("torch_list", &RowsColumn::Tensors, "copy"_a = false, "One tensor for each row: slices of values_torch().")
      .def("torch_nested", &RowsColumn::NestedTensor, "copy"_a = false,
           "All rows as one nested tensor of the jagged layout, over values_torch().")
      .def("__array__", &AsArray, "dtype"_a = nb::none(), "copy"_a = nb::none())
      .def("__dlpack__", &RowsColumn::Dlpack)
      .def("__dlpack_device__", [](const RowsColumn&) { return nb::make_tuple(nb::device::cpu::value, 0); });
}

}  // namespace

void BindRows(nb::module_& module) {
  BindColumn(module);
  module.def("_rows_of_state", &RowsOfState);
  nb::class_<PyRows>(module, "Rows",
                     "Rows that were taken or fetched: views of the dock's memory, which stays unchanged as long as a "
                     "view exists.\n\nrows[\"reward\"] is a column, rows[3] one row as a dict, rows[2:5] are some "
                     "rows. Iteration gives the rows as dicts;\ndict(rows) gives the columns by name. Pickling copies: "
                     "what is unpickled has memory of its own, and no lease.")
      .def(nb::init<const PyRows&>())
      .def("__len__", [](const PyRows& self) { return self.rows->size(); })
      .def("__getitem__", &RowsItem, "key"_a.none(),
           "A column by its name; one row, by its number, as a dict; or some rows, for a slice, an array or list of "
           "row\nnumbers, or an array of bool: views of the same memory.")
      .def("__contains__", &HasColumn, "name"_a.none(), "Whether there is this column.")
      .def(
          "__iter__", [](nb::handle self) { return InPython("each_row")(self); },
          "The rows, each as a dict of its items by column.")
      .def(
          "keys", [](const PyRows& self) { return Strings(ColumnNames(self)); }, "The names of the columns.")
      .def(
          "values", [](nb::handle self) { return InPython("columns_of")(self); }, "The columns.")
      .def(
          "items", [](nb::handle self) { return InPython("named_columns_of")(self); },
          "The names of the columns and the columns.")
      .def(
          "to_arrow", [](nb::handle self) { return InPython("arrow_of_rows")(self); },
          "A pyarrow.Table of the columns: see Column.to_arrow(). Needs pyarrow.")
      .def(
          "to_pandas", [](nb::handle self) { return InPython("pandas_of_rows")(self); },
          "A pandas.DataFrame with a copy of the columns, whose index are the ids. Needs pandas.")
      .def("__repr__", [](nb::handle self) { return InPython("text_of_rows")(self); })
      .def("_repr_html_", [](nb::handle self) { return InPython("html_of_rows")(self); })
      .def("__reduce__", &Pickled)
      .def("_select",
           [](const PyRows& self, nb::handle rows, nb::handle columns) { return SelectRows(self.rows, rows, columns); })
      .def_prop_ro(
          "columns", [](const PyRows& self) { return Strings(ColumnNames(self)); }, "The names of the columns.")
      .def_prop_ro(
          "ids",
          [](const PyRows& self) {
            const auto ids = self.rows->ids();
            return ArrayOf(std::vector<uint64_t>(ids.begin(), ids.end()));
          },
          "The ids of the rows.")
      .def_prop_ro(
          "groups",
          [](const PyRows& self) {
            const auto groups = self.rows->groups();
            return ArrayOf(std::vector<uint64_t>(groups.begin(), groups.end()));
          },
          "The group of each row; transfer_dock.NO_GROUP for one without.")
      .def_prop_ro("row_keys", &RowKeys, "The key of each row; None for one without.")
      .def_prop_ro("tags", &AllTags, "The tags of each row.")
      .def_prop_ro(
          "ages",
          [](const PyRows& self) { return ForEachRow<int64_t>(self, [&](size_t row) { return self.rows->age(row); }); },
          "How often each row was given back unfinished, or sent back.")
      .def_prop_ro(
          "epochs",
          [](const PyRows& self) {
            return ForEachRow<int64_t>(self, [&](size_t row) { return self.rows->epoch(row); });
          },
          "How often each row was sent back: results computed from its earlier cells are refused.")
      .def_prop_ro(
          "redeliveries",
          [](const PyRows& self) {
            return ForEachRow<int64_t>(self, [&](size_t row) { return self.rows->redeliveries(row); });
          },
          "How often each row was handed to this consumer before, and came back because a lease expired.")
      .def(
          "weights_versions",
          [](const PyRows& self, std::string_view column) {
            const absl::string_view name(column.data(), column.size());
            return ForEachRow<int64_t>(self,
                                       [&](size_t row) { return ValueOrRaise(self.rows->WeightsVersion(row, name)); });
          },
          "The version of the weights that made each cell; -1: none. For a cell in several pieces, the smallest.")
      .def("pieces", &Pieces,
           "Which version made which part of a cell: pairs of the item where the part ends and its version.")
      .def(
          "numpy",
          [](const PyRows& self, bool copy) {
            return ForEachColumn(self, [&](const RowsColumn& column) {
              return column.type().kind == ColumnKind::kDense ? column.ToNumpy(copy) : column.Items(copy);
            });
          },
          "copy"_a = false,
          "Every column that all rows have: dense ones as arrays, ragged ones as lists of views, str and bytes "
          "as\nlists.")
      .def(
          "torch",
          [](const PyRows& self, bool copy) {
            return ForEachColumn(self, [&](const RowsColumn& column) {
              switch (column.type().kind) {
                case ColumnKind::kDense:
                  return column.ToTorch(copy);
                case ColumnKind::kRagged:
                  return column.Tensors(copy);
                case ColumnKind::kBytes:
                  break;
              }
              return column.Items(copy);
            });
          },
          "copy"_a = false, "numpy() with tensors.")
      .def(
          "cell",
          [](const PyRows& self, std::string_view column, Py_ssize_t row) {
            const RowsColumn found = self.Find(column);
            return found.Item(Position(found, row));
          },
          "One cell: a read-only view of an array, a str or bytes.");
}

nb::object ToPython(Rows rows) { return nb::cast(PyRows{SharedRows(std::make_shared<const Rows>(std::move(rows)))}); }

}  // namespace tdock::python
