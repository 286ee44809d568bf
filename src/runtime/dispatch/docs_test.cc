// Compiles and runs the example of docs/distributed.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "runtime/dispatch/method.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/row_weights.h"
#include "runtime/dispatch/testing/table_links.h"
#include "runtime/dispatch/worker_group.h"

namespace tdock::runtime {
namespace {

MetaBatch Scored(const MetaBatch& part) {
  std::vector<double> scores;
  const auto lengths = *part.columns().Values<int64_t>("length");
  for (const int64_t length : lengths) scores.push_back(static_cast<double>(length) / 10);
  Batch batch;
  EXPECT_TRUE(batch.Add("score", Column::FromValues(scores)).ok());
  return MetaBatch(std::move(batch));
}

double Best(const MetaBatch& part) {
  const MetaBatch real = *RealRows(part);
  const auto scores = *real.columns().Values<double>("score");
  return *std::max_element(scores.begin(), scores.end());
}

// clang-format off
    // Declared once, for those who call it and those who serve it.
    constexpr Method<MetaBatch(MetaBatch)> kScoreRows{"score", NdMesh("reward", /*pad=*/true)};
    constexpr Method<PerRank<double>(MetaBatch)> kBestScore{"best", Dispatch(Mode::kDpComputeMetric, /*padded=*/true)};

    // On each worker.
    absl::Status ServeRewards(MethodTable& table) {
      TDOCK_RETURN_IF_ERROR(table.Serve(kScoreRows, [](const MetaBatch& part) { return Scored(part); }));
      return table.Serve(kBestScore, [](const MetaBatch& part) { return Best(part); });
    }

    // On the controller. The second call begins when the first has ended.
    absl::StatusOr<std::vector<double>> BestOfEachWorker(const WorkerGroup& rewards, const MetaBatch& answers) {
      const Future<MetaBatch> scored = rewards.Start(kScoreRows, answers);
      return rewards.Call(kBestScore, scored);
    }
// clang-format on

TEST(DocsDistributed, TheExampleRuns) {
  std::vector<MethodTable> tables(2);
  for (MethodTable& table : tables) ASSERT_TRUE(ServeRewards(table).ok());
  const WorkerGroup rewards = *WorkerGroup::Of(
      LinksTo(tables), {.role = "reward", .meshes = {{"reward", *Mesh::Of(2, {{"dp", 2}})}}, .fetch = {}});
  Batch answers;
  ASSERT_TRUE(answers.Add("length", Column::FromValues(std::vector<int64_t>{90, 20, 50})).ok());
  // The second worker has the row of length 50, and a copy of that of length 90.
  EXPECT_THAT(*BestOfEachWorker(rewards, MetaBatch(answers)), testing::ElementsAre(9, 5));
}

TEST(DocsDistributed, TheExampleIsTheOneOfThePage) {
  const std::string page = *Env::Real().ReadFile("docs/distributed.md");
  const std::string source = *Env::Real().ReadFile("src/runtime/dispatch/docs_test.cc");
  const std::string example =
      page.substr(page.find("### Example\n"), page.find("A method whose types") - page.find("### Example\n"));
  const std::string code = example.substr(example.find("    //"));
  EXPECT_GT(code.size(), 500u);
  EXPECT_NE(source.find(std::string(absl::StripTrailingAsciiWhitespace(code))), std::string::npos) << "the page has:\n"
                                                                                                   << code;
}

}  // namespace
}  // namespace tdock::runtime
