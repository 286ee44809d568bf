// Statuses of a dock as dicts, from which transfer_dock.status makes its classes.
#pragma once

#include <nanobind/nanobind.h>

#include "tdock/fields.h"
#include "tdock/requests.h"

namespace tdock::python {

// The fields of a status by their names; None for what is absent.
template <HasFields T>
nanobind::dict ToDict(const T& value);

// Unix time; infinite for what never ends.
double ToUnix(absl::Time time);

}  // namespace tdock::python
