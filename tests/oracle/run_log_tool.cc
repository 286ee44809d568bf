// Logs a run, or goes on with it: tdock_run_log begin|resume FOLDER POSITION
//
// `begin` logs steps 0 to 30, of which the last ten are of a second phase, and writes to the file POSITION where the
// logs were after step 15. `resume` goes on from there, to step 40.
#include <cmath>
#include <iostream>

#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "trainer/run_log/run_directory.h"

namespace tdock::trainer {
namespace {

absl::Status LogSteps(RunDirectory& run, int64_t first, int64_t last, double offset) {
  for (int64_t step = first; step <= last; ++step) {
    const char* phase = step <= 20 ? "sft" : "grpo";
    const double value = offset + static_cast<double>(step) / 3;
    Metrics metrics = {{"train/loss", value}, {"a,b", step % 7 == 0 ? std::nan("") : -value}};
    if (step % 10 == 0) metrics["val/loss"] = value * 1e-9;
    TDOCK_RETURN_IF_ERROR(run.LogMetrics(phase, step, metrics));
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& verb, const std::string& folder, const std::string& position_path) {
  Env& env = Env::Real();
  if (verb == "begin") {
    TDOCK_ASSIGN_OR_RETURN(const auto run, RunDirectory::Create(env, Clock::Real(), folder));
    TDOCK_RETURN_IF_ERROR(LogSteps(*run, 0, 15, 0));
    TDOCK_ASSIGN_OR_RETURN(const LogPosition position, run->Position());
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, position_path, nlohmann::json(position).dump()));
    return LogSteps(*run, 16, 30, 0);
  }
  TDOCK_ASSIGN_OR_RETURN(const std::string position, env.ReadFile(position_path));
  TDOCK_ASSIGN_OR_RETURN(const auto run, RunDirectory::Open(env, Clock::Real(), folder,
                                                            nlohmann::json::parse(position).get<LogPosition>()));
  TDOCK_RETURN_IF_ERROR(LogSteps(*run, 16, 40, 100));  // other values, to be told from the first ones
  TDOCK_RETURN_IF_ERROR(run->WriteReport({.title = "resumed"}));
  return run->Sync();
}

}  // namespace
}  // namespace tdock::trainer

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: tdock_run_log begin|resume FOLDER POSITION\n";
    return 2;
  }
  const absl::Status status = tdock::trainer::Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
