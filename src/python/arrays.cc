#include "python/arrays.h"

#include <nanobind/stl/string.h>

#include <array>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "python/arguments.h"
#include "python/elements.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// Names of attributes, made once: a list of tensors asks each of them for these.
struct TensorNames {
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* strided = nb::object(nb::module_::import_("torch").attr("strided")).release().ptr();
};

const TensorNames& Names() {
  static const auto* const names = new TensorNames();
  return *names;
}

// The class torch.Tensor, if torch is imported: otherwise there are no tensors.
PyObject* TensorClass() {
  static PyObject* tensor = nullptr;
  if (tensor == nullptr) {
    PyObject* const torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    // While torch is being imported it has no Tensor yet.
    if (torch != nullptr && PyObject_HasAttrString(torch, "Tensor")) tensor = PyObject_GetAttrString(torch, "Tensor");
  }
  return tensor;
}

nb::object Get(nb::handle object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

nb::object Call(nb::handle object, PyObject* method) {
  PyObject* const self = object.ptr();
  PyObject* const value = PyObject_VectorcallMethod(method, &self, 1, nullptr);
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

absl::Status Refused(nb::handle dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("elements of type ", nb::cast<std::string>(nb::str(dtype)),
                   "; the dock holds bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, "
                   "float8_e4m3fn and float8_e5m2"));
}

absl::StatusOr<Array> LookAtTensor(nb::handle object, ObjectRefs& refs) {
  const TensorNames& names = Names();
  nb::object tensor = nb::borrow(object);
  if (Get(tensor, names.layout).ptr() != names.strided) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of layout ",
                                                   nb::cast<std::string>(nb::str(Get(tensor, names.layout))),
                                                   "; make it dense with .to_dense() first"));
  }
  if (Get(tensor, names.is_cpu).ptr() != Py_True) tensor = tensor.attr("detach")().attr("cpu")();
  // A lazily negated tensor has the opposite sign in memory.
  if (Call(tensor, names.is_neg).ptr() == Py_True) tensor = tensor.attr("resolve_neg")();
  if (Call(tensor, names.is_contiguous).ptr() != Py_True) tensor = tensor.attr("contiguous")();
  const nb::object dtype = Get(tensor, names.dtype);
  const std::optional<DType> known = DTypeOfTorch(dtype);
  if (!known.has_value()) return Refused(dtype);
  const nb::object shape = Get(tensor, names.shape);
  if (!PyTuple_Check(shape.ptr())) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor whose shape is a ", TypeName(shape), ", not a tuple"));
  }
  const auto rank = static_cast<size_t>(NB_TUPLE_GET_SIZE(shape.ptr()));
  std::array<int64_t, Shape::kMaxRank + 1> sizes{};
  for (size_t i = 0; i < std::min(rank, sizes.size()); ++i) {
    sizes[i] = Int<int64_t>(NB_TUPLE_GET_ITEM(shape.ptr(), static_cast<Py_ssize_t>(i)), "shape");
  }
  Array array{.dtype = *known, .shape = Shape(std::span(sizes.data(), std::min(rank, sizes.size())))};
  array.data = static_cast<const std::byte*>(PyLong_AsVoidPtr(Call(tensor, names.data_ptr).ptr()));
  absl::StatusOr<int64_t> elements = NumElements(array.shape);
  if (!elements.ok()) return elements.status();
  array.bytes = static_cast<size_t>(*elements) * SizeOf(*known);
  refs.Add(std::move(tensor));
  return array;
}

absl::StatusOr<Array> LookAtBuffer(nb::handle object, ObjectRefs& refs) {
  const Py_buffer* view = refs.View(object, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
  nb::object copy;
  if (view == nullptr) {
    // Not contiguous; or of a type without a buffer format, which NumPy then reports.
    PyErr_Clear();
    copy = nb::module_::import_("numpy").attr("ascontiguousarray")(object);
    view = refs.View(copy, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    if (view == nullptr) {
      PyErr_Clear();
      return Refused(copy.attr("dtype"));
    }
  }
  const std::optional<DType> dtype =
      DTypeOfFormat(view->format == nullptr ? "B" : view->format, static_cast<size_t>(view->itemsize));
  if (!dtype.has_value()) {
    return nb::hasattr(object, "dtype") ? Refused(object.attr("dtype")) : Refused(nb::str(view->format));
  }
  Array array{.dtype = *dtype,
              .shape = Shape(std::span(view->shape, static_cast<size_t>(view->ndim))),
              .data = static_cast<const std::byte*>(view->buf),
              .bytes = static_cast<size_t>(view->len)};
  if (array.shape.too_long()) return NumElements(array.shape).status();
  return array;
}

// The mask of one of NumPy's masked arrays is not in its buffer.
absl::Status CheckNotMasked(nb::handle object) {
  if (!nb::hasattr(object, "_mask")) return absl::OkStatus();
  if (!nb::cast<bool>(nb::module_::import_("numpy").attr("ma").attr("is_masked")(object))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a masked array with elements that are masked, which the dock cannot store; give .filled(value), or the mask "
      "as a separate column");
}

}  // namespace

bool IsTensor(nb::handle object) {
  PyObject* const tensor = TensorClass();
  return tensor != nullptr && PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(tensor));
}

bool IsArray(nb::handle object) {
  return IsTensor(object) || PyObject_CheckBuffer(object.ptr()) != 0 || nb::hasattr(object, "__dlpack__") ||
         nb::hasattr(object, "__array__");
}

absl::StatusOr<Array> LookAtArray(nb::handle object, ObjectRefs& refs) {
  if (IsTensor(object)) return LookAtTensor(object, refs);
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    TDOCK_RETURN_IF_ERROR(CheckNotMasked(object));
    return LookAtBuffer(object, refs);
  }
  const nb::object numpy = nb::module_::import_("numpy");
  const nb::object array =
      nb::hasattr(object, "__dlpack__") ? numpy.attr("from_dlpack")(object) : numpy.attr("asarray")(object);
  return LookAtBuffer(array, refs);
}

}  // namespace tdock::python
