// Clients without the token: dozens at once, in every way that keeps a server busy. Those who have it are served
// meanwhile, and the server's memory does not grow.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "dock/service/wire/dock_message.h"
#include "fault_fixture.h"
#include "raw_client.h"

namespace tdock::fault {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsItsOwn = false;  // the sanitizer keeps freed memory
#else
constexpr bool kMemoryIsItsOwn = true;
#endif

constexpr char kToken[] = "open-sesame";

std::string HelloWithToken(const std::string& token) {
  return net::MessageOf(net::kHello, 0, Encode(net::Hello{.token = token}));
}

// What a stranger does with each connection, until the test is over.
struct Attack {
  const char* name;
  int strangers = 64;
  std::string bytes = {};
  size_t chunk_bytes = 64 << 10;
  absl::Duration between_chunks = absl::ZeroDuration();
  // Hangs up when they are sent, and comes again.
  bool comes_again = false;
};

std::vector<Attack> Attacks() {
  std::string long_hello;
  net::AppendHeader(net::kHello, 0, net::kMaxHelloBytes, &long_hello);
  std::string endless;
  net::AppendHeader(service::kCall, 1, 64 << 20, &endless);
  const std::string client_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  const std::string data = net::MessageOf(net::kData, 1, std::string(1 << 20, '\0'));
  return {{.name = "Silence"},
          {.name = "Crowd", .strangers = 400},
          {.name = "Slowness",
           .bytes = long_hello + std::string(8192, 'x'),
           .chunk_bytes = 1,
           .between_chunks = absl::Milliseconds(10)},
          {.name = "WrongTokens", .bytes = HelloWithToken("open-sesam"), .comes_again = true},
          {.name = "LongTokens", .bytes = HelloWithToken(std::string(8000, 'x')), .comes_again = true},
          {.name = "NoToken", .bytes = HelloWithToken("") + std::string(1 << 20, '\0')},
          {.name = "Calls", .bytes = endless + std::string(8 << 20, 'x')},
          {.name = "Data", .bytes = data + data + data + data},
          {.name = "Garbage", .bytes = std::string(8 << 20, '\xff')},
          {.name = "Zeros", .bytes = std::string(8 << 20, '\0')},
          {.name = "HalfHandshakes", .bytes = client_hello},
          {.name = "Handshakes", .comes_again = true}};
}

class Strangers : public testing::TestWithParam<std::tuple<Over, size_t>> {
 protected:
  void SetUp() override {
    over_ = std::get<0>(GetParam());
    std::vector<std::string> arguments = ServeArguments(over_);
    arguments.insert(arguments.end(), {"--token-file", token_file_});
    std::ofstream(token_file_) << kToken;
    absl::StatusOr<std::unique_ptr<service::ServerProcess>> server = service::ServerProcess::Start(arguments);
    ASSERT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    target_ = TargetOf(*server_, over_);
  }
  void TearDown() override { unlink(token_file_.c_str()); }

  std::unique_ptr<Dock> Connect() const {
    ConnectOptions options = Patiently(target_);
    options.token = kToken;
    absl::StatusOr<std::unique_ptr<Dock>> dock = ConnectDock(options);
    EXPECT_EQ(dock.status(), absl::OkStatus());
    return dock.ok() ? *std::move(dock) : nullptr;
  }

  // Over TLS, every other one does not even begin with it.
  void AttackOnce(const Attack& attack, bool plain) const {
    net::RawClient raw(target_.address, plain ? nullptr : TlsTo(target_));
    for (size_t at = 0; at < attack.bytes.size() && !over_now_; at += attack.chunk_bytes) {
      const auto chunk = absl::string_view(attack.bytes).substr(at, attack.chunk_bytes);
      if (!raw.Send(chunk, absl::Milliseconds(100))) break;
      absl::SleepFor(attack.between_chunks);
    }
    while (!attack.comes_again && !over_now_) absl::SleepFor(absl::Milliseconds(5));
  }

  // The most that the server works while `call` waits. Load hardly changes it.
  void Measure(const std::function<absl::Status()>& call) {
    const absl::Duration before = CpuTime(server_->process().pid());
    EXPECT_EQ(call(), absl::OkStatus());
    most_work_ = std::max(most_work_, CpuTime(server_->process().pid()) - before);
  }

  const std::string token_file_ = absl::StrCat(testing::TempDir(), "token-", getpid());
  Over over_{};
  std::unique_ptr<service::ServerProcess> server_;
  Target target_;
  std::atomic<bool> over_now_ = false;
  absl::Duration most_work_;
};

TEST_P(Strangers, CostLittleMemoryAndHoldUpNobody) {
  const Attack attack = Attacks()[std::get<1>(GetParam())];
  const pid_t pid = server_->process().pid();
  const std::unique_ptr<Dock> old = Connect();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Connect()->ListPartitions().status(), absl::OkStatus());
  const int64_t before = ResidentBytes(pid);
  ForgetPeak(pid);
  std::vector<std::thread> strangers;
  for (int i = 0; i < attack.strangers; ++i) {
    strangers.emplace_back([this, &attack, i] {
      while (!over_now_) AttackOnce(attack, i % 2 == 0);
    });
  }
  constexpr int kRounds = 30;
  for (int round = 0; round < kRounds; ++round) {
    Measure([&] { return old->ListPartitions().status(); });
    Measure([&] { return Connect()->ListPartitions().status(); });
    absl::SleepFor(absl::Milliseconds(10));
  }
  over_now_ = true;
  for (std::thread& stranger : strangers) stranger.join();
  const int64_t grown = PeakBytes(pid) - before;
  RecordProperty("memory", absl::StrCat(grown >> 20, " MiB"));
  RecordProperty("work during a call", absl::FormatDuration(most_work_));
  EXPECT_TRUE(!kMemoryIsItsOwn || grown <= (int64_t{64} << 20) * kSlowness) << grown;
  EXPECT_LE(most_work_, Seconds(1));
}

std::string NameOfAttack(const testing::TestParamInfo<std::tuple<Over, size_t>>& info) {
  return absl::StrCat(Attacks()[std::get<1>(info.param)].name, NameOf(std::get<0>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Each, Strangers,
                         testing::Combine(testing::Values(Over::kTcp, Over::kTls),
                                          testing::Range<size_t>(0, Attacks().size())),
                         NameOfAttack);

}  // namespace
}  // namespace tdock::fault
