// A dock as Python holds it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "python/batches.h"
#include "python/leases.h"
#include "python/process.h"
#include "tdock/dock.h"
#include "tdock/remote_dock.h"

namespace tdock::python {

// What ends when a handle is closed.
struct OpenDock {
  explicit OpenDock(std::shared_ptr<Dock> opened) : dock(std::move(opened)) {}

  const std::shared_ptr<Dock> dock;
  // Ends the calls that wait.
  std::stop_source closing = {};
  // Guarded by the GIL.
  Leases leases = {};
};

// The dock of this process, or a connection, which is made anew in a forked process. Methods need the GIL, and let go
// of it where they wait.
class DockHandle {
 public:
  // `connect` is set for docks that other processes can reach.
  DockHandle(std::shared_ptr<Dock> dock, std::optional<ConnectOptions> connect)
      : open_(std::make_shared<OpenDock>(std::move(dock))), connect_(std::move(connect)) {}
  ~DockHandle();
  DockHandle(const DockHandle&) = delete;
  DockHandle& operator=(const DockHandle&) = delete;

  // Raises what keeps it from being made.
  static std::unique_ptr<DockHandle> Local();
  static std::unique_ptr<DockHandle> Connect(const ConnectOptions& options);

  // Raises FailedPrecondition if it is closed, or inside of a process from which this one was forked.
  std::shared_ptr<OpenDock> Open();
  std::shared_ptr<Dock> Get() { return Open()->dock; }
  // Ends waits, with Cancelled, and gives back what is leased. Rows stay readable.
  void Close();
  const std::optional<ConnectOptions>& connect() const { return connect_; }

  // Whether the columns of a partition are remembered.
  bool Knows(const std::string& partition) const { return types_.contains(partition); }
  // Those that are remembered, or with `ask`, and if there are none, what they are. They can only have become more,
  // unless the partition was dropped. Nothing for one that is not there.
  std::shared_ptr<const ColumnTypes> Types(const std::string& partition, bool ask);
  void Remember(const std::string& partition, ColumnTypes types);
  void Forget(const std::string& partition);

 private:
  OfThisProcess<OpenDock> open_;
  const std::optional<ConnectOptions> connect_;
  bool closed_ = false;
  std::map<std::string, std::shared_ptr<const ColumnTypes>> types_;
};

}  // namespace tdock::python
