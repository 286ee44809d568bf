#include "trainer/stages/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

void NoteMax(std::map<std::string, double>& greatest, const std::string& name, double value) {
  const auto [found, added] = greatest.try_emplace(name, value);
  if (!added) found->second = std::max(found->second, value);
}

void NoteMin(std::map<std::string, double>& least, const std::string& name, double value) {
  const auto [found, added] = least.try_emplace(name, value);
  if (!added) found->second = std::min(found->second, value);
}

}  // namespace

void StepMetrics::Mean(const std::string& name, double value, double weight) {
  MutexLock lock(mu_);
  Ratio& ratio = figures_.means[name];
  ratio.sum += value * weight;
  ratio.weight += weight;
}

void StepMetrics::Spread(const std::string& name, double value) {
  Mean(name + "/mean", value);
  MutexLock lock(mu_);
  Ratio& ratio = figures_.squares[name];
  ratio.sum += value * value;
  ratio.weight += 1;
}

void StepMetrics::Sum(const std::string& name, double value) {
  MutexLock lock(mu_);
  figures_.sums[name] += value;
}

void StepMetrics::Max(const std::string& name, double value) {
  MutexLock lock(mu_);
  NoteMax(figures_.greatest, name, value);
}

void StepMetrics::Min(const std::string& name, double value) {
  MutexLock lock(mu_);
  NoteMin(figures_.least, name, value);
}

void StepMetrics::Distribution(const std::string& name, std::span<const float> values) {
  for (float value : values) {
    Mean(name + "/mean", value);
    Max(name + "/max", value);
    Min(name + "/min", value);
  }
}

StepMetrics::Figures StepMetrics::Copy() const {
  MutexLock lock(mu_);
  return figures_;
}

void StepMetrics::Add(const StepMetrics& other) { AddFigures(other.Copy()); }

void StepMetrics::AddFigures(const Figures& more) {
  MutexLock lock(mu_);
  for (const auto& [name, ratio] : more.means) {
    Ratio& own = figures_.means[name];
    own.sum += ratio.sum;
    own.weight += ratio.weight;
  }
  for (const auto& [name, ratio] : more.squares) {
    Ratio& own = figures_.squares[name];
    own.sum += ratio.sum;
    own.weight += ratio.weight;
  }
  for (const auto& [name, value] : more.sums) figures_.sums[name] += value;
  for (const auto& [name, value] : more.greatest) NoteMax(figures_.greatest, name, value);
  for (const auto& [name, value] : more.least) NoteMin(figures_.least, name, value);
}

void StepMetrics::MoveTo(StepMetrics& other) {
  Figures moved;
  {
    const MutexLock lock(mu_);
    moved = std::exchange(figures_, {});
  }
  other.AddFigures(moved);
}

std::map<std::string, double> StepMetrics::Values() const {
  const Figures figures = Copy();
  std::map<std::string, double> values = figures.sums;
  values.insert(figures.greatest.begin(), figures.greatest.end());
  values.insert(figures.least.begin(), figures.least.end());
  for (const auto& [name, ratio] : figures.means) {
    if (ratio.weight != 0) values[name] = ratio.sum / ratio.weight;
  }
  for (const auto& [name, square] : figures.squares) {
    const double mean = values[name + "/mean"];
    values[name + "/std"] = std::sqrt(std::max(square.sum / square.weight - mean * mean, 0.0));
  }
  return values;
}

void StepMetrics::Save(State& state) const {
  const Figures figures = Copy();
  for (const auto& [name, ratio] : figures.means) {
    state.SetNumber(absl::StrCat("mean/", name), ratio.sum);
    state.SetNumber(absl::StrCat("weight/", name), ratio.weight);
  }
  for (const auto& [name, ratio] : figures.squares) {
    state.SetNumber(absl::StrCat("square/", name), ratio.sum);
    state.SetNumber(absl::StrCat("squares/", name), ratio.weight);
  }
  for (const auto& [name, value] : figures.sums) state.SetNumber(absl::StrCat("sum/", name), value);
  for (const auto& [name, value] : figures.greatest) state.SetNumber(absl::StrCat("max/", name), value);
  for (const auto& [name, value] : figures.least) state.SetNumber(absl::StrCat("min/", name), value);
}

absl::Status StepMetrics::Load(const State& state) {
  Figures figures;
  for (const auto& [key, text] : state.texts()) {
    const std::pair<std::string, std::string> kind = absl::StrSplit(key, absl::MaxSplits('/', 1));
    TDOCK_ASSIGN_OR_RETURN(const double value, state.Number(key));
    if (kind.first == "mean") figures.means[kind.second].sum = value;
    if (kind.first == "weight") figures.means[kind.second].weight = value;
    if (kind.first == "square") figures.squares[kind.second].sum = value;
    if (kind.first == "squares") figures.squares[kind.second].weight = value;
    if (kind.first == "sum") figures.sums[kind.second] = value;
    if (kind.first == "max") figures.greatest[kind.second] = value;
    if (kind.first == "min") figures.least[kind.second] = value;
  }
  AddFigures(figures);
  return absl::OkStatus();
}

}  // namespace tdock::trainer
