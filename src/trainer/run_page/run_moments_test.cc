#include "trainer/run_page/run_moments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "trainer/executor/explain_socket.h"

namespace tdock::trainer {
namespace {

std::string NewFolder(const std::string& name) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "run_moments_", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(RunMoments, ARunThatHangsSaysSoAndOthersAreAsked) {
  const std::string hanging = NewFolder("hanging"), quick = NewFolder("quick"), ended = NewFolder("ended");
  std::atomic<bool> let_go = false;
  const auto hangs = RunExplainer::Start(hanging, [&](ExplainForm) {
    EXPECT_TRUE(Eventually([&] { return let_go.load(); }));
    return std::string("{}");
  });
  const auto answers = RunExplainer::Start(quick, [](ExplainForm) { return std::string("{\"stages\":[\"one\"]}"); });
  ASSERT_TRUE(hangs.ok()) << hangs.status();
  ASSERT_TRUE(answers.ok()) << answers.status();
  {
    RunMoments moments;
    EXPECT_EQ(moments.Last("quick").number, 0U);
    moments.Watch({{"hanging", {hanging, true}}, {"quick", {quick, true}}, {"ended", {ended, false}}});
    for (const std::string name : {"quick", "ended", "hanging"}) {
      ASSERT_TRUE(Eventually([&] { return moments.Last(name).number > 0; })) << name;
    }
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(*moments.Last("quick").event, "one"); }));
    EXPECT_THAT(*moments.Last("quick").event, Mentions({"event: moment", "one"}));
    EXPECT_THAT(*moments.Last("ended").event, Mentions({"\"stages\":[]"}));
    EXPECT_THAT(*moments.Last("hanging").event, Mentions({"problem", "explain.socket"}));
    moments.Watch({{"quick", {quick, true}}});
    EXPECT_GT(moments.Last("quick").number, 0U);
    EXPECT_EQ(moments.Last("hanging").number, 0U);
  }
  let_go = true;
}

}  // namespace
}  // namespace tdock::trainer
