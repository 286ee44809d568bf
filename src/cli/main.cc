#include <csignal>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/commands.h"
#include "train/guard.h"

namespace {

// Output is buffered: a full disk or a closed pipe shows when it is written out.
int ExitOnceWritten(int code) {
  if (std::cout.flush()) return code;
  std::cerr << "tdock: cannot write to standard output\n";
  return code != 0 ? code : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // A file that reaches the size limit of the process is then an error of the write, which is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  if (argc > 1 && std::string_view(argv[1]) == "dock") {
    const absl::Status status = tdock::cli::RunDock(argv + 1);
    std::cerr << "tdock dock: " << status.message() << "\n";
    return tdock::ExitCode(status);
  }
  CLI::App app("Transfer Dock: post-training for large language models.", "tdock");
  app.require_subcommand(1);
  app.set_version_flag("--version", TDOCK_VERSION);
  std::vector<std::pair<CLI::App*, tdock::cli::Command>> commands;
  for (const auto add :
       {tdock::cli::AddTrain, tdock::cli::AddGenerate, tdock::cli::AddTokenize, tdock::cli::AddBench}) {
    tdock::cli::Command command = add(app);
    commands.emplace_back(app.get_subcommands(nullptr).back(), std::move(command));
  }
  tdock::cli::DescribeDock(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return ExitOnceWritten(app.exit(e) == 0 ? 0 : 2);
  }
  for (const auto& [subcommand, command] : commands) {
    if (!subcommand->parsed()) continue;
    const absl::Status status = tdock::train::Guarded(command);
    if (status.ok()) return ExitOnceWritten(0);
    std::cerr << "tdock " << subcommand->get_name() << ": " << status.message() << "\n";
    return tdock::ExitCode(status);
  }
  return 0;
}
