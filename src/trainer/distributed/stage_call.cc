#include "trainer/distributed/stage_call.h"

#include <array>
#include <utility>

#include "core/base/status.h"

namespace tdock::trainer {
namespace {

using runtime::RowsRef;
using runtime::Value;

struct StageKind {
  absl::string_view stage;
  absl::string_view role;
  const StageMethod* method;
};

constexpr std::array<StageKind, 8> kStages = {{{"rollout", "rollout", &kGenerateSequences},
                                               {"baseline", "rollout", &kComputeBaseline},
                                               {"reward", "reward", &kComputeRmScore},
                                               {"ref", "ref", &kComputeRefLogProb},
                                               {"old_log_prob", "actor", &kComputeLogProb},
                                               {"actor", "actor", &kUpdateActor},
                                               {"values", "critic", &kComputeValues},
                                               {"critic", "critic", &kUpdateCritic}}};

const StageKind* Find(absl::string_view stage) {
  for (const StageKind& kind : kStages) {
    if (kind.stage == stage) return &kind;
  }
  return nullptr;
}

}  // namespace

const StageMethod* MethodOf(absl::string_view stage) {
  const StageKind* const kind = Find(stage);
  return kind == nullptr ? nullptr : kind->method;
}

std::string RoleOf(absl::string_view stage) {
  const StageKind* const kind = Find(stage);
  return kind == nullptr ? std::string() : std::string(kind->role);
}

Value ToValue(const StageShare& share) {
  return Value::Object{{"stage", share.stage},
                       {"lease", static_cast<int64_t>(share.lease)},
                       {"step", share.step},
                       {"whole_step", share.whole_step},
                       {"rows", RowsRef{.partition = share.partition, .rows = share.rows}}};
}

absl::StatusOr<StageShare> ShareIn(const Value& value) {
  TDOCK_ASSIGN_OR_RETURN(const Value::Object object, value.Get<Value::Object>());
  StageShare share;
  TDOCK_ASSIGN_OR_RETURN(share.stage, EntryOf<std::string>(object, "stage"));
  TDOCK_ASSIGN_OR_RETURN(const int64_t lease, EntryOf<int64_t>(object, "lease"));
  share.lease = static_cast<LeaseId>(lease);
  TDOCK_ASSIGN_OR_RETURN(share.step, EntryOf<int64_t>(object, "step"));
  TDOCK_ASSIGN_OR_RETURN(share.whole_step, EntryOf<bool>(object, "whole_step"));
  TDOCK_ASSIGN_OR_RETURN(RowsRef rows, EntryOf<RowsRef>(object, "rows"));
  share.partition = std::move(rows.partition);
  share.rows = std::move(rows.rows);
  return share;
}

Value ToValue(const ShareResult& result) {
  Value::Object metrics;
  for (const auto& [name, text] : result.metrics) metrics.emplace(name, text);
  return Value::Object{{"dropped_rows", result.round.dropped_rows},
                       {"requeued_units", result.round.requeued_units},
                       {"published", result.published},
                       {"metrics", std::move(metrics)},
                       {"began_ns", result.began_ns},
                       {"ended_ns", result.ended_ns},
                       {"memory_before", result.memory_before},
                       {"memory_after", result.memory_after}};
}

absl::StatusOr<ShareResult> ResultIn(const Value& value) {
  TDOCK_ASSIGN_OR_RETURN(const Value::Object object, value.Get<Value::Object>());
  ShareResult result;
  TDOCK_ASSIGN_OR_RETURN(result.round.dropped_rows, EntryOf<int64_t>(object, "dropped_rows"));
  TDOCK_ASSIGN_OR_RETURN(result.round.requeued_units, EntryOf<int64_t>(object, "requeued_units"));
  TDOCK_ASSIGN_OR_RETURN(result.published, EntryOf<int64_t>(object, "published"));
  TDOCK_ASSIGN_OR_RETURN(const Value::Object metrics, EntryOf<Value::Object>(object, "metrics"));
  for (const auto& [name, text] : metrics) {
    TDOCK_ASSIGN_OR_RETURN(result.metrics[name], text.Get<std::string>());
  }
  TDOCK_ASSIGN_OR_RETURN(result.began_ns, EntryOf<int64_t>(object, "began_ns"));
  TDOCK_ASSIGN_OR_RETURN(result.ended_ns, EntryOf<int64_t>(object, "ended_ns"));
  TDOCK_ASSIGN_OR_RETURN(result.memory_before, EntryOf<int64_t>(object, "memory_before"));
  TDOCK_ASSIGN_OR_RETURN(result.memory_after, EntryOf<int64_t>(object, "memory_after"));
  return result;
}

}  // namespace tdock::trainer
