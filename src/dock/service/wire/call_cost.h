// The partition and the cost of a request.
#pragma once

#include "absl/strings/string_view.h"
#include "dock/local/served_dock.h"
#include "tdock.pb.h"
#include "tdock/batch.h"

namespace tdock::service {

// The partition that a request is for; empty if it is for none.
absl::string_view PartitionOf(const v1::Request& request);
// The lease of a call under a lease; null for other calls.
const v1::LeaseRows* LeaseRowsOf(const v1::Request& request);

// A description of the request, for people.
const char* NameOf(const v1::Request& request);

// Whether a call for a partition may take a millisecond or more of processor time, or of waiting for a lock: it
// accesses many rows or columns, or all of a large table. `load` is the partition's, including that of the call's
// lease.
bool TakesLong(const v1::Request& request, const Batch& batch, const dock::ServedDock::Load& load);

}  // namespace tdock::service
