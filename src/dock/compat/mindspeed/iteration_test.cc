// One GRPO iteration on a dock, as docs/mindspeed.md shows it: what stands between the marks is in that page.
#include <fstream>
#include <sstream>

#include "core/base/status.h"
#include "dock/compat/mindspeed/testing/fixture.h"

namespace tdock::mindspeed {
namespace {

// In place of models.
Tokens Generate(const Tokens& prompts) {
  Tokens responses;
  for (const auto& prompt : prompts) responses.push_back({prompt.front() * 10, 1});
  return responses;
}

absl::Status RunIteration(MindSpeedDock& dock) {
  // [iteration]
  // The feeder: two prompts, two samples of each.
  Batch prompts;
  TDOCK_RETURN_IF_ERROR(prompts.Add("prompts", Column::FromRows<int64_t>({{1, 2, 3}, {4, 5}})));
  TDOCK_RETURN_IF_ERROR(dock.PutPromptsExperience(prompts).status());

  // Each stage asks until everything was handed out; another thread may be at it too.
  const auto stage = [&](const char* consumer, const Names& reads, int64_t count, auto compute) -> absl::Status {
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const bool all, dock.AllConsumed(consumer));
      if (all) return absl::OkStatus();
      TDOCK_ASSIGN_OR_RETURN(
          const std::optional<Experience> got,
          dock.GetExperience(consumer, reads,
                             {.experience_count = count, .deadline = absl::Now() + absl::Minutes(30)}));
      if (!got.has_value()) continue;  // others have done the rest
      TDOCK_ASSIGN_OR_RETURN(const Batch result, compute(got->batch));
      // Through the handle: it completes the rows, and is refused once they are somebody else's.
      if (!result.empty()) TDOCK_RETURN_IF_ERROR(dock.PutExperience(result, got->indexes));
    }
  };

  TDOCK_RETURN_IF_ERROR(stage("actor_rollout", {"prompts", "prompt_length"}, 4, [](const Batch& batch) {
    const Tokens responses = Generate(TokensOf(batch, "prompts"));
    return absl::StatusOr<Batch>(TokenBatch(
        {{"responses", responses}, {"input_ids", responses}, {"response_length", Tokens(responses.size(), {2})}}));
  }));
  TDOCK_RETURN_IF_ERROR(stage("rule_reward", {"prompts", "responses"}, 2, [](const Batch& batch) {
    return absl::StatusOr<Batch>(TokenBatch({{"rm_scores", TokensOf(batch, "responses")}}));
  }));
  TDOCK_RETURN_IF_ERROR(stage("compute_advantage", {"responses", "rm_scores"}, 4, [](const Batch& batch) {
    const Tokens scores = TokensOf(batch, "rm_scores");
    return absl::StatusOr<Batch>(TokenBatch({{"advantages", scores}, {"returns", scores}}));
  }));
  for (const auto& [consumer, writes] :
       {std::pair("ref_log_prob", "ref_log_prob"), {"actor_log_prob", "old_log_prob"}}) {
    TDOCK_RETURN_IF_ERROR(stage(consumer, {"input_ids", "responses"}, 2, [&](const Batch& batch) {
      return absl::StatusOr<Batch>(TokenBatch({{writes, TokensOf(batch, "responses")}}));
    }));
  }
  TDOCK_RETURN_IF_ERROR(stage("actor_train", {"responses", "advantages", "old_log_prob", "ref_log_prob"}, 2,
                              [&](const Batch& batch) -> absl::StatusOr<Batch> {
                                dock.UpdateMetrics("actor/rows", static_cast<double>(batch.rows()), /*cumulate=*/true);
                                return Batch();  // it puts nothing: its rows are done already
                              }));
  // [/iteration]
  return absl::OkStatus();
}

class Iteration : public MindSpeedTest {};

TEST_F(Iteration, RunsAsTheDocumentationShows) {
  Make(GrpoDock(2, 2));
  for (int iteration = 0; iteration < 3; ++iteration) {
    ASSERT_EQ(RunIteration(*dock_), absl::OkStatus());
    EXPECT_EQ(Read("advantages", {0, 1, 2, 3}), (Tokens{{10, 1}, {10, 1}, {40, 1}, {40, 1}}));
    EXPECT_THAT(dock_->GetMetrics().at("actor/rows"), testing::ElementsAre(2, 2));
    ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  }
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The lines between two that end so, without indentation.
std::string Between(const std::string& text, const std::string& from, const std::string& to) {
  std::istringstream lines(text);
  std::string line, between;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (inside && line.ends_with(to)) return between;
    if (inside) between += line.substr(std::min(line.find_first_not_of(' '), line.size())) + "\n";
    inside = inside || line.ends_with(from);
  }
  return "";
}

TEST(Documentation, ShowsTheIterationThatIsTested) {
  const std::string code =
      Between(Contents("src/dock/compat/mindspeed/iteration_test.cc"), "// [iteration]", "// [/iteration]");
  const std::string page = Between(Contents("docs/mindspeed.md"), "```cpp", "```");
  EXPECT_FALSE(code.empty());
  EXPECT_EQ(page, code);
}

}  // namespace
}  // namespace tdock::mindspeed
