// Which rank of a run a process is, as the program that started it says in environment variables.
#pragma once

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tdock::runtime {

// What torchrun, Kubernetes (PyTorchJob, JobSet), srun or `tdock launch` tell a process.
struct RankEnvironment {
  int rank = 0;  // from 0 to world_size - 1
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_world_size = 1;
  std::string master_addr = {};  // where rank 0 is reached: a host name or an address
  int master_port = 0;           // from 1 to 65535
  // A TCPStore listens at that address already, in the agent that started the ranks, so that rank 0 must not.
  bool uses_agent_store = false;
  int restart_count = 0;  // how often the ranks were started again

  // Whether rank 0 is reached on this machine only, so that all are there.
  bool on_loopback() const {
    return master_addr == "localhost" || master_addr == "::1" || master_addr.substr(0, 4) == "127.";
  }

  // A variable of the environment, or null; `::getenv` is one.
  using Variables = absl::FunctionRef<const char*(const char*)>;

  // Nothing for a process that is a run of its own:
  //
  // - If any of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE is set, they and MASTER_ADDR and MASTER_PORT decide.
  //   Those of Slurm then mean nothing. Without LOCAL_RANK and LOCAL_WORLD_SIZE, as in Kubernetes, each rank is the
  //   only one of its machine.
  // - Otherwise, a task of an srun step of several tasks has its rank from SLURM_PROCID, SLURM_STEP_NUM_TASKS (or
  //   SLURM_NTASKS), SLURM_LOCALID, SLURM_NODEID and SLURM_STEP_TASKS_PER_NODE, and needs MASTER_ADDR and MASTER_PORT.
  //   What tells a step is a SLURM_STEP_ID: the script of sbatch and the shell of salloc have SLURM_PROCID=0 and the
  //   job's SLURM_NTASKS, too, but no step's number. A program there, and a step of one task, is a run of its own.
  //
  // MASTER_ADDR and MASTER_PORT alone mean nothing, because scripts export them for all of their programs. A variable
  // with an empty value counts as not set.
  //
  // InvalidArgument lists everything that is missing or wrong, what is set, and what would be right.
  static absl::StatusOr<std::optional<RankEnvironment>> Read(Variables variables);
};

}  // namespace tdock::runtime
