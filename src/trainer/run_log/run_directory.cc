#include "trainer/run_log/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/run_log/metrics_csv.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kMetricsFile = "metrics.jsonl";
constexpr absl::string_view kSamplesFile = "samples.jsonl";
constexpr absl::string_view kTimelineFile = "timeline.jsonl";
constexpr absl::string_view kEventsFolder = "tensorboard";
constexpr absl::string_view kConfigFile = "config.yaml";
constexpr size_t kPieceBytes = 1 << 20;
constexpr int kMostAttempts = 1000;

// The host's name in a form that a file name may contain.
std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  std::string host = name;
  std::replace(host.begin(), host.end(), '/', '-');
  return host;
}

absl::Status CheckPhase(absl::string_view phase) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  };
  if (!phase.empty() && std::all_of(phase.begin(), phase.end(), allowed)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the phase '", EscapeForMessage(phase), "' must consist of letters, digits, '-' and '_'"));
}

absl::Status CheckMetricName(const std::string& name) {
  if (name == "phase" || name == "step") {
    return absl::InvalidArgumentError(absl::StrCat("a metric cannot be named '", name, "': each line has that field"));
  }
  if (!name.empty() && EscapeUnprintable(name) == name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", EscapeForMessage(name), "' cannot be the name of a metric"));
}

// One closed line. Not-finite numbers come out as null.
std::string Line(const Json& record) { return JsonText(record) + "\n"; }

absl::StatusOr<std::string> NextRunPath(Env& env, const std::string& root, absl::string_view name) {
  if (name.empty() || absl::StrContains(name, '/') || EscapeUnprintable(name) != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", EscapeForMessage(name), "' cannot be the name of a run's folder"));
  }
  int64_t highest = 0;
  if (env.Exists(root)) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.List(root));
    for (absl::string_view entry : entries) {
      int64_t number = 0;
      if (absl::ConsumePrefix(&entry, name) && absl::ConsumePrefix(&entry, "-") && absl::SimpleAtoi(entry, &number)) {
        highest = std::max(highest, number);
      }
    }
  }
  return JoinPath(root, absl::StrFormat("%s-%03d", name, highest + 1));
}

// The logs that a run has, relative to it.
absl::StatusOr<std::vector<std::string>> LogFiles(Env& env, const std::string& run) {
  std::vector<std::string> files;
  for (const absl::string_view name : {kMetricsFile, kSamplesFile, kTimelineFile}) {
    if (env.Exists(JoinPath(run, name))) files.emplace_back(name);
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> phases, env.List(JoinPath(run, kEventsFolder)));
  for (const std::string& phase : phases) {
    const std::string folder = JoinPath(kEventsFolder, phase);
    const absl::StatusOr<std::vector<std::string>> names = env.List(JoinPath(run, folder));
    if (!names.ok()) continue;  // it is none of ours
    for (const std::string& name : *names) {
      if (absl::StartsWith(name, kEventFilePrefix)) files.push_back(JoinPath(folder, name));
    }
  }
  return files;
}

// The step of a line of a log; nothing if it has none.
std::optional<int64_t> StepOf(absl::string_view line) {
  const Json record = ReadOrderedJson(line);
  if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer()) return std::nullopt;
  return record["step"].get<int64_t>();
}

// Leaves the first `bytes` of a file, which has as many.
absl::Status CutFile(Env& env, const std::string& path, uint64_t bytes) {
  TDOCK_ASSIGN_OR_RETURN(const auto file, env.OpenForReading(path));
  if (file->size() == bytes) return absl::OkStatus();
  return WriteFileAtomically(env, path, [&](WritableFile& cut) -> absl::Status {
    std::string piece;
    for (uint64_t at = 0; at < bytes; at += piece.size()) {
      piece.resize(std::min<uint64_t>(bytes - at, kPieceBytes));
      TDOCK_RETURN_IF_ERROR(file->ReadAt(at, std::span(piece.data(), piece.size())));
      TDOCK_RETURN_IF_ERROR(cut.Append(piece));
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status RunDirectory::LineFile::Append(absl::string_view phase, int64_t step, absl::string_view lines) {
  TDOCK_RETURN_IF_ERROR(failed_);
  if (last_step_.has_value() && step <= *last_step_) {
    return absl::FailedPreconditionError(absl::StrCat("step ", step, " of ", phase, " cannot follow step ", *last_step_,
                                                      " in ", EscapeUnprintable(path_),
                                                      ": steps increase over all phases of a run"));
  }
  if (!file_) {
    auto file = env_.OpenForWriting(path_, WriteMode::kAppend);
    if (!file.ok()) return failed_ = file.status();
    file_ = *std::move(file);
  }
  last_step_ = step;
  return failed_ = file_->Append(lines);
}

absl::Status RunDirectory::LineFile::Sync() {
  TDOCK_RETURN_IF_ERROR(failed_);
  return file_ ? file_->Sync() : absl::OkStatus();
}

RunDirectory::RunDirectory(Env& env, Clock& clock, std::string path)
    : env_(env),
      clock_(clock),
      path_(std::move(path)),
      started_(clock.Now()),
      metrics_(env, JoinPath(path_, kMetricsFile)),
      samples_(env, JoinPath(path_, kSamplesFile)),
      timeline_(env, JoinPath(path_, kTimelineFile)) {}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Create(Env& env, Clock& clock, const std::string& path) {
  const auto taken = [&](absl::string_view by) {
    return absl::AlreadyExistsError(absl::StrCat("the run directory ", EscapeUnprintable(path), " already holds ", by,
                                                 ": name another folder, or remove this one"));
  };
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(path));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.List(path));
  if (!entries.empty())
    return taken(absl::StrCat(EscapeForMessage(entries.front()), entries.size() > 1 ? " and more" : ""));
  // Every run has this folder, and only one process can create it.
  const absl::Status claimed = env.CreateNewFolder(JoinPath(path, kEventsFolder));
  if (absl::IsAlreadyExists(claimed)) return taken("another run");
  TDOCK_RETURN_IF_ERROR(claimed);
  return std::unique_ptr<RunDirectory>(new RunDirectory(env, clock, path));
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::CreateNext(Env& env, Clock& clock, const std::string& root,
                                                                       absl::string_view name) {
  for (int attempt = 0;; ++attempt) {
    TDOCK_ASSIGN_OR_RETURN(const std::string path, NextRunPath(env, root, name));
    auto made = Create(env, clock, path);
    // Another process was faster, and has taken the number: the next iteration sees it.
    if (!absl::IsAlreadyExists(made.status()) || attempt == kMostAttempts) return made;
  }
}

absl::StatusOr<std::string> RunDirectory::ReserveNext(Env& env, const std::string& root, absl::string_view name) {
  for (int attempt = 0;; ++attempt) {
    TDOCK_ASSIGN_OR_RETURN(std::string path, NextRunPath(env, root, name));
    TDOCK_RETURN_IF_ERROR(env.CreateFolders(root));
    const absl::Status made = env.CreateNewFolder(path);
    if (made.ok()) return path;
    if (!absl::IsAlreadyExists(made) || attempt == kMostAttempts) return made;
  }
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Open(Env& env, Clock& clock, const std::string& path,
                                                                 const LogPosition& position) {
  const std::string events = JoinPath(path, kEventsFolder);
  const bool has_events = env.Exists(events);
  if (!has_events && position.empty() && !env.Exists(JoinPath(path, kConfigFile))) {
    return absl::NotFoundError(absl::StrCat("there is no run in ", EscapeUnprintable(path),
                                            " to go on with: it has neither ", kConfigFile, " nor the folder ",
                                            kEventsFolder));
  }
  auto run = std::unique_ptr<RunDirectory>(new RunDirectory(env, clock, path));
  if (!has_events) {
    run->NoteLoss(events, "is gone: TensorBoard shows the steps from here on");
    TDOCK_RETURN_IF_ERROR(env.CreateFolders(events));
  }
  TDOCK_RETURN_IF_ERROR(run->CutLogs(position, has_events));
  return run;
}

absl::Status RunDirectory::CutLogs(const LogPosition& position, bool had_events) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, LogFiles(env_, path_));
  const std::set<std::string> there(files.begin(), files.end());
  for (const auto& [name, bytes] : position) {
    if (bytes == 0 || there.contains(name) || (!had_events && absl::StartsWith(name, kEventsFolder))) continue;
    NoteLoss(JoinPath(path_, name), absl::StrCat("is gone, of which ", bytes, " bytes belong to the steps before"));
  }
  for (const std::string& name : files) {
    const std::string path = JoinPath(path_, name);
    const auto found = position.find(name);
    const uint64_t due = found == position.end() ? 0 : found->second;
    TDOCK_ASSIGN_OR_RETURN(const auto file, env_.OpenForReading(path));
    if (file->size() < due) {
      NoteLoss(path, absl::StrCat("has ", file->size(), " bytes, of which ", due, " belong to the steps before: part ",
                                  "of it is lost"));
    }
    uint64_t kept = std::min(file->size(), due);
    for (LineFile* lines : {&metrics_, &samples_, &timeline_}) {
      if (lines->path() != path) continue;
      TDOCK_ASSIGN_OR_RETURN(kept, KeepLines(*lines, kept));
      if (kept < due && file->size() >= due) {
        NoteLoss(path, absl::StrCat("has changed: its first ", due, " bytes do not end with a line of a step; the ",
                                    "first ", kept, " stay"));
      }
    }
    TDOCK_RETURN_IF_ERROR(CutFile(env_, path, kept));
  }
  return absl::OkStatus();
}

// How many of the first `bytes` are whole lines, the last of which is of a step: behind that one the file goes on.
absl::StatusOr<uint64_t> RunDirectory::KeepLines(LineFile& file, uint64_t bytes) {
  if (bytes == 0) return uint64_t{0};
  TDOCK_ASSIGN_OR_RETURN(const std::string contents, env_.ReadFile(file.path()));
  absl::string_view lines = absl::string_view(contents).substr(0, bytes);
  lines = lines.substr(0, lines.rfind('\n') + 1);  // npos + 1 is 0
  while (!lines.empty()) {
    const absl::string_view all_but_end = lines.substr(0, lines.size() - 1);
    const size_t begin = all_but_end.rfind('\n') + 1;
    if (const std::optional<int64_t> step = StepOf(all_but_end.substr(begin))) {
      // Nobody knows whose steps a file has that is not as it was.
      if (lines.size() == bytes) file.set_last_step(*step);
      break;
    }
    lines = lines.substr(0, begin);
  }
  return lines.size();
}

void RunDirectory::NoteLoss(absl::string_view what, absl::string_view consequence) {
  losses_.push_back(absl::StrCat(EscapeUnprintable(what), " ", consequence));
}

bool RunDirectory::Restore() {
  const std::string events = JoinPath(path_, kEventsFolder);
  if (env_.Exists(events) && !gone_) return true;
  // A checkpoint that is being written makes the folder again, too.
  const bool remakes_all = !env_.Exists(config_.empty() ? path_ : JoinPath(path_, kConfigFile));
  if (remakes_all || gone_) {
    for (LineFile* file : {&metrics_, &samples_, &timeline_}) file->Forget();
  }
  events_.clear();
  absl::Status made = env_.CreateFolders(events);
  if (made.ok() && (remakes_all || gone_) && !config_.empty()) made = WriteConfig(config_);
  if (!made.ok()) {
    if (!std::exchange(gone_, true)) {
      NoteLoss(remakes_all ? path_ : events,
               absl::StrCat("was removed while the run wrote to it, and cannot be made again (", made.message(),
                            "): nothing is logged until it can"));
    }
    return false;
  }
  NoteLoss(remakes_all ? path_ : events,
           remakes_all
               ? "was removed while the run wrote to it: its logs and its checkpoints so far are lost, and it is "
                 "made again"
               : "was removed while the run wrote to it: TensorBoard shows the steps from here on");
  remade_ = remade_ || remakes_all || gone_;
  gone_ = false;
  return true;
}

absl::Status RunDirectory::Append(LineFile& file, absl::string_view phase, int64_t step, absl::string_view lines) {
  if (!Restore()) return absl::OkStatus();  // TakeLosses() says so
  if (file.IsRemoved()) {
    NoteLoss(file.path(), absl::StrCat("was removed while the run wrote to it: it begins anew with step ", step));
    file.Forget();
  }
  return file.Append(phase, step, lines);
}

absl::StatusOr<LogPosition> RunDirectory::Position() {
  if (!Restore()) {
    return absl::UnavailableError(absl::StrCat(EscapeUnprintable(path_), " is gone, and cannot be made again"));
  }
  for (LineFile* file : {&metrics_, &samples_, &timeline_}) {
    if (!file->IsRemoved()) continue;
    NoteLoss(file->path(), "was removed while the run wrote to it: it begins anew with the next step");
    file->Forget();
  }
  TDOCK_RETURN_IF_ERROR(Sync());
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, LogFiles(env_, path_));
  LogPosition position;
  for (const std::string& name : names) {
    TDOCK_ASSIGN_OR_RETURN(const auto file, env_.OpenForReading(JoinPath(path_, name)));
    position[name] = file->size();
  }
  return position;
}

absl::Status RunDirectory::WriteConfig(absl::string_view yaml) {
  if (config_ != yaml) config_ = std::string(yaml);
  return WriteFileAtomically(env_, JoinPath(path_, kConfigFile), config_);
}

absl::Status RunDirectory::LogMetrics(absl::string_view phase, int64_t step, const Metrics& metrics) {
  TDOCK_RETURN_IF_ERROR(CheckPhase(phase));
  Json record = {{"phase", std::string(phase)}, {"step", step}};
  for (const auto& [name, value] : metrics) {
    TDOCK_RETURN_IF_ERROR(CheckMetricName(name));
    // Names of a map differ; looking for each among those before would take long.
    record.get_ref<Json::object_t&>().emplace_back(name, value);
  }
  TDOCK_RETURN_IF_ERROR(Append(metrics_, phase, step, Line(record)));
  if (gone_) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(TensorBoardWriter * events, EventsOf(phase, step));
  return events->WriteScalars(step, metrics, clock_.Now());
}

absl::Status RunDirectory::LogSamples(absl::string_view phase, int64_t step, std::span<const Answer> answers) {
  TDOCK_RETURN_IF_ERROR(CheckPhase(phase));
  if (answers.empty()) return absl::OkStatus();
  std::string lines;
  for (const Answer& answer : answers) {
    Json record = {{"phase", std::string(phase)}, {"step", step},          {"prompt", answer.prompt},
                   {"response", answer.response}, {"truth", answer.truth}, {"reward", answer.reward},
                   {"correct", answer.correct}};
    if (!answer.message.empty()) record["message"] = answer.message;
    lines += Line(record);
  }
  return Append(samples_, phase, step, lines);
}

absl::Status RunDirectory::LogTimeline(absl::string_view phase, int64_t step, std::span<const TimelineSpan> spans) {
  TDOCK_RETURN_IF_ERROR(CheckPhase(phase));
  if (spans.empty()) return absl::OkStatus();
  std::string lines;
  for (const TimelineSpan& span : spans) {
    lines += Line({{"phase", std::string(phase)},
                   {"step", step},
                   {"stage", span.stage},
                   {"what", span.works ? "work" : "wait"},
                   {"begin", span.begin},
                   {"end", span.end},
                   {"rows", span.rows}});
  }
  return Append(timeline_, phase, step, lines);
}

absl::Status RunDirectory::WriteReport(const ReportHead& head) {
  Restore();
  TDOCK_ASSIGN_OR_RETURN(const std::string config, ReadIfThere(kConfigFile));
  TDOCK_ASSIGN_OR_RETURN(const std::string metrics, ReadIfThere(kMetricsFile));
  TDOCK_ASSIGN_OR_RETURN(const std::string samples, ReadIfThere(kSamplesFile));
  TDOCK_ASSIGN_OR_RETURN(const std::string timeline, ReadIfThere(kTimelineFile));
  const ReportSource source = {.config_yaml = config,
                               .metrics_jsonl = metrics,
                               .samples_jsonl = samples,
                               .timeline_jsonl = timeline,
                               .elapsed = head.earlier + (clock_.Now() - started_)};
  TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env_, JoinPath(path_, "report.html"), RenderReport(head, source)));
  return WriteFileAtomically(env_, JoinPath(path_, "metrics.csv"), MetricsCsv(metrics));
}

absl::Status RunDirectory::Sync() {
  absl::Status status = metrics_.Sync();
  status.Update(samples_.Sync());
  status.Update(timeline_.Sync());
  for (const auto& [phase, events] : events_) status.Update(events->Sync());
  return status;
}

absl::StatusOr<TensorBoardWriter*> RunDirectory::EventsOf(absl::string_view phase, int64_t first_step) {
  std::unique_ptr<TensorBoardWriter>& events = events_[std::string(phase)];
  if (events && !env_.Exists(events->path())) {
    NoteLoss(events->path(), "was removed while the run wrote to it: TensorBoard shows the steps from here on");
    events.reset();
  }
  if (!events) {
    const std::string folder = JoinPath(JoinPath(path_, kEventsFolder), phase);
    TDOCK_ASSIGN_OR_RETURN(events, TensorBoardWriter::Create(env_, folder, HostName(), clock_.Now(), first_step));
  }
  return events.get();
}

absl::StatusOr<std::string> RunDirectory::ReadIfThere(absl::string_view name) {
  const std::string path = JoinPath(path_, name);
  if (!env_.Exists(path)) return "";
  return env_.ReadFile(path);
}

}  // namespace tdock::trainer
