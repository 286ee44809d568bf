// The messages between a controller and a worker: facts of parcels. For this module only.
//
//   worker ──► controller     hello {rank, world_size, name, pid, host, setup}   first
//                             serving {} · failed {status}
//                             result {id, status | value}
//                             notice {kind, text}
//   controller ──► worker     welcome {value}
//                             call {id, method, arguments}
//                             end {status}                                       last: the worker then closes the
//                             connection
//   both                      beat {}                                            a sign of life
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/control/parcel.h"
#include "runtime/dispatch/value.h"

namespace tdock::runtime {

inline constexpr int64_t kWorkersProtocol = 1;

// The fact that says which message it is.
inline constexpr char kWhat[] = "what";

inline Parcel MessageOf(absl::string_view what, Meta facts = {}) {
  facts.insert_or_assign(kWhat, MetaValue(std::string(what)));
  return {.facts = std::move(facts)};
}

// Adds a status, or reads it: a code that there is not is Unknown.
void SetStatus(const absl::Status& status, Meta& facts);
absl::Status StatusIn(const Parcel& parcel);

// Adds a value under `name`, its batches to those of the parcel.
void SetValue(const std::string& name, const Value& value, Parcel& parcel);
// InvalidArgument for facts that are no value, and for batches that the parcel does not have.
absl::StatusOr<Value> ValueIn(const Parcel& parcel, const std::string& name);

}  // namespace tdock::runtime
