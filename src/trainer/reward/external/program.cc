#include "trainer/reward/external/program.h"

#include <algorithm>
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
// For a program to end once its input is closed, and to say its last words once it is dead.
constexpr absl::Duration kToEnd = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<RewardProgram>> RewardProgram::Start(const ProgramOptions& options,
                                                                    const StopCheck& check_stop) {
  std::unique_ptr<RewardProgram> program(new RewardProgram(options));
  TDOCK_ASSIGN_OR_RETURN(
      program->process_,
      SupervisedProcess::Start({.arguments = options.arguments, .limits = {.memory_bytes = options.memory_bytes}}));
  program->input_ = HelloLine(options.columns);
  absl::StatusOr<std::string> line = program->ReadLine(absl::Now() + options.start_timeout, check_stop);
  if (absl::IsDeadlineExceeded(line.status())) {
    line = program->Died(absl::DeadlineExceededError(absl::StrCat("it said no hello within ",
                                                                  absl::FormatDuration(options.start_timeout),
                                                                  " (reward.start_timeout); is it a reward program?")));
  }
  TDOCK_RETURN_IF_ERROR(line.status());
  const absl::Status hello = CheckHello(*line);
  if (!hello.ok()) return program->Died(hello);
  return program;
}

RewardProgram::~RewardProgram() {
  if (process_ == nullptr) return;
  process_->CloseInput();
  const absl::Time deadline = absl::Now() + kToEnd;
  // What it still writes must not keep it from ending.
  while (absl::Now() < deadline && (process_->output_open() || !process_->Wait(absl::InfinitePast()).ok())) {
    const auto moved = process_->Move("", deadline);
    if (!moved.ok()) break;
    stderr_.Add(moved->err, absl::Now());
  }
  process_->Wait(deadline).IgnoreError();
}

absl::Status RewardProgram::Died(const absl::Status& status) {
  // How it ended by itself, if it did: a pipe closes a moment before.
  const absl::StatusOr<ProcessEnd> end =
      process_->Wait(process_->output_open() ? absl::InfinitePast() : absl::Now() + kBetweenChecks);
  process_->Kill();
  for (const absl::Time deadline = absl::Now() + kToEnd;;) {
    const auto moved = process_->Move("", deadline);
    if (!moved.ok()) break;
    stderr_.Add(moved->err, absl::Now());
  }
  stderr_.Finish();
  const std::string words = stderr_.LastWords();
  return {status.code(), absl::StrCat(status.message(), end.ok() ? absl::StrCat("; it ", end->ToString()) : "",
                                      words.empty() ? "" : absl::StrCat("; its last words: ", words))};
}

absl::StatusOr<std::string> RewardProgram::ReadLine(absl::Time deadline, const StopCheck& check_stop) {
  for (;;) {
    if (const size_t end = read_.find('\n', searched_); end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      searched_ = 0;
      return line;
    }
    searched_ = read_.size();
    if (read_.size() > kMostLineBytes) {
      return Died(absl::InvalidArgumentError(
          absl::StrCat("it wrote a line of more than ", kMostLineBytes >> 20, " MiB, which begins ", Quoted(read_))));
    }
    if (const absl::Status stop = check_stop(); !stop.ok()) {
      process_->Kill();
      return stop;
    }
    if (!process_->output_open()) {
      return Died(absl::UnavailableError(
          read_.empty() ? "it closed its standard output"
                        : absl::StrCat("it closed its standard output behind the unfinished line ", Quoted(read_))));
    }
    const absl::Time now = absl::Now();
    const auto moved = process_->Move(input_, std::min(deadline, now + kBetweenChecks));
    if (moved.ok()) {
      input_.erase(0, moved->written);
      read_ += moved->out;
      stderr_.Add(moved->err, now);
    } else if (!absl::IsDeadlineExceeded(moved.status()) && !absl::IsOutOfRange(moved.status())) {
      return Died(moved.status());
    }
    // Also for one that writes all the time, but no line.
    if (now >= deadline && read_.find('\n', searched_) == std::string::npos) {
      return absl::DeadlineExceededError("no line in time");
    }
  }
}

absl::Status RewardProgram::Score(std::span<const Answer> answers, std::span<const size_t> indexes,
                                  const StopCheck& check_stop, const SourceSink& sink) {
  ++batch_;
  input_ = ScoreLine(batch_, answers, indexes);
  const absl::Time begun = absl::Now();
  absl::Time deadline = begun + options_.timeout;
  absl::flat_hash_map<int64_t, bool> answered;  // by the sample's number
  for (const size_t index : indexes) answered[static_cast<int64_t>(index)] = false;
  for (size_t left = indexes.size(); left > 0;) {
    absl::StatusOr<std::string> line = ReadLine(deadline, check_stop);
    if (absl::IsDeadlineExceeded(line.status())) {
      return Died(absl::DeadlineExceededError(
          absl::StrCat("it gave no score for ", absl::FormatDuration(options_.timeout), " (reward.timeout)")));
    }
    TDOCK_RETURN_IF_ERROR(line.status());
    absl::StatusOr<std::vector<ScoredSample>> scores = ParseScoresLine(*line, batch_);
    if (!scores.ok()) return Died(scores.status());
    for (ScoredSample& scored : *scores) {
      const auto known = answered.find(scored.sample);
      if (known == answered.end()) {
        return Died(absl::InvalidArgumentError(
            absl::StrCat("it scored sample ", scored.sample, ", which it was not asked for in this batch")));
      }
      if (std::exchange(known->second, true)) {
        return Died(absl::InvalidArgumentError(absl::StrCat("it scored sample ", scored.sample, " twice")));
      }
      if (scored.score.ok()) scored.score->seconds = absl::ToDoubleSeconds(absl::Now() - begun);
      sink(static_cast<size_t>(scored.sample), std::move(scored.score));
      --left;
    }
    const absl::Time now = absl::Now();
    if (!scores->empty()) {
      deadline = now + options_.timeout;
    } else if (now >= deadline) {  // lines without scores are no progress
      return Died(absl::DeadlineExceededError(
          absl::StrCat("it gave no score for ", absl::FormatDuration(options_.timeout), " (reward.timeout)")));
    }
  }
  return absl::OkStatus();
}

}  // namespace tdock::reward
