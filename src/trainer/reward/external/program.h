// One process of a reward program.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainer/reward/external/line_process.h"
#include "trainer/reward/external/log_lines.h"
#include "trainer/reward/external/score_source.h"

namespace tdock::reward {

struct ProgramOptions {
  std::string name;                       // of the source
  std::vector<std::string> arguments;     // the program itself first
  absl::string_view script = {};          // see LineProcessOptions
  std::vector<std::string> columns = {};  // that samples have
  int64_t processes = 1;
  int64_t batch_size = 16;                           // most samples of a message
  absl::Duration timeout = absl::Seconds(30);        // for one more score of a batch
  absl::Duration start_timeout = absl::Seconds(60);  // for the hello
  int64_t retries = 2;                               // more tries of a sample
  int64_t max_restarts = 5;                          // in a row, without a score
  int64_t memory_bytes = 0;                          // of a process with its children; 0: no limit
  LogSink log = [](const std::string&) {};           // lines of its standard error; thread-safe
  std::string origin = {};                           // for messages: the key that names it, with its value
};

// Not thread-safe. Once a call has failed, the process is dead.
class RewardProgram {
 public:
  // Starts it, and exchanges hellos. Errors say what it did instead, and its last words on standard error.
  static absl::StatusOr<std::unique_ptr<RewardProgram>> Start(const ProgramOptions& options,
                                                              const StopCheck& check_stop);
  // See LineProcess.
  void CloseInput() { process_->CloseInput(); }

  // Asks for the scores of these answers, and passes them on as they come. DeadlineExceeded if none comes for
  // ProgramOptions::timeout; Cancelled and others are those of `check_stop`; all errors else are those of the program.
  // Those that were not passed on by then have no score.
  absl::Status Score(std::span<const Answer> answers, std::span<const size_t> indexes, const StopCheck& check_stop,
                     const SourceSink& sink);

 private:
  RewardProgram(const ProgramOptions& options, std::unique_ptr<LineProcess> process)
      : options_(options), process_(std::move(process)) {}

  // The next line that it writes. DeadlineExceeded at the deadline.
  absl::StatusOr<std::string> ReadLine(absl::Time deadline, const StopCheck& check_stop);

  const ProgramOptions& options_;
  const std::unique_ptr<LineProcess> process_;
  int64_t batch_ = 0;
};

}  // namespace tdock::reward
