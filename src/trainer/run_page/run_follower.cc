#include "trainer/run_page/run_follower.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/config/spec.h"
#include "trainer/run_log/sample_data.h"
#include "trainer/run_log/timeline_log.h"

namespace tdock::trainer {
namespace {

constexpr uint64_t kMostConfigBytes = uint64_t{4} << 20;
constexpr size_t kMostSampleGroups = 6;
constexpr size_t kMostSpans = 2000;
constexpr size_t kMostLanes = 64;
constexpr size_t kMostTags = 2000;  // of a phase
constexpr size_t kMostPhases = 32;
// What a list of runs shows of each.
constexpr const char* kHeadlines[] = {"val/accuracy", "val/reward/mean", "val/loss", "critic/score/mean", "train/loss"};

absl::Time ChangeOf(const std::string& path) {
  struct stat facts {};
  return ::stat(path.c_str(), &facts) == 0 ? absl::TimeFromTimespec(facts.st_mtim) : absl::InfinitePast();
}

LogRecord Seconds(absl::Time time) {
  return time == absl::InfinitePast() ? LogRecord() : LogRecord(absl::ToUnixSeconds(time));
}

double Milliseconds(double seconds) { return std::round(1000 * seconds) / 1000; }

}  // namespace

// Lines of metrics into series.
class RunFollower::MetricTaker final : public LineReader::Taker {
 public:
  explicit MetricTaker(RunFollower& run) : run_(run) {}

  void Begin(int64_t step, absl::string_view name) override {
    step_ = step;
    place_ = 0;
    number_ = run_.sequence_.Next();
    if (phase_ == nullptr || phase_->name != name) phase_ = Find(name);
    if (phase_ == nullptr) return;
    phase_->first_step = std::min(phase_->first_step, step);
    phase_->last_step = std::max(phase_->last_step, step);
    phase_->changed = number_;
  }
  void Number(absl::string_view name, double value) override {
    if (phase_ == nullptr) return;
    // Almost every line has the metrics of the line before, in their order.
    if (place_ >= phase_->tags.size() || phase_->tags[place_].name != name) {
      const auto found = phase_->index.find(name);
      if (found == phase_->index.end() && phase_->tags.size() >= kMostTags) return;
      place_ = found != phase_->index.end() ? found->second : phase_->tags.size();
      if (found == phase_->index.end()) {
        phase_->tags.push_back({std::string(name), {}});
        phase_->index.emplace(name, place_);
      }
    }
    phase_->tags[place_].series.Add(number_, step_, value);
    ++place_;
  }

 private:
  Phase* Find(absl::string_view name) {
    for (Phase& phase : run_.phases_) {
      if (phase.name == name) return &phase;
    }
    if (run_.phases_.size() >= kMostPhases) return nullptr;
    return &run_.phases_.emplace_back(Phase{.name = std::string(name)});
  }

  RunFollower& run_;
  Phase* phase_ = nullptr;
  int64_t step_ = 0;
  size_t place_ = 0;
  uint64_t number_ = 0;
};

// Lines of the timeline into spans.
class RunFollower::SpanTaker final : public LineReader::Taker {
 public:
  explicit SpanTaker(RunFollower& run) : run_(run) {}

  void Begin(int64_t step, absl::string_view /*phase*/) override {
    span_ = {.step = step, .begin = std::nan(""), .end = std::nan("")};
    stage_.clear();
  }
  void Number(absl::string_view name, double value) override {
    if (name == "begin") span_.begin = value;
    if (name == "end") span_.end = value;
    if (name == "rows") span_.rows = value >= 0 && value < 1e15 ? value : 0;
  }
  void Text(absl::string_view name, absl::string_view value) override {
    if (name == "stage") stage_ = std::string(value);
    if (name == "what") span_.works = value == "work";
  }
  void End() override {
    const bool is_span = IsTimeOfSpan(span_.begin, span_.end);
    std::vector<std::string>& lanes = run_.lanes_;
    span_.lane = static_cast<size_t>(std::find(lanes.begin(), lanes.end(), stage_) - lanes.begin());
    if (!is_span || span_.lane >= kMostLanes) {
      run_.unreadable_ += is_span ? 0 : 1;
      return;
    }
    if (span_.lane == lanes.size()) lanes.push_back(stage_);
    span_.number = run_.sequence_.Next();
    run_.seconds_ = std::max(run_.seconds_, span_.end);
    run_.spans_.push_back(span_);
    if (run_.spans_.size() <= kMostSpans) return;
    run_.spans_.pop_front();
    run_.left_out_ = true;
  }

 private:
  RunFollower& run_;
  Span span_;
  std::string stage_;
};

RunFollower::RunFollower(Env& env, std::string path, std::string name, Sequence& sequence)
    : env_(env),
      path_(std::move(path)),
      name_(std::move(name)),
      sequence_(sequence),
      metrics_(env, JoinPath(path_, "metrics.jsonl")),
      samples_log_(env, JoinPath(path_, "samples.jsonl")),
      timeline_(env, JoinPath(path_, "timeline.jsonl")) {
  Forget();
}

void RunFollower::Forget() {
  for (FileTail* tail : {&metrics_, &samples_log_, &timeline_}) tail->Restart();
  changed_ = begun_ = head_changed_ = sequence_.Next();
  config_time_ = absl::InfiniteFuture();
  problem_.clear();
  unreadable_ = 0;
  phases_.clear();
  samples_.clear();
  lanes_.clear();
  spans_.clear();
  left_out_ = false;
  seconds_ = -1;
}

bool RunFollower::Poll(size_t most_bytes) {
  restarted_ = false;
  trouble_.clear();
  PollHead();
  bool more = PollLog(metrics_, most_bytes, &RunFollower::TakeMetrics);
  more |= PollLog(samples_log_, most_bytes, &RunFollower::TakeSamples);
  more |= PollLog(timeline_, most_bytes, &RunFollower::TakeSpans);
  SetProblem(std::move(trouble_));
  if (!restarted_) return more;
  // The run has been resumed, and its logs replaced: all of them belong together.
  Forget();
  return true;
}

void RunFollower::PollHead() {
  if (const absl::StatusOr<RunState> state = RunStateOf(env_, path_); !state.ok()) {
    trouble_ = std::string(state.status().message());
  } else if (*state != state_) {
    state_ = *state;
    changed_ = head_changed_ = sequence_.Next();
  }
  const std::string path = JoinPath(path_, "config.yaml");
  const absl::Time changed = ChangeOf(path);
  if (changed == config_time_) return;
  absl::StatusOr<std::string> yaml = ReadFileUpTo(env_, path, kMostConfigBytes);
  if (!yaml.ok()) {
    trouble_ = std::string(yaml.status().message());
    return;
  }
  config_time_ = changed;
  config_yaml_ = *std::move(yaml);
  auto values = config::ValuesIn(config_yaml_, path);
  config_ = values.ok() ? *std::move(values) : std::map<std::string, std::string>();
  changed_ = head_changed_ = sequence_.Next();
}

bool RunFollower::PollLog(FileTail& tail, size_t most_bytes, void (RunFollower::*take)(std::string)) {
  absl::StatusOr<FileTail::News> news = tail.Read(most_bytes);
  if (!news.ok()) {
    trouble_ = std::string(news.status().message());
    return false;
  }
  restarted_ |= news->restarted;
  unreadable_ += news->too_long;
  if (!news->lines.empty()) {
    (this->*take)(std::move(news->lines));
    log_time_ = ChangeOf(JoinPath(path_, "metrics.jsonl"));
    changed_ = sequence_.Next();
  }
  return news->more;
}

void RunFollower::TakeMetrics(std::string lines) {
  MetricTaker taker(*this);
  unreadable_ += reader_.Read(std::move(lines), taker);
}

void RunFollower::TakeSpans(std::string lines) {
  SpanTaker taker(*this);
  unreadable_ += reader_.Read(std::move(lines), taker);
}

// Keeps those of the first step and of the last ones.
void RunFollower::TakeSamples(std::string lines) {
  unreadable_ += ForEachRecord(lines, [&](const LogRecord& record) {
    const std::string key = absl::StrCat(TextOf(record, "phase"), " ", record["step"].get<int64_t>());
    if (samples_.empty() || samples_.back().key != key) {
      samples_.push_back({.key = key});
      if (samples_.size() > kMostSampleGroups) samples_.erase(samples_.begin() + 1);
    }
    SampleGroup& group = samples_.back();
    if (group.samples.size() == kMostSamplesOfAStep) return;
    group.samples.push_back(SampleData(record));
    group.changed = sequence_.Next();
  });
}

void RunFollower::SetProblem(std::string problem) {
  if (problem == problem_) return;
  problem_ = std::move(problem);
  changed_ = sequence_.Next();
}

double RunFollower::ReadShare() const {
  uint64_t read = 0, all = 0;
  for (const FileTail* tail : {&metrics_, &samples_log_, &timeline_}) {
    read += tail->read_bytes();
    all += tail->size();
  }
  return all == 0 ? 1 : std::floor(1000 * static_cast<double>(read) / static_cast<double>(all)) / 1000;
}

LogRecord RunFollower::Head() const {
  const auto value = [&](const char* key) {
    const auto found = config_.find(key);
    return found == config_.end() ? std::string() : found->second;
  };
  LogRecord facts = LogRecord::array();
  const std::pair<const char*, const char*> shown[] = {
      {"seed", "seed"}, {"device", "device"}, {"model", "model.path"}, {"steps", "trainer.total_training_steps"}};
  for (const auto& [name, key] : shown) {
    if (const std::string text = value(key); !text.empty() && text != "0" && text != "\"\"")
      facts.push_back({name, text});
  }
  return {{"title", absl::StrCat(absl::AsciiStrToUpper(value("recipe")), ": ", name_)},
          {"state", std::string(ToText(state_))},
          {"facts", std::move(facts)},
          {"config", config_yaml_}};
}

LogRecord RunFollower::PhasesSince(uint64_t seen) const {
  LogRecord phases = LogRecord::array();
  for (const Phase& phase : phases_) {
    if (phase.changed <= seen) continue;
    StepLists steps;
    LogRecord all = LogRecord::array();
    for (const Tag& tag : phase.tags) {
      std::optional<LogRecord> series = tag.series.Since(seen);
      if (!series) continue;
      LogRecord entry = {{"tag", tag.name}};
      entry.update(*series);
      steps.Share(entry);
      all.push_back(std::move(entry));
    }
    phases.push_back({{"name", phase.name},
                      {"first_step", phase.first_step},
                      {"last_step", phase.last_step},
                      {"steps", steps.lists()},
                      {"series", std::move(all)}});
  }
  return phases;
}

LogRecord RunFollower::SamplesSince(uint64_t seen) const {
  LogRecord keys = LogRecord::array(), groups = LogRecord::array();
  for (const SampleGroup& group : samples_) {
    keys.push_back(group.key);
    if (group.changed > seen) groups.push_back(LogRecord::array({group.key, group.samples}));
  }
  return {{"keys", std::move(keys)}, {"groups", std::move(groups)}};
}

LogRecord RunFollower::Since(uint64_t seen) const {
  const bool reset = seen < begun_;
  if (reset) seen = 0;
  LogRecord data = {{"run", name_}, {"reset", reset}};
  if (head_changed_ > seen) data["head"] = Head();
  data.update({{"read", ReadShare()},
               {"unreadable", unreadable_},
               {"problem", problem_},
               {"seconds", seconds_ < 0 ? LogRecord() : LogRecord(Milliseconds(seconds_))},
               {"changed", Seconds(log_time_)},
               {"phases", PhasesSince(seen)}});
  LogRecord samples = SamplesSince(seen);
  if (!samples["groups"].empty()) data["samples"] = std::move(samples);
  LogRecord spans = LogRecord::array();
  const auto first =
      std::partition_point(spans_.begin(), spans_.end(), [&](const Span& s) { return s.number <= seen; });
  for (auto span = first; span != spans_.end(); ++span) {
    spans.push_back({span->lane, span->step, span->works ? 1 : 0, Milliseconds(span->begin), Milliseconds(span->end),
                     static_cast<int64_t>(span->rows)});
  }
  data.update({{"lanes", lanes_}, {"left_out", left_out_}, {"spans", std::move(spans)}});
  return data;
}

LogRecord RunFollower::Summary() const {
  LogRecord last = LogRecord::object(), step, steps;
  std::string phase_name;
  for (const Phase& phase : phases_) {
    phase_name = phase.name;
    step = phase.last_step;
    for (const char* tag : kHeadlines) {
      const auto found = phase.index.find(absl::string_view(tag));
      if (found == phase.index.end()) continue;
      const std::optional<LogRecord> series = phase.tags[found->second].series.LastPoint();
      if (series) last[tag] = *series;
    }
  }
  const auto total = config_.find("trainer.total_training_steps");
  if (int64_t count = 0; total != config_.end() && absl::SimpleAtoi(total->second, &count) && count > 0) steps = count;
  const auto recipe = config_.find("recipe");
  return {{"name", name_},
          {"state", std::string(ToText(state_))},
          {"recipe", recipe == config_.end() ? "" : recipe->second},
          {"phase", phase_name},
          {"step", step},
          {"steps", steps},
          {"changed", Seconds(log_time_)},
          {"read", ReadShare()},
          {"problem", problem_},
          {"last", std::move(last)}};
}

std::optional<LogRecord> RunFollower::MetricSince(const std::string& tag, uint64_t seen) const {
  const bool reset = seen < begun_;
  if (reset) seen = 0;
  LogRecord phases = LogRecord::array();
  for (const Phase& phase : phases_) {
    const auto found = phase.index.find(tag);
    if (found == phase.index.end() || phase.changed <= seen) continue;
    std::optional<LogRecord> series = phase.tags[found->second].series.Since(seen);
    if (!series) continue;
    series->update({{"phase", phase.name}});
    phases.push_back(*std::move(series));
  }
  if (phases.empty()) return std::nullopt;
  return LogRecord{{"run", name_}, {"tag", tag}, {"reset", reset}, {"phases", std::move(phases)}};
}

std::vector<std::string> RunFollower::Tags() const {
  std::vector<std::string> tags;
  for (const Phase& phase : phases_) {
    for (const auto& [name, place] : phase.index) tags.push_back(name);
  }
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  return tags;
}

}  // namespace tdock::trainer
