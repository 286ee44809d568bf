// When a run is saved, and which of its checkpoints stay.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/loop/save_freq.h"
#include "trainer/run_log/run_directory.h"

namespace tdock::trainer {

// The folder with the checkpoints of a run.
inline std::string CheckpointsPath(absl::string_view run_dir) { return JoinPath(run_dir, "checkpoints"); }

// What a checkpoint is to hold.
struct CheckpointContents {
  uint64_t bytes = 0;  // about, for messages
  std::function<absl::Status(const std::string& folder)> write;
};

// Used by one thread, which the writing in the background does not hold up.
class RunCheckpoints {
 public:
  struct Options {
    SaveFreq freq = {};
    int64_t most_kept = 0;         // the newest, beside the best; 0: all
    std::string best_metric = {};  // of the validation; empty: none
    bool best_is_least = false;
  };
  // Of the run in `run_dir`, which goes on from `from`. `log` gets a line for each checkpoint that cannot be written.
  // Env and clock must outlive this.
  RunCheckpoints(Env& env, Clock& clock, const std::string& run_dir, CheckpointPlace from, Options options,
                 std::function<void(const std::string&)> log);
  // Waits for what is being written.
  ~RunCheckpoints() { Finish(); }
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  // Whether to save after this step: it is time to, the last attempt failed a while ago, or `validation`, of this step
  // or empty, has the best metric so far, for which it waits for what is being written; otherwise it is never true
  // while IsWriting(), but once that is over. InvalidArgument where the validation of step 0 lacks that metric.
  absl::StatusOr<bool> IsDue(int64_t step, const Metrics& validation);

  // Writes in the background what does not change any more. Only while IsWriting() is false.
  void Write(const CheckpointPlace& place, const Metrics& validation, CheckpointContents contents);
  bool IsWriting() const { return writer_ != nullptr; }
  // Takes note of what has been written by now, and removes checkpoints that are not kept any more.
  void Collect();
  // The same, once it is written.
  void Finish();

  // Writes now, unless it is there already, or even then if `again`; an error names the folder and the bytes.
  absl::Status WriteNow(const CheckpointPlace& place, const Metrics& validation, CheckpointContents contents,
                        bool again = false);
  // Takes note of a checkpoint for which there was nothing to write, because of `failure`.
  void NoteFailure(const CheckpointPlace& place, const absl::Status& failure) {
    last_ = clock_.Now();
    Conclude(place, {}, failure);
  }

  // The newest that is complete; nothing if there is none, or if they cannot be listed.
  std::optional<CheckpointPlace> Newest() const;
  std::string PathOf(const CheckpointPlace& place) const { return folder_.PathOf(place); }

  // Called, in this thread, after each checkpoint that was written.
  std::function<absl::Status(const CheckpointPlace&)> on_written = [](const CheckpointPlace&) {
    return absl::OkStatus();
  };

 private:
  struct Writing {
    std::thread thread;
    CheckpointPlace place;
    Metrics validation;
    std::atomic<bool> done = false;
    absl::Status status;  // once done
  };

  absl::Status WriteTo(const CheckpointPlace& place, const Metrics& validation, const CheckpointContents& contents);
  void Conclude(const CheckpointPlace& place, const Metrics& validation, const absl::Status& status);
  void RemoveOld();
  bool IsBetter(double value) const;

  Env& env_;
  Clock& clock_;
  CheckpointFolder folder_;
  const Options options_;
  const std::function<void(const std::string&)> log_;
  absl::Time last_;                      // when the run was saved, or when it began
  bool told_ = false;                    // that the best metric is not measured
  bool owed_ = false;                    // was due while another was being written
  std::optional<absl::Time> try_again_;  // after a failure
  std::optional<double> best_;
  std::optional<CheckpointPlace> best_place_;
  std::unique_ptr<Writing> writer_;
};

}  // namespace tdock::trainer
