// Servers and clients as processes of their own, to be killed, stopped and lied to.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/child_process.h"
#include "core/base/testing/patience.h"
#include "dock/service/wire/server_process.h"
#include "dock/service/wire/testing/serve.h"
#include "tdock/dock.h"
#include "tdock/remote_dock.h"

namespace tdock::fault {

// Sanitizers make everything slower, and keep freed memory; what is bounded is bounded by more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowness = 4;
#else
inline constexpr int kSlowness = 1;
#endif

// So many seconds of a program without sanitizers.
inline absl::Duration Seconds(double seconds) { return absl::Seconds(seconds * kSlowness); }

// Looks every two milliseconds whether something happens; false if it does not in this time. For what must not happen:
// on a loaded machine, it may come later.
bool HappensWithin(absl::Duration within, const std::function<bool()>& happens);

// Stops a process, and returns when it stands still; false if it does not.
bool Stop(ChildProcess& process);
// State of a process.
int CountDescriptors(pid_t pid);
int CountThreads(pid_t pid);
// Memory of its own and shared, that is there.
int64_t ResidentBytes(pid_t pid);
// The most of that since ForgetPeak().
int64_t PeakBytes(pid_t pid);
void ForgetPeak(pid_t pid);
// The time that processors have spent on it.
absl::Duration CpuTime(pid_t pid);

inline constexpr const char* kPartition = "p";
inline constexpr const char* kConsumer = "c";

// Columns "mark" (one int64), "tokens" (ragged int32) and "text" (bytes).
PartitionOptions Columns(absl::string_view name = kPartition);
// Rows of so many bytes together, with the marks first, first + 1 and so on.
Batch MakeBatch(int64_t rows, int64_t bytes, int64_t first_mark = 0);

// Creates the partition and the consumer, which reads all columns.
absl::Status CreateAll(Dock& dock, const ConsumerOptions& consumer = {}, PartitionOptions partition = Columns());

// Whether every row has all of its columns.
testing::AssertionResult HasWholeRowsOnly(const PartitionStatus& status);

// Where a server listens.
struct Target {
  std::string address;      // "unix:/path" or "host:port"
  std::string tls_ca = {};  // a file; empty: without TLS

  ConnectOptions Options() const { return {.address = address, .tls_ca = tls_ca}; }
  // One argument of a peer's, and what that says.
  std::string ToArgument() const { return tls_ca.empty() ? address : address + "," + tls_ca; }
  static Target Parse(const std::string& argument);
};
// Options of a client that waits as long as a loaded machine may take.
ConnectOptions Patiently(const Target& target);

// A client process: tests/fault/fault_peer.cc says what roles there are. Null, with a failure, if it does not start.
std::unique_ptr<ChildProcess> StartPeer(std::vector<std::string> arguments);

// Median durations of an act that is done so many times with a dock, in turn with a control. A loaded machine makes
// both longer.
struct Medians {
  absl::Duration of_dock, of_control;
};
Medians MediansOf(Dock& dock, Dock& control, int times, const std::function<void(Dock&)>& act);

using service::Over;
std::string NameOf(Over over);
std::string NameOfParam(const testing::TestParamInfo<Over>& info);

// The arguments of a server that `over` needs, and the server's address.
std::vector<std::string> ServeArguments(Over over);
Target TargetOf(const service::ServerProcess& server, Over over);

// A server, and clients over one transport.
class OverEach : public testing::TestWithParam<Over> {
 protected:
  void SetUp() override { Start({}); }
  // With a certificate over TLS.
  void Start(const std::vector<std::string>& arguments);
  Target target() const { return TargetOf(*server_, GetParam()); }
  // For error messages and peers.
  std::string address() const { return target().address; }
  std::string peer_address() const { return target().ToArgument(); }
  pid_t server_pid() const { return server_->process().pid(); }

  // Null, with a failure, if nobody answers. This client waits as long as a loaded machine may take.
  std::unique_ptr<Dock> Connect() { return Connect(Patiently(target())); }
  static std::unique_ptr<Dock> Connect(const ConnectOptions& options);
  // The same, to a server that has no other clients.
  std::unique_ptr<Dock> ConnectToIdle();

  static std::unique_ptr<service::ServerProcess> StartProcess(std::vector<std::string> arguments);

  std::unique_ptr<service::ServerProcess> server_;

 private:
  std::unique_ptr<service::ServerProcess> idle_;
};

// A server that can be started again where it was. Not thread-safe.
class RestartableServer {
 public:
  explicit RestartableServer(std::vector<std::string> arguments);
  ~RestartableServer();

  // After Kill(), at the addresses of before.
  absl::Status Start();
  void Kill();
  Target At(Over over) const;

 private:
  const std::vector<std::string> arguments_;
  std::string folder_;
  std::string tcp_ = "127.0.0.1:0";
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace tdock::fault
