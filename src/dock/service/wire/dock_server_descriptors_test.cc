#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/net/endpoint.h"
#include "dock/service/wire/testing/serve.h"
#include "tdock/dock_server.h"

namespace tdock {
namespace {

TEST(DockServerWithoutDescriptors, SaysThatItCannotAcceptConnectionsAndCountsTheAttempts) {
  const service::ScratchFolder folder;
  const std::string path = folder.File("dock.sock");
  Mutex mu;
  std::vector<std::string> said;
  const auto server = DockServer::Start({.socket = path,
                                         .on_stall =
                                             [&](const std::string& sentence) {
                                               const MutexLock lock(mu);
                                               said.push_back(sentence);
                                             }})
                          .value();
  EXPECT_EQ(server->counts().accept_failures, 0);
  const int late = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);  // before the limit, so that it has a descriptor
  const int next = ::dup(0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const sockaddr_un address = net::UnixAddress(path).value();
  EXPECT_EQ(::connect(late, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(Eventually([&] { return server->counts().accept_failures > 0; }));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Eventually([&] {
    const MutexLock lock(mu);
    return !said.empty() && absl::StrContains(said.back(), "again");
  }));
  ::close(next);
  ::close(late);
  const MutexLock lock(mu);
  EXPECT_THAT(said.front(), Mentions({path, absl::StrCat(next), "EMFILE", "ulimit -n"}));
}

}  // namespace
}  // namespace tdock
