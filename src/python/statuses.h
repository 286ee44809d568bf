// Statuses of a dock as dicts, from which transfer_dock.status makes its classes.
#pragma once

#include <nanobind/nanobind.h>

#include "tdock/requests.h"

namespace tdock::python {

nanobind::dict ToDict(const PartitionStatus& status);
nanobind::dict ToDict(const ConsumerStatus& status);
nanobind::dict ToDict(const RowStatus& status);
nanobind::dict ToDict(const ListedRow& row);

// Unix time; infinite for what never ends.
double ToUnix(absl::Time time);

}  // namespace tdock::python
