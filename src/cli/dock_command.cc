#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"

namespace tdock::cli {
namespace {

constexpr char kExecutable[] = "tdock-dock";

// The folder that this executable lies in; empty if the system does not tell.
std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string own(path, size > 0 ? static_cast<size_t>(size) : 0);
  return own.substr(0, own.find_last_of('/') == std::string::npos ? 0 : own.find_last_of('/'));
}

}  // namespace

void DescribeDock(CLI::App& app) {
  app.add_subcommand("dock", "Serves a dock, and shows what is in one that is served: see tdock dock --help.");
}

absl::Status RunDock(char** arguments) {
  const std::string folder = OwnFolder();
  const std::string beside = absl::StrCat(folder, "/", kExecutable);
  const std::string below = absl::StrCat(folder, "/../libexec/", kExecutable);
  for (const std::string& path : {beside, below}) {
    ::execv(path.c_str(), arguments);
    if (errno != ENOENT) {
      return absl::InvalidArgumentError(absl::StrCat("cannot run ", path, ": ", std::strerror(errno)));
    }
  }
  return absl::NotFoundError(
      absl::StrCat("there is neither ", beside, " nor ", below, "; build or install ", kExecutable, " there"));
}

}  // namespace tdock::cli
