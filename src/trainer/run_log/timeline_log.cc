#include "trainer/run_log/timeline_log.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace tdock::trainer {
namespace {

using Json = LogRecord;

constexpr size_t kMostSpans = 2000;
constexpr size_t kMostLanes = 64;
constexpr size_t kLinesForOrder = 500;

struct Span {
  int64_t step = 0;
  std::string stage;
  bool works = false;
  double begin = 0, end = 0;
  int64_t rows = 0;
};

// The first `count` lines, and the last ones.
absl::string_view FirstLines(absl::string_view lines, size_t count) {
  size_t end = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t newline = lines.find('\n', end);
    if (newline == absl::string_view::npos) break;
    end = newline + 1;
  }
  return lines.substr(0, end);
}

absl::string_view LastLines(absl::string_view lines, size_t count) {
  size_t begin = lines.size();
  for (size_t i = 0; i <= count && begin > 0; ++i) {  // what follows the last newline is no line
    const size_t newline = lines.rfind('\n', begin - 1);
    if (newline == absl::string_view::npos) return lines;
    if (i == count) return lines.substr(newline + 1);
    begin = newline;
  }
  return lines;
}

double NumberOf(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_number() ? found->get<double>() : std::nan("");
}

struct Spans {
  std::vector<Span> spans;
  int64_t unreadable = 0;
};

Spans ReadSpans(absl::string_view lines) {
  Spans read;
  int64_t no_spans = 0;
  read.unreadable = ForEachRecord(lines, [&](const Json& record) {
    Span span{.step = record["step"].get<int64_t>(),
              .stage = TextOf(record, "stage"),
              .works = TextOf(record, "what") == "work",
              .begin = NumberOf(record, "begin"),
              .end = NumberOf(record, "end")};
    const double rows = NumberOf(record, "rows");
    span.rows = rows >= 0 && rows < 1e15 ? static_cast<int64_t>(rows) : 0;
    if (IsTimeOfSpan(span.begin, span.end)) {
      read.spans.push_back(std::move(span));
    } else {
      ++no_spans;
    }
  });
  read.unreadable += no_spans;
  return read;
}

size_t IndexOf(std::vector<std::string>& lanes, const std::string& stage) {
  const auto index = static_cast<size_t>(std::find(lanes.begin(), lanes.end(), stage) - lanes.begin());
  if (index == lanes.size()) lanes.push_back(stage);
  return index;
}

double Milliseconds(double seconds) { return std::round(1000 * seconds) / 1000; }

}  // namespace

bool IsTimeOfSpan(double begin, double end) {
  constexpr double kMostSeconds = 1e12;
  return begin >= -kMostSeconds && end >= begin && end <= kMostSeconds;
}

TimelineLog ReadTimeline(absl::string_view timeline_jsonl) {
  const absl::string_view last = LastLines(timeline_jsonl, kMostSpans);
  Spans read = ReadSpans(last);
  std::vector<Span>& spans = read.spans;
  bool left_out = last.size() < timeline_jsonl.size();
  if (left_out && !spans.empty() && spans.front().step != spans.back().step) {
    // Some of its spans are missing.
    std::erase_if(spans, [cut = spans.front().step](const Span& span) { return span.step == cut; });
  }
  std::vector<std::string> lanes;
  if (left_out) {
    for (const Span& span : ReadSpans(FirstLines(timeline_jsonl, kLinesForOrder)).spans) IndexOf(lanes, span.stage);
    std::erase_if(lanes, [&spans](const std::string& lane) {
      return std::none_of(spans.begin(), spans.end(), [&lane](const Span& span) { return span.stage == lane; });
    });
  }
  Json steps = Json::array(), all = Json::array();
  for (const Span& span : spans) {
    const size_t lane = IndexOf(lanes, span.stage);
    if (lane >= kMostLanes) continue;
    if (steps.empty() || steps.back()[0] != span.step) steps.push_back({span.step, Milliseconds(span.end)});
    Json& end = steps.back()[1];
    end = std::max(end.get<double>(), Milliseconds(span.end));
    all.push_back(
        {lane, steps.size() - 1, span.works ? 1 : 0, Milliseconds(span.begin), Milliseconds(span.end), span.rows});
  }
  lanes.resize(std::min(lanes.size(), kMostLanes));
  return {.data = {{"lanes", lanes}, {"steps", steps}, {"spans", all}, {"left_out", left_out}},
          .unreadable = read.unreadable};
}

}  // namespace tdock::trainer
