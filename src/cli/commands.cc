#include "cli/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iostream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/interrupt.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

struct Subcommand {
  const char* name;
  const char* executable;  // beside `tdock`, or in ../libexec
  const char* description;
};

// In the order of the help.
constexpr Subcommand kSubcommands[] = {
    {"init", "tdock", "Writes a commented configuration that trains a model on a file, with what is found in both."},
    {"preflight", "tdock-launch",
     "Says what a run will do before it does anything: the numbers that follow from the configuration, what the data "
     "holds, what is trained on, and the memory that it takes. `tdock train` checks the same."},
    {"train", "tdock-launch", "Trains a model as described in a configuration file."},
    {"generate", "tdock", "Generates answers to prompts with a model: one line per answer, or from a file to a file."},
    {"chat", "tdock-serve",
     "Talks with a model, of a folder or of a server: answers each line of standard input. Ctrl-C ends an answer, "
     "'clear' forgets the conversation, 'quit' and the end of the input end the chat."},
    {"serve", "tdock-serve", "Serves a model over HTTP, with OpenAI's interface and verl's, until SIGINT or SIGTERM."},
    {"tokenize", "tdock", "Turns each line of standard input into a JSON list of token ids, or back with --decode."},
    {"merge", "tdock-runs",
     "Makes a Hugging Face folder of a checkpoint, of parts of one, or of adapters: docs/merging.md."},
    {"runs", "tdock-runs", "Lists, shows, compares and prunes runs in their folders, and serves a page of them."},
    {"explain", "tdock",
     "Says what a run that is alive does at this moment, also when it stands still: its step, what each stage works on "
     "or "
     "waits for and since when, how many rows wait for it, are ready, leased and done, the speed of the last step, and "
     "how old the weights were that answered it. It asks the process of the run, on the same machine, by "
     "RUN/explain.socket, and waits five seconds for the answer."},
    {"launch", "tdock-launch",
     "Starts the ranks of a run on this machine, and ends them together: `tdock train` with a configuration, or any "
     "program that torchrun could start: tdock launch --nproc 2 -- PROGRAM ARGUMENTS…"},
    {"bench", "tdock-bench", "Runs the benchmarks: see tdock bench --help."},
    {"dock", "tdock-dock", "Serves a dock, and inspects one that is being served: see tdock dock --help."},
};

const Subcommand* Find(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kSubcommands), std::end(kSubcommands),
                                         [&](const auto& each) { return each.name == name; });
  return found == std::end(kSubcommands) ? nullptr : found;
}

// The folder of this executable; empty if the system does not tell.
std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string own(path, size > 0 ? static_cast<size_t>(size) : 0);
  return own.substr(0, own.find_last_of('/') == std::string::npos ? 0 : own.find_last_of('/'));
}

}  // namespace

CLI::App* AddSubcommand(CLI::App& app, const std::string& name) {
  const Subcommand* const subcommand = Find(name);
  TDOCK_CHECK(subcommand != nullptr, "a subcommand without a description");
  return app.add_subcommand(name, subcommand->description);
}

absl::Status RunOtherExecutable(char** argv) {
  const std::string folder = OwnFolder(), executable = Find(argv[1])->executable;
  const std::string beside = absl::StrCat(folder, "/", executable);
  const std::string below = absl::StrCat(folder, "/../libexec/", executable);
  // These two are programs of their own, with a command line that begins behind the subcommand.
  const bool own_program = executable == "tdock-bench" || executable == "tdock-dock";
  for (const std::string& path : {beside, below}) {
    ::execv(path.c_str(), own_program ? argv + 1 : argv);
    if (errno != ENOENT) {
      return absl::InvalidArgumentError(absl::StrCat("cannot run ", path, ": ", std::strerror(errno)));
    }
  }
  return absl::NotFoundError(absl::StrCat("needs the executable ", executable, ", which is neither ", beside, " nor ",
                                          below, "; `make build` builds all executables"));
}

int RunCommands(int argc, char** argv, const std::vector<NamedCommand>& own) {
  const auto is_own = [&](absl::string_view name) {
    return std::any_of(own.begin(), own.end(), [&](const NamedCommand& each) { return each.first == name; });
  };
  if (argc > 1 && Find(argv[1]) != nullptr && !is_own(argv[1])) {
    const absl::Status status = RunOtherExecutable(argv);
    std::cerr << "tdock " << argv[1] << ": " << EscapeForTerminal(status.message()) << "\n";
    return ExitCode(status);
  }
  CLI::App app("Transfer Dock: post-training for large language models.", "tdock");
  app.require_subcommand(1);
  app.set_version_flag("--version", TDOCK_VERSION);
  std::vector<std::pair<const CLI::App*, Command>> commands;
  for (const Subcommand& subcommand : kSubcommands) {
    if (!is_own(subcommand.name)) {
      AddSubcommand(app, subcommand.name);
      continue;
    }
    const auto found =
        std::find_if(own.begin(), own.end(), [&](const NamedCommand& each) { return each.first == subcommand.name; });
    Command command = found->second(app);
    commands.emplace_back(app.get_subcommand(subcommand.name), std::move(command));
  }
  const int code = command::ParseAndRun(app, argc, argv, [&] {
    for (const auto& [subcommand, command] : commands) {
      if (subcommand->parsed()) return trainer::Guarded(command);
    }
    return absl::OkStatus();
  });
  // As a shell says it of a process that a signal has ended.
  const int interrupted = ExitCode(absl::CancelledError());
  return code == interrupted && InterruptSignal() != 0 ? 128 + InterruptSignal() : code;
}

}  // namespace tdock::cli
