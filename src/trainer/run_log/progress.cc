#include "trainer/run_log/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kRedrawEvery = absl::Milliseconds(100);
constexpr absl::Duration kLogEvery = absl::Seconds(10);
constexpr absl::Duration kTickEvery = absl::Seconds(1);
constexpr int kNarrowestBar = 10;
constexpr int kWidestBar = 40;

// Back to the first column; the rest of the line is cleared after the new text, so that nothing flickers.
constexpr absl::string_view kLineStart = "\r";
constexpr absl::string_view kClearToEnd = "\x1b[K";

// 0:07, 12:34, 1:02:03.
std::string ClockText(absl::Duration duration) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(duration));
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

// Of nearly constant width, so that the text after it does not move.
std::string FigureText(double value) {
  const double size = std::fabs(value);
  if (!std::isfinite(value)) return absl::StrFormat("%g", value);
  if (size != 0 && size < 0.001) return absl::StrFormat("%.1e", value);
  if (size < 10) return absl::StrFormat("%.3f", value);
  if (size < 1000) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

std::string Text(const Progress::Figure& figure) {
  return absl::StrCat(EscapeUnprintable(figure.name), " ", FigureText(figure.value), EscapeUnprintable(figure.note));
}

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = absl::AsciiStrToLower(value);
    return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
  }
  return false;
}

}  // namespace

ProgressOutput ProgressOutput::StandardError() {
  const char* terminal = std::getenv("TERM");
  const bool redraws = ::isatty(STDERR_FILENO) == 1 && terminal != nullptr && absl::string_view(terminal) != "dumb";
  ProgressOutput output;
  output.write = [](absl::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // no output
      text.remove_prefix(static_cast<size_t>(written));
    }
  };
  output.columns = [redraws] {
    if (!redraws) return 0;
    winsize size = {};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? int{size.ws_col} : 80;
  };
  output.unicode = LocaleIsUtf8();
  return output;
}

Progress::~Progress() {
  const MutexLock lock(mu_);
  if (running_) Finish("stopped", "");
}

void Progress::Begin(std::string phase, int64_t total, int64_t done, std::string unit) {
  const MutexLock lock(mu_);
  if (running_) Finish("", "");
  running_ = true;
  phase_ = EscapeUnprintable(phase);
  unit_ = std::move(unit);
  doing_.clear();
  total_ = total;
  done_before_ = done;
  step_ = done;
  figures_.clear();
  begun_ = clock_.Now();
  shown_at_ = begun_;
  shown_step_ = done;
  silence_ = kLogEvery;
  if (const int columns = output_.columns(); columns > 0) Draw(columns, begun_);
}

void Progress::Update(int64_t step, const Figures& figures) {
  const MutexLock lock(mu_);
  step_ = step;
  figures_ = figures;
  doing_.clear();
  const int columns = output_.columns();
  const absl::Time now = clock_.Now();
  if (columns > 0) {
    if (now - shown_at_ < kRedrawEvery && step != total_) return;
    Draw(columns, now);
  } else {
    if (now - shown_at_ < kLogEvery || (step - shown_step_) * 100 < total_) return;
    output_.write(absl::StrCat(PlainLine(), "\n"));
    shown_at_ = now;
  }
  shown_step_ = step;
}

void Progress::Doing(std::string what) {
  const MutexLock lock(mu_);
  doing_ = EscapeUnprintable(what);
}

void Progress::Tick() {
  const MutexLock lock(mu_);
  if (!running_) return;
  const absl::Time now = clock_.Now();
  if (const int columns = output_.columns(); columns > 0) {
    if (now - shown_at_ >= kRedrawEvery) Draw(columns, now);
    return;
  }
  if (step_ > done_before_ || now - shown_at_ < silence_) return;
  silence_ *= 2;
  output_.write(absl::StrCat(PlainLine(), "\n"));
  shown_at_ = now;
}

void Progress::End(absl::string_view remark) {
  const MutexLock lock(mu_);
  if (running_) Finish("", remark);
}

void Progress::Draw(int columns, absl::Time now) {
  drawn_ = true;
  shown_at_ = now;
  output_.write(absl::StrCat(kLineStart, TerminalLine(columns), kClearToEnd));
}

void Progress::Finish(absl::string_view verdict, absl::string_view remark) {
  std::string text = drawn_ ? absl::StrCat(kLineStart, kClearToEnd) : "";
  running_ = false;
  drawn_ = false;
  if (unit_.empty()) return output_.write(text);
  absl::StrAppend(&text, phase_, ": ");
  if (!verdict.empty()) {
    absl::StrAppend(&text, verdict, " after ", Counts(), " ", unit_, "s");
  } else {
    absl::StrAppend(&text, step_, " ", unit_, step_ == 1 ? "" : "s");
  }
  absl::StrAppend(&text, " in ", ClockText(clock_.Now() - begun_));
  for (const Figure& figure : figures_) absl::StrAppend(&text, ", ", Text(figure));
  if (!remark.empty()) absl::StrAppend(&text, "; ", EscapeUnprintable(remark));
  output_.write(absl::StrCat(text, "\n"));
}

std::string Progress::Counts() const { return total_ > 0 ? absl::StrCat(step_, "/", total_) : absl::StrCat(step_); }

std::string Progress::Times() const {
  const absl::Duration elapsed = clock_.Now() - begun_;
  std::string text = ClockText(elapsed);
  if (total_ > 0 && step_ > done_before_ && step_ < total_) {
    const absl::Duration left =
        elapsed * (static_cast<double>(total_ - step_) / static_cast<double>(step_ - done_before_));
    absl::StrAppend(&text, ", ", ClockText(left), " left");
  }
  return text;
}

std::string Progress::PlainLine() const {
  std::string text = phase_;
  if (!unit_.empty()) absl::StrAppend(&text, " ", Counts());
  if (total_ > 0) absl::StrAppend(&text, " (", step_ * 100 / total_, "%)");
  absl::StrAppend(&text, ", ", Times());
  if (!doing_.empty()) absl::StrAppend(&text, ", ", doing_);
  for (const Figure& figure : figures_) absl::StrAppend(&text, ", ", Text(figure));
  return text;
}

std::string Progress::Bar(int width) const {
  const int64_t filled = std::clamp<int64_t>(step_ * width / total_, 0, width);
  std::string bar;
  for (int i = 0; i < width; ++i) {
    bar += i < filled ? (output_.unicode ? "━" : "#") : (output_.unicode ? "─" : "-");
  }
  return bar;
}

// Leaves out what does not fit: figures from the last one on, then the work of the moment, then the bar, then
// everything but the count.
std::string Progress::TerminalLine(int columns) const {
  // Text in the last column would make some terminals wrap to the next line.
  const int room = columns - 1;
  const std::string head = phase_, counts = unit_.empty() ? "" : absl::StrCat("  ", Counts());
  std::string tail = absl::StrCat(counts, "  ", Times());
  const int bar_room = total_ > 0 ? kNarrowestBar + 2 : 0;
  const auto used = [&] { return static_cast<int>(head.size() + tail.size()); };
  std::vector<std::string> parts;
  if (!doing_.empty()) parts.push_back(absl::StrCat(", ", doing_));
  for (const Figure& figure : figures_) parts.push_back(absl::StrCat("  ", Text(figure)));
  for (const std::string& part : parts) {
    if (used() + bar_room + static_cast<int>(part.size()) > room) break;
    tail += part;
  }
  if (total_ > 0 && used() + bar_room <= room) {
    return absl::StrCat(head, "  ", Bar(std::min(kWidestBar, room - used() - 2)), tail);
  }
  std::string line = absl::StrCat(head, tail);
  if (static_cast<int>(line.size()) > room) line = absl::StrCat(head, counts);
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(room, 0))));
  line.resize(line.size() - UnfinishedUtf8(line));
  return line;
}

ProgressTicker::ProgressTicker(Progress& progress, Clock& clock)
    : progress_(progress), clock_(clock), thread_([this] { Run(); }) {}

ProgressTicker::~ProgressTicker() {
  {
    const MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void ProgressTicker::Run() {
  for (;;) {
    const absl::Time next = clock_.Now() + kTickEvery;
    {
      const MutexLock lock(mu_);
      while (!ended_ && clock_.Now() < next) clock_.Wait(changed_, mu_, next);
      if (ended_) return;
    }
    progress_.Tick();
  }
}

}  // namespace tdock::trainer
