#include <utility>
#include <vector>

#include "core/base/status.h"
#include "python/batches.h"
#include "python/dock_handle.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/rows.h"
#include "python/wait.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// Above this size, a put waits for room at once instead of being tried first: it would be sent twice.
constexpr int64_t kLargeBytes = 1 << 20;

int64_t BytesOf(const Batch& batch) {
  int64_t bytes = 0;
  for (const NamedColumn& one : batch.columns()) bytes += one.column.payload_bytes();
  return bytes;
}

// The data of a put, converted with the schema of its partition. The schema is requested at most once, and only if it
// matters: a cached one may belong to an earlier partition of the same name, in which the column would be a new one.
class Reading {
 public:
  Reading(DockHandle& handle, const std::string& partition, nb::handle data)
      : handle_(handle), partition_(partition), data_(data) {
    const bool has_data = !data.is_none() && NB_DICT_GET_SIZE(data.ptr()) != 0;
    asked_ = !has_data || !handle.Knows(partition);
    if (has_data) types_ = handle.Types(partition, asked_);
    columns_ = LookAtBatch(data, *types_);
    if (!columns_.ok() || columns_->by_schema) ReadAgain();
  }

  // May be called once.
  absl::StatusOr<IncomingBatch> Take() { return std::exchange(columns_, absl::UnknownError("taken")); }

  // Whether the schema differs from the cached one.
  bool ReadAgain() {
    if (std::exchange(asked_, true)) return false;
    const auto now = handle_.Types(partition_, true);
    if (*now == *types_) return false;
    types_ = now;
    columns_ = LookAtBatch(data_, *types_);
    return true;
  }

 private:
  DockHandle& handle_;
  const std::string partition_;
  const nb::handle data_;
  bool asked_ = false;
  std::shared_ptr<const ColumnTypes> types_ = std::make_shared<const ColumnTypes>();
  absl::StatusOr<IncomingBatch> columns_ = absl::UnknownError("not read");
};

using Ids = std::vector<RowId>;

absl::StatusOr<Ids> Send(OpenDock& open, PutRequest request, const std::stop_token& cancel) {
  const auto shared = std::make_shared<PutRequest>(std::move(request));
  WaitingCall<absl::StatusOr<PutResult>> call;
  call.run = [dock = open.dock, shared](absl::Time until, std::stop_token token) {
    shared->deadline = until;
    shared->cancel = std::move(token);
    return dock->Put(*shared);
  };
  call.deadline = shared->deadline;
  call.ask_first = BytesOf(shared->batch) <= kLargeBytes;
  call.ended_by = {cancel, open.closing.get_token()};
  TDOCK_ASSIGN_OR_RETURN(PutResult result, Wait(std::move(call)));
  return std::move(result.rows);
}
absl::StatusOr<Ids> Send(OpenDock& open, FillRequest request, const std::stop_token&) {
  absl::Status status;
  {
    const GilRelease release;
    status = open.dock->Fill(request);
  }
  TDOCK_RETURN_IF_ERROR(status);
  if (request.lease != kNoLease && !request.keep) open.leases.End(request.partition, request.lease, request.rows);
  return std::move(request.rows);
}

template <class Request>
absl::StatusOr<Ids> PutOnce(DockHandle& handle, Request request, absl::StatusOr<IncomingBatch> columns,
                            const std::stop_token& cancel) {
  TDOCK_RETURN_IF_ERROR(columns.status());
  TDOCK_ASSIGN_OR_RETURN(request.batch, MakeBatch(*std::move(columns)));
  const std::shared_ptr<OpenDock> open = handle.Open();
  return Send(*open, std::move(request), cancel);
}

}  // namespace

template <class Request>
nb::object Put(DockHandle& handle, Request request, nb::handle data, const std::stop_token& cancel) {
  ReleaseDeferred();
  Reading reading(handle, request.partition, data);
  absl::StatusOr<Ids> ids = PutOnce(handle, request, reading.Take(), cancel);
  if (absl::IsInvalidArgument(ids.status()) && reading.ReadAgain()) {
    ids = PutOnce(handle, std::move(request), reading.Take(), cancel);
  }
  ReleaseDeferred();
  return ArrayOf(ValueOrRaise(std::move(ids)));
}

template nb::object Put(DockHandle& handle, PutRequest request, nb::handle data, const std::stop_token& cancel);
template nb::object Put(DockHandle& handle, FillRequest request, nb::handle data, const std::stop_token& cancel);

}  // namespace tdock::python
