// The status of a dock as JSON. Users rely on the names and their order.
#pragma once

#include <ostream>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/json_text.h"
#include "tdock/requests.h"

namespace tdock::console {

using Json = nlohmann::ordered_json;

Json ToJson(absl::string_view name, const PartitionStatus& status);
Json ToJson(const ListedRow& row);
// For leases, the seconds since they were taken at `now`, and until they expire; null: never.
Json ToJson(const RowStatus& row, absl::Time now);

// Indented, with a line end. Invalid UTF-8 is replaced.
void Write(const Json& json, std::ostream& out);

}  // namespace tdock::console
