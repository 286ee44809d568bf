#include "core/command/command.h"

#include <csignal>
#include <iostream>

#include "core/base/status.h"

namespace tdock::command {
namespace {

absl::Status As(absl::StatusCode code, const absl::Status& status) {
  return status.ok() || absl::IsCancelled(status) ? status : absl::Status(code, status.message());
}

// Output is buffered: a full disk or a closed pipe is noticed only when it is flushed.
int ExitOnceWritten(const CLI::App& app, int code) {
  if (std::cout.flush()) return code;
  std::cerr << app.get_name() << ": cannot write to standard output\n";
  return code != 0 ? code : 1;
}

}  // namespace

absl::Status Refused(const absl::Status& status) { return As(absl::StatusCode::kInvalidArgument, status); }

absl::Status Failed(const absl::Status& status) { return As(absl::StatusCode::kInternal, status); }

int ParseAndRun(CLI::App& app, int argc, char** argv, const Command& run) {
  // Exceeding the size limit for files is then an error of the write, which is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return ExitOnceWritten(app, app.exit(e) == 0 ? 0 : 2);
  }
  const absl::Status status = run();
  if (status.ok()) return ExitOnceWritten(app, 0);
  std::cerr << app.get_name();
  for (const CLI::App* subcommand : app.get_subcommands()) std::cerr << " " << subcommand->get_name();
  std::cerr << ": " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace tdock::command
