// The folder of a training run.
//
//   config.yaml                        the resolved configuration
//   metrics.jsonl                      one line per step: {"phase": "grpo", "step": 3, "actor/entropy": 1.25, …}
//   samples.jsonl                      one line per answer: {"phase", "step", "prompt", "response", "truth", "reward",
//                                      "correct"}
//   timeline.jsonl                     one line per span of a stage: {"phase", "step", "stage", "what": "work" or
//   "wait",
//                                      "begin", "end", "rows"}, times in seconds since the run began
//   tensorboard/<phase>/events.out.…   the same metrics for TensorBoard, which shows each phase as a run of its own;
//                                      after each resume another file
//   checkpoint/                        the model, in the Hugging Face layout (written by the caller)
//   metrics.csv                        the metrics as a table, and
//   report.html                        everything above as one page, both as of the last WriteReport()
//   explain.socket                     while the run lasts, where it can be asked what it does (made by the caller)
//
// Lines are JSON objects in UTF-8 that end with a newline. Numbers are written so that they read back exactly;
// non-finite ones are null. Invalid UTF-8 appears as U+FFFD. A last line without a newline is left from a failed write:
// readers must skip it. Steps increase from line to line, over all phases; only the answers and the spans of one step
// share a number. When a run is resumed, Open() replaces logs by shorter ones: a program that follows them must open
// them again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "trainer/run_log/report.h"
#include "trainer/run_log/tensorboard.h"

namespace tdock::trainer {

using Metrics = std::map<std::string, double>;

// One answer of the model, recorded for people to read.
struct Answer {
  std::string prompt = {};
  std::string response = {};
  std::string truth = {};
  double reward = 0;
  bool correct = false;
  std::string message = {};  // what the rewards say of it
};

// A stage worked on rows, or waited for some: seconds since the run began.
struct TimelineSpan {
  std::string stage = {};
  bool works = false;
  double begin = 0, end = 0;
  int64_t rows = 0;
};

// How far the logs of a run have been written: the bytes of each file, by its path relative to the run.
using LogPosition = std::map<std::string, uint64_t>;

// Not thread-safe. When a call returns, what it wrote is with the system, so that another process can follow the run,
// and only a failure of the machine can lose it. After a failed write to a file, every later one to that file fails
// with the same error, which names it.
//
// The logs are for people, so that a run goes on without those that somebody removes or cuts: TakeLosses() says what is
// lost. A folder or a file that is gone is made again at the next write; while the folder cannot be made, nothing is
// logged.
class RunDirectory {
 public:
  // Creates the folder; AlreadyExists if it contains anything, and for all but one of several processes that want the
  // same folder. `env` and `clock` must outlive the result.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Create(Env& env, Clock& clock, const std::string& path);
  // The same for `root`/`name`-001, or the number after the highest that `root` holds. `root` need not exist.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> CreateNext(Env& env, Clock& clock, const std::string& root,
                                                                  absl::string_view name);
  // Creates only the empty folder that CreateNext() would have taken, for a run that another process begins with its
  // path. It is one that no other call has got.
  static absl::StatusOr<std::string> ReserveNext(Env& env, const std::string& root, absl::string_view name);

  // Goes on with a run whose logs were at `position`, which Position() gave to the process before: what they hold
  // beyond it is removed, so that the steps after it can be logged again; a log that is not in it is emptied, but
  // stays, because TensorBoard goes on to the next file only from one that is there. With an empty position all logs
  // begin anew. The caller makes sure that nothing else is writing to the run.
  //
  // A log that is missing, shorter than the position says, or without the end of a readable line there, is a loss: its
  // whole lines up to there stay, and it goes on behind them. NotFound if `path` is not the folder of a run.
  // Interrupted, it can be repeated.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Open(Env& env, Clock& clock, const std::string& path,
                                                            const LogPosition& position);

  // Syncs, and says how far the logs have been written. Unavailable while the folder is gone and cannot be made again.
  absl::StatusOr<LogPosition> Position();

  // Returns what has been lost of the folder since the last call, each a sentence for people that names the file or the
  // folder.
  std::vector<std::string> TakeLosses() { return std::exchange(losses_, {}); }
  // True if the folder was made again since the last call: what others had in it is gone, such as the lock.
  bool TakeRemade() { return std::exchange(remade_, false); }

  const std::string& path() const { return path_; }
  std::string checkpoint_path() const { return JoinPath(path_, "checkpoint"); }

  absl::Status WriteConfig(absl::string_view yaml);

  // `phase` (letters, digits, '-' and '_') names the part of the run, such as "sft" or "grpo". Steps count over all
  // phases: FailedPrecondition, with nothing written, if `step` is not greater than the last one of the file, whatever
  // its phase was, and whichever process wrote it. "phase" and "step" cannot be names of metrics.
  absl::Status LogMetrics(absl::string_view phase, int64_t step, const Metrics& metrics);
  absl::Status LogSamples(absl::string_view phase, int64_t step, std::span<const Answer> answers);
  absl::Status LogTimeline(absl::string_view phase, int64_t step, std::span<const TimelineSpan> spans);

  // Replaces report.html by one that shows the current contents of the folder, and metrics.csv by what metrics.jsonl
  // has now.
  absl::Status WriteReport(const ReportHead& head);

  // Returns once everything logged would survive a power failure.
  absl::Status Sync();

 private:
  // A file that grows by the lines of one step after the other.
  class LineFile {
   public:
    LineFile(Env& env, std::string path) : env_(env), path_(std::move(path)) {}
    const std::string& path() const { return path_; }
    absl::Status Append(absl::string_view phase, int64_t step, absl::string_view lines);
    absl::Status Sync();
    void set_last_step(int64_t step) { last_step_ = step; }
    // True if it was written to, and is not there any more.
    bool IsRemoved() const { return file_ != nullptr && !env_.Exists(path_); }
    // The next write makes the file.
    void Forget() {
      file_.reset();
      failed_ = absl::OkStatus();
    }

   private:
    Env& env_;
    const std::string path_;
    std::optional<int64_t> last_step_;
    std::unique_ptr<WritableFile> file_;
    absl::Status failed_;
  };

  RunDirectory(Env& env, Clock& clock, std::string path);

  // Makes what was removed again, and notes that it is lost; false while the folder cannot be made.
  bool Restore();
  // The words behind `what` in the sentence about a loss.
  void NoteLoss(absl::string_view what, absl::string_view consequence);
  absl::Status Append(LineFile& file, absl::string_view phase, int64_t step, absl::string_view lines);
  // Keeps what `position` says of each log, as far as it is there. `had_events`: whether their folder was.
  absl::Status CutLogs(const LogPosition& position, bool had_events);
  absl::StatusOr<uint64_t> KeepLines(LineFile& file, uint64_t bytes);

  absl::StatusOr<TensorBoardWriter*> EventsOf(absl::string_view phase, int64_t first_step);
  // The contents of `name`, or nothing if there is no such file yet.
  absl::StatusOr<std::string> ReadIfThere(absl::string_view name);

  Env& env_;
  Clock& clock_;
  const std::string path_;
  const absl::Time started_;
  LineFile metrics_;
  LineFile samples_;
  LineFile timeline_;
  std::map<std::string, std::unique_ptr<TensorBoardWriter>> events_;
  std::string config_;  // that was written last
  std::vector<std::string> losses_;
  bool remade_ = false, gone_ = false;
};

}  // namespace tdock::trainer
