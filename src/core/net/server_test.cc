// Admission of connections, and what servers do for those that are admitted and those that are not.
#include "core/net/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/net/channel.h"
#include "core/net/testing/certificates.h"
#include "core/net/testing/echo_server.h"
#include "core/net/testing/raw_client.h"

namespace tdock::net {
namespace {

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition, kInvalid = absl::StatusCode::kInvalidArgument;

std::string SocketPath() { return absl::StrCat(testing::TempDir(), "net-", getpid(), ".sock"); }

// Answer of a server to these first bytes.
absl::Status AnswerTo(const std::string& address, const std::string& bytes) {
  RawClient client(address);
  client.Send(bytes);
  return client.Receive().status();
}

// The same client, after it has come in.
void ComeIn(RawClient& client, const Hello& hello = {}) {
  ASSERT_TRUE(client.Send(HelloMessage(hello)));
  const absl::StatusOr<RawClient::Message> welcome = client.Receive();
  ASSERT_EQ(welcome.status(), absl::OkStatus());
  EXPECT_EQ(welcome->header.type, kWelcome);
  EXPECT_EQ(welcome->body.substr(kConnectionIdBytes), "welcome" + hello.rest);
}

void ExpectEchoes(RawClient& client, const std::string& text = "echo") {
  ASSERT_TRUE(client.Send(MessageOf(kEcho, 7, text)));
  const absl::StatusOr<RawClient::Message> echo = client.Receive();
  ASSERT_EQ(echo.status(), absl::OkStatus());
  EXPECT_EQ(echo->header.tag, 7u);
  EXPECT_EQ(echo->body, text);
}

TEST(Server, ServesClientsOfAllItsAddresses) {
  EchoServer server{CredentialFiles()};
  ASSERT_EQ(server.server->ListenOnSocket(SocketPath()), absl::OkStatus());
  for (const std::string& address : {server.address(), "unix:" + SocketPath()}) {
    const auto channel = Channel::Connect({.address = address}, " home", absl::Now() + kPatience);
    ASSERT_EQ(channel.status(), absl::OkStatus());
    EXPECT_EQ((*channel)->welcome(), "welcome home");
    RawClient client(address);
    ComeIn(client);
    ExpectEchoes(client);
    ASSERT_TRUE(client.Send(NumbersMessage(kFill, 3, uint64_t{3'000'000})));
    EXPECT_EQ(client.Receive()->header.type, kFill);
    ExpectEchoes(client);
    EXPECT_EQ(client.data_bytes(), 3'000'000u);
  }
  const std::string path = SocketPath();
  server.server.reset();
  EXPECT_EQ(access(path.c_str(), F_OK), -1);
}

TEST(Server, TakesDataOverSocketsThatJoinAConnectionAndNothingElse) {
  EchoServer server{CredentialFiles()};
  RawClient first(server.address());
  ASSERT_TRUE(first.Send(HelloMessage({})));
  const std::string id = first.Receive()->body.substr(0, kConnectionIdBytes);
  EXPECT_THAT(AnswerTo(server.address(), HelloMessage({.joins = std::string(kConnectionIdBytes, 'x')})),
              Fails(absl::StatusCode::kFailedPrecondition, {"join"}));
  RawClient joined(server.address());
  {
    // One that is given up before it has carried anything harms nobody.
    RawClient unused(server.address());
    ASSERT_TRUE(unused.Send(HelloMessage({.joins = id})));
    EXPECT_EQ(unused.Receive()->body, id);
  }
  ASSERT_TRUE(joined.Send(HelloMessage({.joins = id})));
  EXPECT_EQ(joined.Receive()->body, id);
  ASSERT_TRUE(joined.Send(MessageOf(kData, 3, std::string(sizeof(DataPrefix) + 1000, '\0'))));
  EXPECT_TRUE(Eventually([&] { return server.seen.data_bytes == 1000; }));
  ExpectEchoes(first);
  ASSERT_TRUE(joined.Send(MessageOf(kEcho, 7, "no data")));
  EXPECT_THAT(first.Receive().status(), Fails(absl::StatusCode::kInvalidArgument, {"type 40"}));
  EXPECT_TRUE(absl::IsUnavailable(joined.Receive().status()));
}

TEST(Server, RefusesClientsWithoutItsTokenWithAReason) {
  EchoServer strict({.token = "open-sesame"});
  ASSERT_EQ(strict.server->ListenOnSocket(SocketPath()), absl::OkStatus());
  constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
  for (const char* wrong : {"open-sesam", "open-sesame ", "Open-sesame", "x", "open-sesameopen-sesame"}) {
    EXPECT_THAT(AnswerTo(strict.address(), HelloMessage({.token = wrong})),
                Fails(kUnauthenticated, {"token", "the server's"}));
  }
  EXPECT_THAT(AnswerTo(strict.address(), HelloMessage({})), Fails(kUnauthenticated, {"token", "none"}));
  EXPECT_EQ(strict.seen.hellos, 0);
  RawClient right(strict.address());
  ComeIn(right, {.token = "open-sesame"});
  ExpectEchoes(right);
  // The owner of a Unix socket is known.
  RawClient local("unix:" + SocketPath());
  ComeIn(local);
}

TEST(Server, TellsAClientThatLooksForAnotherServerWhatItIs) {
  EchoServer server({.token = "t"}, {.role = Role::kWorkers});
  EXPECT_THAT(AnswerTo(server.address(), HelloMessage({.role = Role::kDock, .token = "t"})),
              Fails(kFailed, {std::string(NameOf(Role::kDock)), std::string(NameOf(Role::kWorkers))}));
  EXPECT_THAT(AnswerTo(server.address(), HelloMessage({.role = static_cast<Role>(9), .token = "t"})),
              Fails(kFailed, {std::string(NameOf(Role::kWorkers))}));
  // Strangers are not told.
  EXPECT_TRUE(absl::IsUnauthenticated(AnswerTo(server.address(), HelloMessage({.role = Role::kDock}))));
}

TEST(Server, RefusesHellosOfOtherReleasesAndThoseThatAreNone) {
  EchoServer server{CredentialFiles()};
  EXPECT_THAT(AnswerTo(server.address(), HelloMessage({.protocol = 7})), Fails(kFailed, {"protocol 7"}));
  EXPECT_THAT(AnswerTo(server.address(), HelloMessage({.rest = "go away"})),
              Fails(absl::StatusCode::kResourceExhausted, {"room"}));
  EXPECT_THAT(AnswerTo(server.address(), MessageOf(kHello, 0, "short")), Fails(kInvalid, {"hello"}));
  EXPECT_THAT(AnswerTo(server.address(), MessageOf(kHello, 0, std::string("\2\0\0\0\1\0\5\0abcd", 12))),
              Fails(kInvalid, {"token"}));
  EXPECT_THAT(AnswerTo(server.address(), MessageOf(kHello, 0, std::string(kMaxHelloBytes + 1, 'x'))),
              Fails(kInvalid, {"8193"}));
  EXPECT_THAT(AnswerTo(server.address(), MessageOf(kEcho, 0, "x")), Fails(kInvalid, {"type 40"}));
  EXPECT_THAT(AnswerTo(server.address(), MessageOf(kData, 1, std::string(24, '\0'))), Fails(kFailed, {"hello"}));
  EXPECT_THAT(AnswerTo(server.address(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), Fails(kInvalid, {"something else"}));
  EXPECT_EQ(server.seen.hellos, 0);
}

TEST(Server, ClosesConnectionsThatSayNoHelloInTime) {
  EchoServer server({}, {.hello_within = absl::Milliseconds(100)});
  RawClient welcome(server.address());
  ComeIn(welcome);
  RawClient silent(server.address()), slow(server.address());
  ASSERT_TRUE(slow.Send(HelloMessage({}).substr(0, 10)));
  EXPECT_THAT(silent.Receive().status(), Fails(absl::StatusCode::kDeadlineExceeded, {"hello"}));
  EXPECT_THAT(slow.Receive().status(), Fails(absl::StatusCode::kDeadlineExceeded, {"hello"}));
  ExpectEchoes(welcome);
}

TEST(Server, ClosesTheOldestStrangerForANewOneAndNobodyElse) {
  EchoServer server({}, {.max_strangers = 4, .loops = 1});
  ASSERT_EQ(server.server->ListenOnSocket(SocketPath()), absl::OkStatus());
  RawClient welcome(server.address());
  ComeIn(welcome);
  RawClient local("unix:" + SocketPath());
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 6; ++i) strangers.push_back(std::make_unique<RawClient>(server.address()));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(absl::IsUnavailable(strangers[static_cast<size_t>(i)]->Receive().status()));
  for (size_t i = 2; i < strangers.size(); ++i) ComeIn(*strangers[i]);
  ComeIn(local);
  ExpectEchoes(welcome);
  // Those that have come in make room for others.
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(std::make_unique<RawClient>(server.address()));
    ComeIn(*strangers.back());
  }
  for (size_t i = 2; i < strangers.size(); ++i) ExpectEchoes(*strangers[i]);
}

TEST(Server, SaysGoodbyeToAClientThatIsStillSending) {
  EchoServer server{CredentialFiles()};
  for (const bool hello : {false, true}) {
    RawClient client(server.address());
    if (hello) ComeIn(client);
    // Far more than the socket's buffers hold, so that most of it comes when the connection is over.
    client.Send(MessageOf(99, 0, std::string(32 << 20, 'x')));
    EXPECT_THAT(client.Receive().status(), Fails(kInvalid, {"type 99"}));
  }
}

TEST(Server, ReadsNothingFromAClientThatDoesNotReadAndGoesOnWhenItDoes) {
  constexpr size_t kMaxQueued = 1 << 20;
  EchoServer server({}, {.max_queued_bytes = kMaxQueued});
  RawClient client(server.address()), other(server.address());
  ComeIn(client);
  ComeIn(other);
  const std::string echo = MessageOf(kEcho, 1, std::string(60'000, 'x'));
  std::string all;
  while (all.size() < 64 << 20) all += echo;
  const size_t sent = client.SendSome(all, absl::Milliseconds(300));
  ASSERT_LT(sent, all.size()) << "the server reads on";
  ExpectEchoes(other);
  const int64_t handled = server.seen.messages;
  EXPECT_LT(sent - static_cast<size_t>(handled) * echo.size(), 16u << 20) << "in the buffers of sockets";
  // The sent part of the last one stays a part.
  const size_t whole = sent / echo.size();
  for (size_t i = 0; i < whole; ++i) {
    const auto answer = client.Receive();
    ASSERT_EQ(answer.status(), absl::OkStatus());
    ASSERT_EQ(answer->body.size(), 60'000u);
  }
  ASSERT_TRUE(client.Send(absl::string_view(echo).substr(sent - whole * echo.size())));
  EXPECT_EQ(client.Receive().status(), absl::OkStatus());
  ExpectEchoes(client);
}

TEST(Server, SendsLargeAnswersToManyWhoReadSlowlyOneAfterAnother) {
  EchoServer server({}, {.max_queued_bytes = 1 << 20});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.address()));
    ComeIn(*clients.back());
    for (int fill = 0; fill < 4; ++fill) {
      ASSERT_TRUE(clients.back()->Send(NumbersMessage(kFill, 1, uint64_t{8 << 20})));
    }
  }
  for (const auto& client : clients) {
    for (int fill = 0; fill < 4; ++fill) ASSERT_EQ(client->Receive().status(), absl::OkStatus());
    ExpectEchoes(*client);
    EXPECT_EQ(client->data_bytes(), 4u * (8 << 20));
  }
}

TEST(Server, ForgetsConnectionsThatAreOver) {
  EchoServer server{CredentialFiles()};
  for (int i = 0; i < 100; ++i) {
    RawClient client(server.address());
    ComeIn(client);
    if (i % 2 == 0) client.Send(MessageOf(kEcho, 1, "unread").substr(0, 16 + i % 6));
  }
  EXPECT_TRUE(Eventually([&] { return server.seen.closed == 100; }));
}

TEST(Server, TellsAllWhenItClosesTheirConnections) {
  EchoServer server{CredentialFiles()};
  RawClient first(server.address()), second(server.address());
  ComeIn(first);
  ComeIn(second);
  server.server->StopAccepting();
  ExpectEchoes(first);
  const Endpoint endpoint = ParseEndpoint(server.address(), "it").value();
  EXPECT_TRUE(absl::IsUnavailable(ConnectTo(endpoint, absl::Now() + kPatience).status()));
  server.server->CloseAll(absl::UnavailableError("the day is over"));
  EXPECT_EQ(first.Receive().status(), absl::UnavailableError("the day is over"));
  EXPECT_EQ(second.Receive().status(), absl::UnavailableError("the day is over"));
}

TEST(Server, EndsWhileClientsSendAndDoNotRead) {
  for (int i = 0; i < 5; ++i) {
    EchoServer server{CredentialFiles()};
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int at = 0; at < 4; ++at) {
      clients.push_back(std::make_unique<RawClient>(server.address()));
      ComeIn(*clients.back());
      clients.back()->Send(NumbersMessage(kFill, 1, uint64_t{20 << 20}));
    }
    clients.pop_back();
    server.server.reset();
    EXPECT_EQ(server.seen.closed, 4);
  }
}

// Error of a server that is to listen like this.
absl::Status WhyNot(const TcpOptions& options) { return EchoServer().server->ListenOnTcp(options); }

std::vector<std::string> WarningsOf(const TcpOptions& options) {
  EchoServer server;
  EXPECT_EQ(server.server->ListenOnTcp(options), absl::OkStatus());
  return server.server->warnings();
}

TEST(Listen, BeyondLoopbackIsRefusedWithoutATokenOrMutualTls) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "192.0.2.7:0"}) {
    EXPECT_THAT(WhyNot({.listen = listen}),
                Fails(kFailed, {absl::StrCat("'", listen, "'"), "token", "certificate", "insecure"}));
  }
  const TlsFiles tls = TestCertificates().Files("ours", "");
  EXPECT_THAT(WhyNot({.listen = "0.0.0.0:0", .credentials = {.tls = tls}}), Fails(kFailed, {"0.0.0.0:0"}));
}

TEST(Listen, BeyondLoopbackWarnsOfWhatOthersCanDo) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  const std::string all = "0.0.0.0:0";
  EXPECT_THAT(WarningsOf({.listen = all, .credentials = {.token = "t"}}), ElementsAre(Mentions({all, "the token"})));
  EXPECT_THAT(WarningsOf({.listen = all, .insecure = true}),
              ElementsAre(Mentions({all, "anyone"}), Mentions({all, "plain TCP"})));
  const TlsFiles one_sided = TestCertificates().Files("ours", ""), mutual = TestCertificates().Files("ours", "ours");
  EXPECT_THAT(WarningsOf({.listen = all, .credentials = {.tls = one_sided, .token = "t"}}), IsEmpty());
  EXPECT_THAT(WarningsOf({.listen = all, .credentials = {.tls = mutual}}), IsEmpty());
  EXPECT_THAT(WarningsOf({}), IsEmpty());
}

TEST(Listen, WorksOnIpv6LoopbackAndOnNames) {
  for (const char* listen : {"[::1]:0", "localhost:0"}) {
    EchoServer server;
    ASSERT_EQ(server.server->ListenOnTcp({.listen = listen}), absl::OkStatus());
    RawClient client(server.address());
    ComeIn(client);
    ExpectEchoes(client);
  }
}

TEST(Listen, OnAPortInUseFailsWithItsAddress) {
  EchoServer server{CredentialFiles()};
  EXPECT_THAT(WhyNot({.listen = server.address()}),
              Fails(absl::StatusCode::kUnavailable, {server.address(), strerror(EADDRINUSE)}));
}

TEST(Connect, ToNobodyFailsWithTheAddressAndTheReason) {
  const std::string address = EchoServer(CredentialFiles()).address();
  const absl::Time deadline = absl::Now() + kPatience;
  EXPECT_THAT(Channel::Connect({.address = address}, "", deadline).status(),
              Fails(absl::StatusCode::kUnavailable, {address, strerror(ECONNREFUSED)}));
  EXPECT_THAT(Channel::Connect({.address = "nowhere"}, "", deadline).status(), Fails(kInvalid, {"nowhere"}));
  const std::string path = SocketPath() + ".none";
  EXPECT_THAT(Channel::Connect({.address = "unix:" + path}, "", deadline).status(),
              Fails(absl::StatusCode::kUnavailable, {path}));
}

TEST(Connect, BringsTheReasonOfTheServer) {
  EchoServer server({.token = "t"});
  const absl::Time deadline = absl::Now() + kPatience;
  EXPECT_THAT(Channel::Connect({.address = server.address()}, "", deadline).status(),
              Fails(absl::StatusCode::kUnauthenticated, {server.address(), "token"}));
}

}  // namespace
}  // namespace tdock::net
