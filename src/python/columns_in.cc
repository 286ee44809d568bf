#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "python/arguments.h"
#include "python/arrays.h"
#include "python/batches.h"
#include "python/numbers.h"
#include "python/rows.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

using Declared = std::optional<ColumnType>;

// The items of a list, as a tuple that cannot change meanwhile.
struct Items {
  explicit Items(nb::handle list) : tuple(nb::steal(PySequence_Tuple(list.ptr()))) {
    if (!tuple.is_valid()) throw nb::python_error();
  }
  size_t size() const { return static_cast<size_t>(NB_TUPLE_GET_SIZE(tuple.ptr())); }
  nb::handle operator[](size_t i) const { return NB_TUPLE_GET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i)); }
  void AppendTo(std::vector<PyObject*>& all) const {
    for (size_t i = 0; i < size(); ++i) all.push_back((*this)[i].ptr());
  }

  nb::object tuple;
};

absl::Status Unlike(size_t row, nb::handle object, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("row ", row, " is a ", TypeName(object), ", and not ", expected, " like the rows before"));
}

bool IsDense(const Declared& declared) { return declared.has_value() && declared->kind == ColumnKind::kDense; }
bool IsRagged(const Declared& declared) { return declared.has_value() && declared->kind == ColumnKind::kRagged; }

Shape Inner(const Shape& shape) { return Shape(std::span(shape.begin() + 1, shape.end())); }

// ---- Lists of str and of bytes.

absl::StatusOr<Incoming> LookAtStrings(const Items& items) {
  auto refs = ObjectRefs::Make();
  refs->Add(items.tuple);
  Incoming incoming{.type = ColumnType::Text(), .rows = static_cast<int64_t>(items.size()), .owner = refs};
  incoming.parts.reserve(items.size());
  incoming.lengths.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!PyUnicode_Check(items[i].ptr())) return Unlike(i, items[i], "a str");
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(items[i].ptr(), &size);
    if (text == nullptr) {
      PyErr_Clear();
      return absl::InvalidArgumentError(absl::StrCat(
          "row ", i, " is ", Shown(items[i]), ", which cannot be encoded as UTF-8: it holds half of a surrogate pair"));
    }
    incoming.parts.push_back(std::as_bytes(std::span(text, static_cast<size_t>(size))));
    incoming.lengths.push_back(size);
  }
  return incoming;
}

absl::StatusOr<Incoming> LookAtBytes(const Items& items) {
  auto refs = ObjectRefs::Make();
  Incoming incoming{.type = ColumnType::Bytes(), .rows = static_cast<int64_t>(items.size()), .owner = refs};
  incoming.parts.reserve(items.size());
  incoming.lengths.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!PyBytes_Check(items[i].ptr()) && !PyByteArray_Check(items[i].ptr())) return Unlike(i, items[i], "bytes");
    const Py_buffer* const view = refs->View(items[i], PyBUF_SIMPLE);
    if (view == nullptr) throw nb::python_error();
    incoming.parts.emplace_back(static_cast<const std::byte*>(view->buf), static_cast<size_t>(view->len));
    incoming.lengths.push_back(view->len);
  }
  return incoming;
}

// ---- Numbers.

// Consecutive numbers, converted into a new buffer.
absl::StatusOr<Incoming> WriteAll(PyObject* const* items, size_t count, const Declared& declared) {
  const absl::StatusOr<DType> by_itself = DTypeOfNumbers(items, count);
  const bool has_dtype = declared.has_value() && declared->kind != ColumnKind::kBytes;
  if (!has_dtype) TDOCK_RETURN_IF_ERROR(by_itself.status());
  const DType dtype = has_dtype ? declared->dtype : *by_itself;
  Buffer values = Buffer::Allocate(count * SizeOf(dtype));
  TDOCK_RETURN_IF_ERROR(WriteNumbers(items, count, dtype, values.mutable_data()));
  return Incoming{.type = ColumnType::Dense(dtype),
                  .rows = static_cast<int64_t>(count),
                  .parts = {values.bytes()},
                  .owner = values.owner(),
                  .by_schema = !by_itself.ok() || *by_itself != dtype};
}

// Lists of numbers.
absl::StatusOr<Incoming> LookAtLists(const Items& lists, const Declared& declared) {
  std::vector<PyObject*> numbers;
  std::vector<int64_t> lengths;
  std::vector<Items> kept;
  kept.reserve(lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!PyList_Check(lists[i].ptr()) && !PyTuple_Check(lists[i].ptr())) return Unlike(i, lists[i], "a list");
    const Items& items = kept.emplace_back(lists[i]);
    for (size_t j = 0; j < items.size(); ++j) {
      if (IsNumber(items[j])) continue;
      return absl::InvalidArgumentError(absl::StrCat("row ", i, " is a list that holds a ", TypeName(items[j]),
                                                     "; give an array or a tensor instead"));
    }
    items.AppendTo(numbers);
    lengths.push_back(static_cast<int64_t>(items.size()));
  }
  TDOCK_ASSIGN_OR_RETURN(Incoming incoming, WriteAll(numbers.data(), numbers.size(), declared));
  incoming.rows = static_cast<int64_t>(lengths.size());
  const bool equal = std::ranges::all_of(lengths, [&](int64_t length) { return length == lengths.front(); });
  if (IsDense(declared) && equal) {
    incoming.type = ColumnType::Dense(incoming.type.dtype, {lengths.front()});
    incoming.by_schema = true;
    return incoming;
  }
  incoming.type = ColumnType::Ragged(incoming.type.dtype);
  incoming.lengths = std::move(lengths);
  return incoming;
}

// ---- Arrays and tensors.

absl::StatusOr<Incoming> LookAtWhole(nb::handle data, const Declared& declared) {
  auto refs = ObjectRefs::Make();
  TDOCK_ASSIGN_OR_RETURN(const Array array, LookAtArray(data, *refs));
  if (array.shape.empty()) {
    return absl::InvalidArgumentError("a single value; the first dimension of an array is the rows");
  }
  const int64_t rows = array.shape[0];
  Incoming incoming{.type = ColumnType::Dense(array.dtype, Inner(array.shape)),
                    .rows = rows,
                    .parts = {{array.data, array.bytes}},
                    .owner = std::move(refs)};
  if (IsRagged(declared) && array.shape.size() >= 2) {
    incoming.lengths.assign(static_cast<size_t>(rows), array.shape[1]);
    incoming.type = ColumnType::Ragged(array.dtype, Inner(incoming.type.row_shape));
    incoming.by_schema = true;
  }
  return incoming;
}

// Arrays that agree in element type and in shape, except for the first dimension.
class ArrayList {
 public:
  ArrayList(size_t rows, const Declared& declared) : declared_(declared) { arrays_.reserve(rows); }

  absl::Status Add(nb::handle object) {
    TDOCK_ASSIGN_OR_RETURN(const Array array, LookAtArray(object, *refs_));
    arrays_.push_back(array);
    // An empty array has its library's default element type.
    if (typical_ == kNone || (arrays_[typical_].bytes == 0 && array.bytes != 0)) typical_ = arrays_.size() - 1;
    return absl::OkStatus();
  }

  absl::StatusOr<Incoming> Finish() {
    const Array& typical = arrays_[typical_];
    const bool dense = IsDense(declared_) || typical.shape.empty();
    Incoming incoming{.rows = static_cast<int64_t>(arrays_.size()), .owner = refs_};
    incoming.type = dense ? ColumnType::Dense(DTypeFor(typical), typical.shape)
                          : ColumnType::Ragged(DTypeFor(typical), Inner(typical.shape));
    incoming.by_schema = (dense && !typical.shape.empty()) || incoming.type.dtype != typical.dtype;
    incoming.parts.reserve(arrays_.size());
    if (!dense) incoming.lengths.reserve(arrays_.size());
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const Array& array = arrays_[i];
      if (array.dtype != incoming.type.dtype && array.bytes != 0) {
        return absl::InvalidArgumentError(absl::StrCat("row ", i, " holds ", Name(array.dtype), ", and row ", typical_,
                                                       " ", Name(incoming.type.dtype)));
      }
      if (dense ? array.shape != typical.shape : !SameItems(array.shape, typical.shape)) {
        return absl::InvalidArgumentError(absl::StrCat("row ", i, " has the shape ", ToString(array.shape),
                                                       ", and row ", typical_, " ", ToString(typical.shape),
                                                       dense ? "" : ": only the first dimension may vary"));
      }
      incoming.parts.emplace_back(array.data, array.bytes);
      if (!dense) incoming.lengths.push_back(array.shape[0]);
    }
    return incoming;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  DType DTypeFor(const Array& typical) const {
    return typical.bytes == 0 && declared_.has_value() ? declared_->dtype : typical.dtype;
  }
  static bool SameItems(const Shape& one, const Shape& other) {
    if (one.empty() || other.empty() || one.size() != other.size()) return false;
    return Inner(one) == Inner(other);
  }

  const Declared& declared_;
  const std::shared_ptr<ObjectRefs> refs_ = ObjectRefs::Make();
  std::vector<Array> arrays_;
  size_t typical_ = kNone;
};

absl::StatusOr<Incoming> LookAtArrays(const Items& items, const Declared& declared) {
  ArrayList list(items.size(), declared);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!IsArray(items[i])) return Unlike(i, items[i], "an array");
    if (absl::Status status = list.Add(items[i]); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("row ", i, ": ", status.message()));
    }
  }
  return list.Finish();
}

absl::StatusOr<Incoming> LookAtNested(nb::handle tensor, const Declared& declared) {
  return LookAtArrays(Items(tensor.attr("unbind")()), declared);
}

absl::StatusOr<Incoming> LookAtList(const Items& items, const Declared& declared) {
  if (items.size() == 0) {
    if (!declared.has_value()) return absl::InvalidArgumentError("an empty list does not tell the type of its rows");
    return Incoming{.type = *declared, .by_schema = true};
  }
  const nb::handle first = items[0];
  if (PyUnicode_Check(first.ptr())) return LookAtStrings(items);
  if (PyBytes_Check(first.ptr()) || PyByteArray_Check(first.ptr())) return LookAtBytes(items);
  if (IsNumber(first)) {
    std::vector<PyObject*> numbers;
    numbers.reserve(items.size());
    items.AppendTo(numbers);
    return WriteAll(numbers.data(), numbers.size(), declared);
  }
  if (PyList_Check(first.ptr()) || PyTuple_Check(first.ptr())) return LookAtLists(items, declared);
  if (IsArray(first)) return LookAtArrays(items, declared);
  return absl::InvalidArgumentError(absl::StrCat(
      "row 0 is a ", TypeName(first), "; rows are numbers, arrays, tensors, lists of numbers, str or bytes"));
}

// NumPy's arrays of strings and of objects.
bool HoldsObjects(nb::handle data) {
  if (!nb::hasattr(data, "dtype") || !nb::hasattr(data, "tolist") || IsTensor(data)) return false;
  const std::string kind = nb::cast<std::string>(nb::str(nb::getattr(data.attr("dtype"), "kind", nb::str(""))));
  return kind == "U" || kind == "S" || kind == "O" || kind == "T";
}

}  // namespace

absl::StatusOr<Incoming> LookAtColumn(nb::handle data, const Declared& declared) {
  if (PyList_Check(data.ptr()) || PyTuple_Check(data.ptr())) return LookAtList(Items(data), declared);
  if (nb::isinstance<RowsColumn>(data)) return nb::cast<const RowsColumn&>(data).AsIncoming();
  if (PyUnicode_Check(data.ptr()) || PyBytes_Check(data.ptr()) || PyByteArray_Check(data.ptr())) {
    return absl::InvalidArgumentError("a single str or bytes; give a list of them, one for each row");
  }
  if (IsTensor(data) && nb::cast<bool>(data.attr("is_nested"))) return LookAtNested(data, declared);
  if (HoldsObjects(data)) return LookAtList(Items(data.attr("tolist")()), declared);
  if (IsArray(data)) return LookAtWhole(data, declared);
  return absl::InvalidArgumentError(
      absl::StrCat("a ", TypeName(data), "; give an array or tensor whose first dimension is the rows, or a list"));
}

}  // namespace tdock::python
