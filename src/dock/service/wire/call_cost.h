// What a request is about, and whether it takes long.
#pragma once

#include "absl/strings/string_view.h"
#include "dock/local/served_dock.h"
#include "tdock.pb.h"
#include "tdock/batch.h"

namespace tdock {

// The partition that a request is about; empty if it is about none.
absl::string_view PartitionOf(const v1::Request& request);
// What a call under a lease says of it; null for other calls.
const v1::LeaseRows* LeaseRowsOf(const v1::Request& request);

// For people: what the request asks for.
const char* NameOf(const v1::Request& request);

// Whether a call that is about a partition may take a millisecond or more of a processor, or of a wait for a lock: it
// looks at many rows or columns, or at a whole large table. `load` is the partition's and that of the call's lease.
bool TakesLong(const v1::Request& request, const Batch& batch, const ServedDock::Load& load);

}  // namespace tdock
