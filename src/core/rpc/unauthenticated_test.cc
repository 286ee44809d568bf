// What connections without the token cost a server, and those who have it: 64 at once, in every way that is known to
// make servers of HTTP/2 keep or do much.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/sanitized.h"
#include "core/rpc/testing/certificates.h"
#include "core/rpc/testing/http2.h"
#include "core/rpc/testing/process.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsItsOwn = false;  // the sanitizer keeps what is freed
#else
constexpr bool kMemoryIsItsOwn = true;
#endif
// Maximum CPU time of a server for other clients while a call waits. Load hardly changes it.
constexpr absl::Duration kMaxWork = kSanitized ? absl::Seconds(4) : absl::Seconds(1);
constexpr int kConnections = 64;
constexpr char kToken[] = "open sesame";

// Of /proc/PID/status, in bytes.
int64_t MemoryOf(const ChildProcess& process, const std::string& name) {
  std::ifstream status(absl::StrCat("/proc/", process.pid(), "/status"));
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    int64_t kib = 0;
    if (absl::ConsumePrefix(&rest, name + ":") && absl::ConsumeSuffix(&rest, " kB") && absl::SimpleAtoi(rest, &kib)) {
      return kib << 10;
    }
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

// The CPU time that the process has used.
absl::Duration WorkOf(const ChildProcess& process) {
  std::ifstream file(absl::StrCat("/proc/", process.pid(), "/stat"));
  std::string line;
  std::getline(file, line);
  // The state follows the name, which is in parentheses: it is field 3, and the ticks are fields 14 and 15.
  const std::vector<std::string> fields = absl::StrSplit(line.substr(std::min(line.rfind(") "), line.size())), ' ');
  int64_t user = 0, system = 0;
  const bool read = fields.size() > 13 && absl::SimpleAtoi(fields[12], &user) && absl::SimpleAtoi(fields[13], &system);
  EXPECT_TRUE(read) << line;
  return absl::Seconds(user + system) / sysconf(_SC_CLK_TCK);
}

// Sends bytes, of which the server takes as many as it will; whether it took them all.
using Sender = std::function<bool(absl::string_view bytes)>;

struct Attack {
  std::string bytes;
  size_t chunk_bytes = 64 << 10;
  absl::Duration between_chunks = absl::ZeroDuration();

  void Run(const Sender& send) const {
    for (size_t at = 0; at < bytes.size(); at += chunk_bytes) {
      if (!send(absl::string_view(bytes).substr(at, chunk_bytes))) return;
      if (between_chunks > absl::ZeroDuration())
        std::this_thread::sleep_for(absl::ToChronoMilliseconds(between_chunks));
    }
  }
};

// With the streams 1, 3 and so on, until there are 8 MiB.
std::string AgainAndAgain(std::string bytes, const std::function<std::string(uint32_t stream)>& next) {
  for (uint32_t stream = 1; bytes.size() < 8 << 20; stream += 2) bytes += next(stream);
  return bytes;
}

std::vector<const char*> AttackNames() {
  return {"Calls",    "RapidResets",  "CompressedFields",   "Continuations", "EmptyContinuations", "Pings",
          "Settings", "HealthChecks", "EndlessHealthCheck", "Garbage",       "Slowness",           "Silence"};
}

Attack MakeAttack(const std::string& name) {
  const std::string fields = CallFields("/echo"), check = CallFields("/grpc.health.v1.Health/Check");
  const auto again = [&](const std::string& first, const std::function<std::string(uint32_t)>& next) {
    return Attack{.bytes = AgainAndAgain(Opening() + first, next)};
  };
  if (name == "Calls") return again("", [&](uint32_t at) { return Frame(1, 4, at, fields); });
  if (name == "RapidResets") {
    const std::string cancel("\0\0\0\x8", 4);
    return again("", [&](uint32_t at) { return Frame(1, 4, at, fields) + Frame(3, 0, at, cancel); });
  }
  if (name == "CompressedFields") {
    const std::string large = "\x40\x01x\x7f\xa1\x1e" + std::string(4000, 'y');
    return again(Frame(1, 4, 1, large), [&](uint32_t at) { return Frame(1, 4, at + 2, std::string(16'000, '\xbe')); });
  }
  if (name == "Continuations") {
    return again(Frame(1, 0, 1, fields), [](uint32_t) { return Frame(9, 0, 1, std::string(100, '\0')); });
  }
  if (name == "EmptyContinuations") return again(Frame(1, 0, 1, ""), [](uint32_t) { return Frame(9, 0, 1, ""); });
  if (name == "Pings") return again("", [](uint32_t) { return Frame(6, 0, 0, "12345678"); });
  if (name == "Settings") return again("", [](uint32_t) { return Frame(4, 0, 0, ""); });
  if (name == "HealthChecks") return again("", [&](uint32_t at) { return Frame(1, 4, at, check); });
  if (name == "EndlessHealthCheck") {
    return again(Frame(1, 4, 1, check), [](uint32_t) { return Frame(0, 0, 1, std::string(1000, 'x')); });
  }
  if (name == "Garbage") return {.bytes = std::string(8 << 20, '\xff')};
  if (name == "Slowness") {
    return {.bytes = Opening(), .chunk_bytes = 1, .between_chunks = absl::Milliseconds(10)};
  }
  return {.bytes = std::string("P"), .chunk_bytes = 1, .between_chunks = absl::Milliseconds(300)};
}

// Calls over an old and over a new connection, again and again, and knows what the server did while a call waited.
class GoodClient {
 public:
  GoodClient(const ChildProcess& server, int port, const TlsFiles& tls)
      : server_(server), port_(port), tls_(tls), old_(Connect()), thread_([this] { Run(); }) {}
  ~GoodClient() { Stop(); }

  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // Returns when calls that begin now have been answered, over the old and over a new connection.
  void AwaitCalls() { EXPECT_TRUE(calls_.Await(calls_.count() + 4)); }
  absl::Duration max_work() const { return max_work_; }
  int64_t calls() const { return calls_.count(); }

 private:
  std::unique_ptr<StreamClient> Connect() const { return ConnectTo(port_, {.tls = tls_, .token = kToken}); }
  void Run() {
    while (!stop_) {
      Measure([&] { EXPECT_EQ(Ask(*old_, "/echo", "old").value_or(""), "old"); });
      Measure([&] { EXPECT_EQ(Ask(*Connect(), "/echo", "new").value_or(""), "new"); });
    }
  }
  void Measure(const std::function<void()>& call) {
    const absl::Duration before = WorkOf(server_);
    call();
    max_work_ = std::max(max_work_, WorkOf(server_) - before);
    calls_.Add();
  }

  const ChildProcess& server_;
  const int port_;
  const TlsFiles tls_;
  const std::unique_ptr<StreamClient> old_;
  std::atomic<bool> stop_{false};
  absl::Duration max_work_;
  Counter calls_;
  std::thread thread_;
};

// Connects, attacks, and calls `hold` before it hangs up.
using Attacker = std::function<void(const Attack& attack, const std::function<void()>& hold)>;

void ExpectAttackIsBorne(ChildProcess& server, int port, const TlsFiles& tls, const Attacker& connect_and_run,
                         const Attack& attack) {
  GoodClient client(server, port, tls);
  const int64_t before = MemoryOf(server, "VmRSS");
  std::ofstream(absl::StrCat("/proc/", server.pid(), "/clear_refs")) << "5";  // VmHWM begins anew
  std::vector<std::thread> attackers;
  // An attacker stays until others have been served, so a server that waits for it never ends this.
  for (int i = 0; i < kConnections; ++i) {
    attackers.emplace_back([&] { connect_and_run(attack, [&] { client.AwaitCalls(); }); });
  }
  for (std::thread& attacker : attackers) attacker.join();
  client.Stop();
  EXPECT_LE(client.max_work(), kMaxWork);
  std::cout << "+" << (MemoryOf(server, "VmHWM") - before) / 1024 << " KiB at most, +"
            << (MemoryOf(server, "VmRSS") - before) / 1024 << " KiB afterwards, " << client.calls()
            << " calls, at most " << client.max_work() << " of work during one\n";
  if (!kMemoryIsItsOwn) return;
  EXPECT_LE(MemoryOf(server, "VmHWM") - before, 64 << 20);
  // What the good client's connections take is kept for the next ones.
  EXPECT_TRUE(Eventually([&] { return MemoryOf(server, "VmRSS") - before <= 16 << 20; }));
}

void AttackOverTcp(int port, const Attack& attack, const std::function<void()>& hold) {
  RawConnection raw(port);
  const timeval patience = {.tv_sec = 1, .tv_usec = 0};
  setsockopt(raw.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  attack.Run([&](absl::string_view bytes) { return raw.Send(bytes); });
  hold();
}

std::string NameOf(const testing::TestParamInfo<size_t>& info) { return AttackNames()[info.param]; }

class UnauthenticatedOverTcp : public testing::TestWithParam<size_t> {};

TEST_P(UnauthenticatedOverTcp, CostsLittleMemoryAndHoldsUpNobody) {
  const auto server = StartRole({"--role=server", kToken});
  const int port = PortOf(*server);
  ExpectAttackIsBorne(
      *server, port, {},
      [&](const Attack& attack, const std::function<void()>& hold) { AttackOverTcp(port, attack, hold); },
      MakeAttack(AttackNames()[GetParam()]));
}

INSTANTIATE_TEST_SUITE_P(Attacks, UnauthenticatedOverTcp, testing::Range<size_t>(0, AttackNames().size()), NameOf);

// A client of TLS that trusts everybody, for what a proper client does not send.
class RawTls {
 public:
  explicit RawTls(int port) : raw_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_)) {
    // A server may read nothing of an attack, but it answers.
    const timeval send_patience = {.tv_sec = 5, .tv_usec = 0}, patience = absl::ToTimeval(kPatience);
    setsockopt(raw_.fd(), SOL_SOCKET, SO_SNDTIMEO, &send_patience, sizeof send_patience);
    setsockopt(raw_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const unsigned char protocols[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl_, protocols, sizeof protocols);
    SSL_set_fd(ssl_, raw_.fd());
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~RawTls() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  RawTls(const RawTls&) = delete;
  RawTls& operator=(const RawTls&) = delete;

  bool connected() const { return connected_; }
  bool Send(absl::string_view bytes) {
    return connected_ &&
           SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
  }
  // What comes first.
  std::string Read() {
    char buffer[4096];
    const int got = connected_ ? SSL_read(ssl_, buffer, sizeof buffer) : 0;
    return std::string(buffer, static_cast<size_t>(std::max(got, 0)));
  }
  void HangUp() { shutdown(raw_.fd(), SHUT_RDWR); }

 private:
  RawConnection raw_;
  SSL_CTX* context_;
  SSL* ssl_;
  bool connected_ = false;
};

class UnauthenticatedOverTls : public Certificates, public testing::WithParamInterface<size_t> {};

TEST_P(UnauthenticatedOverTls, CostsLittleMemoryAndHoldsUpNobody) {
  // OpenSSL writes to connections that the server has closed.
  signal(SIGPIPE, SIG_IGN);
  const TlsFiles files = Files("ours", "");
  const auto server = StartRole({"--role=server", kToken, files.certificate, files.key});
  const int port = PortOf(*server);
  // Half of them do not even begin with TLS.
  std::atomic<int> connections = 0;
  const auto run = [&](const Attack& attack, const std::function<void()>& hold) {
    if (++connections % 2 == 0) return AttackOverTcp(port, attack, hold);
    RawTls tls(port);
    attack.Run([&](absl::string_view bytes) { return tls.Send(bytes); });
    hold();
  };
  ExpectAttackIsBorne(*server, port, Files("", "ours"), run, MakeAttack(AttackNames()[GetParam()]));
}

INSTANTIATE_TEST_SUITE_P(Attacks, UnauthenticatedOverTls, testing::Range<size_t>(0, AttackNames().size()), NameOf);

TEST_F(Certificates, ACallOverTlsWhoseClientIsGoneIsGone) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_message = [&](Pieces) { begun.Add(); };
    script->on_gone = [&] { gone.Add(); };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)), {.tls = Files("ours", "")});
  RawTls tls(server->port());
  ASSERT_TRUE(tls.Send(Opening() + Frame(1, 4, 1, CallFields("/wait")) + Frame(0, 0, 1, std::string(5, '\0'))));
  ASSERT_TRUE(begun.Await(1));
  tls.HangUp();
  EXPECT_TRUE(gone.Await(1));
}

// Over whatever the clients are.
template <class Raw>
void ExpectDeafClientsHoldUpNobody(const TlsFiles& server_files, const TlsFiles& client_files) {
  Counter begun;
  Methods methods;
  methods["/flood"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_half_close = [&, sink] {
      for (int i = 0; i < 10; ++i) sink->Send({Buffer::CopyOf(std::vector<std::byte>(1 << 20))});
      begun.Add();
    };
    return script;
  };
  auto server = StartServer(Serve(std::move(methods)), {.tls = server_files});
  std::vector<std::unique_ptr<Raw>> deaf;
  for (int i = 0; i < 8; ++i) {
    deaf.push_back(std::make_unique<Raw>(server->port()));
    // With a window of 2 GiB, so that it is the sockets that are full.
    const std::string window =
        Frame(4, 0, 0, std::string("\0\4\x7f\xff\xff\xff", 6)) + Frame(8, 0, 0, std::string("\x7f\xff\0\0", 4));
    ASSERT_TRUE(deaf.back()->Send(absl::StrCat(kHttp2Preface, window, Frame(1, 5, 1, CallFields("/flood")))));
  }
  ASSERT_TRUE(begun.Await(8));
  const auto client = ConnectTo(server->port(), {.tls = client_files});
  EXPECT_EQ(Ask(*client, "/echo", "x").value_or(""), "x");
  // Nor do they hold up the end of the server, although they read nothing until then.
  server = nullptr;
}

TEST_F(Certificates, AClientThatDoesNotReadItsAnswersOverTlsHoldsUpNobody) {
  ExpectDeafClientsHoldUpNobody<RawTls>(Files("ours", ""), Files("", "ours"));
}

TEST(Hostile, AClientThatDoesNotReadItsAnswersHoldsUpNobody) { ExpectDeafClientsHoldUpNobody<RawConnection>({}, {}); }

TEST_F(Certificates, AHealthCheckOverTlsNeedsNoToken) {
  const auto server = StartServer(Serve(), {.tls = Files("ours", ""), .token = kToken});
  const auto stranger = ConnectTo(server->port(), {.tls = Files("", "ours")});
  EXPECT_EQ(Ask(*stranger, "/grpc.health.v1.Health/Check", "").value_or(""), "\x08\x01");
  const auto second = ConnectTo(server->port(), {.tls = Files("", "ours")});
  EXPECT_THAT(Ask(*second, "/echo", "x").status(), Fails(absl::StatusCode::kUnauthenticated, {"token", "none"}));
}

TEST(Token, IsNotNeededToAskForTheHealthOfTheServer) {
  const auto server = StartServer(Serve(), {.token = kToken});
  const auto check = [&](absl::string_view question) {
    return Ask(*ConnectTo(server->port()), "/grpc.health.v1.Health/Check", question);
  };
  EXPECT_EQ(check("").value_or(""), "\x08\x01");
  EXPECT_TRUE(absl::IsNotFound(check("\x0a\x05other").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(check("\xff").status()));
  EXPECT_TRUE(absl::IsUnauthenticated(Ask(*ConnectTo(server->port()), "/grpc.health.v1.Health/Watch", "").status()));
  server->StopAccepting();
  EXPECT_EQ(check("").value_or(""), "\x08\x02");
}

TEST(Token, IsCheckedInEveryCallOfAConnection) {
  const auto server = StartServer(Serve(), {.token = kToken});
  RawConnection raw(server->port());
  raw.Send(Opening() + Frame(1, 5, 1, CallFields("/echo", absl::StrCat("Bearer ", kToken))) +
           Frame(1, 5, 3, CallFields("/echo", "Bearer open sesam")));
  const std::string reason = "the server's";
  EXPECT_THAT(raw.ReadUntil(reason), testing::HasSubstr(reason));
}

}  // namespace
}  // namespace tdock::rpc
