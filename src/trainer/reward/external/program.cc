#include "trainer/reward/external/program.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/reward/external/protocol.h"

namespace tdock::reward {
namespace {

// How long a run that is stopped goes on waiting at most.
constexpr absl::Duration kBetweenChecks = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<RewardProgram>> RewardProgram::Start(const ProgramOptions& options,
                                                                    const StopCheck& check_stop) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<LineProcess> process,
                         LineProcess::Start({.who = absl::StrCat("reward ", options.name),
                                             .arguments = options.arguments,
                                             .script = options.script,
                                             .memory_bytes = options.memory_bytes,
                                             .log = options.log}));
  std::unique_ptr<RewardProgram> program(new RewardProgram(options, std::move(process)));
  program->process_->Send(HelloLine(options.columns));
  absl::StatusOr<std::string> line = program->ReadLine(absl::Now() + options.start_timeout, check_stop);
  if (absl::IsDeadlineExceeded(line.status())) {
    line = program->process_->Died(absl::DeadlineExceededError(
        absl::StrCat("it said no hello within ", absl::FormatDuration(options.start_timeout),
                     " (reward.start_timeout); is it a reward program?")));
  }
  TDOCK_RETURN_IF_ERROR(line.status());
  const absl::Status hello = CheckHello(*line);
  if (!hello.ok()) return program->process_->Died(hello);
  return program;
}

absl::StatusOr<std::string> RewardProgram::ReadLine(absl::Time deadline, const StopCheck& check_stop) {
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(std::optional<std::string> line, process_->NextLine());
    if (line) return *std::move(line);
    const absl::Time now = absl::Now();
    // Also for one that writes all the time, but no line.
    if (now >= deadline) return absl::DeadlineExceededError("no line in time");
    if (const absl::Status stop = check_stop(); !stop.ok()) {
      process_->Kill();
      return stop;
    }
    const absl::Status moved = process_->Move(std::min(deadline, now + kBetweenChecks));
    if (!moved.ok() && !absl::IsDeadlineExceeded(moved)) return process_->Died(moved);
  }
}

absl::Status RewardProgram::Score(std::span<const Answer> answers, std::span<const size_t> indexes,
                                  const StopCheck& check_stop, const SourceSink& sink) {
  ++batch_;
  process_->Send(ScoreLine(batch_, answers, indexes));
  const absl::Time begun = absl::Now();
  absl::Time deadline = begun + options_.timeout;
  absl::flat_hash_map<int64_t, bool> answered;  // by the sample's number
  for (const size_t index : indexes) answered[static_cast<int64_t>(index)] = false;
  for (size_t left = indexes.size(); left > 0;) {
    absl::StatusOr<std::string> line = ReadLine(deadline, check_stop);
    if (absl::IsDeadlineExceeded(line.status())) {
      return process_->Died(absl::DeadlineExceededError(
          absl::StrCat("it gave no score for ", absl::FormatDuration(options_.timeout), " (reward.timeout)")));
    }
    TDOCK_RETURN_IF_ERROR(line.status());
    absl::StatusOr<std::vector<ScoredSample>> scores = ParseScoresLine(*line, batch_);
    if (!scores.ok()) return process_->Died(scores.status());
    for (ScoredSample& scored : *scores) {
      const auto known = answered.find(scored.sample);
      if (known == answered.end()) {
        return process_->Died(absl::InvalidArgumentError(
            absl::StrCat("it scored sample ", scored.sample, ", which it was not asked for in this batch")));
      }
      if (std::exchange(known->second, true)) {
        return process_->Died(absl::InvalidArgumentError(absl::StrCat("it scored sample ", scored.sample, " twice")));
      }
      if (scored.score.ok()) scored.score->seconds = absl::ToDoubleSeconds(absl::Now() - begun);
      sink(static_cast<size_t>(scored.sample), std::move(scored.score));
      --left;
    }
    const absl::Time now = absl::Now();
    if (!scores->empty()) {
      deadline = now + options_.timeout;
    } else if (now >= deadline) {  // lines without scores are no progress
      return process_->Died(absl::DeadlineExceededError(
          absl::StrCat("it gave no score for ", absl::FormatDuration(options_.timeout), " (reward.timeout)")));
    }
  }
  return absl::OkStatus();
}

}  // namespace tdock::reward
