#include "python/errors.h"

#include <nanobind/nanobind.h>

#include <string>

#include "core/base/utf8.h"
#include "python/gil.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// The exception; null, with Python's error set, if it cannot be made. Runs Python, in which a thread may end together
// with the interpreter: see GilRelease. Nothing here has a destructor, which would then run without the GIL.
PyObject* ExceptionOf(int code, const char* text, Py_ssize_t size) {
  try {
    PyObject* const errors = PyImport_ImportModule("transfer_dock.errors");
    if (errors == nullptr) return nullptr;
    PyObject* const message = PyUnicode_DecodeUTF8(text, size, "replace");
    PyObject* const exception =
        message == nullptr ? nullptr : PyObject_CallMethod(errors, "from_code", "iO", code, message);
    Py_XDECREF(message);
    Py_DECREF(errors);
    return exception;
  } catch (...) {
    SleepForever();
  }
}

}  // namespace

void Raise(const absl::Status& error) {
  const std::string message = EscapeForTerminal(error.message());
  const nb::object exception =
      nb::steal(ExceptionOf(static_cast<int>(error.code()), message.data(), static_cast<Py_ssize_t>(message.size())));
  if (exception.is_valid()) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace tdock::python
