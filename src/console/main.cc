// The executable tdock-dock, which `tdock dock` runs.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "console/command_line.h"

int main(int argc, char** argv) {
  // A reader that goes away is then an error of the write, which is reported.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const tdock::console::Wiring wiring = {
      .connect = [](const tdock::console::ConnectOptions& options) -> absl::StatusOr<std::unique_ptr<tdock::Dock>> {
        return absl::UnimplementedError("this build has no client: it cannot reach " + options.address);
      },
      .serve = [](const tdock::console::ServeOptions&) -> absl::Status {
        return absl::UnimplementedError("this build has no server");
      },
      .variable = [](const char* name) -> std::optional<std::string> {
        const char* const value = std::getenv(name);
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      },
      .uid = ::geteuid(),
      .version = TDOCK_VERSION};
  return tdock::console::RunCommandLine(argc, argv, wiring, std::cout, std::cerr);
}
