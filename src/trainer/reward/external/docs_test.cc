// Checks what docs/rewards.md says about other programs: its configuration and its messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "trainer/reward/external/external_config.h"
#include "trainer/reward/external/protocol.h"

namespace tdock::reward {
namespace {

class ExternalRewardPage : public testing::Test {
 protected:
  ExternalRewardPage() : page_(*Env::Real().ReadFile("docs/rewards.md")) {
    page_ = page_.substr(page_.find("## Other programs"));
    BindExternalReward(spec_, config_);
  }

  // The line behind `begin`.
  std::string LineBehind(const std::string& begin) const {
    const size_t at = page_.find(begin);
    EXPECT_NE(at, std::string::npos) << begin;
    return page_.substr(at + begin.size(), page_.find('\n', at) - at - begin.size());
  }

  std::string page_;
  ExternalRewardConfig config_;
  config::Spec spec_;
};

TEST_F(ExternalRewardPage, ItsConfigurationLoads) {
  std::string block = page_.substr(page_.find("```yaml\n") + 8);
  block = block.substr(block.find("reward:"), block.find("```") - block.find("reward:"));
  EXPECT_EQ(config::Load(spec_, block, "rewards.md", {}), absl::OkStatus());
  EXPECT_TRUE(MakeRunReward({}, config_, {}, [](const std::string&) {}).ok());
}

TEST_F(ExternalRewardPage, ItsMessagesAreThoseOfTheProtocol) {
  EXPECT_EQ(CheckHello(LineBehind("    program: ")), absl::OkStatus());
  EXPECT_EQ(
      ParseScoresLine(LineBehind("    program: {\"type\":\"scores\"").insert(0, "{\"type\":\"scores\""), 7)->size(),
      1u);
  EXPECT_EQ(HelloLine({"extra_info"}), nlohmann::json::parse(LineBehind("    host:    ")).dump() + "\n");
}

}  // namespace
}  // namespace tdock::reward
