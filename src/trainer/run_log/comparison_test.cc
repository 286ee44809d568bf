#include "trainer/run_log/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "nlohmann/json.hpp"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;

class ComparisonTest : public testing::Test {
 protected:
  ComparisonTest() {
    std::string path = testing::TempDir() + "/comparison_test_XXXXXX";
    root_ = ::mkdtemp(path.data());
  }

  std::string Run(const std::string& name, const std::string& config, const std::string& metrics) {
    const std::string folder = absl::StrCat(root_, "/", name);
    EXPECT_TRUE(Env::Real().CreateFolders(folder).ok());
    EXPECT_TRUE(WriteFileAtomically(Env::Real(), folder + "/config.yaml", config).ok());
    EXPECT_TRUE(WriteFileAtomically(Env::Real(), folder + "/metrics.jsonl", metrics).ok());
    return folder;
  }

  absl::Status Write(const std::vector<std::string>& runs) { return WriteComparison(Env::Real(), runs, page_path()); }
  std::string page_path() const { return root_ + "/page.html"; }
  std::string Page() const { return *Env::Real().ReadFile(page_path()); }
  // What the page has, as a browser would find it.
  Json Data() const {
    const std::string page = Page(), open = "<script id=\"run\" type=\"application/json\">";
    const size_t begin = page.find(open) + open.size();
    return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }

  std::string root_;
};

TEST_F(ComparisonTest, HasALineOfEachRunForWhatAtLeastTwoHave) {
  const std::string a = Run("a", "", R"({"phase":"sft","step":1,"x":1,"only":1}
{"phase":"grpo","step":2,"x":3}
)");
  const std::string b = Run("b", "", "{\"phase\":\"grpo\",\"step\":1,\"x\":5,\"y\":1}\n{\"phase\":\"grpo\",\"st");
  const std::string c = Run("c", "", "{\"phase\":\"grpo\",\"step\":1,\"y\":2}\nnonsense\n");
  ASSERT_EQ(Write({a, b, c}), absl::OkStatus());
  const Json data = Data();
  EXPECT_EQ(data["steps"], Json::parse("[[1,2],[1]]"));
  EXPECT_EQ(data["metrics"], Json::parse(R"([
    {"tag":"x","lines":[{"run":0,"x":0,"y":[1.0,3.0],"last":[2,3.0],"min":[1,1.0],"max":[2,3.0]},
                        {"run":1,"x":1,"y":[5.0],"last":[1,5.0],"min":[1,5.0],"max":[1,5.0]}]},
    {"tag":"y","lines":[{"run":1,"x":1,"y":[1.0],"last":[1,1.0],"min":[1,1.0],"max":[1,1.0]},
                        {"run":2,"x":1,"y":[2.0],"last":[1,2.0],"min":[1,2.0],"max":[1,2.0]}]}])"))
      << data["metrics"].dump(1);
  EXPECT_EQ(data["runs"][0]["name"], "a");
  EXPECT_EQ(data["runs"][0]["last_step"], 2);
  EXPECT_EQ(data["runs"][2]["unreadable"], 1);
}

TEST_F(ComparisonTest, ListsTheKeysThatDiffer) {
  const std::string a = Run("a", "seed: 1\ntrainer:\n  run_dir: a\n  steps: 3\n", "");
  const std::string b = Run("b", "seed: 2\ntrainer:\n  run_dir: b\n  steps: 3\nfiles: [x, y]\n", "");
  ASSERT_EQ(Write({a, b}), absl::OkStatus());
  EXPECT_EQ(Data()["differences"], Json::parse(R"([["files",null,"[x, y]"],["seed","1","2"]])"));
}

TEST_F(ComparisonTest, AConfigurationThatCannotBeReadIsReportedInThePage) {
  const std::string a = Run("a", "seed: [1", ""), b = Run("b", "seed: 1\n", "");
  ASSERT_TRUE(Env::Real().Remove(b + "/config.yaml").ok());
  ASSERT_EQ(Write({a, b}), absl::OkStatus());
  EXPECT_THAT(std::string(Data()["runs"][0]["problem"]), HasSubstr("a/config.yaml:"));
  EXPECT_THAT(std::string(Data()["runs"][1]["problem"]), HasSubstr("b/config.yaml"));
}

TEST_F(ComparisonTest, RunsWithTheSameNameAreToldApartByTheirPaths) {
  const std::string a = Run("x/run", "", ""), b = Run("y/run", "", "");
  ASSERT_EQ(Write({a + "/", b}), absl::OkStatus());
  EXPECT_EQ(Data()["runs"][0]["name"], a + "/");
  EXPECT_EQ(Data()["runs"][1]["name"], b);
}

TEST_F(ComparisonTest, HostileTextStaysDataAndThePageLoadsNothing) {
  const std::string hostile = "</script><script>alert(1)</script><!-- {{run}} {{style}}";
  const Json line = {{"phase", hostile}, {"step", 1}, {hostile, 1}};
  const std::string config = absl::StrCat("key: '", hostile, "'\n");
  const std::string a = Run("a", config, line.dump() + "\n"), b = Run("b", "key: 1\n", line.dump() + "\n");
  ASSERT_EQ(Write({a, b}), absl::OkStatus());
  const std::string page = Page();
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, Not(HasSubstr("<!--")));
  EXPECT_EQ(Data()["metrics"][0]["tag"], hostile);
  EXPECT_THAT(std::string(Data()["differences"][0][1]), HasSubstr("<script>alert(1)"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* outside : {"https://", "src=\"", "@import", "url(", "fetch("})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
}

TEST_F(ComparisonTest, RefusesWhatItCannotCompare) {
  const std::string a = Run("a", "", "");
  EXPECT_EQ(Write({a}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Write(std::vector<std::string>(17, a)),
              Fails(absl::StatusCode::kInvalidArgument, {"17 runs", "2 to 16"}));
  EXPECT_THAT(Write({a, root_ + "/none"}), Fails(absl::StatusCode::kNotFound, {root_ + "/none"}));
  EXPECT_FALSE(Env::Real().Exists(page_path()));
}

}  // namespace
}  // namespace tdock::trainer
