#include "bench/harness/suite.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "bench/harness/report.h"

namespace tdock::bench {
namespace {

absl::Status CheckFolder(Env& env, const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty() || env.Exists(folder)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("cannot write ", path, ": there is no folder ", folder));
}

}  // namespace

absl::Status RunSuite(std::span<const Benchmark> benchmarks, const SuiteRequest& request, const Settings& settings,
                      const Machine& machine, const SuiteContext& context) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<const Benchmark*> selected,
                         Select(benchmarks, request.names, request.filter));
  size_t name_width = 0;
  for (const Benchmark* benchmark : selected) name_width = std::max(name_width, benchmark->name.size());
  if (request.list) {
    for (const Benchmark* benchmark : selected) {
      context.out << benchmark->name << std::string(name_width - benchmark->name.size() + 2, ' ') << benchmark->unit
                  << "\n";
    }
    return absl::OkStatus();
  }
  if (!request.json_path.empty()) TDOCK_RETURN_IF_ERROR(CheckFolder(context.env, request.json_path));

  std::vector<Result> results;
  for (const Benchmark* benchmark : selected) {
    absl::StatusOr<Result> result = Measure(*benchmark, settings, context.watcher);
    context.before_row();
    if (!result.ok()) return result.status();
    results.push_back(*std::move(result));
    if (results.size() == 1) context.out << TableHead(name_width);
    context.out << TableRow(results.back(), name_width) << std::flush;
  }
  if (request.json_path.empty()) return absl::OkStatus();
  return WriteFileAtomically(context.env, request.json_path, ReportJson(machine, settings, results));
}

}  // namespace tdock::bench
