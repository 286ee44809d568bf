#include "runtime/launch/rank_environment.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/utf8.h"

namespace tdock::runtime {
namespace {

constexpr int kHighestPort = 65535;

// Reads variables, and collects what is wrong with them.
class VariableReader {
 public:
  explicit VariableReader(RankEnvironment::Variables variables) : variables_(variables) {}

  std::optional<std::string> Text(const char* name) const {
    const char* const value = variables_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  // Nothing, with a complaint, if it is not a whole number from `least` to `most`.
  std::optional<int> Number(const char* name, int least, int most = std::numeric_limits<int>::max()) {
    const std::optional<std::string> text = Text(name);
    if (!text) return std::nullopt;
    int number = 0;
    if (absl::SimpleAtoi(*text, &number) && number >= least && number <= most) return number;
    const std::string range = most == std::numeric_limits<int>::max() ? absl::StrCat(" of at least ", least)
                                                                      : absl::StrCat(" from ", least, " to ", most);
    Complain(absl::StrCat(name, " is ", Quoted(*text), ", and must be a whole number", range));
    return std::nullopt;
  }
  void Complain(std::string problem) { problems_.push_back(std::move(problem)); }
  bool complained() const { return !problems_.empty(); }

  // All complaints, with the values of the `shown` variables and `advice`.
  absl::Status Problems(std::initializer_list<const char*> shown, absl::string_view advice) const {
    std::vector<std::string> set;
    for (const char* name : shown) {
      if (const auto value = Text(name)) set.push_back(absl::StrCat(name, "=", EscapeForMessage(*value)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the environment does not say which rank this process is: ", absl::StrJoin(problems_, "; "),
                     " (set: ", absl::StrJoin(set, " "), "). ", advice));
  }

 private:
  const RankEnvironment::Variables variables_;
  std::vector<std::string> problems_;
};

void CheckBelow(VariableReader& reader, const char* name, int value, const char* size_name, int size) {
  if (value < size) return;
  reader.Complain(absl::StrCat(name, " is ", value, ", and must be less than ", size_name, ", which is ", size));
}

// What all ranks need, whoever starts them.
void ReadMaster(VariableReader& reader, RankEnvironment& environment) {
  const std::optional<std::string> address = reader.Text("MASTER_ADDR");
  if (address) environment.master_addr = *address;
  if (!address) reader.Complain("MASTER_ADDR is missing");
  if (!reader.Text("MASTER_PORT")) reader.Complain("MASTER_PORT is missing");
  environment.master_port = reader.Number("MASTER_PORT", 1, kHighestPort).value_or(0);
  const char* const count = reader.Text("TDOCK_RESTART_COUNT") ? "TDOCK_RESTART_COUNT" : "TORCHELASTIC_RESTART_COUNT";
  environment.restart_count = reader.Number(count, 0).value_or(0);
}

bool IsTrue(const std::optional<std::string>& text) {
  return text && (*text == "1" || absl::EqualsIgnoreCase(*text, "true"));
}

absl::StatusOr<std::optional<RankEnvironment>> ReadTorchrun(VariableReader& reader) {
  RankEnvironment environment;
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (!reader.Text(name)) reader.Complain(absl::StrCat(name, " is missing"));
  }
  if (reader.Text("LOCAL_RANK").has_value() != reader.Text("LOCAL_WORLD_SIZE").has_value()) {
    reader.Complain(reader.Text("LOCAL_RANK") ? "LOCAL_RANK is set without LOCAL_WORLD_SIZE"
                                              : "LOCAL_WORLD_SIZE is set without LOCAL_RANK");
  }
  const std::optional<int> rank = reader.Number("RANK", 0), size = reader.Number("WORLD_SIZE", 1);
  const std::optional<int> local_rank = reader.Number("LOCAL_RANK", 0);
  const std::optional<int> local_size = reader.Number("LOCAL_WORLD_SIZE", 1);
  if (rank && size) CheckBelow(reader, "RANK", *rank, "WORLD_SIZE", *size);
  if (local_rank && local_size) CheckBelow(reader, "LOCAL_RANK", *local_rank, "LOCAL_WORLD_SIZE", *local_size);
  if (size && local_size && *local_size > *size) {
    reader.Complain(absl::StrCat("LOCAL_WORLD_SIZE is ", *local_size, ", more than WORLD_SIZE, which is ", *size));
  }
  ReadMaster(reader, environment);
  if (reader.complained()) {
    return reader.Problems(
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
        "A rank needs RANK, WORLD_SIZE, MASTER_ADDR (the host of rank 0) and MASTER_PORT, and, where several run on a "
        "machine, LOCAL_RANK and LOCAL_WORLD_SIZE, as `tdock launch` and torchrun set them; a run of one process "
        "needs none of them: env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u LOCAL_WORLD_SIZE tdock …");
  }
  environment.rank = *rank;
  environment.world_size = *size;
  environment.local_rank = local_rank.value_or(0);
  environment.local_world_size = local_size.value_or(1);
  environment.uses_agent_store = IsTrue(reader.Text("TORCHELASTIC_USE_AGENT_STORE"));
  return environment;
}

// Of the node with this number, from a text such as "4(x2),3". Nothing if the text is of another form, or shorter.
std::optional<int> TasksOfNode(absl::string_view tasks_per_node, int node) {
  int64_t first = 0;
  for (const absl::string_view part : absl::StrSplit(tasks_per_node, ',')) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(part, absl::MaxSplits("(x", 1));
    absl::string_view times = halves.second;
    int tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(halves.first, &tasks) || tasks < 1) return std::nullopt;
    if (absl::StrContains(part, '(')) {
      if (!absl::ConsumeSuffix(&times, ")") || !absl::SimpleAtoi(times, &nodes) || nodes < 1) return std::nullopt;
    }
    first += nodes;
    if (node < first) return tasks;
  }
  return std::nullopt;
}

// The tasks of the srun step that this process is one of; 1 where it is none.
int TasksOfStep(VariableReader& reader) {
  // Steps that users start are counted from 0; those of the script, of an interactive shell and the like have numbers
  // beyond 2^31.
  int step = 0;
  const std::optional<std::string> text = reader.Text("SLURM_STEP_ID");
  if (!text || !absl::SimpleAtoi(*text, &step) || step < 0 || !reader.Text("SLURM_PROCID")) return 1;
  const char* const name = reader.Text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return reader.Number(name, 1).value_or(1);
}

absl::StatusOr<std::optional<RankEnvironment>> ReadSlurm(VariableReader& reader) {
  RankEnvironment environment;
  environment.world_size = TasksOfStep(reader);
  if (environment.world_size == 1 && !reader.complained()) return std::nullopt;
  for (const char* name : {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"}) {
    if (!reader.Text(name)) reader.Complain(absl::StrCat(name, ", which srun sets, is missing"));
  }
  environment.rank = reader.Number("SLURM_PROCID", 0).value_or(0);
  environment.local_rank = reader.Number("SLURM_LOCALID", 0).value_or(0);
  const std::optional<int> node = reader.Number("SLURM_NODEID", 0);
  if (const auto tasks = reader.Text("SLURM_STEP_TASKS_PER_NODE"); tasks && node) {
    const std::optional<int> here = TasksOfNode(*tasks, *node);
    environment.local_world_size = here.value_or(1);
    if (!here) {
      reader.Complain(absl::StrCat("SLURM_STEP_TASKS_PER_NODE is ", Quoted(*tasks),
                                   ", and must say how many tasks node ", *node, " has, such as '4(x2),3'"));
    } else {
      CheckBelow(reader, "SLURM_LOCALID", environment.local_rank, "the number of tasks of this node", *here);
    }
  }
  CheckBelow(reader, "SLURM_PROCID", environment.rank, "the number of tasks of the step", environment.world_size);
  ReadMaster(reader, environment);
  if (!reader.complained()) return environment;
  return reader.Problems(
      {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID",
       "SLURM_STEP_TASKS_PER_NODE", "MASTER_ADDR", "MASTER_PORT"},
      "The tasks of an srun step are the ranks of one run, which needs this line before srun in the job's script: "
      "export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1); for runs "
      "of one process each: srun … env -u SLURM_STEP_ID tdock …");
}

}  // namespace

absl::StatusOr<std::optional<RankEnvironment>> RankEnvironment::Read(Variables variables) {
  VariableReader reader(variables);
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (reader.Text(name)) return ReadTorchrun(reader);
  }
  return ReadSlurm(reader);
}

}  // namespace tdock::runtime
