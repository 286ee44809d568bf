#include "trainer/executor/timeline.h"

#include <algorithm>
#include <utility>

namespace tdock::trainer {
namespace {

// Before it is asked for, so much of each stage is kept.
constexpr size_t kMostKept = 4096;

// Halves their number, by putting together neighbours of one kind, or else the shortest with what comes before it.
void PutTogether(std::vector<StageSpan>& spans, size_t most) {
  std::vector<StageSpan> joined;
  for (StageSpan& span : spans) {
    if (!joined.empty() && joined.back().works == span.works) {
      joined.back().end = span.end;
      joined.back().rows += span.rows;
    } else {
      joined.push_back(std::move(span));
    }
  }
  while (joined.size() > std::max<size_t>(most, 2)) {
    const auto shortest = std::min_element(joined.begin() + 1, joined.end(), [](const auto& a, const auto& b) {
      return a.end - a.begin < b.end - b.begin;
    });
    const auto before = shortest - 1;
    before->end = shortest->end;
    before->rows += shortest->rows;
    const auto after = joined.erase(shortest);
    if (after == joined.end() || after->works != (after - 1)->works) continue;
    (after - 1)->end = after->end;
    (after - 1)->rows += after->rows;
    joined.erase(after);
  }
  spans = std::move(joined);
}

}  // namespace

void Timeline::Begin(const std::string& stage, bool works, int64_t rows, std::string which) {
  const absl::Time now = clock_.Now();
  const MutexLock lock(mu_);
  Close(stage, now);
  open_[stage] = {.stage = stage, .works = works, .begin = now, .end = now, .rows = rows};
  doing_[stage] = {.works = works, .rows = rows, .which = std::move(which), .since = now, .progress = now};
}

void Timeline::Progress(const std::string& stage) {
  const absl::Time now = clock_.Now();
  const MutexLock lock(mu_);
  const auto found = doing_.find(stage);
  if (found != doing_.end()) found->second.progress = now;
}

void Timeline::End(const std::string& stage) {
  const absl::Time now = clock_.Now();
  const MutexLock lock(mu_);
  Close(stage, now);
  open_.erase(stage);
  doing_.erase(stage);
}

void Timeline::Close(const std::string& stage, absl::Time now) {
  const auto found = open_.find(stage);
  if (found == open_.end()) return;
  found->second.end = now;
  std::vector<StageSpan>& spans = ended_[stage];
  spans.push_back(found->second);
  if (spans.size() > kMostKept) PutTogether(spans, kMostKept / 2);
}

Timeline::Taken Timeline::Take(size_t most_spans) {
  const absl::Time now = clock_.Now();
  Taken taken;
  const MutexLock lock(mu_);
  for (auto& [stage, span] : open_) {
    span.end = now;
    ended_[stage].push_back(span);
    span.begin = now;
    span.rows = 0;  // they are counted once
  }
  for (auto& [stage, spans] : ended_) {
    Times& times = taken.times[stage];
    for (const StageSpan& span : spans) {
      (span.works ? times.working : times.waiting) += absl::ToDoubleSeconds(span.end - span.begin);
    }
    PutTogether(spans, most_spans);
    taken.spans.insert(taken.spans.end(), spans.begin(), spans.end());
  }
  ended_.clear();
  std::stable_sort(taken.spans.begin(), taken.spans.end(), [](const auto& a, const auto& b) { return a.end < b.end; });
  return taken;
}

std::map<std::string, Timeline::Doing> Timeline::Now() const {
  const MutexLock lock(mu_);
  return doing_;
}

}  // namespace tdock::trainer
