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

// The same where OutOfRange is about numbers that the caller gave: EndOfData would say that a dock has no more rows.
template <class T>
T MadeOrRaise(absl::StatusOr<T> made) {
  if (absl::IsOutOfRange(made.status())) Raise(absl::InvalidArgumentError(made.status().message()));
  return ValueOrRaise(std::move(made));
}

}  // namespace tdock::python
