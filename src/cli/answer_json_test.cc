#include "cli/answer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/testing/fails.h"
#include "text/char_tokenizer.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

TEST(AddScores, CountsTheTokensOfTheMask) {
  const auto tokenizer = *text::CharTokenizer::Create("ab");
  const std::vector<int32_t> ids = {0, 1, 1};
  const std::vector<engine::PromptToken> scores = {{.log_prob = -0.5, .rank = 2}, {.log_prob = -0.25, .rank = 1}};
  Json last = Json::object(), all = Json::object();
  AddScores(ids, std::vector<uint8_t>{0, 0, 1}, scores, *tokenizer, last);
  AddScores(ids, std::vector<uint8_t>{0, 1, 1}, scores, *tokenizer, all);
  EXPECT_EQ(LineOf(last), R"({"ids":[0,1,1],"loss_mask":[0,0,1],"log_probs":[null,-0.5,-0.25],"ranks":[null,2,1],)"
                          R"("scored_tokens":1,"sum_log_prob":-0.25,"mean_log_prob":-0.25})");
  EXPECT_EQ(all["sum_log_prob"], -0.75);
  EXPECT_EQ(all["mean_log_prob"], -0.375);
  ScoreTotals totals;
  EXPECT_EQ(LineOf(totals.ToJson()), R"({"records":0,"scored_tokens":0,"sum_log_prob":0.0,"perplexity":null})");
  ASSERT_TRUE(totals.Add(last).ok());
  ASSERT_TRUE(totals.Add(all).ok());
  EXPECT_EQ(totals.ToJson()["scored_tokens"], 3);
  EXPECT_DOUBLE_EQ(totals.ToJson()["perplexity"].get<double>(), std::exp(1.0 / 3));
  last["sum_log_prob"] = "x";
  EXPECT_THAT(totals.Add(last), Fails(absl::StatusCode::kDataLoss, {"sum_log_prob"}));
}

TEST(AddScores, ShowsTheMostLikelyTokensWhereThereAreAny) {
  const auto tokenizer = *text::CharTokenizer::Create("ab");
  Json json = Json::object();
  const std::vector<engine::PromptToken> scores = {{.log_prob = -0.5, .rank = 2, .top = {{1, -0.25}}}};
  AddScores(std::vector<int32_t>{0, 1}, std::vector<uint8_t>{0, 1}, scores, *tokenizer, json);
  EXPECT_EQ(JsonText(json["top_log_probs"]), R"([null,[{"id":1,"token":"b","log_prob":-0.25}]])");
}

}  // namespace
}  // namespace tdock::cli
