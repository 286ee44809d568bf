// Arguments of calls as the dock's requests have them. All need the GIL, raise InvalidArgument naming the argument, and
// may throw nb::python_error.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/rows.h"

namespace tdock::python {

// The name of its type, for messages.
std::string TypeName(nanobind::handle object);
// The object as Python shows it, in ASCII and cut short, for messages.
std::string Shown(nanobind::handle object);
// A str in UTF-8, zeros included. InvalidArgument if it has none, because it holds half of a surrogate pair, or if the
// object is no str; `what` it is stands at the beginning of the message.
std::string Utf8(nanobind::handle text, absl::string_view what);
// An integer, of Python or another library, that T (int32_t, int64_t, uint64_t) holds; of IntOr, None is something
// else.
template <class T>
T Int(nanobind::handle given, const char* argument);
template <class T>
T IntOr(T none, nanobind::handle given, const char* argument) {
  return given.is_none() ? none : Int<T>(given, argument);
}
// A number of seconds, 0 or more; may be infinite.
absl::Duration Seconds(nanobind::handle given, const char* argument);
// When a call that may wait so many seconds gives up. None: never. 0: it does not wait.
absl::Time DeadlineAfter(nanobind::handle timeout);
// None is none of them. Otherwise an array or a sequence of integers, none negative.
std::vector<uint64_t> Numbers(nanobind::handle numbers, const char* argument);
// A sequence of str; of keys, None stands for a row without one.
std::vector<std::string> Strings(nanobind::handle strings, const char* argument);
// A mapping of str to str, for all rows; or a sequence of them, one for each row.
std::vector<Tags> TagsOfRows(nanobind::handle tags);
Tags TagsOf(nanobind::handle tags);

}  // namespace tdock::python
