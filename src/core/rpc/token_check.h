// Checks the token of a call. For this module only.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock::rpc {

// `shown` is the value of the call's "authorization", if it has one. Unauthenticated unless it is "Bearer " and the
// token; takes the same time wherever the first difference is. With an empty token, every call passes.
absl::Status CheckToken(const std::string& token, std::optional<absl::string_view> shown);

}  // namespace tdock::rpc
