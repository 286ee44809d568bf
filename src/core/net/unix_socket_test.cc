#include "core/net/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/testing/patience.h"

namespace tdock::net {
namespace {

using testing::HasSubstr;

// A socket that anybody may connect to, on which a user listens.
class Listener {
 public:
  explicit Listener(uid_t user) {
    std::string name = "/tmp/tdock-test-XXXXXX";
    folder_ = mkdtemp(name.data());
    const sockaddr_un address = UnixAddress(path()).value();
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(chmod(folder_.c_str(), 0755) + chmod(path().c_str(), 0666), 0);
    const uid_t own = geteuid();
    EXPECT_EQ(seteuid(user), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(seteuid(own), 0);
  }
  ~Listener() {
    close(fd_);
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/dock.sock"; }

 private:
  std::string folder_;
  int fd_ = -1;
};

absl::Status ConnectAs(uid_t user, const std::string& path) {
  const uid_t own = geteuid();
  EXPECT_EQ(seteuid(user), 0);
  const absl::Status status = ConnectToPath(path, absl::Now() + kPatience).status();
  EXPECT_EQ(seteuid(own), 0);
  return status;
}

TEST(UnixSocket, ConnectsToAServerOfTheSameUser) {
  const Listener own(geteuid());
  EXPECT_EQ(ConnectAs(geteuid(), own.path()), absl::OkStatus());
}

TEST(UnixSocket, RefusesTheServerOfAnotherUserButOfRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  constexpr uid_t kSomebody = 61001, kSomebodyElse = 61002;
  const Listener theirs(kSomebodyElse), roots(0);
  const absl::Status status = ConnectAs(kSomebody, theirs.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("listens on '" + theirs.path()));
  EXPECT_EQ(ConnectAs(kSomebodyElse, theirs.path()), absl::OkStatus());
  EXPECT_EQ(ConnectAs(kSomebody, roots.path()), absl::OkStatus());
  // Root's default socket is in /tmp, too.
  EXPECT_EQ(ConnectAs(0, theirs.path()).code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace tdock::net
