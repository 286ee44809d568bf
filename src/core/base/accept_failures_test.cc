#include "core/base/accept_failures.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tdock {
namespace {

class AcceptFailuresTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  std::vector<std::string> said_;
  AcceptFailures failures_{[this](const std::string& sentence) { said_.push_back(sentence); }, clock_};

  void SetUp() override { failures_.ListensOn("127.0.0.1:7077"); }
};

TEST_F(AcceptFailuresTest, NamesTheAddressTheLimitAndWhatHelps) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  failures_.Add(EMFILE);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], Mentions({"127.0.0.1:7077", absl::StrCat(limit.rlim_cur), "EMFILE", "ulimit -n"}));
  failures_.Add(ENFILE);
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_THAT(said_[1], Mentions({"127.0.0.1:7077", "ENFILE", "fs.file-max"}));
}

TEST_F(AcceptFailuresTest, SaysLittleOfManyFailuresAndThatTheyAreOver) {
  EXPECT_FALSE(failures_.failing());
  for (int i = 0; i < 1000; ++i) failures_.Add(EMFILE);
  EXPECT_TRUE(failures_.failing());
  EXPECT_EQ(failures_.count(), 1000);
  EXPECT_EQ(said_.size(), 10U);  // of the 1st, 2nd, 4th, … 512th
  failures_.End();
  EXPECT_FALSE(failures_.failing());
  ASSERT_EQ(said_.size(), 11U);
  EXPECT_THAT(said_.back(), Mentions({"127.0.0.1:7077", "again", "1000"}));
  failures_.End();
  EXPECT_EQ(said_.size(), 11U);
}

TEST_F(AcceptFailuresTest, SaysLittleWhenDescriptorsComeAndGo) {
  for (int i = 0; i < 1000; ++i) {
    failures_.Add(EMFILE);
    failures_.End();
  }
  EXPECT_EQ(said_.size(), 20U);  // of the 1st, 2nd, 4th, … 512th, and the end of each
  clock_.Advance(absl::Hours(1));
  failures_.Add(EMFILE);
  EXPECT_EQ(said_.size(), 21U) << "after an hour it is news";
  EXPECT_EQ(failures_.count(), 1001);
}

TEST_F(AcceptFailuresTest, AConnectionThatHasGoneIsNoShortage) {
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) EXPECT_TRUE(AcceptFailures::IsShortage(error)) << error;
  for (const int error : {ECONNABORTED, EAGAIN, EINTR, EPERM}) EXPECT_FALSE(AcceptFailures::IsShortage(error)) << error;
}

TEST(AcceptFailures, CountsWithoutALog) {
  AcceptFailures failures(nullptr);
  failures.Add(ENOMEM);
  failures.End();
  EXPECT_EQ(failures.count(), 1);
}

}  // namespace
}  // namespace tdock
