#include "python/arguments.h"

#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "python/errors.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

[[noreturn]] void Refuse(const char* argument, nb::handle given, absl::string_view expected) {
  Raise(absl::InvalidArgumentError(absl::StrCat("'", argument, "' is a ", TypeName(given), "; give ", expected)));
}

template <class T>
void Append(const Py_buffer& view, const char* argument, std::vector<uint64_t>& numbers) {
  const auto* const items = static_cast<const T*>(view.buf);
  const size_t size = static_cast<size_t>(view.len) / sizeof(T);
  numbers.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    if constexpr (std::is_signed_v<T>) {
      if (items[i] < 0) {
        Raise(absl::InvalidArgumentError(
            absl::StrCat("'", argument, "' holds ", items[i], "; none of its numbers can be negative")));
      }
    }
    numbers.push_back(static_cast<uint64_t>(items[i]));
  }
}

// Of an array of integers. False if it is not one that is looked at here.
bool ReadArray(nb::handle given, const char* argument, std::vector<uint64_t>& numbers) {
  Py_buffer view;
  if (PyObject_GetBuffer(given.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::string format = view.format == nullptr ? "B" : view.format;
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(&view, &PyBuffer_Release);
  const bool is_list = view.ndim == 1 && view.itemsize == 8;
  const bool is_signed = is_list && (format == "l" || format == "q");
  const bool is_unsigned = is_list && (format == "L" || format == "Q");
  if (is_signed) Append<int64_t>(view, argument, numbers);
  if (is_unsigned) Append<uint64_t>(view, argument, numbers);
  return is_signed || is_unsigned;
}

}  // namespace

std::string TypeName(nb::handle object) { return Py_TYPE(object.ptr())->tp_name; }

std::string Utf8(nb::handle text, absl::string_view what) {
  Py_ssize_t size = 0;
  const bool is_str = PyUnicode_Check(text.ptr());
  const char* const bytes = is_str ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (bytes != nullptr) return std::string(bytes, static_cast<size_t>(size));
  PyErr_Clear();
  Raise(absl::InvalidArgumentError(
      absl::StrCat("'", what, "' holds ", nb::repr(text).c_str(),
                   is_str ? ", which has no UTF-8: it holds half of a surrogate pair" : "; give str")));
}

std::vector<uint64_t> Numbers(nb::handle given, const char* argument) {
  std::vector<uint64_t> numbers;
  if (given.is_none()) return numbers;
  if (PyObject_CheckBuffer(given.ptr()) != 0 && ReadArray(given, argument, numbers)) return numbers;
  const nb::object list = nb::hasattr(given, "tolist") ? nb::object(given.attr("tolist")()) : nb::borrow(given);
  const nb::object items = nb::steal(PySequence_Fast(list.ptr(), ""));
  if (!items.is_valid()) {
    PyErr_Clear();
    Refuse(argument, given, "an array or a list of integers");
  }
  const auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  numbers.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    const nb::object index = nb::steal(PyNumber_Index(item));
    const unsigned long long number = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      Raise(absl::InvalidArgumentError(
          absl::StrCat("'", argument, "' holds ", nb::repr(item).c_str(), "; give integers from 0 to 2^64 - 1")));
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::string> Strings(nb::handle given, const char* argument) {
  std::vector<std::string> strings;
  if (given.is_none()) return strings;
  if (PyUnicode_Check(given.ptr())) Refuse(argument, given, "a list of str");
  const nb::object items = nb::steal(PySequence_Fast(given.ptr(), ""));
  if (!items.is_valid()) {
    PyErr_Clear();
    Refuse(argument, given, "a list of str");
  }
  const auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  strings.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    if (item == Py_None) {
      strings.emplace_back();
      continue;
    }
    strings.push_back(Utf8(item, argument));
  }
  return strings;
}

Tags TagsOf(nb::handle given) {
  Tags tags;
  if (given.is_none()) return tags;
  if (!nb::hasattr(given, "items")) Refuse("tags", given, "a dict of str to str");
  for (nb::handle entry : nb::object(given.attr("items")())) {
    const nb::object name = entry[0], value = entry[1];
    if (!PyUnicode_Check(name.ptr()) || !PyUnicode_Check(value.ptr())) {
      Raise(absl::InvalidArgumentError(absl::StrCat("a tag is a str with a str, and not ", nb::repr(entry).c_str())));
    }
    tags.insert_or_assign(Utf8(name, "tags"), Utf8(value, "tags"));
  }
  return tags;
}

std::vector<Tags> TagsOfRows(nb::handle given) {
  std::vector<Tags> tags;
  if (given.is_none()) return tags;
  if (nb::hasattr(given, "items")) return {TagsOf(given)};
  if (!nb::hasattr(given, "__iter__")) Refuse("tags", given, "a dict of str to str, or a list of them");
  for (nb::handle one : nb::borrow(given)) tags.push_back(TagsOf(one));
  return tags;
}

}  // namespace tdock::python
