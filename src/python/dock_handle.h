// The Python object of a dock.
#pragma once

#include <nanobind/nanobind.h>

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
#include "tdock/requests.h"

namespace tdock::python {

// The resources that end when a handle is closed.
struct OpenDock {
  explicit OpenDock(std::shared_ptr<Dock> opened) : dock(std::move(opened)) {}

  const std::shared_ptr<Dock> dock;
  // Ends waiting calls.
  std::stop_source closing = {};
  // Guarded by the GIL.
  Leases leases = {};
};

// The dock of this process, or a connection, which is made again in a forked process. Methods need the GIL, and release
// it while they wait.
class DockHandle {
 public:
  // `connect` is set for docks that other processes can reach.
  DockHandle(std::shared_ptr<Dock> dock, std::optional<ConnectOptions> connect)
      : open_(std::make_shared<OpenDock>(std::move(dock))), connect_(std::move(connect)) {}
  ~DockHandle();
  DockHandle(const DockHandle&) = delete;
  DockHandle& operator=(const DockHandle&) = delete;

  // Raises the error if the connection cannot be made.
  static std::unique_ptr<DockHandle> Local();
  static std::unique_ptr<DockHandle> Connect(const ConnectOptions& options);

  // Raises FailedPrecondition if it is closed, or belongs to a process that this one was forked from.
  std::shared_ptr<OpenDock> Open();
  std::shared_ptr<Dock> Get() { return Open()->dock; }
  // Ends waits with Cancelled, and gives back leased rows. Rows stay readable.
  void Close();
  const std::optional<ConnectOptions>& connect() const { return connect_; }

  // Whether the columns of a partition are cached.
  bool Knows(const std::string& partition) const { return types_.contains(partition); }
  // The cached columns; with `ask`, if none are cached, they are requested. Columns can only have been added since,
  // unless the partition was dropped. Nothing for a partition that does not exist.
  std::shared_ptr<const ColumnTypes> Types(const std::string& partition, bool ask);
  void Remember(const std::string& partition, ColumnTypes types);
  void Forget(const std::string& partition);

 private:
  OfThisProcess<OpenDock> open_;
  const std::optional<ConnectOptions> connect_;
  bool closed_ = false;
  std::map<std::string, std::shared_ptr<const ColumnTypes>> types_;
};

// Puts `data`, a dict of columns (see batches.h) or None, as the batch of a PutRequest or FillRequest, and returns
// the row ids. Needs the GIL; raises Python exceptions.
template <class Request>
nanobind::object Put(DockHandle& handle, Request request, nanobind::handle data, const std::stop_token& cancel);

}  // namespace tdock::python
