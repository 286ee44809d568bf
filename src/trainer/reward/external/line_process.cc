#include "trainer/reward/external/line_process.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

// For a program to end once its input is closed, and to say its last words once it is dead.
constexpr absl::Duration kToEnd = absl::Seconds(2);
// Between the end of its output and its own.
constexpr absl::Duration kToBeReaped = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<LineProcess>> LineProcess::Start(const LineProcessOptions& options) {
  ProcessOptions started{.arguments = options.arguments, .limits = {.memory_bytes = options.memory_bytes}};
  if (!options.script.empty()) started.texts = {{options.script, kScriptNumber}};
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<SupervisedProcess> process, SupervisedProcess::Start(started));
  return std::unique_ptr<LineProcess>(new LineProcess(options, std::move(process)));
}

LineProcess::~LineProcess() {
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

absl::StatusOr<std::optional<std::string>> LineProcess::NextLine() {
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
  if (!process_->output_open()) {
    return Died(absl::UnavailableError(
        read_.empty() ? "it closed its standard output"
                      : absl::StrCat("it closed its standard output behind the unfinished line ", Quoted(read_))));
  }
  return std::nullopt;
}

absl::Status LineProcess::Move(absl::Time deadline) {
  const auto moved = process_->Move(input_, deadline);
  // The end of its output is for NextLine() to say, behind the last line.
  if (absl::IsOutOfRange(moved.status())) return absl::OkStatus();
  TDOCK_RETURN_IF_ERROR(moved.status());
  input_.erase(0, moved->written);
  read_ += moved->out;
  stderr_.Add(moved->err, absl::Now());
  return absl::OkStatus();
}

absl::Status LineProcess::Died(const absl::Status& status) {
  // How it ended by itself, if it did: a pipe closes a moment before.
  const absl::StatusOr<ProcessEnd> end =
      process_->Wait(process_->output_open() ? absl::InfinitePast() : absl::Now() + kToBeReaped);
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

}  // namespace tdock::reward
