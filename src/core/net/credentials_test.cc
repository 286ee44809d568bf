// Tokens and certificates that change while servers and clients use them.
#include "core/net/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/net/channel.h"
#include "core/net/testing/certificates.h"
#include "core/net/testing/echo_server.h"
#include "core/net/testing/raw_client.h"

namespace tdock::net {
namespace {

// Log lines; thread-safe.
class Log {
 public:
  void Add(const std::string& line) {
    const MutexLock lock(mu_);
    lines_.push_back(line);
  }
  std::vector<std::string> lines() const {
    const MutexLock lock(mu_);
    return lines_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> lines_ TDOCK_GUARDED_BY(mu_);
};

class ChangingFiles : public testing::Test {
 protected:
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  // As whoever rotates files should: at once.
  static void Replace(const std::string& path, const std::string& by) {
    ASSERT_EQ(std::rename(by.c_str(), path.c_str()), 0);
  }
  static absl::Status Connect(const std::string& address, const CredentialFiles& files) {
    const auto credentials = Credentials::Load(files, Tls::Side::kClient);
    if (!credentials.ok()) return credentials.status();
    return Connect(address, *credentials);
  }
  static absl::Status Connect(const std::string& address, const std::shared_ptr<Credentials>& credentials) {
    return Channel::Connect({.address = address, .credentials = credentials}, "", absl::Now() + kPatience).status();
  }

  Certificates certificates_;  // its own, as they change
  const std::string token_file_ = certificates_.Path("token");
  Log log_;
};

TEST_F(ChangingFiles, OfTheTokenAreUsedFromThenOn) {
  Write(token_file_, "first\n");
  EchoServer server({.token_file = token_file_}, {.log = [this](const std::string& line) { log_.Add(line); }});
  RawClient old(server.address());
  ASSERT_TRUE(old.Send(HelloMessage({.token = "first"})));
  ASSERT_EQ(old.Receive().status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnauthenticated(Connect(server.address(), {.token = "second"})));
  const auto client = Credentials::Load({.token_file = token_file_}, Tls::Side::kClient);
  EXPECT_EQ(Connect(server.address(), *client), absl::OkStatus());
  Write(token_file_, "second\n");
  EXPECT_TRUE(Eventually([&] { return Connect(server.address(), {.token = "second"}).ok(); }));
  EXPECT_TRUE(absl::IsUnauthenticated(Connect(server.address(), {.token = "first"})));
  EXPECT_TRUE(Eventually([&] { return Connect(server.address(), *client).ok(); })) << "the client's, too";
  EXPECT_THAT(log_.lines(), testing::ElementsAre(Mentions({"changed"})));
  // A client that has come in stays.
  ASSERT_TRUE(old.Send(MessageOf(kEcho, 1, "here")));
  EXPECT_EQ(old.Receive()->body, "here");
}

TEST_F(ChangingFiles, ThatBecomeWrongLeaveTheOldOnesInUse) {
  Write(token_file_, "first");
  EchoServer server({.token_file = token_file_}, {.log = [this](const std::string& line) { log_.Add(line); }});
  for (const char* wrong : {"", "two words", "\n", "\x80"}) {
    const size_t before = log_.lines().size();
    Write(token_file_, wrong);
    EXPECT_TRUE(Eventually([&] {
      EXPECT_EQ(Connect(server.address(), {.token = "first"}), absl::OkStatus());
      return log_.lines().size() > before;
    }));
    EXPECT_THAT(log_.lines().back(), Mentions({"wrong", token_file_}));
  }
  std::remove(token_file_.c_str());
  const size_t before = log_.lines().size();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Connect(server.address(), {.token = "first"}), absl::OkStatus());
    return log_.lines().size() > before;
  }));
  Write(token_file_, "third");
  EXPECT_TRUE(Eventually([&] { return Connect(server.address(), {.token = "third"}).ok(); }));
}

TEST_F(ChangingFiles, OfTlsAreUsedFromThenOn) {
  EchoServer server({.tls = certificates_.Files("ours", "")},
                    {.log = [this](const std::string& line) { log_.Add(line); }});
  const CredentialFiles ours{.tls = certificates_.Files("", "ours")}, theirs{.tls = certificates_.Files("", "theirs")};
  EXPECT_EQ(Connect(server.address(), ours), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(Connect(server.address(), theirs)));
  // The key does not belong to the certificate in between.
  Replace(certificates_.Path("ours.pem"), certificates_.Path("theirs.pem"));
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Connect(server.address(), ours), absl::OkStatus());
    return !log_.lines().empty();
  }));
  EXPECT_THAT(log_.lines(), testing::ElementsAre(Mentions({"wrong", "ours.key", "ours.pem"})));
  Replace(certificates_.Path("ours.key"), certificates_.Path("theirs.key"));
  EXPECT_TRUE(Eventually([&] { return Connect(server.address(), theirs).ok(); }));
  EXPECT_TRUE(absl::IsUnavailable(Connect(server.address(), ours)));
}

TEST_F(ChangingFiles, OfTheAuthorityOfClientsAreUsedFromThenOn) {
  EchoServer server({.tls = certificates_.Files("ours", "ours")});
  const CredentialFiles theirs{.tls = certificates_.Files("theirs", "ours")};
  const std::string ours_ca = certificates_.Path("ours-ca.pem"), theirs_ca = certificates_.Path("theirs-ca.pem");
  EXPECT_TRUE(absl::IsUnavailable(Connect(server.address(), theirs)));
  std::string both;
  for (const std::string& path : {ours_ca, theirs_ca}) {
    std::ifstream file(path);
    both.append(std::istreambuf_iterator<char>(file), {});
  }
  Write(ours_ca, both);
  EXPECT_TRUE(Eventually([&] { return Connect(server.address(), theirs).ok(); }));
}

TEST(Token, IsPrintableAsciiWithoutSpaces) {
  const auto load = [](const std::string& token) {
    return Credentials::Load({.token = token}, Tls::Side::kServer).status();
  };
  for (const std::string& token : {std::string("a b"), std::string("\n"), std::string("a\0b", 3),
                                   std::string("\xc3\xa9"), std::string(4097, 'x')}) {
    EXPECT_THAT(load(token), Fails(absl::StatusCode::kInvalidArgument, {"the token"}));
  }
  EXPECT_THAT(std::string(load("sec ret").message()), testing::Not(testing::HasSubstr("sec")));
  EXPECT_EQ(load(std::string(4096, 'x')), absl::OkStatus());
  EXPECT_EQ((*Credentials::Load({.token = "t\r\n"}, Tls::Side::kServer))->Get().token, "t");
  EXPECT_THAT(Credentials::Load({.token_file = "/nonexistent/token"}, Tls::Side::kServer).status(),
              Fails(absl::StatusCode::kNotFound, {"/nonexistent/token"}));
}

TEST(Token, IsComparedAsAWhole) {
  EXPECT_EQ(CheckToken("", ""), absl::OkStatus());
  EXPECT_EQ(CheckToken("", "whatever"), absl::OkStatus());
  EXPECT_EQ(CheckToken("token", "token"), absl::OkStatus());
  for (const std::string& wrong : {std::string(), std::string("toke"), std::string("tokem"), std::string("tokentoken"),
                                   std::string("token\0", 6)}) {
    EXPECT_TRUE(absl::IsUnauthenticated(CheckToken("token", wrong))) << wrong;
  }
}

}  // namespace
}  // namespace tdock::net
