#include "cli/page.h"

#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/status.h"

namespace tdock::cli {

absl::StatusOr<std::unique_ptr<trainer::PageServer>> OpenPage(const std::string& folder, const std::string& address) {
  TDOCK_ASSIGN_OR_RETURN(const trainer::PageAddress parsed, trainer::ParsePageAddress(address));
  absl::StatusOr<std::unique_ptr<trainer::PageServer>> page =
      trainer::PageServer::Start(Env::Real(), {.folder = folder, .host = parsed.host, .port = parsed.port});
  if (absl::IsUnavailable(page.status())) {
    return absl::UnavailableError(
        absl::StrCat(page.status().message(), "; give the page another port, or :0 for any free one"));
  }
  const bool loopback = absl::StartsWith(parsed.host, "127.") || parsed.host == "::1" || parsed.host == "localhost";
  if (page.ok() && !loopback) {
    std::cerr << "warning: everyone who can reach " << parsed.host << ":" << (*page)->port()
              << " can read the runs, with their configuration and samples; nothing there asks for a password\n";
  }
  return page;
}

}  // namespace tdock::cli
