#include "core/base/file_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "core/base/env.h"
#include "core/base/testing/fails.h"

namespace tdock {
namespace {

std::string LockPath(const std::string& name) { return JoinPath(testing::TempDir(), name); }

TEST(FileLock, IsHeldByOneAndNamesTheHolder) {
  const std::string path = LockPath("held.lock");
  EXPECT_FALSE(*IsLocked(path));
  auto first = FileLock::Take(path, "the first");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(*IsLocked(path));
  EXPECT_THAT(FileLock::Take(path, "a second").status(),
              Fails(absl::StatusCode::kAlreadyExists, {path, "held by the first"}));
  first->reset();
  EXPECT_FALSE(*IsLocked(path));
  EXPECT_TRUE(FileLock::Take(path, "a third").ok());
  EXPECT_EQ(*Env::Real().ReadFile(path), "a third\n");
}

TEST(FileLock, DiesWithItsHolder) {
  const std::string path = LockPath("killed.lock");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FileLock::Take(path, "the child");
    const char byte = lock.ok() ? 'y' : 'n';
    (void)!::write(ready[1], &byte, 1);
    ::pause();
    ::_exit(0);
  }
  char locked = 'n';
  ASSERT_EQ(::read(ready[0], &locked, 1), 1);
  EXPECT_EQ(locked, 'y');
  EXPECT_THAT(FileLock::Take(path, "the parent").status(), Fails(absl::StatusCode::kAlreadyExists, {"the child"}));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(FileLock::Take(path, "the parent").ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FileLock, NamesAFolderThatIsNotThere) {
  EXPECT_THAT(FileLock::Take("/nowhere/lock", "me").status(), Fails(absl::StatusCode::kUnavailable, {"/nowhere/lock"}));
}

}  // namespace
}  // namespace tdock
