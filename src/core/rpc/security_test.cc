// Who may connect: TLS, tokens, and what may listen where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "core/base/testing/fails.h"
#include "core/rpc/testing/certificates.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TEST_F(Certificates, TlsLetsInClientsThatTrustTheServersAuthority) {
  const auto server = StartServer(Serve(), {.tls = Files("ours", "")});
  const auto client = ConnectTo(server->port(), {.tls = Files("", "ours")});
  EXPECT_EQ(Ask(*client, "/echo", std::string(3 << 20, 'x')).value(), std::string(3 << 20, 'x'));
}

TEST_F(Certificates, AClientRefusesAServerOfAnotherAuthorityOrName) {
  const auto server = StartServer(Serve(), {.tls = Files("ours", "")});
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), Files("", "theirs"))));
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), Files("", "ours"), "theirs.example")));
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), {})));
  EXPECT_TRUE(LetsIn(server->port(), Files("", "ours"), "ours.example"));
}

TEST_F(Certificates, MutualTlsLetsInOnlyClientsWithACertificateOfItsAuthority) {
  const auto server = StartServer(Serve(), {.tls = Files("ours", "ours")});
  EXPECT_TRUE(LetsIn(server->port(), Files("ours", "ours")));
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), Files("", "ours"))));
  TlsFiles stranger = Files("theirs", "ours");
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), stranger)));
}

TEST_F(Certificates, WhatIsWrongWithAFileIsSaidWithItsName) {
  const auto why = [&](const TlsFiles& files) { return StreamServer::Start({.tls = files}, Serve()).status(); };
  std::ofstream(Path("empty.pem")) << "not a certificate";
  TlsFiles files = Files("ours", "ours");
  files.certificate = Path("missing.pem");
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kNotFound, {Path("missing.pem")}));
  files.certificate = Path("theirs.pem");
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kInvalidArgument, {Path("ours.key"), Path("theirs.pem")}));
  files.certificate = Path("empty.pem");
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kInvalidArgument, {Path("empty.pem"), "certificate"}));
  files = Files("ours", "ours");
  files.key = Path("locked.key");
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kInvalidArgument, {Path("locked.key"), "PEM", "password"}));
  files.key = "";
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kInvalidArgument, {Path("ours.pem"), "private key"}));
  files = Files("ours", "ours");
  files.ca = Path("empty.pem");
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kInvalidArgument, {Path("empty.pem"), "certificate"}));
  EXPECT_TRUE(absl::IsInvalidArgument(why(Files("", "ours"))));
}

TEST_F(Certificates, BeyondLoopbackMutualTlsIsEnoughAndTlsAloneIsNot) {
  EXPECT_TRUE(absl::IsFailedPrecondition(
      StreamServer::Start({.listen = "0.0.0.0:0", .tls = Files("ours", "")}, Serve()).status()));
  EXPECT_THAT(StartServer(Serve(), {.listen = "0.0.0.0:0", .tls = Files("ours", "ours")})->warnings(), IsEmpty());
  EXPECT_THAT(StartServer(Serve(), {.listen = "0.0.0.0:0", .tls = Files("ours", ""), .token = "t"})->warnings(),
              IsEmpty());
}

TEST(Token, LetsInTheCallsThatShowItAndNoOthers) {
  Counter made;
  HandlerFactory echo = Serve();
  const auto server = StartServer(
      [&](absl::string_view method, std::shared_ptr<CallSink> sink) {
        made.Add();
        return echo(method, std::move(sink));
      },
      {.token = "open sesame"});
  for (const char* wrong : {"open sesam", "open sesame ", "Open sesame", "x"}) {
    const auto client = ConnectTo(server->port(), {.token = wrong});
    EXPECT_THAT(Ask(*client, "/echo", "x").status(),
                Fails(absl::StatusCode::kUnauthenticated, {"token", "the server's"}));
  }
  const auto stranger = ConnectTo(server->port());
  EXPECT_THAT(Ask(*stranger, "/echo", "x").status(), Fails(absl::StatusCode::kUnauthenticated, {"token", "none"}));
  EXPECT_EQ(made.count(), 0);
  const auto client = ConnectTo(server->port(), {.token = "open sesame"});
  EXPECT_EQ(Ask(*client, "/echo", "x").value(), "x");
  EXPECT_EQ(made.count(), 1);
}

TEST(Listen, BeyondLoopbackIsRefusedWithoutATokenOrMutualTls) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "192.0.2.7:0"}) {
    const absl::Status refused = StreamServer::Start({.listen = listen}, Serve()).status();
    EXPECT_THAT(refused, Fails(absl::StatusCode::kFailedPrecondition,
                               {absl::StrCat("'", listen, "'"), "token", "certificate", "insecure"}));
  }
}

TEST(Listen, BeyondLoopbackWithATokenOverPlainTcpOrInsecureWarns) {
  EXPECT_THAT(StartServer(Serve(), {.listen = "0.0.0.0:0", .token = "t"})->warnings(),
              testing::ElementsAre(Mentions({"0.0.0.0:0", "the token"})));
  EXPECT_THAT(StartServer(Serve(), {.listen = "0.0.0.0:0", .insecure = true})->warnings(), SizeIs(2));
  EXPECT_THAT(StartServer(Serve())->warnings(), IsEmpty());
}

TEST(Listen, WorksOnIpv6LoopbackAndOnNames) {
  // The client is given addresses: Debian's c-ares, which resolves names for it, leaks ten bytes for "localhost".
  for (const auto& [listen, address] : {std::pair("[::1]:0", "[::1]"), std::pair("localhost:0", "127.0.0.1")}) {
    const auto server = StartServer(Serve(), {.listen = listen});
    auto client = StreamClient::Connect({.target = absl::StrCat(address, ":", server->port())});
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_EQ(Ask(**client, "/echo", listen).value(), listen);
  }
}

TEST(Listen, OnAPortInUseFailsWithItsAddress) {
  const auto server = StartServer(Serve());
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  EXPECT_THAT(StreamServer::Start({.listen = address}, Serve()).status(),
              Fails(absl::StatusCode::kUnavailable, {address, strerror(EADDRINUSE)}));
}

TEST(Connect, ToNobodyFailsWithTheAddressAndTheReason) {
  auto server = StartServer(Serve());
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  server = nullptr;
  const std::string reason = strerror(ECONNREFUSED);
  absl::Status status;
  // Under load, the first attempt may be made later.
  for (absl::Duration timeout = absl::Milliseconds(300);
       !absl::StrContains(status.message(), reason) && timeout < kPatience; timeout *= 10) {
    status = StreamClient::Connect({.target = address, .connect_timeout = timeout}).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, {address, absl::FormatDuration(timeout)}));
  }
  EXPECT_THAT(status.message(), Mentions({reason}));
  EXPECT_TRUE(absl::IsInvalidArgument(StreamClient::Connect({.target = "nowhere"}).status()));
}

}  // namespace
}  // namespace tdock::rpc
