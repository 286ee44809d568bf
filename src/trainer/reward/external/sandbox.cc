#include "trainer/reward/external/sandbox.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/supervised_process.h"
#include "core/base/utf8.h"
#include "trainer/reward/external/code_driver.h"
#include "trainer/reward/external/syscall_filter.h"

namespace tdock::reward {
namespace {

constexpr int kFilterNumber = 3, kTaskNumber = 4;
constexpr size_t kWords = 2000;
constexpr absl::Duration kSandboxLook = absl::Milliseconds(100);

// Gives it the input and collects what it writes, until it ends or has to.
absl::Status Follow(SupervisedProcess& process, absl::string_view input, size_t most, const Patience& patience,
                    SandboxRun& run) {
  for (;;) {
    if (patience.check_stop) TDOCK_RETURN_IF_ERROR(patience.check_stop());
    const absl::Time now = absl::Now();
    const absl::Duration left = patience.deadline - patience.clock.Now();
    if (left <= absl::ZeroDuration()) return absl::OkStatus();
    if (input.empty() && process.input_open()) process.CloseInput();
    const auto moved = process.Move(input, now + std::min(left, kSandboxLook));
    if (moved.ok()) {
      input.remove_prefix(moved->written);
      run.output += moved->out;
      run.words += moved->err;
      if (absl::StartsWith(run.words, "begun\n")) {
        run.begun = true;
        run.words.erase(0, 6);
      }
      if (run.begun && run.words.size() > kWords) run.words.erase(0, run.words.size() - kWords);
      if (run.output.size() > most) {
        run.too_much = true;
        run.output.resize(most);
        return absl::OkStatus();
      }
    } else if (absl::IsOutOfRange(moved.status())) {
      const auto end = process.Wait(now + std::min(left, kSandboxLook));
      if (end.ok()) {
        run.in_time = true;
        run.exit_code = end->how == ProcessEnd::How::kExited ? end->code : 128 + end->code;
        return absl::OkStatus();
      }
      if (!absl::IsDeadlineExceeded(end.status())) return end.status();
    } else if (!absl::IsDeadlineExceeded(moved.status())) {
      return moved.status();
    }
  }
}

// What of this user's is in `folder`: the home folder, or the one that the run is in; empty: nothing.
std::string HomeIn(const std::string& folder) {
  const auto inside = [&](const std::filesystem::path& path) {
    std::error_code error;
    const std::string real = std::filesystem::weakly_canonical(path, error).string();
    return !error && (real == folder || absl::StartsWith(real, folder + "/"));
  };
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/' && inside(home)) return "the home folder";
  std::error_code error;
  const std::filesystem::path current = std::filesystem::current_path(error);
  return !error && current != "/" && inside(current) ? "the folder of the run" : "";
}

}  // namespace

absl::Status CheckUnisolated(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "network" || name == "everything") continue;
    return absl::InvalidArgumentError(absl::StrCat("reward.code.allow_unisolated has ", Quoted(name),
                                                   "; what can be left out is network, or everything"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sandbox> Sandbox::Make(const SandboxOptions& options) {
  TDOCK_RETURN_IF_ERROR(CheckUnisolated(options.allow_unisolated));
  Sandbox sandbox(options);
  TDOCK_RETURN_IF_ERROR(sandbox.FindPython());
  TDOCK_ASSIGN_OR_RETURN(sandbox.filter_, MakeSyscallFilter());
  TDOCK_RETURN_IF_ERROR(sandbox.Probe());
  return sandbox;
}

absl::Status Sandbox::FindPython() {
  constexpr char kAsk[] = "import sys; print(sys.executable, sys.base_prefix, sys.prefix, sep='\\n')";
  TDOCK_ASSIGN_OR_RETURN(const auto process,
                         SupervisedProcess::Start({.arguments = {options_.python, "-I", "-c", kAsk}}));
  SandboxRun run;
  const Patience patience{.clock = Clock::Real(), .deadline = Clock::Real().Now() + absl::Seconds(20)};
  TDOCK_RETURN_IF_ERROR(Follow(*process, "", 1 << 16, patience, run));
  const std::vector<std::string> lines = absl::StrSplit(run.output, '\n', absl::SkipEmpty());
  if (!run.in_time || run.exit_code != 0 || lines.size() != 3) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", EscapeUnprintable(options_.python),
                     "' (reward.code.python) does not run as Python: ", EscapeForMessage(run.words)));
  }
  python_ = lines[0];
  // A link may lead from one of these folders to another.
  std::vector<std::string> folders = {lines[1], lines[2]};
  std::error_code error;
  const std::string real = std::filesystem::canonical(python_, error).parent_path().parent_path();
  if (!error) folders.push_back(real);
  for (const std::string& folder : folders) {
    if (folder == "/usr" || absl::StartsWith(folder, "/usr/")) continue;
    if (const std::string home = HomeIn(folder); !home.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", EscapeUnprintable(python_), "' (reward.code.python) has its files in '", EscapeUnprintable(folder),
          "', which would show ", EscapeUnprintable(home), "; use a Python in a folder of its own"));
    }
    if (folder == "/" || folder.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", python_, "' has its files in '/', which would show all files"));
    }
    if (std::find(folders_.begin(), folders_.end(), folder) == folders_.end()) folders_.push_back(folder);
  }
  return absl::OkStatus();
}

std::vector<std::string> Sandbox::Command() const {
  std::vector<std::string> command;
  if (level_ != Level::kNone) {
    command = {"bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"};
    if (level_ == Level::kFull) command.emplace_back("--unshare-net");
    for (const char* word : {"--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--uid", "65534",
                             "--gid", "65534", "--hostname", "sandbox"}) {
      command.emplace_back(word);
    }
    const auto add = [&](std::vector<std::string> words) { command.insert(command.end(), words.begin(), words.end()); };
    add({"--ro-bind", "/usr", "/usr"});
    for (const char* folder : {"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}) {
      std::error_code error;
      if (std::filesystem::is_symlink(folder, error)) {
        add({"--symlink", std::filesystem::read_symlink(folder, error).string(), folder});
      } else {
        add({"--ro-bind-try", folder, folder});
      }
    }
    add({"--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives",
         "/etc/alternatives"});
    // Read-only, because files below /proc/sys are the machine's, and root's own process may write them.
    add({"--proc", "/proc", "--remount-ro", "/proc"});
    for (const char* device : {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"})
      add({"--dev-bind", device, device});
    add({"--size", absl::StrCat(options_.file_bytes), "--tmpfs", "/tmp"});
    for (const std::string& folder : folders_) add({"--ro-bind", folder, folder});
    add({"--remount-ro", "/", "--chdir", "/tmp", "--seccomp", absl::StrCat(kFilterNumber)});
    add({"--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"});
    add({"--setenv", "PYTHONHASHSEED", "0", "--setenv", "OPENBLAS_NUM_THREADS", "1", "--"});
  }
  command.insert(command.end(), {python_, "-I", "-X", "utf8", "-c", ScriptReader("code_driver.py")});
  return command;
}

absl::Status Sandbox::Probe() {
  const auto allowed = [&](absl::string_view name) {
    return std::find(options_.allow_unisolated.begin(), options_.allow_unisolated.end(), name) !=
           options_.allow_unisolated.end();
  };
  std::string why;
  Level possible = Level::kNone;
  for (const Level level : {Level::kFull, Level::kNoNetwork}) {
    level_ = level;
    const Patience patience{.clock = Clock::Real(), .deadline = Clock::Real().Now() + absl::Seconds(20)};
    const absl::StatusOr<SandboxRun> run = Run(R"json({"mode":"stdin","code":"print('ready')"})json", "", patience);
    if (run.ok() && run->begun && run->output == "ready\n") {
      possible = level;
      break;
    }
    if (why.empty()) why = run.ok() ? EscapeForMessage(run->words, 300) : std::string(run.status().message());
  }
  level_ = possible;
  if (possible == Level::kFull || allowed("everything") || (possible == Level::kNoNetwork && allowed("network"))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "code rewards run programs that nobody has read, and this machine cannot isolate ",
      possible == Level::kNone ? "them at all" : "their network", ": ", why,
      ". Install bubblewrap and permit user namespaces (in a container: its seccomp profile and "
      "user.max_user_namespaces), or, where the machine itself is the sandbox, set reward.code.allow_unisolated to ",
      possible == Level::kNone ? "everything" : "network"));
}

absl::StatusOr<SandboxRun> Sandbox::Run(const std::string& task, const std::string& input,
                                        const Patience& patience) const {
  ProcessOptions options{.arguments = Command()};
  options.environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"};
  options.folder = "/";
  const absl::Duration left = patience.deadline - patience.clock.Now();
  options.limits = {.memory_bytes = options_.memory_bytes,
                    .address_space_bytes = options_.memory_bytes,
                    .cpu_seconds = absl::ToInt64Seconds(left) + 2,
                    .file_bytes = options_.file_bytes,
                    .open_files = 256,
                    .processes = 0};
  options.texts = {{kCodeDriver, kScriptNumber}, {task, kTaskNumber}};
  if (level_ != Level::kNone) options.texts.emplace_back(filter_, kFilterNumber);
  TDOCK_ASSIGN_OR_RETURN(const auto process, SupervisedProcess::Start(options));
  SandboxRun run;
  TDOCK_RETURN_IF_ERROR(Follow(*process, input, static_cast<size_t>(options_.output_bytes), patience, run));
  process->Kill();
  return run;
}

}  // namespace tdock::reward
