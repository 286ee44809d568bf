#include <nanobind/ndarray.h>

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "python/elements.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/incoming.h"
#include "python/private_views.h"
#include "python/rows.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

template <class T>
nb::object Capsule(T object) {
  return nb::capsule(new T(std::move(object)), [](void* kept) noexcept { delete static_cast<T*>(kept); });
}

template <class T>
nb::object VectorAsArray(std::vector<T> numbers) {
  const size_t size = numbers.size();
  auto* const owned = new std::vector<T>(std::move(numbers));
  const nb::capsule owner(owned, [](void* kept) noexcept { delete static_cast<std::vector<T>*>(kept); });
  return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), {size}, owner));
}

nb::object Slice(const nb::object& array, int64_t begin, int64_t end) {
  const nb::object from = nb::int_(begin), to = nb::int_(end);
  const nb::object slice = nb::steal(PySlice_New(from.ptr(), to.ptr(), nullptr));
  const nb::object part = nb::steal(PyObject_GetItem(array.ptr(), slice.ptr()));
  if (!part.is_valid()) throw nb::python_error();
  return part;
}

}  // namespace

nb::object ArrayOf(std::vector<uint64_t> numbers) { return VectorAsArray(std::move(numbers)); }
nb::object ArrayOf(std::vector<int64_t> numbers) { return VectorAsArray(std::move(numbers)); }

int64_t RowsColumn::Length(size_t row) const {
  const int64_t item = *ItemBytes(type());
  return item == 0 ? 0 : static_cast<int64_t>(rows_->cell(row, index_).bytes.size()) / item;
}

const std::byte* RowsColumn::Adjacent() const {
  const std::byte* const first = size() == 0 ? nullptr : rows_->cell(0, index_).bytes.data();
  const std::byte* end = first;
  for (size_t row = 0; row < size(); ++row) {
    const auto bytes = rows_->cell(row, index_).bytes;
    if (bytes.data() == nullptr || bytes.data() != end) return nullptr;
    end += bytes.size();
  }
  return first;
}

int64_t RowsColumn::Count() const {
  if (type().kind == ColumnKind::kDense) return static_cast<int64_t>(size());
  int64_t items = 0;
  for (size_t row = 0; row < size(); ++row) items += Length(row);
  return items;
}

RowsColumn::Piece RowsColumn::PrivatePiece() const {
  if (const std::byte* const data = Adjacent(); data != nullptr) {
    const auto last = rows_->cell(size() - 1, index_).bytes;
    std::optional<PrivateView> view = MakePrivateView(rows_, std::span(data, last.data() + last.size()));
    if (view) return {.data = view->data, .items = Count(), .writable = true, .owner = std::move(view->owner)};
  }
  return OnePiece(true);
}

RowsColumn::Piece RowsColumn::OnePiece(bool copy) const {
  if (const std::byte* const data = copy ? nullptr : Adjacent(); data != nullptr) {
    return {.data = data, .items = Count(), .owner = Capsule(rows_)};
  }
  const bool dense = type().kind == ColumnKind::kDense;
  Piece piece;
  absl::StatusOr<Column> column = absl::UnknownError("not copied");
  {
    const GilRelease release;
    column = rows_->ToColumn(spec().name, &MemoryForCopies());
  }
  const auto made = std::make_shared<const Column>(ValueOrRaise(std::move(column)));
  piece.items = dense ? made->rows() : made->offsets().back();
  piece.data = made->values().data();
  piece.writable = copy;
  piece.owner = Capsule(OfThisProcess<const Column>(made));
  return piece;
}

RowsColumn::Piece RowsColumn::View(size_t row) const {
  return {.data = rows_->cell(row, index_).bytes.data(), .items = Length(row), .owner = Capsule(rows_)};
}

void RowsColumn::RequireNumbers() const {
  if (type().kind != ColumnKind::kBytes) return;
  Raise(absl::InvalidArgumentError(
      absl::StrCat("column '", spec().name, "' holds ", KindName(type()).data(), ", which [i] and tolist() give")));
}

void RowsColumn::RequireDense(absl::string_view instead) const {
  RequireNumbers();
  if (type().kind == ColumnKind::kDense) return;
  Raise(absl::InvalidArgumentError(absl::StrCat("column '", spec().name,
                                                "' is ragged and has no single array of rows: ", instead,
                                                ", values() and lengths() do")));
}

void RowsColumn::RequireNumpy() const {
  RequireNumbers();
  if (AsNumpySeesIt(type().dtype) == type().dtype) return;
  Raise(
      absl::InvalidArgumentError(absl::StrCat("column '", spec().name, "' holds ", Name(type().dtype),
                                              ", which NumPy does not have: torch() gives a tensor, bits() the bits")));
}

std::vector<size_t> RowsColumn::ShapeOf(const Piece& piece) const {
  std::vector<size_t> shape = {static_cast<size_t>(piece.items)};
  for (const int64_t size : type().row_shape) shape.push_back(static_cast<size_t>(size));
  return shape;
}

nb::object RowsColumn::ToNumpy(const Piece& piece, DType dtype) const {
  const std::vector<size_t> shape = ShapeOf(piece);
  if (piece.writable) {
    auto* const data = const_cast<std::byte*>(piece.data);
    return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), piece.owner, nullptr, DlpackOf(dtype)));
  }
  return nb::cast(
      nb::ndarray<nb::numpy, nb::ro>(piece.data, shape.size(), shape.data(), piece.owner, nullptr, DlpackOf(dtype)));
}

template <class... Access>
nb::object RowsColumn::ToDlpack(const Piece& piece, DType dtype) const {
  const std::vector<size_t> shape = ShapeOf(piece);
  auto* const data = const_cast<std::byte*>(piece.data);
  return nb::cast(nb::ndarray<nb::array_api, Access...>(data, shape.size(), shape.data(), piece.owner, nullptr,
                                                        DlpackOf(dtype), nb::device::cpu::value));
}

nb::object RowsColumn::Values(bool copy) const {
  RequireNumpy();
  return ToNumpy(OnePiece(copy), type().dtype);
}

nb::object RowsColumn::ToNumpy(bool copy) const {
  RequireDense("tolist()");
  return Values(copy);
}

nb::object RowsColumn::Bits() const {
  RequireNumbers();
  return ToNumpy(OnePiece(false), AsNumpySeesIt(type().dtype));
}

nb::object RowsColumn::Dlpack(const nb::kwargs& options) const {
  RequireNumbers();
  nb::kwargs rest = nb::borrow<nb::kwargs>(PyDict_Copy(options.ptr()));
  const nb::object version = options.contains("max_version") ? nb::object(options["max_version"]) : nb::none();
  const nb::object copy = options.contains("copy") ? nb::object(options["copy"]) : nb::none();
  if (options.contains("copy")) nb::del(rest["copy"]);
  const bool knows_read_only = !version.is_none() && nb::cast<int>(nb::object(version[0])) >= 1;
  if (knows_read_only && copy.ptr() != Py_True) {
    return ToDlpack<nb::ro>(OnePiece(false), type().dtype).attr("__dlpack__")(**rest);
  }
  if (copy.ptr() == Py_False) {
    throw nb::buffer_error(
        "a view of rows is read-only, which DLPack can express from version 1.0 on: ask with max_version=(1, 0), or "
        "for a "
        "copy");
  }
  return ToDlpack(OnePiece(true), type().dtype).attr("__dlpack__")(**rest);
}

nb::object RowsColumn::ValuesTensor(bool copy) const {
  RequireNumbers();
  return ToTensor(OnePiece(copy));
}

nb::object RowsColumn::PrivateTensor() const {
  RequireNumbers();
  return ToTensor(PrivatePiece());
}

nb::object RowsColumn::ToTensor(const Piece& piece) const {
  const nb::object from_dlpack = nb::module_::import_("torch").attr("from_dlpack");
  // 8-bit floats travel as bytes, which every version of DLPack has.
  if (type().dtype != DType::kF8E4M3 && type().dtype != DType::kF8E5M2) {
    return from_dlpack(ToDlpack(piece, type().dtype));
  }
  return from_dlpack(ToDlpack(piece, DType::kU8)).attr("view")(TorchDType(type().dtype));
}

nb::object RowsColumn::ToTorch(bool copy) const {
  RequireDense("torch_list(), torch_nested()");
  return ValuesTensor(copy);
}

nb::object RowsColumn::Tensors(bool copy) const {
  const nb::object values = ValuesTensor(copy);
  if (type().kind == ColumnKind::kDense) return nb::list(values.attr("unbind")());
  return nb::list(values.attr("split")(Lengths().attr("tolist")()));
}

nb::object RowsColumn::NestedTensor(bool copy) const {
  const nb::object values = ValuesTensor(copy);
  std::vector<int64_t> offsets = {0};
  for (size_t row = 0; row < size(); ++row) {
    const int64_t length = type().kind == ColumnKind::kRagged ? Length(row)
                           : type().row_shape.empty()         ? 1
                                                              : type().row_shape[0];
    offsets.push_back(offsets.back() + length);
  }
  const nb::object torch = nb::module_::import_("torch");
  const nb::object ends = torch.attr("from_numpy")(ArrayOf(std::move(offsets)));
  const nb::object flat =
      type().kind == ColumnKind::kRagged || type().row_shape.empty() ? values : values.attr("flatten")(0, 1);
  return torch.attr("nested").attr("nested_tensor_from_jagged")(flat, ends);
}

nb::object RowsColumn::Lengths() const {
  std::vector<int64_t> lengths(size());
  for (size_t row = 0; row < size(); ++row) {
    if (!Has(row)) RaiseIfError(rows_->WeightsVersion(row, spec().name).status());
    lengths[row] = type().kind != ColumnKind::kDense ? Length(row) : type().row_shape.empty() ? 1 : type().row_shape[0];
  }
  return ArrayOf(std::move(lengths));
}

nb::object RowsColumn::Text(size_t row) const {
  const auto bytes = rows_->cell(row, index_).bytes;
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  const auto length = static_cast<Py_ssize_t>(bytes.size());
  if (type() != ColumnType::Text()) return nb::steal(PyBytes_FromStringAndSize(text, length));
  nb::object decoded = nb::steal(PyUnicode_DecodeUTF8(text, length, "strict"));
  if (decoded.is_valid()) return decoded;
  PyErr_Clear();
  Raise(absl::InvalidArgumentError(
      absl::StrCat("column '", spec().name, "': row ", rows_->ids()[row],
                   " is not UTF-8: raw() gives its bytes, and a column of 'bytes' holds them")));
}

nb::object RowsColumn::Item(size_t row) const {
  if (!Has(row)) return nb::none();
  if (type().kind == ColumnKind::kBytes) return Text(row);
  RequireNumpy();
  Piece view = View(row);
  if (type().kind == ColumnKind::kRagged) return ToNumpy(view, type().dtype);
  view.items = 1;
  return ToNumpy(view, type().dtype).attr("__getitem__")(0);
}

nb::object RowsColumn::Items(bool copy) const {
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(size())));
  if (!list.is_valid()) throw nb::python_error();
  const bool numbers = type().kind != ColumnKind::kBytes;
  nb::object base;
  if (numbers) RequireNumpy();
  // Parts of one array cost less than arrays.
  if (numbers && (copy || Adjacent() != nullptr)) base = ToNumpy(OnePiece(copy), type().dtype);
  int64_t begin = 0;
  for (size_t row = 0; row < size(); ++row) {
    nb::object item;
    if (!base.is_valid()) {
      item = Item(row);
    } else if (type().kind == ColumnKind::kRagged) {
      item = Slice(base, begin, begin + Length(row));
      begin += Length(row);
    } else {
      item = base[row];
    }
    NB_LIST_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(row), item.release().ptr());
  }
  return list;
}

absl::StatusOr<Incoming> RowsColumn::AsIncoming() const {
  Incoming incoming{.type = type(), .rows = static_cast<int64_t>(size()), .owner = std::make_shared<SharedRows>(rows_)};
  for (size_t row = 0; row < size(); ++row) {
    const auto bytes = rows_->cell(row, index_).bytes;
    if (!Has(row)) return rows_->WeightsVersion(row, spec().name).status();
    if (!incoming.parts.empty() && incoming.parts.back().data() + incoming.parts.back().size() == bytes.data()) {
      incoming.parts.back() = {incoming.parts.back().data(), incoming.parts.back().size() + bytes.size()};
    } else {
      incoming.parts.push_back(bytes);
    }
    if (type().kind != ColumnKind::kDense) incoming.lengths.push_back(Length(row));
  }
  return incoming;
}

}  // namespace tdock::python
