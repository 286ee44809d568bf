#include "bench/harness/harness.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "bench/harness/peer.h"

namespace tdock::bench {
namespace {

bool Chooses(absl::string_view chosen, absl::string_view name) {
  return absl::ConsumePrefix(&name, absl::StripSuffix(chosen, "/")) && (name.empty() || name.front() == '/');
}

std::string GroupNames(std::span<const Benchmark> benchmarks) {
  std::vector<absl::string_view> groups;
  for (const Benchmark& benchmark : benchmarks) {
    const absl::string_view group = GroupOf(benchmark.name);
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return absl::StrJoin(groups, ", ");
}

absl::StatusOr<Figure> Run(const TimedRun& run) {
  TDOCK_ASSIGN_OR_RETURN(Figure figure, run());
  if (std::isfinite(figure.value) && figure.value > 0) return figure;
  return absl::InternalError(absl::StrCat("a run gave the figure ", figure.value));
}

std::vector<Detail> MedianDetails(std::span<const std::vector<Detail>> runs) {
  std::vector<Detail> medians = runs.front();
  for (size_t i = 0; i < medians.size(); ++i) {
    std::vector<double> values;
    for (const std::vector<Detail>& run : runs) values.push_back(run[i].value);
    medians[i].value = Median(std::move(values));
  }
  return medians;
}

absl::StatusOr<Result> MeasureUnnamed(const Benchmark& benchmark, const Settings& settings, const Watcher& watcher) {
  watcher(benchmark, 0);
  TDOCK_ASSIGN_OR_RETURN(Prepared prepared, benchmark.prepare(settings));
  TDOCK_CHECK(benchmark.of.empty() == !prepared.reference, "a reference and its name come together");
  if (!settings.peer.empty()) {
    TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, Peer::Start(settings.peer, benchmark.name, settings));
    prepared.reference = [peer] { return peer->Run(); };
  }
  TDOCK_RETURN_IF_ERROR(Run(prepared.run).status());
  if (prepared.reference) TDOCK_RETURN_IF_ERROR(Run(prepared.reference).status());

  Result result;
  result.name = benchmark.name;
  result.unit = benchmark.unit;
  result.of = settings.peer.empty() ? benchmark.of : "peer";
  std::vector<double> ratios;
  std::vector<std::vector<Detail>> details;
  for (int run = 1; run <= settings.runs; ++run) {
    watcher(benchmark, run);
    TDOCK_ASSIGN_OR_RETURN(Figure ours, Run(prepared.run));
    result.runs.push_back(ours.value);
    details.push_back(std::move(ours.details));
    if (!prepared.reference) continue;
    TDOCK_ASSIGN_OR_RETURN(const Figure reference, Run(prepared.reference));
    result.reference_runs.push_back(reference.value);
    ratios.push_back(benchmark.better == Better::kHigher ? ours.value / reference.value : reference.value / ours.value);
  }
  result.median = Median(result.runs);
  result.details = MedianDetails(details);
  if (!ratios.empty()) result.ratio = Median(ratios);
  return result;
}

}  // namespace

double Median(std::vector<double> values) {
  TDOCK_CHECK(!values.empty(), "the median of no values");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

absl::string_view GroupOf(absl::string_view name) { return name.substr(0, name.find('/')); }

absl::StatusOr<std::vector<const Benchmark*>> Select(std::span<const Benchmark> benchmarks,
                                                     std::span<const std::string> names, absl::string_view filter) {
  for (const std::string& name : names) {
    const auto chosen = [&](const Benchmark& benchmark) { return Chooses(name, benchmark.name); };
    if (std::any_of(benchmarks.begin(), benchmarks.end(), chosen)) continue;
    return absl::InvalidArgumentError(absl::StrCat("there is no benchmark '", name, "'; the groups are ",
                                                   GroupNames(benchmarks), ", and --list shows every name"));
  }
  std::vector<const Benchmark*> selected;
  for (const Benchmark& benchmark : benchmarks) {
    const auto chooses = [&](const std::string& name) { return Chooses(name, benchmark.name); };
    if (!names.empty() && std::none_of(names.begin(), names.end(), chooses)) continue;
    if (absl::StrContains(benchmark.name, filter)) selected.push_back(&benchmark);
  }
  if (!selected.empty()) return selected;
  return absl::InvalidArgumentError(
      absl::StrCat("no name of these benchmarks contains '", filter, "'; --list shows every name"));
}

absl::StatusOr<Result> Measure(const Benchmark& benchmark, const Settings& settings, const Watcher& watcher) {
  absl::StatusOr<Result> result = MeasureUnnamed(benchmark, settings, watcher);
  if (!result.ok()) return Annotate(result.status(), benchmark.name);
  return result;
}

}  // namespace tdock::bench
