// Converts statuses to the exceptions of transfer_dock.errors.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tdock::python {

// All three need the GIL.
[[noreturn]] void Raise(const absl::Status& error);

inline void RaiseIfError(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

}  // namespace tdock::python
