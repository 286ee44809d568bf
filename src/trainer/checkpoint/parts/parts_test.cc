#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/hostile_text.h"
#include "trainer/checkpoint/parts/state_texts.h"
#include "trainer/checkpoint/parts/tensor_parts.h"

namespace tdock::trainer {
namespace {

TEST(TensorParts, EachPartHasOneName) {
  const auto part = ParsePart("x[4/10]", "x", 10, 6);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->begin, 4);
  EXPECT_EQ(part->end(), 10);
  for (const char* other :
       {"x[ 4/10]", "x[+4/10]", "x[04/10]", "x[4/10 ]", "x[4/10]]", "y[4/10]", "x", "x[4]", "[4/10]", "x[-0/10]"}) {
    EXPECT_THAT(ParsePart(other, "x", 10, 6).status(), Fails(absl::StatusCode::kInvalidArgument, {other})) << other;
  }
}

TEST(TensorParts, NumbersBeyondTheTensorAreRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(ParsePart(PartName("x", 0, kMost), "x", kMost, kMost).ok());
  for (const auto& [begin, size] : {std::pair(int64_t{1}, kMost), {kMost, int64_t{1}}, {int64_t{-1}, int64_t{1}}}) {
    const std::string name = PartName("x", begin, kMost);
    EXPECT_THAT(ParsePart(name, "x", kMost, size).status(), Fails(absl::StatusCode::kInvalidArgument, {name}));
  }
  EXPECT_THAT(ParsePart("x[9223372036854775808/10]", "x", 10, 1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"x[9223372036854775808/10]"}));
}

TEST(TensorParts, EachNumberIsCopiedOnce) {
  const std::vector<TensorPart> parts = {{"x[4/10]", 4, 6}, {"x[4/10]", 4, 0}, {"x[0/10]", 0, 4}};
  const auto plan = PlanCopies("x", parts, 3, 4, 10);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->size(), 2u);
  EXPECT_EQ(plan->at(0).part, 2u);
  EXPECT_EQ(plan->at(0).from, 3);
  EXPECT_EQ(plan->at(0).size, 1);
  EXPECT_EQ(plan->at(1).part, 0u);
  EXPECT_EQ(plan->at(1).from, 0);
  EXPECT_EQ(plan->at(1).to, 1);
  EXPECT_EQ(plan->at(1).size, 3);
  EXPECT_TRUE(PlanCopies("x", parts, 3, 0, 10)->empty());
}

TEST(StateTexts, QuotesWhatFilesSay) {
  const std::string hostile = AsciiJsonText(nlohmann::json(kHostileText));
  const auto part = [](const std::string& name) { return TensorPart{.name = name, .begin = 0, .size = 2}; };
  const std::string rank = absl::StrCat("state-rank-", kHostileText, ".json");
  const std::vector<std::string> ranks = {rank};
  for (const absl::Status& status :
       {ParseStateTexts(absl::StrCat("{", hostile, ": 1}")).status(), ParseStateTexts(kHostileText).status(),
        ParseStateTexts(absl::StrCat("{", hostile, ": \"a\", ", hostile, ": \"b\"}")).status(),
        RanksThatWrote(ranks).status(), ParsePart(kHostileText, "x", 10, 1).status(),
        ParsePart(absl::StrCat("x[", kHostileText, "/10]"), "x", 10, 1).status(),
        PlanCopies("x", std::vector<TensorPart>{part(kHostileText), part(kHostileText)}, 0, 2, 2).status()}) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument));
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
  }
}

TEST(StateTexts, RanksAreThoseThatTheFilesName) {
  const auto ranks = [](const std::vector<std::string>& files) { return RanksThatWrote(files); };
  EXPECT_EQ(*ranks({"state.json", "model.safetensors"}), 1);
  EXPECT_EQ(*ranks({"state.json", "state-rank-2-of-3.json", "state-rank-1-of-3.json"}), 3);
  for (const char* file : {"state-rank-0-of-2.json", "state-rank-2-of-2.json", "state-rank--1-of-2.json",
                           "state-rank-1-of-99999999999999999999.json", "state-rank-.json"}) {
    EXPECT_THAT(ranks({file}).status(), Fails(absl::StatusCode::kInvalidArgument, {file}));
  }
}

}  // namespace
}  // namespace tdock::trainer
