#include "trainer/run_log/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "trainer/run_log/metrics_csv.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kMetricsFile = "metrics.jsonl";
constexpr absl::string_view kSamplesFile = "samples.jsonl";
constexpr absl::string_view kTimelineFile = "timeline.jsonl";
constexpr absl::string_view kEventsFolder = "tensorboard";
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
      absl::StrCat("the phase '", phase, "' must consist of letters, digits, '-' and '_'"));
}

absl::Status CheckMetricName(const std::string& name) {
  if (name == "phase" || name == "step") {
    return absl::InvalidArgumentError(absl::StrCat("a metric cannot be named '", name, "': each line has that field"));
  }
  // Text that needs no escaping has neither control characters nor invalid UTF-8.
  if (!name.empty() && Json::accept(absl::StrCat("\"", name, "\""))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", absl::CHexEscape(name), "' cannot be the name of a metric"));
}

// One closed line. Not-finite numbers come out as null.
std::string Line(const Json& record) { return JsonText(record) + "\n"; }

absl::StatusOr<std::string> NextRunPath(Env& env, const std::string& root, absl::string_view name) {
  if (name.empty() || absl::StrContains(name, '/')) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' cannot be the name of a run's folder"));
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
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(JoinPath(run, folder)));
    for (const std::string& name : names) {
      if (absl::StartsWith(name, kEventFilePrefix)) files.push_back(JoinPath(folder, name));
    }
  }
  return files;
}

// The step of the last of the lines that are the first `bytes` of a file; nothing of an empty file.
absl::StatusOr<std::optional<int64_t>> LastStep(Env& env, const std::string& path, uint64_t bytes) {
  if (bytes == 0) return std::nullopt;
  TDOCK_ASSIGN_OR_RETURN(const std::string contents, env.ReadFile(path));
  absl::string_view lines = absl::string_view(contents).substr(0, bytes);
  if (absl::ConsumeSuffix(&lines, "\n")) {
    const absl::string_view line = lines.substr(lines.rfind('\n') + 1);  // npos + 1 is 0
    const Json record = ReadOrderedJson(line);
    if (record.is_object() && record.contains("step") && record["step"].is_number_integer()) {
      return record["step"].get<int64_t>();
    }
  }
  return absl::DataLossError(absl::StrCat("the first ", bytes, " bytes of ", path,
                                          ", which the run goes on from, do not end with a line that has a step"));
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

// DataLoss unless each of the logs that `position` names is at least as long as it says.
absl::Status CheckPosition(Env& env, const std::string& run, const std::vector<std::string>& files,
                           const LogPosition& position) {
  for (const auto& [name, bytes] : position) {
    uint64_t size = 0;
    if (std::find(files.begin(), files.end(), name) != files.end()) {
      TDOCK_ASSIGN_OR_RETURN(const auto file, env.OpenForReading(JoinPath(run, name)));
      size = file->size();
    } else if (bytes > 0) {
      return absl::DataLossError(absl::StrCat("the run ", run, " has no log ", name, ", of which ", bytes,
                                              " bytes belong to what the run goes on from"));
    }
    if (size < bytes) {
      return absl::DataLossError(absl::StrCat(JoinPath(run, name), " has ", size, " bytes, of which ", bytes,
                                              " belong to what the run goes on from: part of it is lost"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDirectory::LineFile::Append(absl::string_view phase, int64_t step, absl::string_view lines) {
  TDOCK_RETURN_IF_ERROR(failed_);
  if (last_step_.has_value() && step <= *last_step_) {
    return absl::FailedPreconditionError(absl::StrCat("step ", step, " of ", phase, " cannot follow step ", *last_step_,
                                                      " in ", path_, ": steps increase over all phases of a run"));
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
    return absl::AlreadyExistsError(
        absl::StrCat("the run directory ", path, " already holds ", by, ": name another folder, or remove this one"));
  };
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(path));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.List(path));
  if (!entries.empty()) return taken(absl::StrCat(entries.front(), entries.size() > 1 ? " and more" : ""));
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
  if (!env.Exists(JoinPath(path, kEventsFolder))) {
    return absl::NotFoundError(
        absl::StrCat("there is no run in ", path, " to go on with: it has no folder ", kEventsFolder));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, LogFiles(env, path));
  TDOCK_RETURN_IF_ERROR(CheckPosition(env, path, files, position));
  auto run = std::unique_ptr<RunDirectory>(new RunDirectory(env, clock, path));
  for (auto& [name, file] : {std::pair(kMetricsFile, &run->metrics_), std::pair(kSamplesFile, &run->samples_),
                             std::pair(kTimelineFile, &run->timeline_)}) {
    const auto kept = position.find(std::string(name));
    if (kept == position.end()) continue;
    TDOCK_ASSIGN_OR_RETURN(const std::optional<int64_t> step, LastStep(env, file->path(), kept->second));
    if (step.has_value()) file->set_last_step(*step);
  }
  for (const std::string& name : files) {
    const auto kept = position.find(name);
    TDOCK_RETURN_IF_ERROR(CutFile(env, JoinPath(path, name), kept == position.end() ? 0 : kept->second));
  }
  return run;
}

absl::StatusOr<LogPosition> RunDirectory::Position() {
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
  return WriteFileAtomically(env_, JoinPath(path_, "config.yaml"), yaml);
}

absl::Status RunDirectory::LogMetrics(absl::string_view phase, int64_t step, const Metrics& metrics) {
  TDOCK_RETURN_IF_ERROR(CheckPhase(phase));
  Json record = {{"phase", std::string(phase)}, {"step", step}};
  for (const auto& [name, value] : metrics) {
    TDOCK_RETURN_IF_ERROR(CheckMetricName(name));
    record[name] = value;
  }
  TDOCK_RETURN_IF_ERROR(metrics_.Append(phase, step, Line(record)));
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
  return samples_.Append(phase, step, lines);
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
  return timeline_.Append(phase, step, lines);
}

absl::Status RunDirectory::WriteReport(const ReportHead& head) {
  TDOCK_ASSIGN_OR_RETURN(const std::string config, ReadIfThere("config.yaml"));
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
