// The executable tdock-dock, which `tdock dock` runs.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "dock/service/console/command_line.h"
#include "dock/service/program/serve.h"
#include "tdock/remote_dock.h"

namespace {

absl::StatusOr<std::unique_ptr<tdock::Dock>> Connect(const tdock::console::ConnectOptions& options) {
  return tdock::ConnectDock({.address = options.address,
                             .token_file = options.token_file,
                             .tls_ca = options.tls_ca,
                             .tls_certificate = options.tls_cert,
                             .tls_key = options.tls_key,
                             .reconnect_for = options.reconnect_for,
                             .answer_within = options.answer_within});
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that goes away is then an error of the write, which is reported.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const tdock::console::Wiring wiring = {.connect = Connect,
                                         .serve =
                                             [](const tdock::console::ServeOptions& options) {
                                               return tdock::program::Serve(options, std::cout, std::cerr);
                                             },
                                         .variable = [](const char* name) -> std::optional<std::string> {
                                           const char* const value = std::getenv(name);
                                           return value == nullptr ? std::nullopt : std::optional<std::string>(value);
                                         },
                                         .uid = ::geteuid(),
                                         .version = TDOCK_VERSION};
  return tdock::console::RunCommandLine(argc, argv, wiring, std::cout, std::cerr);
}
