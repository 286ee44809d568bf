#include "core/net/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::net {
namespace {

TEST(Message, HasTheBytesOfTheDocument) {
  EXPECT_EQ(MessageOf(33, 0x0102030405060708, "ab"), std::string("\2\0\0\0\x21\0\0\0\x8\7\6\5\4\3\2\1", 16) + "ab");
  EXPECT_EQ(NumbersMessage(33, 1, uint32_t{2}, uint64_t{3}),
            std::string("\xc\0\0\0\x21\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\3\0\0\0\0\0\0\0", 28));
}

TEST(Hello, HasTheBytesOfTheDocument) {
  const Hello hello{.protocol = 3, .role = Role::kWorkers, .token = "tok", .rest = "rest"};
  EXPECT_EQ(Encode(hello), std::string("\3\0\0\0\2\0\3\0", 8) + "tok" + std::string(16, '\0') + "rest");
}

TEST(Hello, ReadsWhatWasWritten) {
  for (const Hello& hello : {Hello{}, Hello{.token = std::string(4096, 't')}, Hello{.rest = std::string(1000, '\0')},
                             Hello{.protocol = ~0u, .role = static_cast<Role>(77), .token = "a", .rest = "b"}}) {
    const absl::StatusOr<Hello> read = DecodeHello(Encode(hello));
    ASSERT_EQ(read.status(), absl::OkStatus());
    EXPECT_EQ(read->protocol, hello.protocol);
    EXPECT_EQ(read->role, hello.role);
    EXPECT_EQ(read->token, hello.token);
    EXPECT_EQ(read->rest, hello.rest);
  }
}

TEST(Hello, ThatEndsBeforeItsRestIsRefused) {
  const std::string whole = Encode(Hello{.token = "token"});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(DecodeHello(whole.substr(0, size)).status(), Fails(absl::StatusCode::kInvalidArgument, {"hello"}))
        << size;
  }
}

absl::Status ReasonOf(const std::string& goodbye) {
  EXPECT_EQ(goodbye[4], kGoodbye);
  EXPECT_EQ(NumberAt<uint32_t>(goodbye, 0), goodbye.size() - sizeof(MessageHeader));
  return ReasonIn(absl::string_view(goodbye).substr(sizeof(MessageHeader)));
}

TEST(Goodbye, BringsItsReason) {
  EXPECT_EQ(ReasonOf(GoodbyeMessage(absl::UnauthenticatedError("no token"))), absl::UnauthenticatedError("no token"));
  EXPECT_EQ(ReasonOf(GoodbyeMessage(absl::DataLossError(""))), absl::DataLossError(""));
  const absl::Status cut = ReasonOf(GoodbyeMessage(absl::AbortedError(std::string(100'000, 'x'))));
  EXPECT_TRUE(absl::IsAborted(cut));
  EXPECT_EQ(cut.message().size(), 4096u);
}

TEST(Goodbye, IsAlwaysAnError) {
  EXPECT_TRUE(absl::IsUnavailable(ReasonOf(GoodbyeMessage(absl::OkStatus()))));
  for (const std::string& body : {std::string(), std::string("\1\0\0", 3), std::string(4, '\0')}) {
    EXPECT_TRUE(absl::IsUnavailable(ReasonIn(body)));
  }
  EXPECT_EQ(ReasonIn(std::string("\x11\0\0\0x", 5)), absl::UnknownError("x"));
  EXPECT_EQ(ReasonIn("\xff\xff\xff\xff"), absl::UnknownError(""));
}

}  // namespace
}  // namespace tdock::net
