#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/printable.h"
#include "core/base/env.h"
#include "core/base/file_lock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/executor/explain_socket.h"

namespace tdock::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);

// Why nobody has answered, as far as the folder tells.
absl::Status Silence(const std::string& run, const absl::Status& error) {
  if (!absl::IsNotFound(error) && !absl::IsUnavailable(error)) return error;
  Env& env = Env::Real();
  const std::string name = EscapeForMessage(run, 1000);
  if (!env.Exists(run)) return error;
  if (!env.Exists(JoinPath(run, "lock")) && !env.Exists(JoinPath(run, "config.yaml"))) {
    return absl::NotFoundError(absl::StrCat(name, " is not the folder of a run"));
  }
  TDOCK_ASSIGN_OR_RETURN(const bool alive, IsLocked(JoinPath(run, "lock")));
  if (alive) {
    return absl::UnavailableError(absl::StrCat("a process works on ", name,
                                               ", but cannot be asked: it begins or ends, works on another machine, "
                                               "or has said in its output why it made no socket (",
                                               error.message(), ")"));
  }
  if (env.Exists(JoinPath(run, "checkpoint/config.json"))) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run ", name, " has ended; tdock runs show ", name, " says what it came to"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "no process works on ", name, ": it has failed or was killed; tdock runs show ", name, " says how to go on"));
}

absl::Status Explain(const std::string& run, bool json) {
  const absl::StatusOr<std::string> answer =
      trainer::AskRun(run, json ? trainer::ExplainForm::kJson : trainer::ExplainForm::kText, kPatience);
  if (!answer.ok()) return Silence(run, answer.status());
  std::cout << (json ? PrintableJson(*answer) : EscapeForTerminal(*answer));
  return absl::OkStatus();
}

}  // namespace

Command AddExplain(CLI::App& app) {
  struct Arguments {
    std::string run;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = AddSubcommand(app, "explain");
  command->add_option("run", arguments->run, "Folder of the run, such as runs/grpo-001")->required();
  command->add_flag("--json", arguments->json, "Print a JSON object");
  return [arguments] { return Explain(arguments->run, arguments->json); };
}

}  // namespace tdock::cli
