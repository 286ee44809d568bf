// A client whose process the fault tests kill and stop.
//
//   fault_peer produce ADDRESS BYTES          puts batches of so many bytes without end
//   fault_peer take ADDRESS ROWS              takes rows and holds them; completes them at SIGUSR1
//   fault_peer wait ADDRESS CALL              waits for what does not come, in a take, a fetch or a put; at SIGUSR1 it
//                                             exits meanwhile
//   fault_peer read ADDRESS                   fetches all rows of column "text" and looks at them
//   fault_peer produce_recorded ADDRESS FILE FIRST, consume_recorded ADDRESS FILE SEED: see recorded.h
//   fault_peer flood ADDRESS CALLS ROWS       asks for every other row up to ROWS in so many calls at once, and reads
//                                             no answer
//
// An ADDRESS is "unix:/path", "host:port", or "host:port,FILE" over TLS, with the CA of the server's certificate.
// Each prints a line when it is where it is to be killed, and lives until it is.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "dock/service/wire/messages.h"
#include "fault_fixture.h"
#include "raw_client.h"
#include "recorded.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "fault_peer: " << status << std::endl;
  return 1;
}

int Produce(Dock& dock, int64_t bytes) {
  const PutRequest put{.partition = kPartition, .batch = MakeBatch(4, bytes)};
  std::cout << "ready" << std::endl;
  for (;;) {
    if (const absl::Status status = dock.Put(put).status(); !status.ok()) return Fail(status);
  }
}

int TakeAndHold(Dock& dock, int64_t rows, const sigset_t& signals) {
  const absl::StatusOr<Taken> taken = dock.Take(
      {.partition = kPartition, .consumer = kConsumer, .min = rows, .max = rows, .deadline = absl::Now() + kPatience});
  if (!taken.ok()) return Fail(taken.status());
  std::cout << "taken" << std::endl;
  int signal = 0;
  if (sigwait(&signals, &signal) != 0) return 1;
  const absl::Status status = dock.Complete({.partition = kPartition, .lease = taken->lease});
  if (!status.ok()) return Fail(status);
  std::cout << "completed" << std::endl;
  for (;;) pause();
}

int CallAndWait(Dock& dock, const std::string& call) {
  const absl::Time never = absl::InfiniteFuture();
  if (call == "take")
    return Fail(dock.Take({.partition = kPartition, .consumer = kConsumer, .deadline = never}).status());
  if (call == "put") {
    return Fail(dock.Put({.partition = kPartition, .batch = MakeBatch(4, 4000), .deadline = never}).status());
  }
  const absl::StatusOr<ListResult> list = dock.List({.partition = kPartition});
  if (!list.ok()) return Fail(list.status());
  FetchRequest fetch{.partition = kPartition, .columns = {"text"}, .deadline = never};
  for (const ListedRow& row : list->rows) fetch.rows.push_back(row.row);
  return Fail(dock.Fetch(fetch).status());
}

int WaitIn(Dock& dock, const std::string& call, const sigset_t& signals) {
  std::thread([&dock, call] { _exit(CallAndWait(dock, call)); }).detach();
  std::cout << "waiting" << std::endl;
  int signal = 0;
  if (sigwait(&signals, &signal) != 0) return 1;
  std::exit(0);
}

int Read(Dock& dock) {
  const absl::StatusOr<ListResult> list = dock.List({.partition = kPartition});
  if (!list.ok()) return Fail(list.status());
  FetchRequest fetch{.partition = kPartition, .columns = {"text"}};
  for (const ListedRow& row : list->rows) fetch.rows.push_back(row.row);
  const absl::StatusOr<Rows> rows = dock.Fetch(fetch);
  if (!rows.ok()) return Fail(rows.status());
  std::cout << "reading" << std::endl;
  for (;;) pause();
}

int Flood(const Target& target, int calls, uint64_t rows) {
  RawClient raw(target);
  raw.Hello();
  FetchRequest fetch{.partition = kPartition, .columns = {"tokens", "text"}};
  for (uint64_t row = 0; row < rows; row += 2) fetch.rows.push_back(row);
  for (int call = 1; call <= calls; ++call) {
    const service::message::Request request = raw.Numbered(service::RequestOf<verbs::Fetch>(fetch));
    // The server may stop reading.
    if (!raw.Send(ControlMessage(service::kCall, request.call, request), Seconds(0.5))) break;
  }
  std::cout << "asked" << std::endl;
  for (;;) pause();
}

int Run(const std::vector<std::string>& arguments) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const std::string& role = arguments.at(1);
  const Target target = Target::Parse(arguments.at(2));
  if (role == "flood") return Flood(target, std::stoi(arguments.at(3)), std::stoull(arguments.at(4)));
  const absl::StatusOr<std::unique_ptr<Dock>> dock = ConnectDock(Patiently(target));
  if (!dock.ok()) return Fail(dock.status());
  if (role == "produce") return Produce(**dock, std::stoll(arguments.at(3)));
  if (role == "take") return TakeAndHold(**dock, std::stoll(arguments.at(3)), signals);
  if (role == "wait") return WaitIn(**dock, arguments.at(3), signals);
  if (role == "read") return Read(**dock);
  if (role == "produce_recorded") return Fail(ProduceRecorded(**dock, arguments.at(3), std::stoll(arguments.at(4))));
  if (role == "consume_recorded") return Fail(ConsumeRecorded(**dock, arguments.at(3), std::stoull(arguments.at(4))));
  return Fail(absl::InvalidArgumentError("no role '" + role + "'"));
}

}  // namespace
}  // namespace tdock::fault

int main(int argc, char** argv) { return tdock::fault::Run({argv, argv + argc}); }
