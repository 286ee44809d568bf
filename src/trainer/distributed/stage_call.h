// What a controller asks of a process that carries out a stage, and what it answers. For this module only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "runtime/dispatch/method.h"
#include "runtime/dispatch/value.h"
#include "tdock/requests.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// The worker methods, under verl's names. Each rank gets a call of its own, because shares need not be equal, and a
// prompt group must not be cut apart.
using StageMethod = runtime::Method<runtime::PerRank<runtime::Value>(runtime::PerRank<runtime::Value>)>;
inline constexpr StageMethod kGenerateSequences{"generate_sequences", runtime::Mode::kDpCompute};
inline constexpr StageMethod kComputeLogProb{"compute_log_prob", runtime::Mode::kDpCompute};
inline constexpr StageMethod kComputeRefLogProb{"compute_ref_log_prob", runtime::Mode::kDpCompute};
inline constexpr StageMethod kComputeRmScore{"compute_rm_score", runtime::Mode::kDpCompute};
inline constexpr StageMethod kComputeBaseline{"compute_baseline", runtime::Mode::kDpCompute};
inline constexpr StageMethod kComputeValues{"compute_values", runtime::Mode::kDpCompute};
// All ranks of the role get the same: all of the rows.
inline constexpr StageMethod kUpdateActor{"update_actor", runtime::Mode::kDpCompute};
inline constexpr StageMethod kUpdateCritic{"update_critic", runtime::Mode::kDpCompute};
inline constexpr StageMethod kUpdateWeights{"update_weights", runtime::Mode::kDpCompute};
inline constexpr StageMethod kInterrupt{"interrupt", runtime::Mode::kDpCompute};
// Of ranks that train together. gather_weights {stage}; swap_average {stage}; load_state {folder, or nothing} →
// {checkpoint: its checksum, stages: {stage: digest}}; snapshot_state {step, part} → {stage: [step, version]};
// write_state {folder, rank, ranks, step,
// part}.
inline constexpr StageMethod kGatherWeights{"gather_weights", runtime::Mode::kDpCompute};
inline constexpr StageMethod kSwapAverage{"swap_average", runtime::Mode::kDpCompute};
inline constexpr StageMethod kLoadState{"load_state", runtime::Mode::kDpCompute};
inline constexpr StageMethod kSnapshotState{"snapshot_state", runtime::Mode::kDpCompute};
inline constexpr StageMethod kWriteState{"write_state", runtime::Mode::kDpCompute};

// That of a stage, by the name of its consumer; null for stages that only the process with the run carries out.
const StageMethod* MethodOf(absl::string_view stage);
// The role whose processes carry out a stage: "rollout", "ref", "reward", "actor", "critic".
std::string RoleOf(absl::string_view stage);

// The entry of an object; InvalidArgument, naming it, where it is not there or of another type.
template <class T>
absl::StatusOr<T> EntryOf(const runtime::Value::Object& object, absl::string_view name) {
  const auto found = object.find(name);
  absl::StatusOr<T> value = found == object.end() ? runtime::Value().Get<T>() : found->second.Get<T>();
  if (!value.ok()) return Annotate(value.status(), name);
  return value;
}

// A part of a take.
struct StageShare {
  std::string stage;
  std::string partition;
  LeaseId lease = kNoLease;
  int64_t step = 0;
  bool whole_step = true;
  std::vector<RowId> rows = {};
};
runtime::Value ToValue(const StageShare& share);
// InvalidArgument for a value that is none.
absl::StatusOr<StageShare> ShareIn(const runtime::Value& value);

struct ShareResult {
  StageRunner::Round round = {};
  int64_t published = 0;
  std::map<std::string, std::string> metrics = {};  // the texts of a StepMetrics's state
  int64_t began_ns = 0, ended_ns = 0;               // since the epoch
  int64_t memory_before = 0, memory_after = 0;      // bytes of the process that are resident
};
runtime::Value ToValue(const ShareResult& result);
absl::StatusOr<ShareResult> ResultIn(const runtime::Value& value);

}  // namespace tdock::trainer
