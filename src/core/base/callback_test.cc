#include "core/base/callback.h"

#include <gtest/gtest.h>

namespace tdock {
namespace {

TEST(Callback, IsCalledWithWhatItIsGiven) {
  const Callback<int(int)> twice = [](int number) { return 2 * number; };
  EXPECT_EQ(twice(4), 8);
  EXPECT_TRUE(twice);
  EXPECT_FALSE(Callback<void()>());
  std::stop_source source;
  RequestStop(source);
  EXPECT_TRUE(source.stop_requested());
}

#ifdef TDOCK_CHECK_LOCKS
TEST(CallbackDeathTest, EndsTheProgramUnderALock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex mu;
  std::stop_source source;
  const Callback<void()> nothing = [] {};
  EXPECT_DEATH(
      {
        MutexLock lock(mu);
        nothing();
      },
      "callback.* 1 locks");
  EXPECT_DEATH(
      {
        MutexLock lock(mu);
        RequestStop(source);
      },
      "stop request.* 1 locks");
  nothing();
}
#endif

}  // namespace
}  // namespace tdock
