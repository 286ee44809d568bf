// Scores for programs: whether they pass the tests of their prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/reward/external/sandbox.h"
#include "trainer/reward/external/score_source.h"
#include "trainer/reward/rule_reward.h"

namespace tdock::reward {

struct CodeOptions {
  std::string name = "code";
  SourceSet sources = {};       // data sources whose answers it scores
  bool all_or_nothing = false;  // 1 only if all tests are passed; otherwise the share of those that are
  int64_t processes = 1;        // programs at a time, of each call of Score()
  absl::Duration test_timeout = absl::Seconds(10);
  absl::Duration timeout = absl::Seconds(60);  // for all tests of an answer; those that are not run count as failed
  SandboxOptions sandbox = {};
};

// Runs the program of each answer (ProgramOf) in a sandbox of its own for each test of its truth (ParseCodeTests).
// Answers whose truth has no tests are undecided. What tests expect is compared here and does not enter the sandbox,
// except in assertions other than `assert EXPRESSION == LITERAL`. Errors are those of Sandbox::Make().
absl::StatusOr<std::unique_ptr<ScoreSource>> MakeCodeSource(const CodeOptions& options);

}  // namespace tdock::reward
