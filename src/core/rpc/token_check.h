// Whether a call shows the token of a server. For this module only.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock::rpc {

// `shown` is the value of the call's "authorization", if it has one. Unauthenticated if it is not "Bearer " and the
// token; takes the same time wherever the first difference is. An empty token is demanded of nobody.
absl::Status CheckToken(const std::string& token, std::optional<absl::string_view> shown);

}  // namespace tdock::rpc
