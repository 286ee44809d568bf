// The partition and the cost of a request.
#pragma once

#include "absl/strings/string_view.h"
#include "dock/local/served_dock.h"
#include "tdock.pb.h"
#include "tdock/batch.h"

namespace tdock::service {

// The fields of a request (field_codec.h); empty for other messages.
absl::string_view BodyOf(const v1::Request& request);
// Makes it a request of the verb of this number.
std::string& MutableBody(v1::Request& request, int number);
// True for a put that a frame follows.
bool HasFrame(const v1::Request& request);
// True for a LeaseRequest.
bool IsOfLease(const v1::Request& request);

// A description of the request, for people.
const char* NameOf(const v1::Request& request);

// Whether a call for a partition may take a millisecond or more of processor time, or of waiting for a lock: it
// accesses many rows or columns, or all of a large table. `load` is the partition's, including that of the call's
// lease.
bool TakesLong(const v1::Request& request, const Batch& batch, const dock::ServedDock::Load& load);

}  // namespace tdock::service
