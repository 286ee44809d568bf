// Who may connect: TLS, tokens, and what may listen where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/rpc/testing/certificates.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

using testing::HasSubstr;
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
  EXPECT_TRUE(TryToConnect(server->port(), Files("", "ours"), "ours.example").ok());
}

TEST_F(Certificates, MutualTlsLetsInOnlyClientsWithACertificateOfItsAuthority) {
  const auto server = StartServer(Serve(), {.tls = Files("ours", "ours")});
  EXPECT_TRUE(TryToConnect(server->port(), Files("ours", "ours")).ok());
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), Files("", "ours"))));
  TlsFiles stranger = Files("theirs", "ours");
  EXPECT_TRUE(absl::IsUnavailable(TryToConnect(server->port(), stranger)));
}

TEST_F(Certificates, WhatIsWrongWithAFileIsSaidWithItsName) {
  const auto why = [&](const TlsFiles& files) { return StreamServer::Start({.tls = files}, Serve()).status(); };
  const auto message = [&](const TlsFiles& files) { return std::string(why(files).message()); };
  std::ofstream(Path("empty.pem")) << "not a certificate";
  TlsFiles files = Files("ours", "ours");
  files.certificate = Path("missing.pem");
  EXPECT_TRUE(absl::IsNotFound(why(files))) << why(files);
  EXPECT_THAT(message(files), HasSubstr(Path("missing.pem")));
  files.certificate = Path("theirs.pem");
  EXPECT_EQ(why(files), absl::InvalidArgumentError("the private key in " + Path("ours.key") +
                                                   " does not belong to the certificate in " + Path("theirs.pem")));
  files.certificate = Path("empty.pem");
  EXPECT_THAT(message(files), HasSubstr("empty.pem: holds no certificate"));
  files = Files("ours", "ours");
  files.key = Path("locked.key");
  EXPECT_THAT(message(files), HasSubstr("locked.key: holds no private key in PEM form without a password"));
  files.key = "";
  EXPECT_THAT(message(files), HasSubstr("without its private key"));
  files = Files("ours", "ours");
  files.ca = Path("empty.pem");
  EXPECT_THAT(message(files), HasSubstr("empty.pem: holds no certificate"));
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
    EXPECT_EQ(Ask(*client, "/echo", "x").status(),
              absl::UnauthenticatedError("the token of the call is not the server's"));
  }
  const auto stranger = ConnectTo(server->port());
  EXPECT_EQ(Ask(*stranger, "/echo", "x").status(),
            absl::UnauthenticatedError("this server requires a token, and the call has none"));
  EXPECT_EQ(made.count(), 0);
  const auto client = ConnectTo(server->port(), {.token = "open sesame"});
  EXPECT_EQ(Ask(*client, "/echo", "x").value(), "x");
  EXPECT_EQ(made.count(), 1);
}

TEST(Listen, BeyondLoopbackIsRefusedWithoutATokenOrMutualTls) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "192.0.2.7:0"}) {
    const absl::Status refused = StreamServer::Start({.listen = listen}, Serve()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string("'") + listen + "'"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("give a token, or a certificate"));
  }
}

TEST(Listen, BeyondLoopbackWithATokenOverPlainTcpOrInsecureWarns) {
  EXPECT_THAT(StartServer(Serve(), {.listen = "0.0.0.0:0", .token = "t"})->warnings(),
              testing::ElementsAre(HasSubstr("including the token")));
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
  EXPECT_EQ(StreamServer::Start({.listen = address}, Serve()).status(),
            absl::UnavailableError("cannot listen on " + address + ": Address already in use"));
}

TEST(Connect, ToNobodyFailsWithTheAddressAndTheReason) {
  auto server = StartServer(Serve());
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  server = nullptr;
  const absl::Status status =
      StreamClient::Connect({.target = address, .connect_timeout = absl::Milliseconds(300)}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no connection to " + address + " within 300ms"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
  EXPECT_TRUE(absl::IsInvalidArgument(StreamClient::Connect({.target = "nowhere"}).status()));
}

}  // namespace
}  // namespace tdock::rpc
