#include "trainer/rollout_servers/server_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

std::vector<std::string> ShownBy(const ServerList& list) {
  std::vector<std::string> shown;
  for (const ServerClient& server : list.servers()) shown.push_back(server.shown());
  return shown;
}

TEST(ServerList, FollowsItsFile) {
  const std::string file = testing::TempDir() + absl::StrCat("server_list_", getpid());
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("\n# some\n  http://b:1/v1 \nhttp://a:1\nhttp://b:1\n");
  auto made = ServerList::Create(Env::Real(), {"http://a:1/"}, file, {});
  ASSERT_TRUE(made.ok()) << made.status();
  ServerList& list = *made;
  EXPECT_THAT(ShownBy(list), ElementsAre("http://a:1", "http://b:1"));
  absl::Time now = absl::UnixEpoch();
  EXPECT_FALSE(list.Refresh(now)) << "it has not changed";
  write("http://c\n");
  EXPECT_FALSE(list.Refresh(now)) << "it was looked at just now";
  EXPECT_TRUE(list.Refresh(now += absl::Seconds(1)));
  EXPECT_THAT(ShownBy(list), ElementsAre("http://a:1", "http://c"));
  write("http://d\nftp://c\n");
  EXPECT_FALSE(list.Refresh(now += absl::Seconds(1)));
  EXPECT_THAT(list.trouble(), Fails(absl::StatusCode::kInvalidArgument, {"rollout.servers_file", file, "line 2"}));
  std::filesystem::remove(file);
  EXPECT_FALSE(list.Refresh(now += absl::Seconds(1)));
  EXPECT_THAT(list.trouble(), Fails(absl::StatusCode::kNotFound, {file}));
  EXPECT_THAT(ShownBy(list), ElementsAre("http://a:1", "http://c")) << "those of the last file that was valid";
  write("");
  EXPECT_TRUE(list.Refresh(now += absl::Seconds(1)));
  EXPECT_TRUE(list.trouble().ok());
  EXPECT_THAT(ShownBy(list), ElementsAre("http://a:1"));
  std::filesystem::remove(file);
}

TEST(ServerList, SaysNoSecret) {
  const auto list = ServerList::Create(Env::Real(), {"http://user:secret@a"}, "", {});
  EXPECT_THAT(list.status(), Fails(absl::StatusCode::kInvalidArgument, {"rollout.server_key_env"}));
  EXPECT_THAT(std::string(list.status().message()), testing::Not(testing::HasSubstr("secret")));
}

}  // namespace
}  // namespace tdock::trainer
