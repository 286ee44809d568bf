// Arguments of calls as the dock's requests have them. All need the GIL, raise InvalidArgument naming the argument, and
// may throw nb::python_error.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tdock/rows.h"

namespace tdock::python {

// The name of its type, for messages.
std::string TypeName(nanobind::handle object);
// A str in UTF-8, zeros included. InvalidArgument if it has none, because it holds half of a surrogate pair, or if the
// object is no str; `what` it is stands at the beginning of the message.
std::string Utf8(nanobind::handle text, absl::string_view what);
// None is none of them. Otherwise an array or a sequence of integers, none negative.
std::vector<uint64_t> Numbers(nanobind::handle numbers, const char* argument);
// A sequence of str; of keys, None stands for a row without one.
std::vector<std::string> Strings(nanobind::handle strings, const char* argument);
// A mapping of str to str, for all rows; or a sequence of them, one for each row.
std::vector<Tags> TagsOfRows(nanobind::handle tags);
Tags TagsOf(nanobind::handle tags);

}  // namespace tdock::python
