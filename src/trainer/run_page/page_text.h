// Texts between the page of runs and its server. Internal to this module.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "core/http/message.h"
#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {

// The members of a query, percent-decoded; '+' is a space.
std::map<std::string, std::string> QueryOf(absl::string_view query);

// Whether a browser that was told this name by the user would send it as Host: an address of this machine's, or the one
// that is served. A page of another site whose name leads here has another.
bool IsOwnHost(absl::string_view header, absl::string_view served_host);

// A server-sent event. With `id`, a client that connects again says that it has seen it.
std::string EventText(absl::string_view name, const LogRecord& data, absl::string_view id = "");

// The number in "EPOCH.NUMBER"; 0 if it is of another epoch, or none.
uint64_t SeenOf(absl::string_view id, absl::string_view epoch);

// Of JSON for the page; invalid UTF-8 in it becomes U+FFFD.
http::Response JsonResponse(const LogRecord& data);
http::Response ErrorResponse(int status, absl::string_view message);
// The page, with what it may do: run its own script, and ask its own server.
http::Response PageResponse();

}  // namespace tdock::trainer
