#include "trainer/loop/saved_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "trainer/checkpoint/state_files.h"
#include "trainer/loop/model_files.h"

namespace tdock::trainer {
namespace {

constexpr char kRows[] = "partition.bin", kRowsOfRounds[] = "partition-sampling.bin";
constexpr absl::string_view kLogs = "logs/", kFingerprint = "fingerprint/";
constexpr char kWeightsIn[] = "weights_in", kWeightsInParts[] = "parts";  // as opposed to files, also if it is missing

Fingerprint FingerprintIn(const State& state) {
  Fingerprint fingerprint;
  for (const auto& [name, text] : state.texts()) {
    if (absl::StartsWith(name, kFingerprint)) fingerprint[name.substr(kFingerprint.size())] = text;
  }
  return fingerprint;
}

}  // namespace

absl::StatusOr<CheckpointContents> ContentsOf(CheckpointParts parts) {
  State& state = parts.state;
  for (const auto& [key, value] : parts.fingerprint) state.SetText(absl::StrCat(kFingerprint, key), value);
  for (const auto& [file, bytes] : parts.logs) {
    state.SetInteger(absl::StrCat(kLogs, file), static_cast<int64_t>(bytes));
  }
  std::map<std::string, std::string> rows;  // by the names of files
  if (!parts.partition.shared()) {
    Dock& dock = parts.partition.dock();
    TDOCK_ASSIGN_OR_RETURN(rows[kRows], dock.ExportPartition(parts.partition.name()));
    if (!parts.rounds.empty()) {
      TDOCK_ASSIGN_OR_RETURN(rows[kRowsOfRounds], dock.ExportPartition(parts.rounds));
    }
  }
  const bool splits = parts.splits_policy;
  if (splits) state.SetText(kWeightsIn, kWeightsInParts);
  uint64_t bytes = static_cast<uint64_t>(state.tensor_bytes()) + (splits ? 0 : BytesToGoOn(*parts.policy));
  for (const auto& [file, image] : rows) bytes += image.size();
  return CheckpointContents{
      .bytes = bytes,
      .write = [splits, &env = parts.env, &tokenizer = parts.tokenizer, &model = parts.model, state = std::move(state),
                policy = std::move(parts.policy), write_parts = std::move(parts.write_parts),
                rows = std::move(rows)](const std::string& folder) -> absl::Status {
        const auto save = splits ? SaveConfigToGoOn : SaveToGoOn;
        TDOCK_RETURN_IF_ERROR(save(env, folder, *policy, tokenizer, model));
        TDOCK_RETURN_IF_ERROR(WriteState(env, folder, state));
        if (write_parts != nullptr) TDOCK_RETURN_IF_ERROR(write_parts(folder));
        for (const auto& [file, image] : rows) {
          TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, file), image));
        }
        return absl::OkStatus();
      }};
}

absl::Status LoadPolicy(Env& env, const std::string& folder, const State& state, model::Decoder& policy) {
  const auto where = state.texts().find(kWeightsIn);
  if (where != state.texts().end() && where->second == kWeightsInParts) return absl::OkStatus();
  return LoadToGoOn(env, folder, policy);
}

absl::StatusOr<SavedRun> SavedRun::Read(Env& env, const RunStart& start) {
  TDOCK_ASSIGN_OR_RETURN(State state, ReadState(env, start.checkpoint));
  return SavedRun(env, start, std::move(state));
}

absl::Status SavedRun::Compare(const Fingerprint& now, std::span<const std::string> allowed, bool shared) {
  const Fingerprint saved = FingerprintIn(state_);
  TDOCK_RETURN_IF_ERROR(CheckFingerprint(saved, now, allowed));
  const std::vector<std::string> changes = Changes(saved, now);
  changed_ = !changes.empty();
  return part() == 0 ? absl::OkStatus() : CheckInsideStep(changes, shared);
}

std::string SavedRun::kernels() const {
  const Fingerprint saved = FingerprintIn(state_);
  const auto found = saved.find("model.kernels");
  return found == saved.end() ? "" : found->second;
}

absl::Status SavedRun::CheckInsideStep(std::span<const std::string> changes, bool shared) const {
  const std::string inside = absl::StrCat(folder(), " is in the middle of a step, which can be finished only ");
  if (shared) {
    return absl::FailedPreconditionError(absl::StrCat(
        inside, "with a dock of the run's own, because its rows are in it: go on without trainer.serve and ",
        "trainer.dock until a step is saved as a whole"));
  }
  for (const std::string& name : changes) {
    // The samples of the step are on the dock.
    if (name == "data" || name == "validation" || name == "ptx") continue;
    if (absl::StrContains(name, "optim.") || absl::StartsWith(name, "trainer.")) continue;
    return absl::FailedPreconditionError(absl::StrCat(inside, "as it was begun, but ", name,
                                                      " has changed: go on without that until a step is saved as a ",
                                                      "whole, for example with trainer.save_freq=1"));
  }
  return absl::OkStatus();
}

bool SavedRun::HasRows() const { return env_.Exists(JoinPath(folder(), kRows)); }

absl::Status SavedRun::ImportRows(const PartitionOptions& options, RunPartition& partition) const {
  const std::string file = JoinPath(folder(), options.name.empty() ? kRows : kRowsOfRounds);
  TDOCK_ASSIGN_OR_RETURN(const std::string image, env_.ReadFile(file));
  return partition.Import(image);
}

absl::StatusOr<LogPosition> SavedRun::Logs() const {
  LogPosition logs;
  if (start_.of_another_run) return logs;
  for (const auto& [name, text] : state_.texts()) {
    if (!absl::StartsWith(name, kLogs)) continue;
    TDOCK_ASSIGN_OR_RETURN(const int64_t bytes, state_.Integer(name));
    logs[name.substr(kLogs.size())] = static_cast<uint64_t>(std::max<int64_t>(bytes, 0));
  }
  return logs;
}

}  // namespace tdock::trainer
