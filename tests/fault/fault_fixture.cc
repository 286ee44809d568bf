#include "fault_fixture.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace tdock::fault {
namespace {

// The number behind a name in /proc/PID/status.
int64_t StatusNumber(pid_t pid, absl::string_view name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, absl::StrCat(name, ":"))) continue;
    int64_t number = 0;
    absl::ConsumeSuffix(&rest, " kB");
    return absl::SimpleAtoi(rest, &number) ? number : -1;
  }
  return -1;
}

}  // namespace

bool HappensWithin(absl::Duration within, const std::function<bool()>& happens) {
  const absl::Time deadline = absl::Now() + within;
  for (;;) {
    if (happens()) return true;
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

bool Stop(ChildProcess& process) {
  process.Signal(SIGSTOP);
  return Eventually([&] {
    std::ifstream file(absl::StrCat("/proc/", process.pid(), "/status"));
    for (std::string line; std::getline(file, line);) {
      if (absl::StartsWith(line, "State:")) return absl::StrContains(line, "T (stopped)");
    }
    return false;
  });
}

int CountDescriptors(pid_t pid) {
  DIR* const folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (folder == nullptr) return -1;
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 2;
}

int CountThreads(pid_t pid) { return static_cast<int>(StatusNumber(pid, "Threads")); }

int64_t ResidentBytes(pid_t pid) { return StatusNumber(pid, "VmRSS") << 10; }

PartitionOptions Columns(absl::string_view name) {
  return {.name = std::string(name),
          .columns = {{"mark", ColumnType::Dense(DType::kI64)},
                      {"tokens", ColumnType::Ragged(DType::kI32)},
                      {"text", ColumnType::Bytes()}}};
}

Batch MakeBatch(int64_t rows, int64_t bytes, int64_t first_mark) {
  const auto half = static_cast<size_t>(bytes / rows / 2);
  std::vector<int64_t> marks;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::string> texts;
  for (int64_t row = 0; row < rows; ++row) {
    marks.push_back(first_mark + row);
    tokens.emplace_back(half / sizeof(int32_t), static_cast<int32_t>(first_mark + row));
    texts.emplace_back(half, static_cast<char>('a' + row % 26));
  }
  Batch batch;
  EXPECT_EQ(batch.Add("mark", Column::FromValues<int64_t>(marks)), absl::OkStatus());
  EXPECT_EQ(batch.Add("tokens", Column::FromRows<int32_t>(tokens)), absl::OkStatus());
  EXPECT_EQ(batch.Add("text", Column::FromStrings(texts)), absl::OkStatus());
  return batch;
}

absl::Status CreateAll(Dock& dock, const ConsumerOptions& consumer, PartitionOptions partition) {
  TDOCK_RETURN_IF_ERROR(dock.CreatePartition(partition));
  ConsumerOptions options = consumer;
  if (options.name.empty()) options.name = kConsumer;
  if (options.reads.empty()) options.reads = {"mark", "tokens", "text"};
  return dock.RegisterConsumer(partition.name, options);
}

testing::AssertionResult HasWholeRowsOnly(const PartitionStatus& status) {
  for (const ColumnStatus& column : status.columns) {
    if (column.ready_cells == status.rows) continue;
    return testing::AssertionFailure() << column.name << ": " << column.ready_cells << " cells of " << status.rows
                                       << " rows";
  }
  return testing::AssertionSuccess();
}

std::unique_ptr<ChildProcess> StartPeer(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FolderOfThisProgram() + "/fault_peer");
  absl::StatusOr<std::unique_ptr<ChildProcess>> peer = ChildProcess::Start(arguments);
  EXPECT_EQ(peer.status(), absl::OkStatus());
  return peer.ok() ? *std::move(peer) : nullptr;
}

Medians MediansOf(Dock& dock, Dock& control, int times, const std::function<void(Dock&)>& act) {
  std::vector<absl::Duration> of_dock, of_control;
  const auto measure = [&](Dock& each, std::vector<absl::Duration>& took) {
    const absl::Time begin = absl::Now();
    act(each);
    took.push_back(absl::Now() - begin);
  };
  for (int i = 0; i < times; ++i) {
    measure(dock, of_dock);
    measure(control, of_control);
  }
  const auto median = [&](std::vector<absl::Duration>& took) {
    std::nth_element(took.begin(), took.begin() + times / 2, took.end());
    return took[static_cast<size_t>(times / 2)];
  };
  return {median(of_dock), median(of_control)};
}

std::string NameOf(const testing::TestParamInfo<Via>& info) { return info.param == Via::kTcp ? "Tcp" : "Socket"; }

void OverBoth::Start(const std::vector<std::string>& arguments) {
  absl::StatusOr<std::unique_ptr<service::ServerProcess>> server = service::ServerProcess::Start(arguments);
  ASSERT_EQ(server.status(), absl::OkStatus());
  server_ = *std::move(server);
}

std::unique_ptr<Dock> OverBoth::Connect(const ConnectOptions& options) {
  absl::StatusOr<std::unique_ptr<Dock>> dock;
  // Its reconnect_for may be short.
  EXPECT_TRUE(Eventually([&] {
    dock = ConnectDock(options);
    return dock.ok();
  })) << dock.status();
  return dock.ok() ? *std::move(dock) : nullptr;
}

std::unique_ptr<Dock> OverBoth::ConnectToIdle() {
  if (idle_ == nullptr) {
    absl::StatusOr<std::unique_ptr<service::ServerProcess>> server = service::ServerProcess::Start({});
    EXPECT_EQ(server.status(), absl::OkStatus());
    if (!server.ok()) return nullptr;
    idle_ = *std::move(server);
  }
  return Connect(Patiently(Address(*idle_)));
}

RestartableServer::RestartableServer() {
  std::string folder = "/tmp/tdock-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  folder_ = std::move(folder);
}

RestartableServer::~RestartableServer() {
  Kill();
  unlink((folder_ + "/dock.sock").c_str());
  rmdir(folder_.c_str());
}

absl::Status RestartableServer::Start() {
  TDOCK_ASSIGN_OR_RETURN(process_, ChildProcess::Start({FolderOfThisProgram() + "/tdock-dock", "serve", "--listen",
                                                        tcp_, "--socket", folder_ + "/dock.sock"}));
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::string line, process_->ReadLine(kPatience));
    absl::string_view rest = line;
    if (rest == "ready") return absl::OkStatus();
    if (absl::ConsumePrefix(&rest, "tcp ")) tcp_ = std::string(rest);
  }
}

void RestartableServer::Kill() { process_.reset(); }

}  // namespace tdock::fault
