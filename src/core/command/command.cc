#include "core/command/command.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/nearest.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::command {
namespace {

absl::Status As(absl::StatusCode code, const absl::Status& status) {
  return status.ok() || absl::IsCancelled(status) ? status : absl::Status(code, status.message());
}

// In the payload of EndedWith().
constexpr char kExitCode[] = "tdock.exit_code";

int ExitCodeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kExitCode);
  int code = 0;
  return payload && absl::SimpleAtoi(std::string(*payload), &code) ? code : ExitCode(status);
}

// Output is buffered: a full disk or a closed pipe is noticed only when it is flushed.
int ExitOnceWritten(const CLI::App& app, int code) {
  if (std::cout.flush()) return code;
  std::cerr << app.get_name() << ": cannot write to standard output\n";
  return code != 0 ? code : 1;
}

const CLI::App* FindSubcommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* subcommand : app.get_subcommands(nullptr)) {
    if (subcommand->check_name(name)) return subcommand;
  }
  return nullptr;
}

std::string AdviceOnSubcommand(const CLI::App& app, const std::string& given) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands(nullptr)) names.push_back(subcommand->get_name());
  const std::optional<std::string> nearest = NearestKey(given, names);
  return absl::StrCat(
      "there is no command ", EscapeForMessage(given), "; ",
      nearest ? absl::StrCat("did you mean ", *nearest, "?") : absl::StrCat("there is ", absl::StrJoin(names, ", ")));
}

// A key of a configuration, or the last word of one.
bool LooksLikeKey(absl::string_view name) {
  const auto is_part = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; };
  return !name.empty() && absl::ascii_isalpha(name[0]) && std::all_of(name.begin(), name.end(), is_part);
}

// Empty if `argument`, which may have its value after a =, is an option of `command` or none at all.
std::string AdviceOnOption(const CLI::App& command, const std::string& argument) {
  const size_t equals = argument.find('=');
  const std::string option = argument.substr(0, equals);
  absl::string_view key = option;
  if (!absl::ConsumePrefix(&key, "--") || key.empty() || command.get_option_no_throw(option) != nullptr) return "";
  std::vector<std::string> known;
  for (const CLI::Option* other : command.get_options()) {
    for (const std::string& name : other->get_lnames()) known.push_back(absl::StrCat("--", name));
  }
  const std::string unknown = absl::StrCat("there is no option ", EscapeForMessage(option), "; ");
  const bool is_key = LooksLikeKey(key) && (absl::StrContains(key, ".") || absl::StrContains(key, "_"));
  if (is_key && command.get_option_no_throw("overrides") != nullptr) {
    const std::string value = equals == std::string::npos ? "=…" : EscapeForMessage(argument.substr(equals));
    return absl::StrCat(unknown, "a key of the configuration is given without dashes: ", key, value);
  }
  const std::optional<std::string> nearest = NearestKey(option, known);
  return nearest ? absl::StrCat(unknown, "did you mean ", *nearest, "?") : "";
}

// What may have been meant by arguments that cannot be parsed; empty if nothing comes to mind.
std::string Advice(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* command = &app;
  size_t first = 0;
  for (; first < arguments.size() && !absl::StartsWith(arguments[first], "-"); ++first) {
    if (command->get_subcommands(nullptr).empty()) break;
    const CLI::App* next = FindSubcommand(*command, arguments[first]);
    if (next == nullptr) return AdviceOnSubcommand(*command, arguments[first]);
    command = next;
  }
  for (size_t i = first; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (std::string advice = AdviceOnOption(*command, arguments[i]); !advice.empty()) return advice;
  }
  return "";
}

// The parser's message, which quotes arguments as they are.
std::string WithEscapedArguments(std::string message, const std::vector<std::string>& arguments) {
  for (const absl::string_view argument : arguments) {
    for (const absl::string_view part :
         {argument, argument.substr(std::min(argument.find('=') + 1, argument.size()))}) {
      const std::string escaped = EscapeUnprintable(part);
      if (escaped != part) absl::StrReplaceAll({{part, escaped}}, &message);
    }
  }
  return message;
}

void PrintName(const CLI::App& app) {
  std::cerr << app.get_name();
  for (const CLI::App* subcommand : app.get_subcommands()) {
    std::cerr << " ";
    PrintName(*subcommand);
  }
}

void PrintError(const CLI::App& app, absl::string_view message) {
  PrintName(app);
  std::cerr << ": " << EscapeForTerminal(message) << "\n";
}

}  // namespace

absl::Status Refused(const absl::Status& status) { return As(absl::StatusCode::kInvalidArgument, status); }

absl::Status Failed(const absl::Status& status) { return As(absl::StatusCode::kInternal, status); }

absl::Status EndedWith(int exit_code, absl::string_view message) {
  absl::Status status = absl::InternalError(message);
  status.SetPayload(kExitCode, absl::Cord(absl::StrCat(exit_code)));
  return status;
}

int ParseAndRun(CLI::App& app, int argc, char** argv, const Command& run) {
  // Exceeding the size limit for files is then an error of the write, which is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool refused = e.get_exit_code() != 0;
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::string advice = refused ? Advice(app, arguments) : "";
    if (advice.empty()) {
      std::ostringstream said;
      const int code = app.exit(e, std::cout, said);
      std::cerr << EscapeForTerminal(WithEscapedArguments(said.str(), arguments));
      return ExitOnceWritten(app, code == 0 ? 0 : 2);
    }
    PrintError(app, absl::StrCat(advice, "\nRun with --help for more information."));
    return 2;
  }
  const absl::Status status = run();
  if (status.ok()) return ExitOnceWritten(app, 0);
  PrintError(app, status.message());
  return ExitCodeOf(status);
}

}  // namespace tdock::command
