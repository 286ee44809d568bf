#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "core/base/status.h"
#include "trainer/stages/guard.h"

int main(int argc, char** argv) {
  if (argc > 1 && tdock::cli::IsOtherExecutable(argv[1])) {
    const absl::Status status = tdock::cli::RunOtherExecutable(argv + 1);
    std::cerr << "tdock " << argv[1] << ": " << status.message() << "\n";
    return tdock::ExitCode(status);
  }
  std::vector<std::string> program = tdock::cli::TakeProgram(argc, argv);
  CLI::App app("Transfer Dock: post-training for large language models.", "tdock");
  app.require_subcommand(1);
  app.set_version_flag("--version", TDOCK_VERSION);
  std::vector<std::pair<CLI::App*, tdock::cli::Command>> commands;
  for (const auto add : {tdock::cli::AddInit, tdock::cli::AddPreflight, tdock::cli::AddTrain, tdock::cli::AddGenerate,
                         tdock::cli::AddChat, tdock::cli::AddServe, tdock::cli::AddTokenize, tdock::cli::AddMerge,
                         tdock::cli::AddRuns, tdock::cli::AddExplain}) {
    tdock::cli::Command command = add(app);
    commands.emplace_back(app.get_subcommands(nullptr).back(), std::move(command));
  }
  tdock::cli::Command launch = tdock::cli::AddLaunch(app, std::move(program));
  commands.emplace_back(app.get_subcommands(nullptr).back(), std::move(launch));
  tdock::cli::DescribeOtherExecutables(app);
  const int code = tdock::command::ParseAndRun(app, argc, argv, [&] {
    for (const auto& [subcommand, command] : commands) {
      if (subcommand->parsed()) return tdock::trainer::Guarded(command);
    }
    return absl::OkStatus();
  });
  // As a shell says it of a process that a signal has ended.
  const int interrupted = tdock::ExitCode(absl::CancelledError());
  return code == interrupted && tdock::cli::InterruptSignal() != 0 ? 128 + tdock::cli::InterruptSignal() : code;
}
