// A controller whose workers are Python's, or a worker whose controller is: the other side of test_controller.py.
//
//   controller_peer controller WORKERS             prints its address, calls the workers, prints what they return
//   controller_peer worker ADDRESS RANK WORLD      serves until the controller ends the session
//
// The token is in TDOCK_TOKEN.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/patience.h"
#include "runtime/control/processes.h"
#include "runtime/dispatch/method.h"
#include "runtime/dispatch/worker_group.h"
#include "tdock/column.h"
#include "tdock/meta_batch.h"

namespace tdock::runtime {
namespace {

constexpr Method<PerRank<int64_t>(PerRank<int64_t>)> kDouble{"double", Mode::kDpCompute};
constexpr Method<MetaBatch(MetaBatch)> kScore{"score", Mode::kDpComputeProto};

std::string Token() {
  const char* const token = std::getenv("TDOCK_TOKEN");
  return token == nullptr ? "" : token;
}

absl::Time Soon() { return absl::Now() + kPatience; }

absl::Status Control(int workers) {
  TDOCK_ASSIGN_OR_RETURN(const auto controller, OpenController({.token = Token(), .world_size = workers + 1}));
  std::printf("%s\n", controller->address().c_str());
  std::fflush(stdout);
  TDOCK_RETURN_IF_ERROR(controller->AwaitWorkers(Soon()));
  TDOCK_RETURN_IF_ERROR(controller->Welcome(Value(Value::Object{{"step", 3}})));
  TDOCK_RETURN_IF_ERROR(controller->AwaitServing(Soon()));
  std::vector<std::shared_ptr<WorkerLink>> links;
  std::vector<int64_t> numbers;
  for (int rank = 1; rank <= workers; ++rank) {
    links.push_back(controller->worker(rank));
    numbers.push_back(rank);
  }
  TDOCK_ASSIGN_OR_RETURN(const WorkerGroup group, WorkerGroup::Of(std::move(links), {.role = "python"}));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> doubled, group.Call(kDouble, numbers));
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add("x", Column::FromValues<float>({1, 2, 3, 4})));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch scored, group.Call(kScore, MetaBatch(batch)));
  TDOCK_ASSIGN_OR_RETURN(const std::span<const float> scores, scored.columns().Values<float>("score"));
  std::printf("%s; %s\n", absl::StrJoin(doubled, " ").c_str(), absl::StrJoin(scores, " ").c_str());
  return absl::OkStatus();
}

absl::StatusOr<MetaBatch> Score(MetaBatch batch) {
  TDOCK_ASSIGN_OR_RETURN(const std::span<const float> x, batch.columns().Values<float>("x"));
  std::vector<float> scores;
  for (const float one : x) scores.push_back(one * 10);
  Batch scored;
  TDOCK_RETURN_IF_ERROR(scored.Add("score", Column::FromValues(scores)));
  return MetaBatch(scored);
}

absl::Status Work(const std::string& address, int rank, int world_size) {
  MethodTable table;
  TDOCK_RETURN_IF_ERROR(table.Serve(kDouble, [](int64_t x) { return 2 * x; }));
  TDOCK_RETURN_IF_ERROR(table.Serve(kScore, &Score));
  TDOCK_ASSIGN_OR_RETURN(
      const auto session,
      JoinController({.controller = address, .token = Token(), .rank = rank, .world_size = world_size, .name = "cpp"}));
  TDOCK_ASSIGN_OR_RETURN(const Value welcome, session->AwaitWelcome(Soon()));
  session->Notify("log", absl::StrCat("welcomed with ", welcome.Describe()));
  return session->Serve(table);
}

absl::Status Run(const std::vector<std::string>& arguments) {
  int first = 0, second = 0;
  if (arguments.size() == 2 && arguments[0] == "controller" && absl::SimpleAtoi(arguments[1], &first)) {
    return Control(first);
  }
  if (arguments.size() == 4 && arguments[0] == "worker" && absl::SimpleAtoi(arguments[2], &first) &&
      absl::SimpleAtoi(arguments[3], &second)) {
    return Work(arguments[1], first, second);
  }
  return absl::InvalidArgumentError("usage: controller_peer controller WORKERS | worker ADDRESS RANK WORLD");
}

}  // namespace
}  // namespace tdock::runtime

int main(int argc, char** argv) {
  const absl::Status status = tdock::runtime::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
