#include "bench/runtime/workers.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "bench/runtime/reduction_runs.h"
#include "bench/runtime/training_memory.h"
#include "core/base/status.h"
#include "core/net/server.h"
#include "dock/local/shared_dock.h"
#include "runtime/control/processes.h"
#include "runtime/dispatch/method_table.h"
#include "trainer/distributed/weight_transfer.h"

namespace tdock::bench {
namespace {

// Much longer than any benchmark: a worker that is not needed any more is killed.
constexpr absl::Duration kLongTime = absl::Hours(1);

void Say(const std::string& line) { std::cout << line << std::endl; }

// Until this process is killed.
absl::Status ServeForEver() {
  for (;;) ::pause();
}

class EchoHandler final : public net::Handler {
 public:
  explicit EchoHandler(std::weak_ptr<net::Connection> connection) : connection_(std::move(connection)) {}

  uint32_t MaxBytes(uint8_t type) const override { return type == kBareEcho ? 1024 : 0; }
  absl::Status OnMessage(const net::MessageHeader& header, absl::string_view body) override {
    connection_.lock()->Send(net::MessageOf(header.type, header.tag, body));
    return absl::OkStatus();
  }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override {
    return absl::InvalidArgumentError("an echo of data");
  }
  void OnClosed(const absl::Status&) override {}

 private:
  const std::weak_ptr<net::Connection> connection_;
};

absl::Status Echo() {
  const auto welcome = [](const std::shared_ptr<net::Connection>& connection, absl::string_view) {
    return net::Welcome{.handler = std::make_unique<EchoHandler>(connection)};
  };
  TDOCK_ASSIGN_OR_RETURN(const auto server, net::Server::Make({.role = net::Role::kWorkers, .welcome = welcome}));
  TDOCK_RETURN_IF_ERROR(server->ListenOnTcp({}));
  Say(server->tcp_address());
  return ServeForEver();
}

absl::Status ServeCalls(const std::string& controller, int rank) {
  TDOCK_ASSIGN_OR_RETURN(
      const auto session,
      runtime::JoinController({.controller = controller, .rank = rank, .world_size = kCallWorkers + 1}));
  TDOCK_RETURN_IF_ERROR(session->AwaitWelcome(absl::Now() + kLongTime).status());
  runtime::MethodTable methods;
  TDOCK_RETURN_IF_ERROR(methods.Serve(kEchoAll, [](MetaBatch batch) { return batch; }));
  TDOCK_RETURN_IF_ERROR(methods.Serve(kEchoRows, [](MetaBatch batch) { return batch; }));
  return session->Serve(methods);
}

absl::Status ReceiveWeights(const std::string& address, bool quick) {
  model::Decoder decoder = TransferredModel(quick, 2);
  TDOCK_ASSIGN_OR_RETURN(const auto dock, dock::OpenSharedDock({.connect = address}));
  trainer::WeightReceiver receiver(dock->dock(), kReceiver);
  Say("ready");
  for (int64_t version = 1;; ++version) {
    TDOCK_ASSIGN_OR_RETURN(const trainer::WeightsSent received,
                           receiver.Receive(decoder, version, absl::Now() + kLongTime));
    Say(absl::StrCat(received.checksum));
  }
}

}  // namespace

model::Decoder TransferredModel(bool quick, uint64_t seed) {
  model::ModelConfig config;
  config.vocab_size = quick ? 512 : 27'648;
  config.hidden_size = quick ? 128 : 768;
  config.intermediate_size = quick ? 384 : 2304;
  config.num_layers = quick ? 4 : 12;
  config.num_heads = quick ? 4 : 12;
  config.num_kv_heads = 4;
  config.head_dim = quick ? 32 : 64;
  config.max_positions = 1024;
  model::Decoder decoder = model::Decoder::Random(config, seed, at::kCPU);
  decoder.SetTrainable(true);
  return decoder;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartWorker(std::vector<std::string> arguments, bool quick) {
  std::vector<std::string> command = {FolderOfThisProgram() + "/tdock-bench"};
  if (quick) command.push_back("--quick");
  command.push_back("--worker");
  command.insert(command.end(), arguments.begin(), arguments.end());
  return ChildProcess::Start(command);
}

absl::Status RunWorker(const std::vector<std::string>& arguments, bool quick) {
  const std::string& kind = arguments.front();
  int rank = 0, port = 0;
  if (kind == "echo" && arguments.size() == 1) return Echo();
  if (kind == "call" && arguments.size() == 3 && absl::SimpleAtoi(arguments[2], &rank)) {
    return ServeCalls(arguments[1], rank);
  }
  if (kind == "weights" && arguments.size() == 2) return ReceiveWeights(arguments[1], quick);
  if (kind == "reductions" && arguments.size() == 3 && absl::SimpleAtoi(arguments[1], &port) &&
      absl::SimpleAtoi(arguments[2], &rank)) {
    return ServeReductions(rank, port, quick);
  }
  int ranks = 0;
  if (kind == "memory" && arguments.size() == 4 && absl::SimpleAtoi(arguments[1], &port) &&
      absl::SimpleAtoi(arguments[2], &rank) && absl::SimpleAtoi(arguments[3], &ranks)) {
    return TrainForMemory(rank, ranks, port, quick);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--worker ", absl::StrJoin(arguments, " "),
      ": expected echo, call ADDRESS RANK, weights ADDRESS, reductions PORT RANK or memory PORT RANK RANKS"));
}

}  // namespace tdock::bench
