#include "trainer/loop/run_start.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/config/spec.h"
#include "trainer/loop/fingerprint.h"
#include "trainer/loop/run_checkpoints.h"

namespace tdock::trainer {
namespace {

constexpr char kLock[] = "lock";

// "auto", "disable", or the folder of a checkpoint.
const std::string& ResumeMode(const TrainerSection& section) {
  return section.resume_mode == "resume_path" ? section.resume_from_path : section.resume_mode;
}

// Whether a run has begun to write there; perhaps it was killed right after RunDirectory::Create().
bool HoldsRun(Env& env, const std::string& path) {
  if (env.Exists(JoinPath(path, "config.yaml")) || env.Exists(JoinPath(path, kLock))) return true;
  if (const auto places = CheckpointFolder(env, CheckpointsPath(path)).List(); places.ok() && !places->empty()) {
    return true;  // whose other files somebody has removed
  }
  const auto names = env.Exists(path) ? env.List(path) : std::vector<std::string>();
  return names.ok() && *names == std::vector<std::string>{"tensorboard"};
}

bool IsIn(const std::string& folder, const std::string& run_dir) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::canonical(folder, error).parent_path();
  return !error && std::filesystem::equivalent(parent, CheckpointsPath(run_dir), error) && !error;
}

// The configuration as far as it changes what a run that begins anew computes. That may use other instructions, which
// config.yaml has as the run before chose them.
absl::StatusOr<Fingerprint> KeysThatMatter(const std::string& config_yaml, const std::string& name) {
  TDOCK_ASSIGN_OR_RETURN(Fingerprint keys, config::ValuesIn(config_yaml, name));
  std::erase_if(keys, [](const auto& entry) { return IsFree(entry.first) || entry.first == "model.kernels"; });
  return keys;
}

// The newest checkpoint before `place` that is whole.
std::optional<std::string> WholeBefore(Env& env, const CheckpointFolder& folder, std::vector<CheckpointPlace> places) {
  for (; !places.empty(); places.pop_back()) {
    std::string path = folder.PathOf(places.back());
    if (VerifyCheckpoint(env, path).ok()) return path;
  }
  return std::nullopt;
}

// Advice instead of going on from a checkpoint that cannot be used. `before`: those before it.
std::string Rather(Env& env, const CheckpointFolder& folder, std::vector<CheckpointPlace> before,
                   absl::string_view key) {
  const std::optional<std::string> whole = WholeBefore(env, folder, std::move(before));
  return whole ? absl::StrCat("To go on from the one before: ", key, "=", *whole)
               : std::string("None before it is whole: to begin anew, name another folder in trainer.run_dir");
}

// The checkpoints before `checkpoint` in the folder that it is in.
std::vector<CheckpointPlace> PlacesBefore(const CheckpointFolder& folder, const std::string& checkpoint) {
  const auto places = folder.List();
  if (!places.ok()) return {};
  const auto at = std::find_if(places->begin(), places->end(), [&](const CheckpointPlace& place) {
    std::error_code error;
    return std::filesystem::equivalent(folder.PathOf(place), checkpoint, error) && !error;
  });
  return at == places->end() ? std::vector<CheckpointPlace>() : std::vector(places->begin(), at);
}

absl::Status FindNewest(Env& env, const std::string& run_dir, const std::string& config_yaml, RunStart& start) {
  const CheckpointFolder folder(env, CheckpointsPath(run_dir));
  TDOCK_ASSIGN_OR_RETURN(std::vector<CheckpointPlace> places, folder.List());
  if (places.empty()) {
    const std::string path = JoinPath(run_dir, "config.yaml");
    if (!env.Exists(path)) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(const std::string text, env.ReadFile(path));
    TDOCK_ASSIGN_OR_RETURN(const Fingerprint before, KeysThatMatter(text, path));
    TDOCK_ASSIGN_OR_RETURN(const Fingerprint now, KeysThatMatter(config_yaml, "the configuration"));
    if (before == now) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("the run directory ", run_dir,
                                                 " holds a run with another configuration, which has no checkpoint ",
                                                 "to go on from: name another folder, or remove this one"));
  }
  start.checkpoint = folder.PathOf(places.back());
  auto manifest = VerifyCheckpoint(env, start.checkpoint);
  if (!manifest.ok()) {
    places.pop_back();
    const std::string rather = Rather(env, folder, std::move(places), "trainer.resume_mode");
    const absl::StatusCode code = absl::IsFailedPrecondition(manifest.status()) ? absl::StatusCode::kFailedPrecondition
                                                                                : absl::StatusCode::kDataLoss;
    return absl::Status(
        code,
        absl::StrCat("the newest checkpoint of the run cannot be used: ", manifest.status().message(), ". ", rather));
  }
  start.manifest = *std::move(manifest);
  return absl::OkStatus();
}

// The files that WriteFileAtomically() was writing when the process was killed.
absl::Status RemoveHalfWritten(Env& env, const std::string& run_dir) {
  std::vector<std::string> folders = {run_dir};
  for (const char* name : {"checkpoint", "checkpoint/adapter", "checkpoint-ema", "checkpoint-ema/adapter",
                           "checkpoint-critic", "checkpoint-critic/adapter"}) {
    folders.push_back(JoinPath(run_dir, name));
  }
  if (const std::string events = JoinPath(run_dir, "tensorboard"); env.Exists(events)) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> phases, env.List(events));
    for (const std::string& phase : phases) folders.push_back(JoinPath(events, phase));
  }
  for (const std::string& folder : folders) {
    if (!env.Exists(folder)) continue;
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(folder));
    for (const std::string& name : names) {
      if (IsHalfWritten(name)) TDOCK_RETURN_IF_ERROR(env.Remove(JoinPath(folder, name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileLock>> LockRun(const std::string& run_dir) {
  char host[256] = "localhost";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  const std::string holder = absl::StrFormat("process %d on %s since %s", ::getpid(), host,
                                             absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
  auto lock = FileLock::Take(JoinPath(run_dir, kLock), holder);
  if (!lock.ok()) return Annotate(lock.status(), absl::StrCat("the run directory ", run_dir, " is in use"));
  return lock;
}

bool GoesOn(Env& env, const TrainerSection& section) {
  const std::string& mode = ResumeMode(section);
  if (mode != "auto") return mode != "disable";
  const auto places = CheckpointFolder(env, CheckpointsPath(section.run_dir)).List();
  return !section.run_dir.empty() && places.ok() && !places->empty();
}

absl::StatusOr<RunStart> FindStart(Env& env, const TrainerSection& section, const std::string& config_yaml) {
  const std::string& run_dir = section.run_dir;
  const std::string& mode = ResumeMode(section);
  RunStart start;
  start.is_there = mode != "disable" && !run_dir.empty() && HoldsRun(env, run_dir);
  if (start.is_there) {
    TDOCK_ASSIGN_OR_RETURN(start.lock, LockRun(run_dir));
    TDOCK_RETURN_IF_ERROR(CheckpointFolder(env, CheckpointsPath(run_dir)).RemoveUnfinished());
    if (env.Exists(JoinPath(run_dir, "checkpoint/config.json"))) {
      return absl::AlreadyExistsError(absl::StrCat(
          "the run in ", run_dir, " has ended. To begin another, name another folder in trainer.run_dir; to train on ",
          "from one of its checkpoints, name that in trainer.resume_mode as well"));
    }
  }
  if (mode == "disable" || (mode == "auto" && !start.is_there)) return start;
  if (mode == "auto") {
    TDOCK_RETURN_IF_ERROR(FindNewest(env, run_dir, config_yaml, start));
    return start;
  }
  start.checkpoint = mode;
  start.of_another_run = !IsIn(mode, run_dir);
  if (start.is_there && start.of_another_run) {
    return absl::AlreadyExistsError(absl::StrCat("trainer.resume_mode: ", mode, " is not a checkpoint of the run in ",
                                                 run_dir, ": name a new folder in trainer.run_dir"));
  }
  auto manifest = VerifyCheckpoint(env, mode);
  if (!manifest.ok()) {
    const char* const key = section.resume_mode == "resume_path" ? "trainer.resume_from_path" : "trainer.resume_mode";
    std::string rather;
    if (std::error_code error; absl::IsDataLoss(manifest.status())) {
      const CheckpointFolder folder(env, std::filesystem::canonical(mode, error).parent_path().string());
      rather = absl::StrCat(". ", Rather(env, folder, PlacesBefore(folder, mode), key));
    }
    return absl::Status(manifest.status().code(),
                        absl::StrCat(key, " = ", mode, " is not the folder of a whole checkpoint: ",
                                     manifest.status().message(), rather));
  }
  start.manifest = *std::move(manifest);
  return start;
}

absl::Status TidyRun(Env& env, const std::string& run_dir, const RunStart& start) {
  TDOCK_RETURN_IF_ERROR(RemoveHalfWritten(env, run_dir));
  CheckpointFolder folder(env, CheckpointsPath(run_dir));
  if (start.checkpoint.empty() || start.of_another_run) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const std::vector<CheckpointPlace> places, folder.List());
  for (const CheckpointPlace& place : places) {
    if (place > start.manifest.place) TDOCK_RETURN_IF_ERROR(folder.Remove(place));
  }
  return absl::OkStatus();
}

}  // namespace tdock::trainer
