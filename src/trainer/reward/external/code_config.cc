#include "trainer/reward/external/code_config.h"

#include "core/base/status.h"
#include "trainer/reward/rule_reward.h"

namespace tdock::reward {

void BindCodeReward(config::Spec& spec, CodeRewardConfig& c) {
  spec.Float("reward.code.weight", &c.weight,
             "Weight of `code`: the share of the tests of its truth that the program in a response passes. 0: unused.");
  spec.String("reward.code.sources", &c.sources,
              "Data sources that `code` is for; `apps*`: all that begin so; empty: all.")
      .OrList();
  spec.Bool("reward.code.all_or_nothing", &c.all_or_nothing, "1 for a program that passes all tests, else 0.");
  spec.String("reward.code.python", &c.python, "The Python that runs the programs.").NotEmpty();
  spec.Float("reward.code.test_timeout", &c.test_timeout, "Seconds of a test.").MoreThan(0).AtMost(3600);
  spec.Float("reward.code.timeout", &c.timeout, "Seconds of all tests of a response; those that are left fail.")
      .MoreThan(0)
      .AtMost(86400);
  spec.Float("reward.code.memory_gb", &c.memory_gb, "GiB of memory that a program may use.")
      .AtLeast(0.0625)
      .AtMost(1024);
  spec.Float("reward.code.file_mb", &c.file_mb, "MiB that a program may keep in files, which are in memory.")
      .AtLeast(0.0625)
      .AtMost(1024);
  spec.Float("reward.code.output_mb", &c.output_mb, "MiB that a program may write to its standard output.")
      .AtLeast(0.0625)
      .AtMost(16);
  spec.Strings("reward.code.allow_unisolated", &c.allow_unisolated,
               "What may go without isolation where the machine cannot give it: network, everything.");
  spec.Check({"reward.code.sources"}, [&c]() -> std::vector<std::string> {
    const auto sources = SourceSet::Parse(c.sources);
    if (sources.ok()) return {};
    return {std::string(sources.status().message())};
  });
  spec.Check({"reward.code.allow_unisolated"}, [&c]() -> std::vector<std::string> {
    const absl::Status status = CheckUnisolated(c.allow_unisolated);
    if (status.ok()) return {};
    return {std::string(status.message())};
  });
  spec.Unused(
      {"reward.code.sources", "reward.code.all_or_nothing", "reward.code.python", "reward.code.test_timeout",
       "reward.code.timeout", "reward.code.memory_gb", "reward.code.file_mb", "reward.code.output_mb",
       "reward.code.allow_unisolated"},
      [&c] { return c.weight == 0; }, "`code` has no weight; set reward.code.weight");
}

absl::StatusOr<CodeOptions> CodeOptionsOf(const CodeRewardConfig& config, int64_t processes) {
  constexpr double kMebi = 1 << 20;
  TDOCK_ASSIGN_OR_RETURN(SourceSet sources, SourceSet::Parse(config.sources));
  return CodeOptions{.name = "code",
                     .sources = std::move(sources),
                     .all_or_nothing = config.all_or_nothing,
                     .processes = processes,
                     .test_timeout = absl::Seconds(config.test_timeout),
                     .timeout = absl::Seconds(config.timeout),
                     .sandbox = {.python = config.python,
                                 .memory_bytes = static_cast<int64_t>(config.memory_gb * 1024 * kMebi),
                                 .file_bytes = static_cast<int64_t>(config.file_mb * kMebi),
                                 .output_bytes = static_cast<int64_t>(config.output_mb * kMebi),
                                 .allow_unisolated = config.allow_unisolated}};
}

}  // namespace tdock::reward
