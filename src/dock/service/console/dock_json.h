// What a dock says of itself, as JSON. Names and their order are part of what users rely on.
#pragma once

#include <ostream>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tdock/requests.h"

namespace tdock::console {

using Json = nlohmann::ordered_json;

Json ToJson(absl::string_view name, const PartitionStatus& status);
Json ToJson(const ListedRow& row);
// Of leases, how many seconds they have lasted at `now`, and will; null: for ever.
Json ToJson(const RowStatus& row, absl::Time now);

// Indented, with a line end. What is not UTF-8 is replaced.
void Write(const Json& json, std::ostream& out);

}  // namespace tdock::console
