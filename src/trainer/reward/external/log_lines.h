// What a program writes for people, as lines of the run's log.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tdock::reward {

// Gets one line, without its end. Must be thread-safe.
using LogSink = std::function<void(const std::string& line)>;

// Passes on at most 20 lines in 10 s, each cut after 500 bytes, as `WHO: …`, and says how many it left out. Not
// thread-safe.
class LogLines {
 public:
  LogLines(std::string who, LogSink sink) : who_(std::move(who)), sink_(std::move(sink)) {}
  // Passes on a line without an end.
  ~LogLines() { Finish(); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  void Add(absl::string_view bytes, absl::Time now);
  void Finish();

  // The last lines, for an error; empty if there was none.
  std::string LastWords() const;

 private:
  void AddLine(absl::Time now);
  void TellLeftOut();

  const std::string who_;
  const LogSink sink_;
  std::string line_;
  bool cut_ = false;  // the line was longer
  std::deque<std::string> last_;
  absl::Time window_ = absl::InfinitePast();
  int64_t in_window_ = 0, left_out_ = 0;
};

}  // namespace tdock::reward
