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
#include "absl/strings/str_split.h"
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

int64_t PeakBytes(pid_t pid) { return StatusNumber(pid, "VmHWM") << 10; }

void ForgetPeak(pid_t pid) { std::ofstream(absl::StrCat("/proc/", pid, "/clear_refs")) << "5"; }

absl::Duration CpuTime(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // The state follows the name, which is in parentheses: it is field 3, and the ticks are fields 14 and 15.
  const std::vector<std::string> fields = absl::StrSplit(line.substr(std::min(line.rfind(") "), line.size())), ' ');
  int64_t user = 0, system = 0;
  const bool read = fields.size() > 13 && absl::SimpleAtoi(fields[12], &user) && absl::SimpleAtoi(fields[13], &system);
  EXPECT_TRUE(read) << line;
  return absl::Seconds(user + system) / sysconf(_SC_CLK_TCK);
}

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

Target Target::Parse(const std::string& argument) {
  const size_t comma = argument.find(',');
  if (comma == std::string::npos) return {argument};
  return {argument.substr(0, comma), argument.substr(comma + 1)};
}

ConnectOptions Patiently(const Target& target) {
  ConnectOptions options = target.Options();
  options.reconnect_for = options.answer_within = kPatience;
  return options;
}

std::string NameOf(Over over) { return over == Over::kUnix ? "Unix" : over == Over::kTcp ? "Tcp" : "Tls"; }
std::string NameOfParam(const testing::TestParamInfo<Over>& info) { return NameOf(info.param); }

std::vector<std::string> ServeArguments(Over over) {
  if (over != Over::kTls) return {};
  const net::Certificates& files = net::TestCertificates();
  return {"--tls-cert", files.Path("ours.pem"), "--tls-key", files.Path("ours.key")};
}

Target TargetOf(const service::ServerProcess& server, Over over) {
  if (over == Over::kUnix) return {server.socket_address()};
  return {server.tcp_address(), over == Over::kTls ? net::TestCertificates().Path("ours-ca.pem") : ""};
}

std::unique_ptr<service::ServerProcess> OverEach::StartProcess(std::vector<std::string> arguments) {
  const std::vector<std::string> more = ServeArguments(GetParam());
  arguments.insert(arguments.end(), more.begin(), more.end());
  absl::StatusOr<std::unique_ptr<service::ServerProcess>> server = service::ServerProcess::Start(arguments);
  EXPECT_EQ(server.status(), absl::OkStatus());
  return server.ok() ? *std::move(server) : nullptr;
}

void OverEach::Start(const std::vector<std::string>& arguments) {
  server_ = StartProcess(arguments);
  ASSERT_NE(server_, nullptr);
}

std::unique_ptr<Dock> OverEach::Connect(const ConnectOptions& options) {
  absl::StatusOr<std::unique_ptr<Dock>> dock;
  // Its reconnect_for may be short.
  EXPECT_TRUE(Eventually([&] {
    dock = ConnectDock(options);
    return dock.ok();
  })) << dock.status();
  return dock.ok() ? *std::move(dock) : nullptr;
}

std::unique_ptr<Dock> OverEach::ConnectToIdle() {
  if (idle_ == nullptr) idle_ = StartProcess({});
  return idle_ == nullptr ? nullptr : Connect(Patiently(TargetOf(*idle_, GetParam())));
}

RestartableServer::RestartableServer(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
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
  std::vector<std::string> command = {
      FolderOfThisProgram() + "/tdock-dock", "serve", "--listen", tcp_, "--socket", folder_ + "/dock.sock"};
  command.insert(command.end(), arguments_.begin(), arguments_.end());
  TDOCK_ASSIGN_OR_RETURN(process_, ChildProcess::Start(command));
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::string line, process_->ReadLine(kPatience));
    absl::string_view rest = line;
    if (rest == "ready") return absl::OkStatus();
    if (absl::ConsumePrefix(&rest, "tcp ")) tcp_ = std::string(rest);
  }
}

Target RestartableServer::At(Over over) const {
  if (over == Over::kUnix) return {"unix:" + folder_ + "/dock.sock"};
  return {tcp_, over == Over::kTls ? net::TestCertificates().Path("ours-ca.pem") : ""};
}

void RestartableServer::Kill() { process_.reset(); }

}  // namespace tdock::fault
