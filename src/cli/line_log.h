// Lines for a file, written by a thread of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <ostream>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace tdock::cli {

// Never makes its callers wait for a disk or a reader. Thread-safe.
class LineLog {
 public:
  // The stream must outlive it, and be thread-safe if others write to it. Calls `on_trouble`, on its thread, with what
  // is wrong: once for lines that were lost because the stream failed or was too slow, and again after it has
  // recovered.
  LineLog(std::ostream& stream, std::function<void(const std::string& what)> on_trouble);
  // Writes what is left, if the stream takes it.
  ~LineLog();

  // Beyond kMostLines that wait, a line is dropped and counted.
  void Add(absl::string_view line) TDOCK_EXCLUDES(mu_);
  static constexpr size_t kMostLines = 10'000;

 private:
  void Run() TDOCK_EXCLUDES(mu_);
  bool Write(const std::deque<std::string>& lines);

  std::ostream& stream_;
  const std::function<void(const std::string&)> on_trouble_;
  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> lines_ TDOCK_GUARDED_BY(mu_);
  uint64_t dropped_ TDOCK_GUARDED_BY(mu_) = 0;
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tdock::cli
