// Converts arguments of calls to those of the dock's requests. All functions need the GIL, raise InvalidArgument naming
// the argument, and may throw nb::python_error.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/rows.h"

namespace tdock::python {

// The name of the object's type, for messages.
std::string TypeName(nanobind::handle object);
// The object's repr in ASCII, truncated, for messages.
std::string Shown(nanobind::handle object);
// A str in UTF-8, including zeros. InvalidArgument if it cannot be encoded, because it holds half of a surrogate pair,
// or if the object is not a str; the message begins with `what`.
std::string Utf8(nanobind::handle text, absl::string_view what);
// An integer, of Python or another library, that fits T (int32_t, int64_t, uint64_t); for None, IntOr returns
// `none`.
template <class T>
T Int(nanobind::handle given, const char* argument);
template <class T>
T IntOr(T none, nanobind::handle given, const char* argument) {
  return given.is_none() ? none : Int<T>(given, argument);
}
// A number of seconds, 0 or more; may be infinite.
absl::Duration Seconds(nanobind::handle given, const char* argument);
// The deadline of a call that may wait for this many seconds. None: never. 0: it does not wait.
absl::Time DeadlineAfter(nanobind::handle timeout);
// None means no rows. Otherwise an array or a sequence of integers, none negative.
std::vector<uint64_t> Numbers(nanobind::handle numbers, const char* argument);
// A sequence of str; in keys, None stands for a row without one.
std::vector<std::string> Strings(nanobind::handle strings, const char* argument);
// A mapping of str to str for all rows, or a sequence of these, one for each row.
std::vector<Tags> TagsOfRows(nanobind::handle tags);
Tags TagsOf(nanobind::handle tags);

}  // namespace tdock::python
