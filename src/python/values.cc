#include "python/values.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "python/arguments.h"
#include "python/errors.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

using runtime::Value;

absl::Status CannotPass(nb::handle object, const std::string& what) {
  const bool function = PyCallable_Check(object.ptr()) != 0;
  const bool array = nb::hasattr(object, "dtype");
  return absl::InvalidArgumentError(absl::StrCat(
      what, " is ", Shown(object), ", of type ", TypeName(object), ", which is not passed between processes: ",
      function ? "pass the name of the function or class, and let the worker look it up"
      : array ? "put arrays and tensors into a Batch, such as Batch({'x': x}), with a row for each step of their first "
                "dimension"
              : "pass None, bool, int, float, str, lists and dicts of these, Batch or RowsRef"));
}

// Whether the object is an array or tensor without dimensions.
bool IsScalar(nb::handle object) {
  const nb::object shape = nb::getattr(object, "shape", nb::none());
  return !shape.is_none() && nb::hasattr(object, "item") && PyObject_Size(shape.ptr()) == 0;
}

absl::StatusOr<Value::List> ListOf(nb::handle sequence, const std::string& what, int depth) {
  const nb::object items = nb::steal(PySequence_Tuple(sequence.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  Value::List list;
  for (nb::handle item : nb::borrow<nb::tuple>(items)) {
    TDOCK_ASSIGN_OR_RETURN(list.emplace_back(), ValueOf(item, absl::StrCat(what, "[", list.size(), "]"), depth));
  }
  return list;
}

absl::StatusOr<Value::Object> ObjectOf(nb::handle dict, const std::string& what, int depth) {
  Value::Object object;
  const nb::object copy = nb::steal(PyDict_Copy(dict.ptr()));
  if (!copy.is_valid()) throw nb::python_error();
  PyObject *key = nullptr, *item = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(copy.ptr(), &position, &key, &item) != 0) {
    if (!PyUnicode_Check(key)) {
      return absl::InvalidArgumentError(absl::StrCat(what, " has the key ", Shown(key), "; keys must be str"));
    }
    const std::string name = Utf8(key, what);
    TDOCK_ASSIGN_OR_RETURN(object[name], ValueOf(item, absl::StrCat(what, "['", EscapeForMessage(name), "']"), depth));
  }
  return object;
}

absl::StatusOr<MetaValue> ToMeta(const Value& value, const std::string& what) {
  if (const bool* flag = value.As<bool>()) return MetaValue(*flag);
  if (const int64_t* integer = value.As<int64_t>()) return MetaValue(*integer);
  if (const double* number = value.As<double>()) return MetaValue(*number);
  if (const std::string* text = value.As<std::string>()) return MetaValue(*text);
  if (const Value::List* list = value.As<Value::List>()) {
    MetaValue::List items;
    for (const Value& item : *list) {
      TDOCK_ASSIGN_OR_RETURN(MetaValue one, ToMeta(item, absl::StrCat(what, "[", items.size(), "]")));
      items.push_back(std::move(one));
    }
    return MetaValue(std::move(items));
  }
  if (const Value::Object* object = value.As<Value::Object>()) {
    Meta entries;
    for (const auto& [name, item] : *object) {
      TDOCK_ASSIGN_OR_RETURN(MetaValue one, ToMeta(item, absl::StrCat(what, "['", EscapeForMessage(name), "']")));
      entries.emplace(name, std::move(one));
    }
    return MetaValue(std::move(entries));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value.Describe(), "; meta are bool, int, float, str, and lists and dicts of these"));
}

nb::object MetaToPython(const MetaValue& value) {
  if (const bool* flag = value.As<bool>()) return nb::bool_(*flag);
  if (const int64_t* integer = value.As<int64_t>()) return nb::int_(*integer);
  if (const double* number = value.As<double>()) return nb::float_(*number);
  if (const std::string* text = value.As<std::string>()) return nb::str(text->data(), text->size());
  if (const MetaValue::List* list = value.As<MetaValue::List>()) {
    nb::list items;
    for (const MetaValue& item : *list) items.append(MetaToPython(item));
    return items;
  }
  return ToPython(*value.As<Meta>());
}

}  // namespace

absl::StatusOr<Value> ValueOf(nb::handle object, const std::string& what, int depth) {
  if (depth > Value::kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is deeper than ", Value::kMaxDepth, " lists and dicts"));
  }
  if (object.is_none()) return Value();
  if (PyBool_Check(object.ptr())) return Value(object.ptr() == Py_True);
  if (PyFloat_Check(object.ptr())) return Value(PyFloat_AsDouble(object.ptr()));
  if (PyLong_Check(object.ptr())) return Value(Int<int64_t>(object, what.c_str()));
  if (PyUnicode_Check(object.ptr())) return Value(Utf8(object, what));
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    TDOCK_ASSIGN_OR_RETURN(Value::List list, ListOf(object, what, depth + 1));
    return Value(std::move(list));
  }
  if (PyDict_Check(object.ptr())) {
    TDOCK_ASSIGN_OR_RETURN(Value::Object entries, ObjectOf(object, what, depth + 1));
    return Value(std::move(entries));
  }
  if (nb::isinstance<PyBatch>(object)) return Value(*nb::cast<const PyBatch&>(object));
  if (nb::isinstance<PyRowsRef>(object)) return Value(nb::cast<const PyRowsRef&>(object).rows);
  if (IsScalar(object)) return ValueOf(object.attr("item")(), what, depth + 1);
  return CannotPass(object, what);
}

nb::object ToPython(const Value& value) {
  if (value.IsNothing()) return nb::none();
  if (const bool* flag = value.As<bool>()) return nb::bool_(*flag);
  if (const int64_t* integer = value.As<int64_t>()) return nb::int_(*integer);
  if (const double* number = value.As<double>()) return nb::float_(*number);
  if (const std::string* text = value.As<std::string>()) return nb::str(text->data(), text->size());
  if (const Value::List* list = value.As<Value::List>()) {
    nb::list items;
    for (const Value& item : *list) items.append(ToPython(item));
    return items;
  }
  if (const Value::Object* object = value.As<Value::Object>()) {
    nb::dict entries;
    for (const auto& [name, item] : *object) entries[nb::str(name.data(), name.size())] = ToPython(item);
    return entries;
  }
  if (const MetaBatch* batch = value.As<MetaBatch>()) return nb::cast(PyBatch(*batch));
  return nb::cast(PyRowsRef{*value.As<runtime::RowsRef>()});
}

absl::StatusOr<Meta> MetaOf(nb::handle dict, const std::string& what) {
  if (dict.is_none()) return Meta();
  TDOCK_ASSIGN_OR_RETURN(const Value value, ValueOf(dict, what));
  if (value.As<Value::Object>() == nullptr) return value.Unexpected(absl::StrCat("a dict for ", what));
  TDOCK_ASSIGN_OR_RETURN(MetaValue meta, ToMeta(value, what));
  return std::move(*meta.As<Meta>());
}

nb::object ToPython(const Meta& meta) {
  nb::dict entries;
  for (const auto& [name, item] : meta) entries[nb::str(name.data(), name.size())] = MetaToPython(item);
  return entries;
}

}  // namespace tdock::python
