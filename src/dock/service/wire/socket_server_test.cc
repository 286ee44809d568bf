#include "dock/service/wire/socket_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/accept_failures.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "dock/service/wire/socket_address.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

TEST(SocketServer, SaysThatNoDescriptorIsLeftAndGoesOnWhenOneIs) {
  TestService served;
  const ScratchFolder folder;
  const std::string path = folder.File("dock.sock");
  Mutex mu;
  std::vector<std::string> said;
  AcceptFailures failures([&](const std::string& sentence) {
    const MutexLock lock(mu);
    said.push_back(sentence);
  });
  failures.ListensOn(path);
  const auto server = SocketServer::Start(served.service, served.pool, {.path = path, .failures = &failures}).value();
  const int late = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);  // before the limit, so that it has a descriptor
  const int next = ::dup(0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const sockaddr_un address = SocketAddress(path).value();
  EXPECT_EQ(::connect(late, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(Eventually([&] {
    const MutexLock lock(mu);
    return !said.empty();
  }));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Eventually([&] {
    const MutexLock lock(mu);
    return absl::StrContains(said.back(), "again");
  }));
  EXPECT_FALSE(failures.failing());
  ::close(next);
  ::close(late);
  const MutexLock lock(mu);
  EXPECT_THAT(said.front(), Mentions({path, absl::StrCat(next), "EMFILE", "ulimit -n"}));
  EXPECT_THAT(said.back(), Mentions({path, "again"}));
}

}  // namespace
}  // namespace tdock::service
