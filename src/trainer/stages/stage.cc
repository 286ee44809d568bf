#include "trainer/stages/stage.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

template <class T>
absl::Status CheckFinite(const NamedColumn& named, const Rows& rows) {
  for (int64_t row = 0; row < named.column.rows(); ++row) {
    const std::span<const T> values = *named.column.Row<T>(row);
    const auto bad = std::find_if(values.begin(), values.end(), [](T v) { return !std::isfinite(v); });
    if (bad == values.end()) continue;
    return absl::InternalError(absl::StrCat("wrote ", *bad, " into column '", named.name, "' of row ",
                                            rows.ids()[static_cast<size_t>(row)], ", at position ",
                                            bad - values.begin()));
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(const Batch& columns, const Rows& rows) {
  if (columns.rows() != static_cast<int64_t>(rows.size())) {
    return absl::InternalError(absl::StrCat("gave ", columns.rows(), " rows for the ", rows.size(), " that it took"));
  }
  for (const NamedColumn& named : columns.columns()) {
    if (named.column.type().kind == ColumnKind::kBytes) continue;
    if (named.column.type().dtype == DType::kF32) TDOCK_RETURN_IF_ERROR(CheckFinite<float>(named, rows));
    if (named.column.type().dtype == DType::kF64) TDOCK_RETURN_IF_ERROR(CheckFinite<double>(named, rows));
  }
  return absl::OkStatus();
}

std::string RowRange(const Rows& rows) {
  if (rows.empty()) return "no rows";
  const auto [first, last] = std::minmax_element(rows.ids().begin(), rows.ids().end());
  return absl::StrCat(rows.size(), " rows between ", *first, " and ", *last);
}

}  // namespace

void StepMetrics::Mean(const std::string& name, double value, double weight) {
  Ratio& ratio = means_[name];
  ratio.sum += value * weight;
  ratio.weight += weight;
}

void StepMetrics::Sum(const std::string& name, double value) { others_[name] += value; }

void StepMetrics::Max(const std::string& name, double value) {
  const auto [found, added] = others_.try_emplace(name, value);
  if (!added) found->second = std::max(found->second, value);
}

void StepMetrics::Min(const std::string& name, double value) {
  const auto [found, added] = others_.try_emplace(name, value);
  if (!added) found->second = std::min(found->second, value);
}

void StepMetrics::Distribution(const std::string& name, std::span<const float> values) {
  for (float value : values) {
    Mean(name + "/mean", value);
    Max(name + "/max", value);
    Min(name + "/min", value);
  }
}

std::map<std::string, double> StepMetrics::Values() const {
  std::map<std::string, double> values = others_;
  for (const auto& [name, ratio] : means_) values[name] = ratio.sum / ratio.weight;
  return values;
}

absl::Status StageRunner::Add(const Stage& stage) {
  return Annotate(dock_.RegisterConsumer(partition_, stage.consumer()),
                  absl::StrCat("stage '", stage.consumer().name, "'"));
}

absl::Status StageRunner::Run(Stage& stage, int64_t units, StageContext& context) {
  const std::string& name = stage.consumer().name;
  absl::StatusOr<Taken> taken = dock_.Take({.partition = partition_, .consumer = name, .min = units, .max = units});
  if (absl::IsDeadlineExceeded(taken.status())) taken = absl::FailedPreconditionError(taken.status().message());
  if (!taken.ok()) return Annotate(taken.status(), absl::StrCat("stage '", name, "'"));
  const absl::Status status = Guarded([&] { return RunOn(stage, *taken, context); });
  if (status.ok()) return status;
  dock_.Release({.partition = partition_, .lease = taken->lease}).IgnoreError();  // the stage's error counts
  return Annotate(status, absl::StrCat("stage '", name, "', ", RowRange(taken->rows)));
}

absl::Status StageRunner::RunOn(Stage& stage, const Taken& taken, StageContext& context) {
  TDOCK_ASSIGN_OR_RETURN(StageOutput output, stage.Run(taken.rows, context));
  if (stage.consumer().writes.empty()) return dock_.Complete({.partition = partition_, .lease = taken.lease});
  TDOCK_RETURN_IF_ERROR(CheckOutput(output.columns, taken.rows));
  return dock_
      .Put({.partition = partition_,
            .batch = std::move(output.columns),
            .rows = std::vector<RowId>(taken.rows.ids().begin(), taken.rows.ids().end()),
            .lease = taken.lease,
            .weights_version = output.weights_version})
      .status();
}

}  // namespace tdock::trainer
