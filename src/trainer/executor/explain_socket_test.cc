#include "trainer/executor/explain_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

class ExplainSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = absl::StrCat(testing::TempDir(), "/explainXXXXXX");
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string socket() const { return absl::StrCat(folder_, "/", kExplainSocket); }
  absl::StatusOr<std::unique_ptr<RunExplainer>> Start() const {
    return RunExplainer::Start(
        folder_, [](ExplainForm form) { return std::string(form == ExplainForm::kJson ? "{}\n" : "rollout works\n"); });
  }
  // A connection to it; -1: nobody listens.
  int Connect() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket().data(), std::min(socket().size(), sizeof(address.sun_path) - 1));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    ::close(fd);
    return -1;
  }
  // What it answers to these bytes, until it ends.
  std::string Send(const std::string& bytes) const {
    const int fd = Connect();
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
    std::string answer;
    char buffer[256];
    for (ssize_t got; (got = ::read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, static_cast<size_t>(got));
    ::close(fd);
    return answer;
  }

  std::string folder_;
};

TEST_F(ExplainSocketTest, AnswersWhileItLivesToItsUserAlone) {
  {
    const auto explainer = Start();
    ASSERT_TRUE(explainer.ok()) << explainer.status();
    struct stat there {};
    ASSERT_EQ(::stat(socket().c_str(), &there), 0);
    EXPECT_EQ(there.st_mode & 07777, 0600u);
    EXPECT_EQ(*AskRun(folder_, ExplainForm::kText, kPatience), "rollout works\n");
    EXPECT_EQ(*AskRun(folder_, ExplainForm::kJson, kPatience), "{}\n");
  }
  EXPECT_FALSE(std::filesystem::exists(socket()));
  EXPECT_TRUE(absl::IsNotFound(AskRun(folder_, ExplainForm::kText, kPatience).status()));
}

TEST_F(ExplainSocketTest, TheFolderMayHaveALongPath) {
  for (int i = 0; i < 5; ++i) folder_ += "/" + std::string(60, 'x');
  std::filesystem::create_directories(folder_);
  const auto explainer = Start();
  ASSERT_TRUE(explainer.ok()) << explainer.status();
  EXPECT_EQ(*AskRun(folder_, ExplainForm::kText, kPatience), "rollout works\n");
}

TEST_F(ExplainSocketTest, ASocketOfAKilledRunIsSaidAndReplaced) {
  const int left = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket().size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, socket().data(), socket().size());
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ::close(left);
  EXPECT_THAT(AskRun(folder_, ExplainForm::kText, kPatience).status(),
              Fails(absl::StatusCode::kUnavailable, {socket()}));
  const auto explainer = Start();
  ASSERT_TRUE(explainer.ok()) << explainer.status();
  EXPECT_EQ(*AskRun(folder_, ExplainForm::kText, kPatience), "rollout works\n");
}

TEST_F(ExplainSocketTest, WhatIsNoSocketIsLeftAlone) {
  std::ofstream(socket()) << "mine";
  const absl::Status status = Start().status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(std::filesystem::file_size(socket()), 4u);
}

TEST_F(ExplainSocketTest, WithoutAFolderThereIsNothingToAsk) {
  EXPECT_THAT(AskRun(folder_ + "/none", ExplainForm::kText, kPatience).status(),
              Fails(absl::StatusCode::kNotFound, {folder_ + "/none"}));
}

TEST_F(ExplainSocketTest, WhoAsksAmissIsToldAndWhoFloodsIsCutOff) {
  const auto explainer = Start();
  ASSERT_TRUE(explainer.ok());
  EXPECT_THAT(Send("status\n"), HasSubstr("\"text\" or \"json\""));
  EXPECT_THAT(Send(std::string(17, '\xff')), HasSubstr("\"text\" or \"json\""));
  EXPECT_THAT(Send("text\njson\n"), HasSubstr("\"text\" or \"json\""));
  EXPECT_EQ(*AskRun(folder_, ExplainForm::kText, kPatience), "rollout works\n");
}

TEST_F(ExplainSocketTest, WhoSaysNothingIsCutOffAndOthersAreAnswered) {
  const auto explainer = Start();
  ASSERT_TRUE(explainer.ok());
  const int silent = Connect();
  ASSERT_GE(silent, 0);
  EXPECT_EQ(*AskRun(folder_, ExplainForm::kText, kPatience), "rollout works\n");
  char byte = 0;
  EXPECT_EQ(::read(silent, &byte, 1), 0) << "the connection has ended";
  ::close(silent);
}

TEST_F(ExplainSocketTest, ARunThatDoesNotAnswerIsNotWaitedForLonger) {
  const int deaf = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket().data(), socket().size());
  ASSERT_EQ(::bind(deaf, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(deaf, 1), 0);
  EXPECT_THAT(AskRun(folder_, ExplainForm::kText, absl::Milliseconds(100)).status(),
              Fails(absl::StatusCode::kDeadlineExceeded, {socket(), "100ms"}));
  ::close(deaf);
}

}  // namespace
}  // namespace tdock::trainer
