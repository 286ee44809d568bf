#include "trainer/reward/external/log_lines.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

constexpr size_t kMostBytes = 500, kLastLines = 5;
constexpr int64_t kMostLines = 20;
constexpr absl::Duration kWindow = absl::Seconds(10);

}  // namespace

void LogLines::Add(absl::string_view bytes, absl::Time now) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const absl::string_view part = bytes.substr(0, end);
    const size_t fits = std::min(part.size(), kMostBytes - std::min(line_.size(), kMostBytes));
    line_.append(part.data(), fits);
    cut_ = cut_ || fits < part.size();
    if (end == absl::string_view::npos) return;
    AddLine(now);
    bytes.remove_prefix(end + 1);
  }
}

void LogLines::AddLine(absl::Time now) {
  const std::string text = EscapeForMessage(std::exchange(line_, {}), 2 * kMostBytes) + (cut_ ? "…" : "");
  cut_ = false;
  if (text.empty()) return;
  last_.push_back(text);
  if (last_.size() > kLastLines) last_.pop_front();
  if (now >= window_ + kWindow) {
    TellLeftOut();
    window_ = now;
    in_window_ = 0;
  }
  if (in_window_++ < kMostLines) {
    sink_(absl::StrCat(who_, ": ", text));
  } else {
    ++left_out_;
  }
}

void LogLines::TellLeftOut() {
  if (left_out_ > 0) sink_(absl::StrCat(who_, ": (", std::exchange(left_out_, 0), " more lines left out)"));
}

void LogLines::Finish() {
  if (!line_.empty()) AddLine(absl::Now());
  TellLeftOut();
}

std::string LogLines::LastWords() const { return absl::StrJoin(last_, " | "); }

}  // namespace tdock::reward
