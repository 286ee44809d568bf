// TLS: who trusts whom, and what is wrong with files.
#include "core/net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/testing/fails.h"
#include "core/net/channel.h"
#include "core/net/testing/certificates.h"
#include "core/net/testing/echo_server.h"
#include "core/net/testing/raw_client.h"

namespace tdock::net {
namespace {

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

TlsFiles Files(const std::string& pair, const std::string& authority) {
  return TestCertificates().Files(pair, authority);
}

// How a client of these files fares. Whatever goes wrong, it does at once.
absl::Status TryToConnect(const std::string& address, const TlsFiles& files) {
  const auto credentials = Credentials::Load({.tls = files}, Tls::Side::kClient);
  if (!credentials.ok()) return credentials.status();
  const absl::Time begin = absl::Now();
  const auto channel = Channel::Connect({.address = address, .credentials = *credentials}, "", begin + kNever);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
  if (!channel.ok()) return channel.status();
  // A server of TLS 1.3 may refuse a client after that believes to be connected.
  EXPECT_EQ((*channel)->welcome(), "welcome");
  return absl::OkStatus();
}

// A client's side that trusts this CA.
std::shared_ptr<const Tls> Trusting(const std::string& ca) {
  return Tls::Load(Files("", ca), Tls::Side::kClient).value();
}

TEST(Tls, CarriesMessagesAndDataBothWays) {
  EchoServer server({.tls = Files("ours", "")});
  RawClient client(server.address(), Trusting("ours"));
  ASSERT_TRUE(client.Send(HelloMessage({})));
  ASSERT_EQ(client.Receive()->header.type, kWelcome);
  const std::string text(kMaxEchoBytes, 'x');
  ASSERT_TRUE(client.Send(MessageOf(kEcho, 1, text) + NumbersMessage(kFill, 2, uint64_t{40 << 20}) +
                          MessageOf(kData, 3, std::string(500'000, '\0')) + MessageOf(kEcho, 4, "last")));
  EXPECT_EQ(client.Receive()->body, text);
  EXPECT_EQ(client.Receive()->header.type, kFill);
  EXPECT_EQ(client.Receive()->body, "last");
  EXPECT_EQ(client.data_bytes(), 40u << 20);
  EXPECT_EQ(server.seen.data_bytes, 500'000 - static_cast<int64_t>(sizeof(DataPrefix)));
}

TEST(Tls, AClientRefusesAServerOfAnotherAuthority) {
  EchoServer server({.tls = Files("ours", "")});
  EXPECT_EQ(TryToConnect(server.address(), Files("", "ours")), absl::OkStatus());
  EXPECT_THAT(TryToConnect(server.address(), Files("", "theirs")),
              Fails(kUnavailable, {server.address(), "certificate"}));
  EXPECT_EQ(server.seen.hellos, 1);
}

// Whether a client that looks for a server of this name accepts ours.
absl::Status Handshake(const std::string& address, const std::string& name) {
  const auto tls = Tls::Load(Files("", "ours"), Tls::Side::kClient);
  const auto stream = MakeTlsStream(Dial(address), **tls, name);
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const bool done, (*stream)->Handshake());
    if (done) return absl::OkStatus();
    pollfd watched{.fd = (*stream)->fd(), .events = (*stream)->awaits(), .revents = 0};
    poll(&watched, 1, -1);
  }
}

TEST(Tls, AClientRefusesAServerOfAnotherName) {
  EchoServer server({.tls = Files("ours", "")});
  for (const char* name : {"127.0.0.1", "ours.example"}) EXPECT_EQ(Handshake(server.address(), name), absl::OkStatus());
  for (const char* name : {"127.0.0.2", "::1", "theirs.example", "ours", "example", "x.ours.example"}) {
    EXPECT_THAT(Handshake(server.address(), name), Fails(kUnavailable, {"certificate"})) << name;
  }
}

TEST(Tls, MutualLetsInOnlyClientsWithACertificateOfItsAuthority) {
  EchoServer server({.tls = Files("ours", "ours")});
  EXPECT_EQ(TryToConnect(server.address(), Files("ours", "ours")), absl::OkStatus());
  EXPECT_THAT(TryToConnect(server.address(), Files("", "ours")), Fails(kUnavailable, {server.address()}));
  EXPECT_THAT(TryToConnect(server.address(), Files("theirs", "ours")), Fails(kUnavailable, {server.address()}));
  EXPECT_EQ(server.seen.hellos, 1);
}

TEST(Tls, WithATokenNeedsBoth) {
  EchoServer server({.tls = Files("ours", ""), .token = "t"});
  EXPECT_THAT(TryToConnect(server.address(), Files("", "ours")), Fails(absl::StatusCode::kUnauthenticated, {"token"}));
  const auto credentials = Credentials::Load({.tls = Files("", "ours"), .token = "t"}, Tls::Side::kClient);
  const ServerAddress address{.address = server.address(), .credentials = *credentials};
  EXPECT_EQ(Channel::Connect(address, "", absl::Now() + kPatience).status(), absl::OkStatus());
}

TEST(Tls, APlainClientAndAServerOfTlsSoonTellEachOther) {
  EchoServer secure({.tls = Files("ours", "")}), plain{CredentialFiles()};
  EXPECT_THAT(TryToConnect(secure.address(), {}), Fails(kUnavailable, {secure.address(), "TLS"}));
  EXPECT_THAT(TryToConnect(plain.address(), Files("", "ours")), Fails(kUnavailable, {plain.address(), "TLS"}));
  EXPECT_EQ(secure.seen.hellos + plain.seen.hellos, 0);
}

TEST(Tls, WhatIsWrongWithAFileIsSaidWithItsName) {
  const Certificates& certificates = TestCertificates();
  const auto path = [&](const std::string& name) { return certificates.Path(name); };
  const auto why = [](const TlsFiles& files) { return Tls::Load(files, Tls::Side::kServer).status(); };
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  std::ofstream(path("empty.pem")) << "not a certificate";
  TlsFiles files = Files("ours", "ours");
  files.certificate = path("missing.pem");
  EXPECT_THAT(why(files), Fails(absl::StatusCode::kNotFound, {path("missing.pem")}));
  files.certificate = path("theirs.pem");
  EXPECT_THAT(why(files), Fails(kWrong, {path("ours.key"), path("theirs.pem")}));
  files.certificate = path("empty.pem");
  EXPECT_THAT(why(files), Fails(kWrong, {path("empty.pem"), "certificate"}));
  files = Files("ours", "ours");
  files.key = path("locked.key");
  EXPECT_THAT(why(files), Fails(kWrong, {path("locked.key"), "PEM", "password"}));
  files.key = "";
  EXPECT_THAT(why(files), Fails(kWrong, {path("ours.pem"), "private key"}));
  files = Files("ours", "ours");
  files.ca = path("empty.pem");
  EXPECT_THAT(why(files), Fails(kWrong, {path("empty.pem"), "certificate"}));
  EXPECT_TRUE(absl::IsInvalidArgument(why(Files("", "ours"))));
  EXPECT_EQ(why(Files("ours", "ours")), absl::OkStatus());
}

TEST(Tls, HandshakesThatAreNotFinishedInTimeEnd) {
  EchoServer server({.tls = Files("ours", "")}, {.hello_within = absl::Milliseconds(100)});
  RawClient welcome(server.address(), Trusting("ours"));
  ASSERT_TRUE(welcome.Send(HelloMessage({})));
  ASSERT_EQ(welcome.Receive().status(), absl::OkStatus());
  // One says nothing, one begins, and one says no hello afterwards.
  RawClient silent(server.address()), half(server.address()), stranger(server.address(), Trusting("ours"));
  ASSERT_TRUE(half.Send("\x16\x03\x01\x02"));
  EXPECT_TRUE(absl::IsUnavailable(silent.Receive().status()));
  EXPECT_TRUE(absl::IsUnavailable(half.Receive().status()));
  EXPECT_THAT(stranger.Receive().status(), Fails(absl::StatusCode::kDeadlineExceeded, {"hello"}));
  ASSERT_TRUE(welcome.Send(MessageOf(kEcho, 1, "on")));
  EXPECT_EQ(welcome.Receive()->body, "on");
}

TEST(Tls, AClientThatReadsNothingIsReadFromNoMoreAndLaterServed) {
  EchoServer server({.tls = Files("ours", "")}, {.max_queued_bytes = 1 << 20});
  RawClient client(server.address(), Trusting("ours"));
  ASSERT_TRUE(client.Send(HelloMessage({})));
  ASSERT_EQ(client.Receive().status(), absl::OkStatus());
  const std::string echo = MessageOf(kEcho, 1, std::string(60'000, 'x'));
  std::string all;
  while (all.size() < 64 << 20) all += echo;
  const size_t sent = client.SendSome(all, absl::Milliseconds(300));
  ASSERT_LT(sent, all.size()) << "the server reads on";
  const size_t whole = sent / echo.size();
  for (size_t i = 0; i < whole; ++i) ASSERT_EQ(client.Receive().status(), absl::OkStatus());
  // At least as much as the record has that waits to be sent.
  ASSERT_TRUE(client.Send(absl::string_view(all).substr(sent, (whole + 2) * echo.size() - sent)));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.Receive().status(), absl::OkStatus());
}

}  // namespace
}  // namespace tdock::net
