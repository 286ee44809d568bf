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

nb::object GetItem(const RowsColumn& column, nb::handle key) {
  if (!PySlice_Check(key.ptr())) {
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

nb::list Keys(const PyRows& self) {
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
  nb::class_<RowsColumn>(module, "Column")
      .def("__len__", &RowsColumn::size)
      .def("__getitem__", &GetItem)
      .def("__iter__",
           [](nb::handle self) {
             PyObject* const items = PySeqIter_New(self.ptr());
             if (items == nullptr) throw nb::python_error();
             return nb::steal(items);
           })
      .def_prop_ro("name", [](const RowsColumn& self) { return self.spec().name; })
      .def_prop_ro("kind", [](const RowsColumn& self) { return KindName(self.type()); })
      .def_prop_ro("dtype",
                   [](const RowsColumn& self) {
                     if (self.type().kind == ColumnKind::kBytes) return std::string(KindName(self.type()));
                     return std::string(Name(self.type().dtype));
                   })
      .def_prop_ro("row_shape", &RowShape)
      .def("has", [](const RowsColumn& self, Py_ssize_t row) { return self.Has(Position(self, row)); })
      .def("is_whole", &IsWhole)
      .def("raw", &Raw)
      .def("tolist", [](const RowsColumn& self) { return self.Items(false); })
      .def("values", &RowsColumn::Values, "copy"_a = false)
      .def("bits", &RowsColumn::Bits)
      .def("lengths", &RowsColumn::Lengths)
      .def("numpy", nb::overload_cast<bool>(&RowsColumn::ToNumpy, nb::const_), "copy"_a = false)
      .def("torch", &RowsColumn::ToTorch, "copy"_a = false)
      .def("values_torch", &RowsColumn::ValuesTensor, "copy"_a = false)
      .def("torch_list", &RowsColumn::Tensors, "copy"_a = false)
      .def("torch_nested", &RowsColumn::NestedTensor, "copy"_a = false)
      .def("__array__", &AsArray, "dtype"_a = nb::none(), "copy"_a = nb::none())
      .def("__dlpack__", &RowsColumn::Dlpack)
      .def("__dlpack_device__", [](const RowsColumn&) { return nb::make_tuple(nb::device::cpu::value, 0); });
}

}  // namespace

void BindRows(nb::module_& module) {
  BindColumn(module);
  nb::class_<PyRows>(module, "Rows")
      .def(nb::init<const PyRows&>())
      .def("__len__", [](const PyRows& self) { return self.rows->size(); })
      .def("__getitem__", &PyRows::Find)
      .def("__contains__",
           [](const PyRows& self, std::string_view name) {
             return self.rows->FindColumn(absl::string_view(name.data(), name.size())).ok();
           })
      .def_prop_ro("columns", [](const PyRows& self) { return Strings(ColumnNames(self)); })
      .def_prop_ro("ids",
                   [](const PyRows& self) {
                     const auto ids = self.rows->ids();
                     return ArrayOf(std::vector<uint64_t>(ids.begin(), ids.end()));
                   })
      .def_prop_ro("groups",
                   [](const PyRows& self) {
                     const auto groups = self.rows->groups();
                     return ArrayOf(std::vector<uint64_t>(groups.begin(), groups.end()));
                   })
      .def_prop_ro("keys", &Keys)
      .def_prop_ro("tags", &AllTags)
      .def_prop_ro(
          "ages",
          [](const PyRows& self) { return ForEachRow<int64_t>(self, [&](size_t row) { return self.rows->age(row); }); })
      .def_prop_ro("epochs",
                   [](const PyRows& self) {
                     return ForEachRow<int64_t>(self, [&](size_t row) { return self.rows->epoch(row); });
                   })
      .def_prop_ro("redeliveries",
                   [](const PyRows& self) {
                     return ForEachRow<int64_t>(self, [&](size_t row) { return self.rows->redeliveries(row); });
                   })
      .def("weights_versions",
           [](const PyRows& self, std::string_view column) {
             const absl::string_view name(column.data(), column.size());
             return ForEachRow<int64_t>(self,
                                        [&](size_t row) { return ValueOrRaise(self.rows->WeightsVersion(row, name)); });
           })
      .def("pieces", &Pieces)
      .def(
          "numpy",
          [](const PyRows& self, bool copy) {
            return ForEachColumn(self, [&](const RowsColumn& column) {
              return column.type().kind == ColumnKind::kDense ? column.ToNumpy(copy) : column.Items(copy);
            });
          },
          "copy"_a = false)
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
          "copy"_a = false)
      .def("cell", [](const PyRows& self, std::string_view column, Py_ssize_t row) {
        const RowsColumn found = self.Find(column);
        return found.Item(Position(found, row));
      });
}

nb::object ToPython(Rows rows) { return nb::cast(PyRows{SharedRows(std::make_shared<const Rows>(std::move(rows)))}); }

}  // namespace tdock::python
