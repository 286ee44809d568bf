#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/commands.h"
#include "cli/executables.h"
#include "cli/run_arguments.h"
#include "cli/train_command.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "runtime/launch/launcher.h"
#include "trainer/recipes/recipes.h"
#include "trainer/run_log/run_directory.h"

namespace tdock::cli {
namespace {

struct LaunchArguments {
  runtime::LaunchOptions launch;
  double grace_seconds = 10;
  RunArguments run;
  const CLI::Option* node_rank = nullptr;
  const CLI::Option* master_addr = nullptr;
};

// The path of this executable.
absl::StatusOr<std::string> OwnPath() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0) return absl::ErrnoToStatus(errno, "cannot find the tdock executable in /proc/self/exe");
  return std::string(path, static_cast<size_t>(size));
}

// The folder of a run that its configuration names, or one that is made for it. All ranks, and those that are started
// after a failure, must have the same.
class RunFolder {
 public:
  static absl::StatusOr<RunFolder> For(const LaunchArguments& arguments) {
    TDOCK_ASSIGN_OR_RETURN(const auto recipe,
                           trainer::LoadRecipe(Env::Real(), arguments.run.config_path, arguments.run.Given(),
                                               {.lenient = arguments.run.lenient}));
    const trainer::RunConfig& config = recipe->config();
    if (arguments.launch.restarts > 0 && config.trainer.resume_mode != "auto") {
      return absl::InvalidArgumentError(
          absl::StrCat("trainer.resume_mode is ", EscapeForMessage(config.trainer.resume_mode),
                       ", but ranks that --restarts starts again go on from the newest checkpoint of their run: it ",
                       "must be auto"));
    }
    RunFolder folder;
    if (!config.trainer.run_dir.empty()) return folder;
    if (arguments.launch.nodes > 1) {
      return absl::InvalidArgumentError(
          "with several nodes, trainer.run_dir must name a folder, the same on all of them");
    }
    TDOCK_ASSIGN_OR_RETURN(folder.made_, trainer::RunDirectory::ReserveNext(Env::Real(), "runs", config.recipe));
    return folder;
  }
  RunFolder(RunFolder&& other) noexcept : made_(std::exchange(other.made_, "")) {}
  RunFolder& operator=(RunFolder&&) = delete;
  // Leaves no folder behind for a run that did not begin.
  ~RunFolder() {
    const auto names = made_.empty() ? std::vector<std::string>() : Env::Real().List(made_);
    if (!made_.empty() && names.ok() && names->empty()) Env::Real().RemoveAll(made_).IgnoreError();
  }

  // Empty where the configuration names it.
  const std::string& made() const { return made_; }

 private:
  RunFolder() = default;

  std::string made_;
};

absl::Status CheckArguments(const LaunchArguments& arguments, bool has_program) {
  if (has_program && !arguments.run.config_path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("give either a configuration, ",
                                                   EscapeUnprintable(arguments.run.config_path),
                                                   ", or a program after --, not both"));
  }
  if (!has_program && arguments.run.config_path.empty()) {
    return absl::InvalidArgumentError(
        "there is nothing to run; for example: tdock launch --nproc 2 sft.yaml, or: tdock launch --nproc 2 -- python "
        "train.py");
  }
  if (arguments.launch.nodes <= 1) return absl::OkStatus();
  if (arguments.node_rank->count() == 0 || arguments.master_addr->count() == 0) {
    return absl::InvalidArgumentError(
        "with several nodes, each needs --node-rank, its number from 0, and --master-addr and --master-port of the "
        "first one");
  }
  return absl::OkStatus();
}

absl::Status RunLaunch(const runtime::LaunchOptions& options) {
  const absl::StatusOr<runtime::LaunchEnd> end = runtime::Launch(options, Env::Real());
  TDOCK_RETURN_IF_ERROR(Refused(end.status()));
  return end->exit_code == 0 ? absl::OkStatus() : EndedWith(end->exit_code, end->message);
}

absl::Status LaunchRanks(const LaunchArguments& arguments, const std::vector<std::string>& program) {
  TDOCK_RETURN_IF_ERROR(CheckArguments(arguments, !program.empty()));
  runtime::LaunchOptions options = arguments.launch;
  options.grace = absl::Seconds(arguments.grace_seconds);
  if (!program.empty()) {
    options.program = program;
    return RunLaunch(options);
  }
  const absl::StatusOr<RunFolder> folder = RunFolder::For(arguments);
  TDOCK_RETURN_IF_ERROR(Refused(folder.status()));
  TDOCK_ASSIGN_OR_RETURN(const std::string own, OwnPath());
  options.program = {own, "train", arguments.run.config_path};
  for (std::string& given : arguments.run.Given()) options.program.push_back(std::move(given));
  if (arguments.run.lenient) options.program.push_back("--lenient");
  if (!folder->made().empty()) {
    options.program.push_back(absl::StrCat("trainer.run_dir=", folder->made()));
    std::cerr << "tdock launch: the run directory is " << EscapeUnprintable(folder->made()) << std::endl;
  }
  return RunLaunch(options);
}

// The program and its arguments of a command line `tdock launch … -- PROGRAM ARGUMENTS…`, which it removes from `argc`.
// Empty for any other command line.
std::vector<std::string> TakeProgram(int& argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "launch") != 0) return {};
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") != 0) continue;
    std::vector<std::string> program(argv + i + 1, argv + argc);
    argc = i;
    return program;
  }
  return {};
}

Command AddLaunch(CLI::App& app, std::vector<std::string> program) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* command = AddSubcommand(app, "launch");
  runtime::LaunchOptions& launch = arguments->launch;
  command->add_option("--nproc", launch.ranks, "Ranks on this machine")->required();
  command->add_option("--nnodes", launch.nodes, "Machines, each of which runs this command with as many ranks [1]");
  arguments->node_rank = command->add_option("--node-rank", launch.node_rank, "Number of this machine, from 0");
  arguments->master_addr =
      command->add_option("--master-addr", launch.master_addr, "Host name or address of the first machine [127.0.0.1]");
  command->add_option("--master-port", launch.master_port,
                      "Port of the first machine at which the ranks meet; 0, for one machine: a free one [0]");
  command->add_option("--restarts", launch.restarts,
                      "How often all ranks of this machine are started again after one has failed [0]");
  command->add_option("--grace", arguments->grace_seconds,
                      "Seconds that the other ranks have to end after one has failed, before they are killed [10]");
  command->add_option("--log-dir", launch.log_dir,
                      "Folder to which the output of each rank goes as well, as rank-N.log; empty: none");
  arguments->run.AddTo(*command, "YAML file with the configuration");
  return [arguments, program = std::move(program)] { return LaunchRanks(*arguments, program); };
}

}  // namespace

int RunTdockLaunch(int argc, char** argv) {
  const auto add_train = [](CLI::App& app) { return AddTrain(app, TrainWithRanksAndPage); };
  const auto add_launch = [program = TakeProgram(argc, argv)](CLI::App& app) { return AddLaunch(app, program); };
  return RunCommands(argc, argv, {{"preflight", AddPreflight}, {"train", add_train}, {"launch", add_launch}});
}

}  // namespace tdock::cli
