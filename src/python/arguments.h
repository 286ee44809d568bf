// Converts arguments of calls to those of the dock's requests. All functions need the GIL, raise InvalidArgument naming
// the argument, and may throw nb::python_error.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/fields.h"
#include "tdock/options.h"
#include "tdock/rows.h"

namespace tdock::python {

// The name of the object's type, for messages.
std::string TypeName(nanobind::handle object);
// The object's repr in ASCII, truncated, for messages.
std::string Shown(nanobind::handle object);
// A str in UTF-8, including zeros. InvalidArgument if it cannot be encoded, because it holds half of a surrogate pair,
// or if the object is not a str; the message begins with `what`.
std::string Utf8(nanobind::handle text, absl::string_view what);
// An integer, of Python or another library, that fits T (int32_t, int64_t, uint64_t).
template <class T>
T Int(nanobind::handle given, const char* argument);
// A number of seconds, 0 or more; may be infinite.
absl::Duration Seconds(nanobind::handle given, const char* argument);
// The deadline of a call that may wait for this many seconds. None: never. 0: it does not wait.
absl::Time DeadlineAfter(nanobind::handle timeout);
// None means no rows. Otherwise an array or a sequence of integers, none negative.
std::vector<uint64_t> Numbers(nanobind::handle numbers, const char* argument);
// A sequence of str; in keys, None stands for a row without one.
std::vector<std::string> Strings(nanobind::handle strings, const char* argument);
Tags TagsOf(nanobind::handle tags);
// The place among `names` of the one that is given.
size_t Choice(nanobind::handle given, const char* argument, std::span<const absl::string_view> names);

// Sets a field. None leaves a number that has a default of "none" or "no limit".
void Read(nanobind::handle given, const char* argument, bool& field);
void Read(nanobind::handle given, const char* argument, int32_t& field);
void Read(nanobind::handle given, const char* argument, int64_t& field);
void Read(nanobind::handle given, const char* argument, uint64_t& field);
void Read(nanobind::handle given, const char* argument, std::string& field);
void Read(nanobind::handle given, const char* argument, absl::Duration& field);
void Read(nanobind::handle given, const char* argument, Tags& field);
// One for all rows, or a sequence of one for each row.
void Read(nanobind::handle given, const char* argument, std::vector<Tags>& field);
void Read(nanobind::handle given, const char* argument, std::vector<uint32_t>& field);
void Read(nanobind::handle given, const char* argument, std::vector<uint64_t>& field);
void Read(nanobind::handle given, const char* argument, std::vector<std::string>& field);
// A list of (name, dtype, ragged, shape).
void Read(nanobind::handle given, const char* argument, std::vector<ColumnSpec>& field);
template <class Enum>
  requires std::is_enum_v<Enum>
void Read(nanobind::handle given, const char* argument, Enum& field) {
  // Python has no custom samplers.
  constexpr size_t kUnknown = std::is_same_v<Enum, Sampler> ? 1 : 0;
  const auto names = NamesOf(field);
  field = static_cast<Enum>(Choice(given, argument, std::span(names).first(names.size() - kUnknown)));
}

// The argument for a field: of the same name, but for a few.
std::string ArgumentFor(absl::string_view field);
// InvalidArgument for an argument that was not read; `why` there is none.
void CheckAllRead(const nanobind::kwargs& given, std::span<const std::string> read, absl::string_view why);

// Reads fields, and those of structs in it, by name. Adds the arguments that were read.
template <HasFields T>
void ReadFields(const nanobind::kwargs& given, T& value, std::vector<std::string>& all_read) {
  const auto read = [&](const char* name, auto& field) {
    if constexpr (std::is_same_v<decltype(field), ConsumerOptions&>) {
      ReadFields(given, field, all_read);
    } else if constexpr (requires { Read(given, name, field); }) {
      std::string argument = ArgumentFor(name);
      if (!given.contains(argument.c_str())) return;
      Read(given[argument.c_str()], argument.c_str(), field);
      all_read.push_back(std::move(argument));
    }
  };
  ForEachField(read, value);
}

// A struct of what is given by name. Other fields keep their defaults, as do those that Python cannot give.
template <HasFields T>
T FromArguments(const nanobind::kwargs& given, absl::string_view why = "this call has no such argument") {
  T value;
  std::vector<std::string> read;
  ReadFields(given, value, read);
  if (read.size() != given.size()) CheckAllRead(given, read, why);
  return value;
}

}  // namespace tdock::python
