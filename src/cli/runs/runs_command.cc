#include <atomic>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands.h"
#include "cli/executables.h"
#include "cli/interrupt.h"
#include "cli/printable.h"
#include "cli/runs/prune.h"
#include "cli/runs/run_tables.h"
#include "cli/runs/text_table.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/preflight/grouped.h"
#include "trainer/run_log/comparison.h"
#include "trainer/run_log/run_summary.h"
#include "trainer/run_page/page_server.h"

namespace tdock::cli {
namespace {

using trainer::RunSummary;

constexpr char kDefaultRoot[] = "runs";
// Of a run's metrics, for a list: some hundred steps at least. Everything else reads them whole.
constexpr uint64_t kListedMetricsBytes = uint64_t{1} << 20;
constexpr uint64_t kAllMetricsBytes = uint64_t{16} << 30;

// Summaries of what looks like runs; one that cannot be read is reported and left out.
absl::StatusOr<std::vector<RunSummary>> RunsBelow(const std::string& root) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> paths, trainer::FindRuns(Env::Real(), root));
  std::vector<RunSummary> runs;
  for (const std::string& path : paths) {
    absl::StatusOr<RunSummary> run = trainer::SummarizeRun(Env::Real(), path, kListedMetricsBytes);
    if (run.ok()) {
      runs.push_back(*std::move(run));
    } else {
      std::cerr << "left out: " << EscapeForTerminal(run.status().message()) << "\n";
    }
  }
  return runs;
}

absl::StatusOr<std::vector<RunSummary>> RunsAt(const std::vector<std::string>& paths, uint64_t max_metrics_bytes) {
  std::vector<RunSummary> runs;
  for (const std::string& path : paths) {
    TDOCK_ASSIGN_OR_RETURN(RunSummary run, trainer::SummarizeRun(Env::Real(), path, max_metrics_bytes));
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::Status List(const std::string& root, bool json) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RunSummary> runs, RunsBelow(root));
  if (json) {
    std::cout << PrintableJson(ListJson(runs));
  } else if (runs.empty()) {
    std::cout << "no runs in " << EscapeForMessage(root, 1000) << "\n";
  } else {
    std::cout << ListText(runs);
  }
  return absl::OkStatus();
}

Command AddList(CLI::App& runs) {
  struct Arguments {
    std::string root = kDefaultRoot;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = runs.add_subcommand(
      "list",
      "Lists runs: state, last step, last metrics, size on disk, last change. A run is running, finished (it left "
      "its model), interrupted (it can go on from a checkpoint) or failed.");
  command->add_option("root", arguments->root, "Folder with runs, up to three folders deep")->capture_default_str();
  command->add_flag("--json", arguments->json, "Print a JSON list of objects");
  return [arguments] { return List(arguments->root, arguments->json); };
}

Command AddShow(CLI::App& runs) {
  struct Arguments {
    std::string run;
    bool all = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = runs.add_subcommand(
      "show", "Shows a run: its state, files and checkpoints, its metrics, and how to go on with it.");
  command->add_option("run", arguments->run, "Folder of the run, such as runs/grpo-001")->required();
  command->add_flag("--all", arguments->all, "Metrics of time, speed and the dock, too");
  return [arguments]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<RunSummary> found, RunsAt({arguments->run}, kAllMetricsBytes));
    TDOCK_ASSIGN_OR_RETURN(const std::string text, ShowText(Env::Real(), found[0], arguments->all));
    std::cout << text;
    return absl::OkStatus();
  };
}

struct CompareArguments {
  std::vector<std::string> runs;
  std::string html;
  bool all = false;
};

absl::Status Compare(const CompareArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RunSummary> runs, RunsAt(arguments.runs, kAllMetricsBytes));
  std::cout << CompareText(runs, arguments.all);
  if (arguments.html.empty()) return absl::OkStatus();
  TDOCK_RETURN_IF_ERROR(trainer::WriteComparison(Env::Real(), arguments.runs, arguments.html));
  std::cout << "\nwrote " << EscapeForMessage(arguments.html, 1000) << "\n";
  return absl::OkStatus();
}

Command AddCompare(CLI::App& runs) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = runs.add_subcommand(
      "compare", "Compares runs: keys of the configuration that differ, last and best values of metrics.");
  command->add_option("runs", arguments->runs, "Folders of runs")
      ->required()
      ->expected(2, static_cast<int>(trainer::kMostComparedRuns));
  command->add_flag("--all", arguments->all, "Metrics of time, speed and the dock, too");
  command->add_option("--html", arguments->html, "File for a page with the curves of all runs; it is replaced");
  return [arguments] { return Compare(*arguments); };
}

absl::Status ShowPage(const std::string& folder, const std::string& address) {
  const std::atomic<bool>& stop = InterruptFlag();
  const absl::StatusOr<std::unique_ptr<trainer::PageServer>> page =
      trainer::OpenPage(folder, address, [](const std::string& line) { std::cerr << EscapeForTerminal(line) << "\n"; });
  TDOCK_RETURN_IF_ERROR(Refused(page.status()));
  std::cout << "the page of " << EscapeForMessage(folder, 1000) << " is at " << (*page)->url()
            << " until this program is interrupted" << std::endl;
  while (!stop) absl::SleepFor(absl::Milliseconds(100));
  return absl::OkStatus();
}

Command AddPage(CLI::App& runs) {
  struct Arguments {
    std::string folder = kDefaultRoot;
    std::string address = ":8790";
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = runs.add_subcommand(
      "page",
      "Serves a page that shows runs in a browser while they work, and those that have ended: of one run all that its "
      "report has, what each stage does and waits for at this moment, and the machine's load; of several their states "
      "and curves side by side. It loads nothing from elsewhere, and runs until it is interrupted.");
  command->add_option("folder", arguments->folder, "A run, or a folder with runs, up to three folders deep")
      ->capture_default_str();
  command
      ->add_option("--address", arguments->address,
                   "Where the page is served: PORT or :PORT, for this machine only, or HOST:PORT, an address of this "
                   "machine that others reach, who can then read all of it; port 0 picks a free one")
      ->type_name("[HOST]:PORT")
      ->capture_default_str();
  return [arguments] { return ShowPage(arguments->folder, arguments->address); };
}

struct PruneArguments {
  std::vector<std::string> runs;
  std::string root = kDefaultRoot;
  PruneOptions options;
  bool yes = false;
};

std::string BytesText(uint64_t bytes) { return absl::StrCat(trainer::Grouped(static_cast<int64_t>(bytes)), " bytes"); }

// Each once, by the name that leads to it without links.
std::vector<std::string> OwnPaths(const std::vector<std::string>& paths) {
  std::set<std::string> own;
  for (const std::string& path : paths) {
    std::error_code error;
    const std::string canonical = std::filesystem::canonical(path, error);
    own.insert(error ? path : canonical);
  }
  return {own.begin(), own.end()};
}

absl::Status Prune(const PruneArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RunSummary> runs,
                         arguments.runs.empty() ? RunsBelow(arguments.root) : RunsAt(OwnPaths(arguments.runs), 0));
  std::vector<std::pair<RunSummary, std::vector<Removal>>> plan;
  std::vector<std::vector<std::string>> rows = {{"BYTES", "WHAT", "WHY"}};
  uint64_t bytes = 0;
  for (const RunSummary& run : runs) {
    if (run.state == trainer::RunState::kRunning) {
      std::cout << "left alone: " << EscapeForMessage(run.path, 1000) << " is running\n";
    }
    TDOCK_ASSIGN_OR_RETURN(std::vector<Removal> removals, PlanRemovals(Env::Real(), run, arguments.options));
    for (const Removal& removal : removals) {
      bytes += removal.bytes;
      rows.push_back(
          {trainer::Grouped(static_cast<int64_t>(removal.bytes)), EscapeForMessage(removal.path, 1000), removal.why});
    }
    if (!removals.empty()) plan.emplace_back(run, std::move(removals));
  }
  if (plan.empty()) {
    std::cout << "nothing to remove\n";
    return absl::OkStatus();
  }
  std::cout << TableText(rows);
  if (!arguments.yes) {
    std::cout << "nothing was removed; with --yes this frees " << BytesText(bytes) << "\n";
    return absl::OkStatus();
  }
  std::cout.flush();
  for (const auto& [run, removals] : plan) TDOCK_RETURN_IF_ERROR(Failed(Remove(Env::Real(), run, removals)));
  std::cout << "removed, which frees " << BytesText(bytes) << "\n";
  return absl::OkStatus();
}

Command AddPrune(CLI::App& runs) {
  auto arguments = std::make_shared<PruneArguments>();
  PruneOptions& options = arguments->options;
  CLI::App* command = runs.add_subcommand(
      "prune",
      "Removes checkpoints, or whole runs, once --yes is given; without it, shows what and how many bytes. "
      "Running runs are left alone.");
  CLI::Option* named = command->add_option("runs", arguments->runs, "Folders of runs; without any, those in --root");
  command->add_option("--root", arguments->root, "Folder with runs, up to three folders deep")
      ->capture_default_str()
      ->excludes(named);
  CLI::Option* checkpoints = command->add_flag("--checkpoints", options.checkpoints,
                                               "Remove all checkpoints of a run but the newest and the best one");
  command->add_option("--keep", options.keep, "How many of the newest checkpoints to keep")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->needs(checkpoints);
  command
      ->add_option("--best", options.best,
                   "Metric by which a checkpoint is the best: the most of it, or the least of a loss or a perplexity; "
                   "by default "
                   "trainer.best_metric of the run, or val/accuracy, val/reward/mean or val/loss")
      ->needs(checkpoints);
  command->add_flag("--failed", options.failed, "Remove runs that left neither a model nor a checkpoint");
  command->add_flag("--unfinished", options.unfinished, "Remove those and interrupted ones");
  command->add_flag("--yes", arguments->yes, "Remove it");
  command->final_callback([arguments] {
    const PruneOptions& chosen = arguments->options;
    if (!chosen.checkpoints && !chosen.failed && !chosen.unfinished) {
      throw CLI::ValidationError("say what to remove: --checkpoints, --failed or --unfinished");
    }
  });
  return [arguments] { return Prune(*arguments); };
}

Command AddRuns(CLI::App& app) {
  CLI::App* runs = AddSubcommand(app, "runs");
  runs->require_subcommand(1);
  auto commands = std::make_shared<std::vector<std::pair<CLI::App*, Command>>>();
  for (const auto add : {AddList, AddShow, AddCompare, AddPage, AddPrune}) {
    Command command = add(*runs);
    commands->emplace_back(runs->get_subcommands(nullptr).back(), std::move(command));
  }
  return [commands] {
    for (const auto& [subcommand, command] : *commands) {
      if (subcommand->parsed()) return command();
    }
    return absl::OkStatus();
  };
}

}  // namespace

int RunTdockRuns(int argc, char** argv) { return RunCommands(argc, argv, {{"merge", AddMerge}, {"runs", AddRuns}}); }

}  // namespace tdock::cli
