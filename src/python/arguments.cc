#include "python/arguments.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/utf8.h"
#include "python/elements.h"
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
            absl::StrCat("'", argument, "' holds ", items[i], "; its numbers must not be negative")));
      }
    }
    numbers.push_back(static_cast<uint64_t>(items[i]));
  }
}

// From an array of integers. False if this function does not support the array.
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

// The items of a sequence, which cannot change while their own code runs.
nb::object ItemsOf(nb::handle given, const char* argument, absl::string_view expected) {
  nb::object items = nb::steal(PySequence_Tuple(given.ptr()));
  if (items.is_valid()) return items;
  PyErr_Clear();
  Refuse(argument, given, expected);
}

}  // namespace

std::string Shown(nb::handle object) {
  const nb::object text = nb::steal(PyObject_ASCII(object.ptr()));
  Py_ssize_t size = 0;
  const char* const bytes = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  PyErr_Clear();
  if (bytes == nullptr) return absl::StrCat("a ", TypeName(object));
  constexpr size_t kMostBytes = 60;
  const absl::string_view shown(bytes, static_cast<size_t>(size));
  return shown.size() <= kMostBytes ? std::string(shown) : absl::StrCat(shown.substr(0, kMostBytes - 3), "...");
}

std::string TypeName(nb::handle object) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  const std::string name = nb::cast<std::string>(nb::steal(PyType_GetName(type)));
  if ((PyType_GetFlags(type) & Py_TPFLAGS_HEAPTYPE) != 0) return name;
  // A class that is written in C, such as numpy.ndarray.
  const std::string module = nb::cast<std::string>(nb::handle(reinterpret_cast<PyObject*>(type)).attr("__module__"));
  return module == "builtins" ? name : absl::StrCat(module, ".", name);
}

std::string Utf8(nb::handle text, absl::string_view what) {
  Py_ssize_t size = 0;
  const bool is_str = PyUnicode_Check(text.ptr());
  const char* const bytes = is_str ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (bytes != nullptr) return std::string(bytes, static_cast<size_t>(size));
  PyErr_Clear();
  Raise(absl::InvalidArgumentError(
      absl::StrCat("'", what, "' holds ", Shown(text),
                   is_str ? ", which cannot be encoded as UTF-8: it holds half of a surrogate pair" : "; give str")));
}

template <class T>
T Int(nb::handle given, const char* argument) {
  const auto refuse = [&] {
    PyErr_Clear();
    Raise(
        absl::InvalidArgumentError(absl::StrCat("'", argument, "' is ", Shown(given), "; give an integer from ",
                                                std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max())));
  };
  const nb::object index = nb::steal(PyNumber_Index(given.ptr()));
  if (!index.is_valid()) refuse();
  if constexpr (std::is_signed_v<T>) {
    const long long number = PyLong_AsLongLong(index.ptr());
    if (PyErr_Occurred() != nullptr || !std::in_range<T>(number)) refuse();
    return static_cast<T>(number);
  } else {
    const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() != nullptr || !std::in_range<T>(number)) refuse();
    return static_cast<T>(number);
  }
}

template int32_t Int<int32_t>(nb::handle, const char*);
template int64_t Int<int64_t>(nb::handle, const char*);
template uint64_t Int<uint64_t>(nb::handle, const char*);

absl::Duration Seconds(nb::handle given, const char* argument) {
  const double seconds = PyFloat_AsDouble(given.ptr());
  const bool is_number = PyErr_Occurred() == nullptr;
  PyErr_Clear();
  // NaN fails this comparison, too.
  if (is_number && seconds >= 0) return absl::Seconds(seconds);
  Raise(absl::InvalidArgumentError(
      absl::StrCat("'", argument, "' is ", Shown(given), "; give a number of seconds, 0 or more")));
}

absl::Time DeadlineAfter(nb::handle timeout) {
  if (timeout.is_none()) return absl::InfiniteFuture();
  const absl::Duration wait = Seconds(timeout, "timeout");
  return wait == absl::ZeroDuration() ? absl::InfinitePast() : absl::Now() + wait;
}

std::vector<uint64_t> Numbers(nb::handle given, const char* argument) {
  std::vector<uint64_t> numbers;
  if (given.is_none()) return numbers;
  if (PyObject_CheckBuffer(given.ptr()) != 0 && ReadArray(given, argument, numbers)) return numbers;
  const nb::object list = nb::hasattr(given, "tolist") ? nb::object(given.attr("tolist")()) : nb::borrow(given);
  const nb::object items = ItemsOf(list, argument, "an array or a list of integers");
  const auto size = static_cast<size_t>(NB_TUPLE_GET_SIZE(items.ptr()));
  numbers.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    PyObject* const item = NB_TUPLE_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    const nb::object index = nb::steal(PyNumber_Index(item));
    const unsigned long long number = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      Raise(absl::InvalidArgumentError(
          absl::StrCat("'", argument, "' holds ", Shown(item), "; give integers from 0 to 2^64 - 1")));
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::string> Strings(nb::handle given, const char* argument) {
  std::vector<std::string> strings;
  if (given.is_none()) return strings;
  if (PyUnicode_Check(given.ptr())) Refuse(argument, given, "a list of str");
  const nb::object items = ItemsOf(given, argument, "a list of str");
  const auto size = static_cast<size_t>(NB_TUPLE_GET_SIZE(items.ptr()));
  strings.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    PyObject* const item = NB_TUPLE_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
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
      Raise(absl::InvalidArgumentError(absl::StrCat("a tag must be a str with a str value, not ", Shown(entry))));
    }
    tags.insert_or_assign(Utf8(name, "tags"), Utf8(value, "tags"));
  }
  return tags;
}

size_t Choice(nb::handle given, const char* argument, std::span<const absl::string_view> names) {
  const std::string text = Utf8(given, argument);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  Raise(absl::InvalidArgumentError(
      absl::StrCat("'", argument, "' is '", absl::StrJoin(names, "' or '"), "', not '", EscapeForMessage(text), "'")));
}

void Read(nb::handle given, const char* argument, bool& field) {
  if (!PyBool_Check(given.ptr())) Refuse(argument, given, "True or False");
  field = given.ptr() == Py_True;
}

void Read(nb::handle given, const char* argument, int64_t& field) {
  const bool may_be_none = field == -1 || field == std::numeric_limits<int64_t>::max();
  if (!may_be_none || !given.is_none()) field = Int<int64_t>(given, argument);
}

void Read(nb::handle given, const char* argument, int32_t& field) { field = Int<int32_t>(given, argument); }
void Read(nb::handle given, const char* argument, uint64_t& field) { field = Int<uint64_t>(given, argument); }
void Read(nb::handle given, const char* argument, std::string& field) { field = Utf8(given, argument); }
void Read(nb::handle given, const char* argument, absl::Duration& field) { field = Seconds(given, argument); }
void Read(nb::handle given, const char*, Tags& field) { field = TagsOf(given); }
void Read(nb::handle given, const char* argument, std::vector<uint64_t>& field) { field = Numbers(given, argument); }
void Read(nb::handle given, const char* argument, std::vector<std::string>& field) {
  if (given.is_none() && absl::string_view(argument) != "keys") Refuse(argument, given, "a list of str");
  field = Strings(given, argument);
}

void Read(nb::handle given, const char* argument, std::vector<ColumnSpec>& field) {
  for (nb::handle one : nb::borrow(given)) {
    const auto [given_name, dtype, ragged, given_shape] =
        nb::cast<std::tuple<nb::object, std::string, bool, nb::object>>(one);
    const std::string name = Utf8(given_name, argument);
    std::vector<int64_t> shape;
    for (nb::handle size : given_shape) shape.push_back(Int<int64_t>(size, "shape"));
    absl::StatusOr<ColumnType> type = ParseColumnType(dtype, ragged, Shape(std::span(shape)));
    if (!type.ok())
      Raise(
          absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name), "': ", type.status().message())));
    field.push_back({name, *type});
  }
}

std::string ArgumentFor(absl::string_view field) {
  if (field == "from") return "start";  // the other is a word of Python
  return field == "lease_duration" ? "lease_seconds" : std::string(field);
}

void CheckAllRead(const nb::kwargs& given, std::span<const std::string> read, absl::string_view why) {
  for (const auto& [name, value] : given) {
    const std::string argument = Utf8(name, "the name of an argument");
    if (std::ranges::count(read, argument) == 0) {
      Raise(absl::InvalidArgumentError(absl::StrCat("'", argument, "' was given, but ", why)));
    }
  }
}

void Read(nb::handle given, const char* argument, std::vector<Tags>& field) {
  if (given.is_none()) return;
  if (nb::hasattr(given, "items")) return field.push_back(TagsOf(given));
  if (!nb::hasattr(given, "__iter__")) Refuse(argument, given, "a dict of str to str, or a list of them");
  for (nb::handle one : nb::borrow(given)) field.push_back(TagsOf(one));
}

void Read(nb::handle given, const char* argument, std::vector<uint32_t>& field) {
  for (const uint64_t number : Numbers(given, argument)) {
    if (number > std::numeric_limits<uint32_t>::max()) {
      Raise(absl::InvalidArgumentError(absl::StrCat("'", argument, "' holds ", number, "; give numbers below 2^32")));
    }
    field.push_back(static_cast<uint32_t>(number));
  }
}

}  // namespace tdock::python
