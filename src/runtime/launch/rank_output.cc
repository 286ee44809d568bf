#include "runtime/launch/rank_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::runtime {
namespace {

constexpr absl::Duration kShowOverwrittenEvery = absl::Seconds(10);
constexpr size_t kLastLines = 20;
constexpr size_t kLastLineBytes = 500;
// What a pipe that poll() calls ready takes without waiting.
constexpr size_t kWriteBytes = 4096;

// A line as messages show it: what might change a terminal appears as an escape.
std::string Shown(absl::string_view line) {
  const std::string text = ReplaceInvalidUtf8(line.substr(0, kLastLineBytes));
  std::string shown;
  for (absl::string_view left = text; !left.empty();) {
    const Utf8Char next = *FirstUtf8Char(left);
    if (IsUnprintable(next.code) && next.code != '\t') {
      absl::StrAppend(&shown, "\\x", absl::Hex(static_cast<uint32_t>(next.code), absl::kZeroPad2));
    } else {
      absl::StrAppend(&shown, left.substr(0, next.bytes));
    }
    left.remove_prefix(next.bytes);
  }
  return line.size() > kLastLineBytes ? absl::StrCat(shown, "…") : shown;
}

}  // namespace

void LineSplitter::Add(absl::string_view bytes, absl::Time now, Sink sink) {
  while (!bytes.empty()) {
    if (returned_ && bytes[0] != '\n' && bytes[0] != '\r') {
      if (!line_.empty() && now - overwritten_at_ >= kShowOverwrittenEvery) {
        sink(line_);
        overwritten_at_ = now;
      }
      line_.clear();
      returned_ = false;
    }
    const size_t end = bytes.find_first_of("\r\n");
    const absl::string_view text = bytes.substr(0, std::min(end, kLongest - line_.size()));
    absl::StrAppend(&line_, text);
    bytes.remove_prefix(text.size());
    if (bytes.empty()) return;
    if (bytes[0] == '\r') {
      returned_ = true;
    } else {
      sink(line_);
      line_.clear();
      returned_ = false;
      if (bytes[0] != '\n') continue;  // the line was too long
    }
    bytes.remove_prefix(1);
  }
}

void LineSplitter::Finish(Sink sink) {
  if (!line_.empty()) sink(line_);
  line_.clear();
  returned_ = false;
}

void PatientOutput::Add(absl::string_view text) {
  if (!status_.ok()) return;
  absl::StrAppend(&pending_, text);
  Write();
}

void PatientOutput::Write() {
  size_t written = 0;
  while (written < pending_.size()) {
    pollfd watched{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (poll(&watched, 1, 0) <= 0) break;
    const ssize_t wrote =
        write(descriptor_, pending_.data() + written, std::min(pending_.size() - written, kWriteBytes));
    if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) break;
    if (wrote < 0) {
      status_ = absl::ErrnoToStatus(errno, "cannot write");
      written = pending_.size();
      break;
    }
    written += static_cast<size_t>(wrote);
  }
  pending_.erase(0, written);
}

void RankOutput::Add(absl::string_view bytes, absl::Time now, LineSplitter& lines, PatientOutput& output) {
  if (prefix_.empty()) output.Add(bytes);
  lines.Add(bytes, now, [&](absl::string_view line) { AddLine(line, output); });
}

void RankOutput::AddLine(absl::string_view line, PatientOutput& output) {
  if (!prefix_.empty()) output.Add(absl::StrCat(prefix_, line, "\n"));
  last_lines_.push_back(Shown(line));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  if (log_ == nullptr) return;
  if (const absl::Status logged = log_->Append(absl::StrCat(line, "\n")); !logged.ok()) {
    err_.Add(absl::StrCat("tdock launch: ", logged.message(), "; this log ends here\n"));
    log_.reset();
  }
}

void RankOutput::Finish() {
  out_lines_.Finish([&](absl::string_view line) { AddLine(line, out_); });
  err_lines_.Finish([&](absl::string_view line) { AddLine(line, err_); });
}

}  // namespace tdock::runtime
