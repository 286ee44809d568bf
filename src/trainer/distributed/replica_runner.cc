#include "trainer/distributed/replica_runner.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

// What the rank that puts says to the others.
std::string TextOf(const StageRunner::Round& round) {
  return absl::StrCat(round.dropped_rows, " ", round.requeued_units);
}

absl::StatusOr<StageRunner::Round> RoundIn(const std::string& text) {
  const std::pair<std::string, std::string> numbers = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  StageRunner::Round round;
  if (absl::SimpleAtoi(numbers.first, &round.dropped_rows) && absl::SimpleAtoi(numbers.second, &round.requeued_units)) {
    return round;
  }
  return absl::InternalError(
      absl::StrCat("the rank that puts said '", EscapeForMessage(text), "' instead of what became of the rows"));
}

}  // namespace

absl::Status ReplicaRunner::Add(const Stage& stage) {
  return replica_.OnLeader([&] {
    return runner_.Add(stage, /*checkpointed=*/false, [this](ConsumerOptions& consumer) {
      consumer = runtime::WithShares(std::move(consumer), replica_.sizes());
    });
  });
}

absl::StatusOr<ReplicaRunner::Round> ReplicaRunner::Run(Stage& stage, const Request& request, StageContext& context) {
  const std::string& name = stage.consumer().name;
  StageRunner::Computed computed;
  const absl::StatusOr<runtime::Replica::Round> round = replica_.Run(
      {.partition = partition_, .consumer = name, .min = request.min, .max = request.max, .deadline = request.deadline},
      {.compute = [&](const Taken& taken) -> absl::Status {
         TDOCK_ASSIGN_OR_RETURN(computed, runner_.Compute(stage, taken, context, replica_.puts()));
         return absl::OkStatus();
       },
       .put = [&](const Taken& taken) -> absl::StatusOr<std::string> {
         TDOCK_ASSIGN_OR_RETURN(const StageRunner::Round rows,
                                runner_.Settle(stage, taken, std::move(computed), context));
         return TextOf(rows);
       }});
  if (!round.ok()) return Annotate(round.status(), absl::StrCat("stage '", name, "'"));
  if (round->outcome != runtime::Replica::Outcome::kDone) return Round{.outcome = round->outcome};
  TDOCK_ASSIGN_OR_RETURN(const StageRunner::Round rows, RoundIn(round->said));
  return Round{.rows = rows};
}

}  // namespace tdock::trainer
