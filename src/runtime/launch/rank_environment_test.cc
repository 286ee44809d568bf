#include "runtime/launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::runtime {
namespace {

using Values = std::map<std::string, std::string>;

absl::StatusOr<std::optional<RankEnvironment>> ReadFrom(const Values& values) {
  return RankEnvironment::Read([&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  });
}

Values With(Values values, const Values& changes) {
  for (const auto& [name, value] : changes) values[name] = value;
  return values;
}

testing::Matcher<absl::StatusOr<std::optional<RankEnvironment>>> Refuses(std::vector<std::string> words) {
  return testing::Property(&absl::StatusOr<std::optional<RankEnvironment>>::status,
                           Fails(absl::StatusCode::kInvalidArgument, std::move(words)));
}

const Values kTorchrun = {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node-0"},
                          {"MASTER_PORT", "29500"}};

// srun -N 2 -n 7 in a job of more tasks.
const Values kSrun = {{"SLURM_JOB_ID", "17"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "4"},
                      {"SLURM_NTASKS", "7"},
                      {"SLURM_STEP_NUM_TASKS", "7"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_NODELIST", "n[1-2]"},
                      {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                      {"MASTER_ADDR", "n1"},
                      {"MASTER_PORT", "29500"}};

TEST(RankEnvironment, IsNothingForAProcessOfItsOwn) {
  EXPECT_EQ(ReadFrom({})->has_value(), false);
  EXPECT_EQ(ReadFrom({{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "x"}})->has_value(), false);
  EXPECT_EQ(ReadFrom({{"RANK", ""}, {"WORLD_SIZE", ""}})->has_value(), false);
}

TEST(RankEnvironment, ReadsWhatTorchrunSets) {
  const auto environment =
      ReadFrom(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  ASSERT_TRUE(environment.ok() && *environment) << environment.status();
  EXPECT_EQ((*environment)->rank, 5);
  EXPECT_EQ((*environment)->world_size, 8);
  EXPECT_EQ((*environment)->local_rank, 1);
  EXPECT_EQ((*environment)->local_world_size, 4);
  EXPECT_EQ((*environment)->master_addr, "node-0");
  EXPECT_EQ((*environment)->master_port, 29500);
  EXPECT_TRUE((*environment)->uses_agent_store);
  EXPECT_EQ((*environment)->restart_count, 2);
  EXPECT_EQ((**ReadFrom(With(kTorchrun, {{"TDOCK_RESTART_COUNT", "1"}}))).restart_count, 1);
  EXPECT_FALSE((**ReadFrom(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))).uses_agent_store);
}

TEST(RankEnvironment, TakesARankOfKubernetesForTheOnlyOneOfItsMachine) {
  Values values = With(kTorchrun, {{"LOCAL_RANK", ""}});
  values.erase("LOCAL_WORLD_SIZE");
  const auto environment = ReadFrom(values);
  ASSERT_TRUE(environment.ok() && *environment) << environment.status();
  EXPECT_EQ((*environment)->rank, 5);
  EXPECT_EQ((*environment)->local_rank, 0);
  EXPECT_EQ((*environment)->local_world_size, 1);
}

TEST(RankEnvironment, SaysEverythingThatIsMissing) {
  EXPECT_THAT(ReadFrom({{"RANK", "1"}}), Refuses({"WORLD_SIZE is", "MASTER_ADDR is", "MASTER_PORT is", "missing",
                                                  "(set: RANK=1)", "tdock launch"}));
  EXPECT_THAT(ReadFrom({{"WORLD_SIZE", "2"}}), Refuses({"RANK is missing"}));
  const auto without_address = ReadFrom(With(kTorchrun, {{"MASTER_ADDR", ""}}));
  EXPECT_THAT(without_address,
              Refuses({": MASTER_ADDR is", "missing (set: ", "WORLD_SIZE=8", "MASTER_PORT=29500", "rank 0"}));
  EXPECT_THAT(std::string(without_address.status().message()), testing::Not(testing::HasSubstr("MASTER_PORT is")));
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"LOCAL_WORLD_SIZE", ""}})), Refuses({"LOCAL_RANK is", "without"}));
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"LOCAL_RANK", ""}})), Refuses({"LOCAL_WORLD_SIZE is", "without"}));
}

TEST(RankEnvironment, SaysEverythingThatIsWrong) {
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"RANK", "-1"}, {"WORLD_SIZE", "two"}, {"MASTER_PORT", "65536"}})),
              Refuses({"RANK is \"-1\"", "WORLD_SIZE is \"two\"", "MASTER_PORT is \"65536\"", "from 1 to 65535"}));
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"RANK", "8"}, {"LOCAL_RANK", "4"}})),
              Refuses({"RANK is 8, and must be less than WORLD_SIZE, which is 8", "LOCAL_RANK is 4"}));
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), Refuses({"LOCAL_WORLD_SIZE is 9"}));
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"RANK", "99999999999"}})), Refuses({"RANK is \"99999999999\""}));
  EXPECT_THAT(ReadFrom(With(kTorchrun, {{"TDOCK_RESTART_COUNT", "x"}})), Refuses({"TDOCK_RESTART_COUNT is \"x\""}));
}

TEST(RankEnvironment, ReadsWhatSrunSets) {
  const auto environment = ReadFrom(kSrun);
  ASSERT_TRUE(environment.ok() && *environment) << environment.status();
  EXPECT_EQ((*environment)->rank, 4);
  EXPECT_EQ((*environment)->world_size, 7);
  EXPECT_EQ((*environment)->local_rank, 0);
  EXPECT_EQ((*environment)->local_world_size, 3);
  EXPECT_EQ((*environment)->master_addr, "n1");
  EXPECT_FALSE((*environment)->uses_agent_store);
  // The job's number of tasks does not count where the step has its own.
  EXPECT_EQ((**ReadFrom(With(kSrun, {{"SLURM_NTASKS", "64"}}))).world_size, 7);
  EXPECT_EQ((**ReadFrom(With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "5(x2),3"}}))).local_world_size, 5);
}

TEST(RankEnvironment, PrefersTorchrunsVariablesToThoseOfSlurm) {
  EXPECT_EQ((**ReadFrom(With(kSrun, kTorchrun))).world_size, 8);
  EXPECT_THAT(ReadFrom(With(kSrun, {{"RANK", "0"}})), Refuses({"WORLD_SIZE is missing"}));
}

TEST(RankEnvironment, IsNothingInTheScriptOfAJob) {
  Values script = kSrun;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"}) script.erase(name);
  EXPECT_EQ(ReadFrom(With(script, {{"SLURM_PROCID", "0"}}))->has_value(), false);
  // The shell of salloc is a step, but not one of a user.
  EXPECT_EQ(ReadFrom(With(kSrun, {{"SLURM_STEP_ID", "4294967290"}}))->has_value(), false);
  EXPECT_EQ(ReadFrom(With(kSrun, {{"SLURM_STEP_ID", "batch"}}))->has_value(), false);
  // A step of one task.
  EXPECT_EQ(ReadFrom(With(kSrun, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}))->has_value(), false);
}

TEST(RankEnvironment, SaysWhatAStepOfSrunNeeds) {
  EXPECT_THAT(ReadFrom(With(kSrun, {{"MASTER_ADDR", ""}, {"MASTER_PORT", ""}})),
              Refuses({"MASTER_ADDR is", "MASTER_PORT is", "missing", "SLURM_PROCID=4",
                       "export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show", "env -u SLURM_STEP_ID"}));
  EXPECT_THAT(ReadFrom(With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "4(x"}, {"SLURM_PROCID", "7"}})),
              Refuses({"SLURM_STEP_TASKS_PER_NODE is \"4(x\"", "SLURM_PROCID is 7"}));
  EXPECT_THAT(ReadFrom(With(kSrun, {{"SLURM_NODEID", "2"}})),
              Refuses({"SLURM_STEP_TASKS_PER_NODE is \"4,3\"", "node 2"}));
  EXPECT_THAT(ReadFrom(With(kSrun, {{"SLURM_LOCALID", ""}, {"SLURM_STEP_NUM_TASKS", "x"}})),
              Refuses({"SLURM_LOCALID, ", "missing", "SLURM_STEP_NUM_TASKS is \"x\""}));
}

}  // namespace
}  // namespace tdock::runtime
