// The live page of runs, as commands open it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/run_page/page_server.h"

namespace tdock::cli {

// What `tdock train` says of its option.
inline constexpr char kPageHelp[] =
    "Serve a page that shows the run in a browser while it works: curves, samples, what each stage does and waits for, "
    "the machine's load. PORT or :PORT, for this machine only, or HOST:PORT, an address of this machine that others "
    "reach, who can then read all of it; port 0 picks a free one. `tdock runs page` shows runs of other processes, and "
    "those that have ended";

// Serves the page of `folder` at `address`, which ParsePageAddress() reads. Beyond the loopback interface it says on
// standard error that everyone there can read it. Errors say what would be right.
absl::StatusOr<std::unique_ptr<trainer::PageServer>> OpenPage(const std::string& folder, const std::string& address);

}  // namespace tdock::cli
