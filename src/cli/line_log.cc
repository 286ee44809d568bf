#include "cli/line_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::cli {

LineLog::LineLog(std::ostream& stream, std::function<void(const std::string& what)> on_trouble)
    : stream_(stream), on_trouble_(std::move(on_trouble)), thread_([this] { Run(); }) {}

LineLog::~LineLog() {
  {
    const MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void LineLog::Add(absl::string_view line) {
  const MutexLock lock(mu_);
  if (lines_.size() >= kMostLines) {
    ++dropped_;
    return;
  }
  lines_.emplace_back(line.data(), line.size());
  changed_.NotifyAll();
}

void LineLog::Run() {
  bool failed = false;
  for (;;) {
    std::deque<std::string> lines;
    uint64_t dropped = 0;
    {
      const MutexLock lock(mu_);
      while (lines_.empty() && !ending_) changed_.Wait(mu_);
      if (lines_.empty()) return;
      lines.swap(lines_);
      dropped = std::exchange(dropped_, 0);
    }
    const bool written = Write(lines);
    if (dropped > 0) on_trouble_(absl::StrCat("could not keep up: ", dropped, " lines are lost"));
    if (!written && !failed) on_trouble_("cannot be written; lines are lost until it can");
    failed = !written;
  }
}

bool LineLog::Write(const std::deque<std::string>& lines) {
  stream_.clear();  // of a failure before, as of a disk that was full
  for (const std::string& line : lines) stream_ << line << '\n';
  stream_.flush();
  return stream_.good();
}

}  // namespace tdock::cli
