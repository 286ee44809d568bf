// Texts between the page of runs and its server. Internal to this module.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/http/message.h"

namespace tdock::trainer {

// Whether a browser that was told this name by the user would send it as Host: an address of this machine's, or the one
// that is served. A page of another site whose name leads here has another.
bool IsOwnHost(absl::string_view header, absl::string_view served_host);

// A server-sent event of a text of JSON. With `id`, a client that connects again says that it has seen it.
std::string EventText(absl::string_view name, absl::string_view json, absl::string_view id = "");

// The number in "EPOCH.NUMBER"; 0 if it is of another epoch, or none.
uint64_t SeenOf(absl::string_view id, absl::string_view epoch);

// A response for the page, of a text of JSON.
http::Response JsonResponse(std::string json);
http::Response ErrorResponse(int status, absl::string_view message);
// The page, with what it may do: run its own script, and ask its own server.
http::Response PageResponse();

}  // namespace tdock::trainer
