// transfer_dock._native.Batch and RowsRef: what workers are passed beside numbers and strings.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "python/arguments.h"
#include "python/batches.h"
#include "python/bindings.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/object_refs.h"
#include "python/rows.h"
#include "python/values.h"
#include "runtime/dispatch/row_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tdock::python {
namespace {

// A batch is sent while its maker goes on, so it has memory of its own.
void OwnMemory(Incoming& column) {
  if (column.parts.size() != 1) return;  // copied by MakeColumn
  auto own = std::make_shared<const Buffer>(Buffer::CopyOf(column.parts[0]));
  column.parts[0] = own->bytes();
  column.owner = std::move(own);
}

MetaBatch NewBatch(nb::handle columns, nb::handle meta) {
  IncomingBatch incoming = ValueOrRaise(LookAtBatch(columns, {}));
  {
    const GilRelease release;
    for (IncomingBatch::Named& one : incoming.columns) OwnMemory(one.column);
  }
  Batch batch = ValueOrRaise(MakeBatch(std::move(incoming)));
  ReleaseDeferred();
  return MetaBatch(std::move(batch), ValueOrRaise(MetaOf(meta, "meta")));
}

// One operation without the GIL.
template <class Operation>
PyBatch Made(const Operation& operation) {
  absl::StatusOr<MetaBatch> made = absl::UnknownError("not made");
  {
    const GilRelease release;
    made = operation();
  }
  return PyBatch(MadeOrRaise(std::move(made)));
}

PyBatch RowsIn(const PyBatch& self, nb::handle slice) {
  Py_ssize_t begin = 0, end = 0, step = 0;
  if (PySlice_Check(slice.ptr()) == 0) {
    Raise(absl::InvalidArgumentError(absl::StrCat("batch[", Shown(slice),
                                                  "]: give the name of a column, or a slice of "
                                                  "rows, such as batch[2:4]")));
  }
  if (PySlice_Unpack(slice.ptr(), &begin, &end, &step) != 0) throw nb::python_error();
  const Py_ssize_t count = PySlice_AdjustIndices(self->rows(), &begin, &end, step);
  return Made([&]() -> absl::StatusOr<MetaBatch> {
    if (step == 1) return self->Slice(begin, count);
    std::vector<int64_t> rows;
    for (Py_ssize_t i = 0; i < count; ++i) rows.push_back(begin + i * step);
    return self->SelectRows(rows);
  });
}

nb::object RowsOfBatch(const PyBatch& self) { return ToPython(RowsOf(self->columns())); }

std::string TextOfBatch(const PyBatch& self) {
  std::string text = absl::StrCat("<Batch of ", self->rows(), " rows:");
  for (const NamedColumn& one : self->columns().columns()) {
    absl::StrAppend(&text, " ", EscapeUnprintable(one.name), " ", ToString(one.column.type()), ";");
  }
  return absl::StrCat(text, " meta ", ToString(MetaValue(self->meta())), ">");
}

std::vector<std::string> NamesOf(const PyBatch& self) {
  std::vector<std::string> names;
  for (const NamedColumn& one : self->columns().columns()) names.push_back(one.name);
  return names;
}

PyBatch Concat(const std::vector<const PyBatch*>& given) {
  std::vector<MetaBatch> batches;
  for (const PyBatch* one : given) batches.push_back(**one);
  return Made([&] { return MetaBatch::Concat(batches); });
}

// The batch of the rows, of which `columns` holds what a dock has.
PyBatch Fetched(const PyRowsRef& self, const PyBatch& columns) {
  return Made([&] {
    return runtime::FetchRows(
        self.rows, [&](const runtime::RowsRef&, absl::Time) -> absl::StatusOr<MetaBatch> { return *columns; },
        absl::InfiniteFuture());
  });
}

void BindRowsRef(nb::module_& module) {
  nb::class_<PyRowsRef>(
      module, "RowsRef",
      "Rows of a dock by their ids, with columns and meta: cut by rows like a batch, and fetched by whoever needs "
      "them.\n\nreal_rows: so many of the first rows are real, if the call was padded; otherwise all.")
      .def(
          "__init__",
          [](PyRowsRef* self, nb::handle partition, nb::handle rows, nb::handle columns, nb::handle meta) {
            new (self) PyRowsRef{{.partition = Utf8(partition, "partition"),
                                  .rows = Numbers(rows, "rows"),
                                  .columns = Strings(columns, "columns"),
                                  .meta = ValueOrRaise(MetaOf(meta, "meta"))}};
          },
          "partition"_a, "rows"_a, "columns"_a, "meta"_a = nb::none())
      .def("__len__", [](const PyRowsRef& self) { return self.rows.rows.size(); })
      .def(
          "__eq__",
          [](const PyRowsRef& self, nb::handle other) {
            return nb::isinstance<PyRowsRef>(other) && self.rows == nb::cast<const PyRowsRef&>(other).rows;
          },
          "other"_a.none())
      .def("__repr__",
           [](const PyRowsRef& self) {
             return absl::StrCat("<RowsRef to ", self.rows.rows.size(), " rows of partition '",
                                 EscapeUnprintable(self.rows.partition), "'>");
           })
      .def_prop_ro("partition", [](const PyRowsRef& self) { return self.rows.partition; })
      .def_prop_ro("rows", [](const PyRowsRef& self) { return ArrayOf(self.rows.rows); })
      .def_prop_ro("columns", [](const PyRowsRef& self) { return self.rows.columns; })
      .def_prop_ro("meta", [](const PyRowsRef& self) { return ToPython(self.rows.meta); })
      .def_prop_ro("real_rows",
                   [](const PyRowsRef& self) {
                     const auto all = static_cast<int64_t>(self.rows.rows.size());
                     return self.rows.real_rows.value_or(all);
                   })
      .def("_fetched", &Fetched);
}

}  // namespace

void BindBatches(nb::module_& module) {
  nb::class_<PyBatch>(
      module, "Batch",
      "Rows of named columns, and meta about all of them. Immutable, with memory of its own.\n\nBatch({\"tokens\": "
      "[[1, 2], [3]], \"reward\": array}, {\"step\": 7}): columns as those of a put (docs/python.md); meta are\nbool, "
      "int, float, str, and lists and dicts of these. len(): the number of rows. batch[\"reward\"]: a "
      "Column.\nbatch[2:4]: some rows. Errors name the column, the row or the key.")
      .def(
          "__init__",
          [](PyBatch* self, nb::handle columns, nb::handle meta) { new (self) PyBatch(NewBatch(columns, meta)); },
          "columns"_a = nb::none(), "meta"_a = nb::none())
      .def("__len__", [](const PyBatch& self) { return self->rows(); })
      .def("__getitem__",
           [](const PyBatch& self, nb::handle key) -> nb::object {
             if (PyUnicode_Check(key.ptr()) != 0) return RowsOfBatch(self)[key];
             return nb::cast(RowsIn(self, key));
           })
      .def("__contains__",
           [](const PyBatch& self, const std::string& name) { return self->columns().Find(name) != nullptr; })
      .def(
          "__eq__",
          [](const PyBatch& self, nb::handle other) {
            return nb::isinstance<PyBatch>(other) && *self == *nb::cast<const PyBatch&>(other);
          },
          "other"_a.none())
      .def("__repr__", &TextOfBatch)
      .def_prop_ro("columns", &NamesOf)
      .def_prop_ro("meta", [](const PyBatch& self) { return ToPython(self->meta()); })
      .def("rows", &RowsOfBatch, "All columns, as a dock would give them, with the row numbers 0, 1, …")
      .def(
          "numpy", [](const PyBatch& self) { return RowsOfBatch(self).attr("numpy")("copy"_a = true); },
          "Copies of all columns: dense ones as arrays, ragged ones as lists of arrays, str and bytes as lists.")
      .def(
          "torch", [](const PyBatch& self) { return RowsOfBatch(self).attr("torch")("copy"_a = true); },
          "The same with tensors.")
      .def(
          "select",
          [](const PyBatch& self, const std::vector<std::string>& names) {
            return Made([&] { return self->Select(names); });
          },
          "These columns, in this order.")
      .def(
          "rename",
          [](const PyBatch& self, const std::map<std::string, std::string>& names) {
            const std::vector<std::pair<std::string, std::string>> pairs(names.begin(), names.end());
            return Made([&] { return self->Rename(pairs); });
          },
          "Each column from the first name to the second, all at once.")
      .def(
          "select_rows",
          [](const PyBatch& self, const std::vector<int64_t>& rows) {
            return Made([&] { return self->SelectRows(rows); });
          },
          "These rows in this order, repeats allowed.")
      .def(
          "union", [](const PyBatch& self, const PyBatch& other) { return Made([&] { return self->Union(*other); }); },
          "The columns and the meta of both; what both have must be equal.")
      .def(
          "repeat",
          [](const PyBatch& self, int64_t times, bool interleave) {
            return Made(
                [&] { return self->Repeat(times, interleave ? RepeatOrder::kInterleaved : RepeatOrder::kTiled); });
          },
          "times"_a, "interleave"_a = true, "Every row so often: AABB, or ABAB without ``interleave``.")
      .def(
          "chunk",
          [](const PyBatch& self, int64_t count) {
            std::vector<PyBatch> chunks;
            for (MetaBatch& chunk : ValueOrRaise(self->Chunk(count))) chunks.emplace_back(std::move(chunk));
            return chunks;
          },
          "As many parts, of as many rows each.")
      .def(
          "real_rows", [](const PyBatch& self) { return Made([&] { return runtime::RealRows(*self); }); },
          "Without the rows that were added as padding: whose weight in the column \"row_weights\" is 0.")
      .def_static("concat", &Concat,
                  "All rows of one batch after another. The values of the meta key \"metrics\" become lists.");
  BindRowsRef(module);
}

}  // namespace tdock::python
