#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"

namespace tdock::cli {
namespace {

struct OtherExecutable {
  const char* name;
  const char* description;
};

constexpr OtherExecutable kOthers[] = {
    {"bench", "Runs the benchmarks: see tdock bench --help."},
    {"dock", "Serves a dock, and inspects one that is being served: see tdock dock --help."},
};

// The folder that this executable lies in; empty if the system does not tell.
std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string own(path, size > 0 ? static_cast<size_t>(size) : 0);
  return own.substr(0, own.find_last_of('/') == std::string::npos ? 0 : own.find_last_of('/'));
}

}  // namespace

void DescribeOtherExecutables(CLI::App& app) {
  for (const OtherExecutable& other : kOthers) app.add_subcommand(other.name, other.description);
}

bool IsOtherExecutable(absl::string_view name) {
  return std::any_of(std::begin(kOthers), std::end(kOthers), [&](const auto& other) { return other.name == name; });
}

absl::Status RunOtherExecutable(char** arguments) {
  const std::string folder = OwnFolder(), executable = absl::StrCat("tdock-", arguments[0]);
  const std::string beside = absl::StrCat(folder, "/", executable);
  const std::string below = absl::StrCat(folder, "/../libexec/", executable);
  for (const std::string& path : {beside, below}) {
    ::execv(path.c_str(), arguments);
    if (errno != ENOENT) {
      return absl::InvalidArgumentError(absl::StrCat("cannot run ", path, ": ", std::strerror(errno)));
    }
  }
  return absl::NotFoundError(
      absl::StrCat("there is neither ", beside, " nor ", below, "; `make build` builds it next to tdock"));
}

}  // namespace tdock::cli
