// One process of a reward program.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/supervised_process.h"
#include "trainer/reward/external/log_lines.h"
#include "trainer/reward/external/score_source.h"

namespace tdock::reward {

struct ProgramOptions {
  std::string name;                       // of the source
  std::vector<std::string> arguments;     // the program itself first
  std::vector<std::string> columns = {};  // that samples have
  int64_t processes = 1;
  int64_t batch_size = 16;                           // most samples of a message
  absl::Duration timeout = absl::Seconds(30);        // for one more score of a batch
  absl::Duration start_timeout = absl::Seconds(60);  // for the hello
  int64_t retries = 2;                               // more tries of a sample
  int64_t max_restarts = 5;                          // in a row, without a score
  int64_t memory_bytes = 0;                          // of a process with its children; 0: no limit
  LogSink log = [](const std::string&) {};           // lines of its standard error; thread-safe
};

// Not thread-safe. Once a call has failed, the process is dead.
class RewardProgram {
 public:
  // Starts it, and exchanges hellos. Errors say what it did instead, and its last words on standard error.
  static absl::StatusOr<std::unique_ptr<RewardProgram>> Start(const ProgramOptions& options,
                                                              const StopCheck& check_stop);
  // Closes its input, and kills it if it does not end within 2 s.
  ~RewardProgram();

  // Asks it not to read more. The destructor then waits less if several are asked first.
  void CloseInput() { process_->CloseInput(); }

  // Asks for the scores of these answers, and passes them on as they come. DeadlineExceeded if none comes for
  // ProgramOptions::timeout; Cancelled and others are those of `check_stop`; all errors else are those of the program.
  // Those that were not passed on by then have no score.
  absl::Status Score(std::span<const Answer> answers, std::span<const size_t> indexes, const StopCheck& check_stop,
                     const SourceSink& sink);

 private:
  explicit RewardProgram(const ProgramOptions& options) : options_(options), stderr_(options.name, options.log) {}

  // The next line that it writes, while `input_` is written to it. DeadlineExceeded at the deadline.
  absl::StatusOr<std::string> ReadLine(absl::Time deadline, const StopCheck& check_stop);
  // `status` with how the process has ended and its last words, once it is dead.
  absl::Status Died(const absl::Status& status);

  const ProgramOptions& options_;
  LogLines stderr_;
  std::unique_ptr<SupervisedProcess> process_;
  std::string input_;    // what it has not yet accepted
  std::string read_;     // behind the last whole line
  size_t searched_ = 0;  // bytes of it without the end of a line
  int64_t batch_ = 0;
};

}  // namespace tdock::reward
