#include "python/dock_handle.h"

#include <nanobind/nanobind.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/callback.h"
#include "python/errors.h"
#include "python/forks.h"
#include "python/gil.h"
#include "tdock/local_dock.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

std::shared_ptr<Dock> ConnectTo(const ConnectOptions& options) {
  RememberAddress(options.address);
  absl::StatusOr<std::unique_ptr<Dock>> dock = absl::UnknownError("not connected");
  {
    const GilRelease release;
    dock = ConnectDock(options);
  }
  return ValueOrRaise(std::move(dock));
}

}  // namespace

std::unique_ptr<DockHandle> DockHandle::Local() {
  return std::make_unique<DockHandle>(std::shared_ptr<Dock>(MakeLocalDock()), std::nullopt);
}

std::unique_ptr<DockHandle> DockHandle::Connect(const ConnectOptions& options) {
  return std::make_unique<DockHandle>(ConnectTo(options), options);
}

// Closing a connection may take a call.
DockHandle::~DockHandle() {
  const GilRelease release;
  open_.reset();
}

std::shared_ptr<OpenDock> DockHandle::Open() {
  if (closed_) Raise(absl::FailedPreconditionError("this dock is closed"));
  if (open_.here()) return open_.get();
  if (!connect_.has_value()) {
    Raise(
        absl::FailedPreconditionError("this dock belongs to the process that this one was forked from: serve it there "
                                      "(transfer_dock.DockServer), and "
                                      "connect here"));
  }
  auto fresh = std::make_shared<OpenDock>(ConnectTo(*connect_));
  // Another thread may have connected or closed in the meantime.
  if (closed_) Raise(absl::FailedPreconditionError("this dock is closed"));
  if (!open_.here()) open_ = OfThisProcess<OpenDock>(std::move(fresh));
  return open_.get();
}

void DockHandle::Close() {
  closed_ = true;
  OfThisProcess<OpenDock> last = std::exchange(open_, OfThisProcess<OpenDock>());
  // In a forked process they belong to the parent.
  const std::vector<LeaseRequest> leases = last.here() ? last->leases.Requests() : std::vector<LeaseRequest>();
  const GilRelease release;
  if (last.here()) RequestStop(last->closing);
  for (const LeaseRequest& lease : leases) {
    const absl::Status released = last->dock->Release(lease);
    // If the server does not answer, it ends them with the session.
    if (absl::IsUnavailable(released) || absl::IsDeadlineExceeded(released)) break;
  }
  last.reset();
}

std::shared_ptr<const ColumnTypes> DockHandle::Types(const std::string& partition, bool ask) {
  if (const auto known = types_.find(partition); !ask && known != types_.end()) return known->second;
  const std::shared_ptr<Dock> dock = Get();
  absl::StatusOr<PartitionStatus> status = absl::UnknownError("not asked");
  {
    const GilRelease release;
    status = dock->GetStatus(partition);
  }
  ColumnTypes types;
  // Whatever is wrong, the call that needs the types will report it.
  if (status.ok()) {
    for (const ColumnStatus& column : status->columns) {
      if (column.typed) types[column.name] = column.type;
    }
    Remember(partition, std::move(types));
    return types_[partition];
  }
  Forget(partition);
  return std::make_shared<const ColumnTypes>();
}

void DockHandle::Remember(const std::string& partition, ColumnTypes types) {
  types_[partition] = std::make_shared<const ColumnTypes>(std::move(types));
}

void DockHandle::Forget(const std::string& partition) { types_.erase(partition); }

}  // namespace tdock::python
