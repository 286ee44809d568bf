#include "cli/runs/checkpoints_of_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "trainer/loop/run_checkpoints.h"
#include "trainer/run_log/run_summary.h"

namespace tdock::cli {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{4} << 20;

std::optional<double> ValueOf(const StoredCheckpoint& checkpoint, const std::string& metric) {
  if (!checkpoint.manifest) return std::nullopt;
  const auto found = checkpoint.manifest->metrics.find(metric);
  return found == checkpoint.manifest->metrics.end() ? std::nullopt : std::optional(found->second);
}

// A key of the configuration, without the quotation marks that a text may have; "" if there is none.
std::string TextOfKey(const trainer::RunSummary& run, const std::string& key) {
  const auto found = run.config.find(key);
  absl::string_view text = found == run.config.end() ? "" : absl::string_view(found->second);
  if (text.size() > 1 && absl::ConsumePrefix(&text, "\"")) absl::ConsumeSuffix(&text, "\"");
  return std::string(text);
}

}  // namespace

absl::StatusOr<std::vector<StoredCheckpoint>> CheckpointsOf(Env& env, const std::string& run) {
  const trainer::CheckpointFolder folder(env, trainer::CheckpointsPath(run));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<trainer::CheckpointPlace> places, folder.List());
  std::vector<StoredCheckpoint> checkpoints;
  for (const trainer::CheckpointPlace& place : places) {
    const std::string path = folder.PathOf(place);
    StoredCheckpoint checkpoint{place, path, trainer::MeasureFolder(path).bytes, std::nullopt};
    const std::string manifest_path = JoinPath(path, "manifest.json");
    const absl::StatusOr<std::string> json = ReadFileUpTo(env, manifest_path, kMaxManifestBytes);
    absl::StatusOr<trainer::Manifest> manifest = json.ok() ? trainer::ParseManifest(*json) : json.status();
    if (manifest.ok()) {
      checkpoint.manifest = *std::move(manifest);
    } else if (!absl::IsNotFound(manifest.status()) && !absl::IsInvalidArgument(manifest.status())) {
      return json.ok() ? Annotate(manifest.status(), manifest_path) : manifest.status();
    }
    checkpoints.push_back(std::move(checkpoint));
  }
  return checkpoints;
}

BestRule BestRuleOf(const trainer::RunSummary& run, const std::vector<StoredCheckpoint>& checkpoints,
                    const std::string& metric) {
  const std::string own = TextOfKey(run, "trainer.best_metric");
  if (!own.empty() && (metric.empty() || metric == own)) return {own, TextOfKey(run, "trainer.best_mode") != "min"};
  const auto rule = [](const std::string& name) {
    return BestRule{name, trainer::GreaterIsBetter(name).value_or(true)};
  };
  if (!metric.empty()) return rule(metric);
  for (const char* name : {"val/accuracy", "val/reward/mean", "val/loss"}) {
    const auto has = [&](const StoredCheckpoint& checkpoint) { return ValueOf(checkpoint, name).has_value(); };
    if (std::any_of(checkpoints.begin(), checkpoints.end(), has)) return rule(name);
  }
  return {};
}

std::optional<size_t> BestCheckpoint(const std::vector<StoredCheckpoint>& checkpoints, const BestRule& rule) {
  std::optional<size_t> best;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const std::optional<double> value = ValueOf(checkpoints[i], rule.metric);
    if (!value) continue;
    const double most = best ? *ValueOf(checkpoints[*best], rule.metric) : 0;
    if (!best || (rule.greater ? *value > most : *value < most)) best = i;
  }
  return best;
}

}  // namespace tdock::cli
