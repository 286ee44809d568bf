// What the ranks of a run write, line by line on the standard streams of this process.
#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"

namespace tdock::runtime {

// Cuts a text that arrives in parts into lines. They may have any bytes. Not thread-safe.
//
// What a program overwrites with a carriage return, such as a progress bar, is a line only once in ten seconds; what
// remains at the end of the line always is. A line of more than 64 KiB becomes several.
class LineSplitter {
 public:
  static constexpr size_t kLongest = 64 << 10;
  using Sink = absl::FunctionRef<void(absl::string_view)>;  // gets lines without their ends

  void Add(absl::string_view bytes, absl::Time now, Sink sink);
  // At the end of the text: what follows the last line end, if anything does.
  void Finish(Sink sink);

 private:
  std::string line_;
  bool returned_ = false;  // whether a carriage return follows `line_`
  absl::Time overwritten_at_ = absl::InfinitePast();
};

// Writes to a descriptor without waiting for whoever reads it. Not thread-safe.
class PatientOutput {
 public:
  explicit PatientOutput(int descriptor) : descriptor_(descriptor) {}

  // Keeps what cannot be written at once.
  void Add(absl::string_view text);
  // For poll(): once it is ready, Write() has something to do.
  pollfd Watched() const { return {.fd = pending_.empty() ? -1 : descriptor_, .events = POLLOUT, .revents = 0}; }
  // Writes what can be written at once.
  void Write();
  bool empty() const { return pending_.empty(); }
  // Whether so much is kept that no more should be added.
  bool full() const { return pending_.size() > 1 << 20; }
  // The first error; from then on everything is dropped.
  const absl::Status& status() const { return status_; }

 private:
  const int descriptor_;
  std::string pending_;
  absl::Status status_;
};

// Both streams of one rank. Not thread-safe.
class RankOutput {
 public:
  // Each line begins with `prefix`; without one, bytes are passed on as they are. `log` gets the lines of both streams,
  // or is null. The outputs must outlive this.
  RankOutput(std::string prefix, PatientOutput& out, PatientOutput& err, std::unique_ptr<WritableFile> log)
      : prefix_(std::move(prefix)), out_(out), err_(err), log_(std::move(log)) {}

  void AddOut(absl::string_view bytes, absl::Time now) { Add(bytes, now, out_lines_, out_); }
  void AddErr(absl::string_view bytes, absl::Time now) { Add(bytes, now, err_lines_, err_); }
  // Once both streams have ended.
  void Finish();

  // The last 20, of both streams, in a form for messages.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void Add(absl::string_view bytes, absl::Time now, LineSplitter& lines, PatientOutput& output);
  void AddLine(absl::string_view line, PatientOutput& output);

  const std::string prefix_;
  PatientOutput& out_;
  PatientOutput& err_;
  std::unique_ptr<WritableFile> log_;
  LineSplitter out_lines_, err_lines_;
  std::deque<std::string> last_lines_;
};

}  // namespace tdock::runtime
