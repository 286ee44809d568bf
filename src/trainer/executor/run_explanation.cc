#include "trainer/executor/run_explanation.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/json_text.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::ordered_json;
using Does = StageExplanation::Does;

std::string SecondsText(absl::Duration duration) { return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration)); }

std::string DoesText(const StageExplanation& stage) {
  if (stage.external && stage.does == Does::kNothing) return "another process carries it out";
  if (stage.does == Does::kNothing) return "does nothing now";
  if (stage.does == Does::kWaits) return absl::StrCat("has waited for rows for ", SecondsText(stage.since));
  std::string text = "has worked";
  if (!stage.which.empty()) {
    absl::StrAppend(&text, " on ", stage.which);
  } else if (stage.rows > 0) {
    absl::StrAppend(&text, " on ", stage.rows, stage.rows == 1 ? " row" : " rows");
  }
  return absl::StrCat(text, " for ", SecondsText(stage.since), ", with the last sign of progress ",
                      SecondsText(stage.progress), " ago");
}

Json NumberOrNull(const std::optional<double>& number) { return number.has_value() ? Json(*number) : Json(); }

}  // namespace

std::string ToText(const RunExplanation& run) {
  std::string text = absl::StrCat(absl::AsciiStrToUpper(run.recipe), ", step ", run.step);
  if (run.steps > 0) absl::StrAppend(&text, " of ", run.steps);
  absl::StrAppend(&text, ": ", run.phase, ", for ", SecondsText(run.since), "\n");
  if (run.tokens_per_second.has_value()) {
    absl::StrAppend(&text, absl::StrFormat("the last step: %.0f tokens/s", *run.tokens_per_second));
    if (run.staleness_mean.has_value()) {
      absl::StrAppend(&text,
                      absl::StrFormat(", answered by weights %.2f versions old on average", *run.staleness_mean));
      if (run.staleness_max.has_value()) absl::StrAppend(&text, absl::StrFormat(", %.0f at most", *run.staleness_max));
    }
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppend(&text, run.rows, run.rows == 1 ? " row" : " rows", " on the dock, which ",
                  run.shared ? "other processes share" : "is the run's own", "\n");
  if (!run.dock_error.empty()) absl::StrAppend(&text, "the dock: ", run.dock_error, "\n");
  for (const StageExplanation& stage : run.stages) {
    absl::StrAppend(&text, "\n", stage.name, ": ", DoesText(stage), "\n");
    if (stage.counts.has_value()) {
      const ConsumerStatus& counts = *stage.counts;
      absl::StrAppend(&text, "    rows: ", counts.waiting, " waiting, ", counts.ready, " ready, ", counts.leased,
                      " leased, ", counts.done, " done");
      if (counts.quarantined > 0) absl::StrAppend(&text, ", ", counts.quarantined, " quarantined");
      absl::StrAppend(&text, "\n");
    }
    if (!stage.dock.empty()) absl::StrAppend(&text, "    ", stage.dock, "\n");
  }
  return text;
}

std::string ToJson(const RunExplanation& run) {
  Json staleness;
  if (run.staleness_mean.has_value()) {
    staleness = {{"mean", *run.staleness_mean}, {"max", NumberOrNull(run.staleness_max)}};
  }
  Json stages = Json::array();
  for (const StageExplanation& stage : run.stages) {
    const bool works = stage.does == Does::kWorks;
    Json counts;
    if (stage.counts.has_value()) {
      counts = {{"waiting", stage.counts->waiting},
                {"ready", stage.counts->ready},
                {"leased", stage.counts->leased},
                {"done", stage.counts->done},
                {"quarantined", stage.counts->quarantined}};
    }
    stages.push_back({{"name", stage.name},
                      {"does", works                        ? "works"
                               : stage.does == Does::kWaits ? "waits"
                                                            : "nothing"},
                      {"seconds", absl::ToDoubleSeconds(stage.since)},
                      {"progress_seconds", works ? Json(absl::ToDoubleSeconds(stage.progress)) : Json()},
                      {"rows", stage.rows},
                      {"which", stage.which},
                      {"external", stage.external},
                      {"counts", std::move(counts)},
                      {"dock", stage.dock}});
  }
  Json all = {{"recipe", run.recipe},
              {"step", run.step},
              {"steps", run.steps},
              {"phase", run.phase},
              {"phase_seconds", absl::ToDoubleSeconds(run.since)},
              {"tokens_per_second", NumberOrNull(run.tokens_per_second)},
              {"staleness", std::move(staleness)},
              {"rows", run.rows},
              {"shared", run.shared},
              {"stages", std::move(stages)}};
  if (!run.dock_error.empty()) all["dock_error"] = run.dock_error;
  return JsonText(all, 2) + "\n";
}

}  // namespace tdock::trainer
