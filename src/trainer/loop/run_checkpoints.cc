#include "trainer/loop/run_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

// After a checkpoint could not be written: soon, but not after each step.
constexpr absl::Duration kTryAgainAfter = absl::Minutes(1);

}  // namespace

RunCheckpoints::RunCheckpoints(Env& env, Clock& clock, const std::string& run_dir, CheckpointPlace from,
                               Options options, std::function<void(const std::string&)> log)
    : env_(env),
      clock_(clock),
      folder_(env, CheckpointsPath(run_dir)),
      options_(std::move(options)),
      log_(std::move(log)),
      last_(clock.Now()) {
  if (options_.best_metric.empty()) return;
  const auto places = folder_.List();
  if (!places.ok()) return;
  for (const CheckpointPlace& place : *places) {
    if (place > from) continue;
    const auto manifest = ReadManifest(env_, folder_.PathOf(place));
    if (!manifest.ok()) continue;
    const auto found = manifest->metrics.find(options_.best_metric);
    if (found == manifest->metrics.end() || (best_ && !IsBetter(found->second))) continue;
    best_ = found->second;
    best_place_ = place;
  }
}

bool RunCheckpoints::IsBetter(double value) const {
  if (!std::isfinite(value)) return false;
  return !best_ || (options_.best_is_least ? value < *best_ : value > *best_);
}

absl::StatusOr<bool> RunCheckpoints::IsDue(int64_t step, const Metrics& validation) {
  const absl::Time now = clock_.Now();
  bool due = (options_.freq.steps > 0 && step > 0 && step % options_.freq.steps == 0) ||
             (options_.freq.time > absl::ZeroDuration() && now - last_ >= options_.freq.time) ||
             (try_again_ && now >= *try_again_);
  due = std::exchange(owed_, false) || due;
  if (IsWriting()) owed_ = std::exchange(due, false);
  if (validation.empty() || options_.best_metric.empty()) return due;
  const auto found = validation.find(options_.best_metric);
  if (found == validation.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : validation) names.push_back(name);
    const std::string problem = absl::StrCat("trainer.best_metric = ", options_.best_metric,
                                             " is not measured; the validation measures ", absl::StrJoin(names, ", "));
    if (step == 0) return absl::InvalidArgumentError(problem);
    if (!std::exchange(told_, true)) log_(absl::StrCat("warning: ", problem, ": no checkpoint is the best"));
    return due;
  }
  if (!IsBetter(found->second)) return due;
  Finish();  // later, the weights are others
  owed_ = false;
  return true;
}

absl::Status RunCheckpoints::WriteTo(const CheckpointPlace& place, const Metrics& validation,
                                     const CheckpointContents& contents) {
  const Manifest head{.place = place, .saved = clock_.Now(), .metrics = validation, .files = {}};
  const absl::Status status = Guarded([&] { return folder_.Write(head, contents.write); });
  if (status.ok()) return status;
  return Annotate(status, absl::StrFormat("saving %s in %s, for which about %.3g GB are needed", ToText(place),
                                          folder_.path(), static_cast<double>(contents.bytes) / 1e9));
}

void RunCheckpoints::Write(const CheckpointPlace& place, const Metrics& validation, CheckpointContents contents) {
  TDOCK_CHECK(!IsWriting(), "one checkpoint at a time is written");
  last_ = clock_.Now();
  writer_ = std::make_unique<Writing>();
  writer_->place = place;
  writer_->validation = validation;
  writer_->thread = std::thread([this, &writing = *writer_, contents = std::move(contents)] {
    writing.status = WriteTo(writing.place, writing.validation, contents);
    writing.done = true;
  });
}

void RunCheckpoints::Collect() {
  if (writer_ && writer_->done) Finish();
}

void RunCheckpoints::Finish() {
  if (!writer_) return;
  writer_->thread.join();
  const CheckpointPlace place = writer_->place;
  const Metrics validation = std::move(writer_->validation);
  const absl::Status status = writer_->status;
  writer_.reset();
  Conclude(place, validation, status);
}

absl::Status RunCheckpoints::WriteNow(const CheckpointPlace& place, const Metrics& validation,
                                      CheckpointContents contents, bool again) {
  Finish();
  if (Newest() == place && !again) return absl::OkStatus();
  TDOCK_RETURN_IF_ERROR(WriteTo(place, validation, contents));
  Conclude(place, validation, absl::OkStatus());
  return absl::OkStatus();
}

void RunCheckpoints::Conclude(const CheckpointPlace& place, const Metrics& validation, const absl::Status& status) {
  if (status.ok()) {
    if (const auto found = validation.find(options_.best_metric);
        found != validation.end() && IsBetter(found->second)) {
      best_ = found->second;
      best_place_ = place;
    }
    RemoveOld();
  }
  const absl::Status outcome = status.ok() ? on_written(place) : status;
  if (outcome.ok()) {
    try_again_.reset();
    return;
  }
  try_again_ = clock_.Now() + kTryAgainAfter;
  const std::optional<CheckpointPlace> newest = Newest();
  log_(absl::StrCat("warning: ", outcome.message(), "; the run goes on, and tries again. ",
                    newest ? absl::StrCat("The last checkpoint is ", PathOf(*newest)) : "There is no checkpoint yet"));
}

void RunCheckpoints::RemoveOld() {
  if (options_.most_kept == 0) return;
  auto places = folder_.List();
  absl::Status status = places.status();
  if (places.ok()) {
    const auto newest = places->end() - std::min<std::ptrdiff_t>(options_.most_kept, std::ssize(*places));
    for (auto place = places->begin(); place != newest; ++place) {
      if (*place != best_place_) status.Update(folder_.Remove(*place));
    }
  }
  if (!status.ok()) log_(absl::StrCat("warning: removing old checkpoints: ", status.message()));
}

std::optional<CheckpointPlace> RunCheckpoints::Newest() const {
  const auto places = folder_.List();
  return places.ok() && !places->empty() ? std::optional(places->back()) : std::nullopt;
}

}  // namespace tdock::trainer
