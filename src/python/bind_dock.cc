// transfer_dock._native.Dock: the verbs with positional arguments. transfer_dock.Dock names them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/callback.h"
#include "core/base/utf8.h"
#include "python/arguments.h"
#include "python/bindings.h"
#include "python/dock_handle.h"
#include "python/elements.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/rows.h"
#include "python/statuses.h"
#include "python/wait.h"
#include "tdock/verbs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tdock::python {
namespace {

// transfer_dock._native.Cancel: cancels the calls that it is passed to.
struct Cancel {
  std::stop_source source;
};

std::stop_token TokenOf(const Cancel* cancel) {
  return cancel == nullptr ? std::stop_token() : cancel->source.get_token();
}

// One call without the GIL.
template <class Call>
auto Ask(DockHandle& handle, Call call) {
  const std::shared_ptr<Dock> dock = handle.Get();
  auto answer = [&] {
    const GilRelease release;
    return call(*dock);
  }();
  if constexpr (std::is_same_v<decltype(answer), absl::Status>) {
    RaiseIfError(answer);
  } else {
    return ValueOrRaise(std::move(answer));
  }
}

// Whether an empty list was given: in requests, no rows would mean all rows, or any.
bool NamesNothing(nb::handle given, const std::vector<uint64_t>& numbers) {
  return !given.is_none() && numbers.empty();
}

// `rows`: None for new ones. `given`: the other fields of the request, by name.
nb::object PutRows(DockHandle& self, nb::handle data, nb::handle rows, nb::handle timeout, const Cancel* cancel,
                   const nb::kwargs& given) {
  const absl::Time deadline = DeadlineAfter(timeout);
  if (rows.is_none()) {
    auto request = FromArguments<PutRequest>(given, "it is for rows that exist: name them in 'rows'");
    request.deadline = deadline;
    return Put(self, std::move(request), data, TokenOf(cancel));
  }
  auto request = FromArguments<FillRequest>(given, "it is for new rows: leave out 'rows'");
  request.rows = Numbers(rows, "rows");
  if (request.rows.empty())
    Raise(absl::InvalidArgumentError("'rows' is empty: there is nothing to put; None means new rows"));
  return Put(self, std::move(request), data, TokenOf(cancel));
}

nb::object TakeRows(DockHandle& self, nb::handle timeout, const Cancel* cancel, const nb::kwargs& given) {
  const auto request = std::make_shared<TakeRequest>(FromArguments<TakeRequest>(given));
  const std::string partition = request->partition;
  const std::shared_ptr<OpenDock> open = self.Open();
  const std::shared_ptr<Dock> dock = open->dock;
  if (NamesNothing(given["rows"], request->rows))
    Raise(absl::InvalidArgumentError("'rows' is empty: there is nothing to take; None means any rows"));
  WaitingCall<absl::StatusOr<Taken>> call;
  call.run = [dock, request](absl::Time until, std::stop_token token) {
    request->deadline = until;
    request->cancel = std::move(token);
    return dock->Take(*request);
  };
  call.give_back = [dock, partition](const absl::StatusOr<Taken>& taken) {
    // Rows that cannot be given back come back when the lease expires.
    if (taken.ok() && taken->lease != kNoLease) {
      dock->Release({.partition = partition, .lease = taken->lease}).IgnoreError();
    }
  };
  call.deadline = DeadlineAfter(timeout);
  call.ended_by = {TokenOf(cancel), open->closing.get_token()};
  const auto give_back = call.give_back;
  absl::StatusOr<Taken> answer = Wait(std::move(call));
  if (answer.ok() && answer->lease != kNoLease && open->closing.stop_requested()) {
    {
      const GilRelease release;
      give_back(answer);
    }
    Raise(absl::CancelledError("the dock was closed during the take; its rows were given back"));
  }
  Taken taken = ValueOrRaise(std::move(answer));
  if (taken.lease != kNoLease) open->leases.Add(partition, taken);
  nb::object lease = taken.lease == kNoLease ? nb::none() : nb::object(nb::int_(taken.lease));
  return nb::make_tuple(ToPython(std::move(taken.rows)), lease, ToUnix(taken.expires));
}

nb::object FetchRows(DockHandle& self, nb::handle timeout, const Cancel* cancel, const nb::kwargs& given) {
  const auto request = std::make_shared<FetchRequest>(FromArguments<FetchRequest>(given));
  const std::shared_ptr<OpenDock> open = self.Open();
  const std::shared_ptr<Dock> dock = open->dock;
  WaitingCall<absl::StatusOr<Rows>> call;
  call.run = [dock, request](absl::Time until, std::stop_token token) {
    request->deadline = until;
    request->cancel = std::move(token);
    return dock->Fetch(*request);
  };
  call.deadline = DeadlineAfter(timeout);
  call.ended_by = {TokenOf(cancel), open->closing.get_token()};
  return ToPython(ValueOrRaise(Wait(std::move(call))));
}

// Replies as Python gets them.
nb::object Replied(Nothing) { return nb::none(); }
nb::object Replied(absl::Time time) { return nb::float_(ToUnix(time)); }
nb::object Replied(int64_t count) { return nb::int_(count); }
nb::object Replied(std::vector<RowId> rows) { return ArrayOf(std::move(rows)); }
nb::object Replied(const std::string& text) { return nb::str(text.data(), text.size()); }
nb::object Replied(const ExportedPartition& image) { return nb::bytes(image.bytes.data(), image.bytes.size()); }
nb::object Replied(const std::vector<std::string>& names) { return nb::cast(names); }
nb::object Replied(const ListResult& list) {
  nb::list rows;
  for (const ListedRow& row : list.rows) rows.append(ToDict(row));
  return nb::make_tuple(rows, list.next.has_value() ? nb::object(nb::int_(*list.next)) : nb::none());
}
template <HasFields T>
nb::object Replied(const T& status) {
  return ToDict(status);
}

// True for an empty list of rows or groups: in requests, it would mean all of them, or any.
template <class Request>
bool IsForNone(const nb::kwargs& given, const Request& request) {
  bool none = false;
  if constexpr (requires { request.rows; }) none |= given.contains("rows") && NamesNothing(given["rows"], request.rows);
  if constexpr (requires { request.groups; }) none |= NamesNothing(given["groups"], request.groups);
  return none;
}

// What a handle knows after a call.
void Note(verbs::Complete, const LeaseRequest& request, DockHandle&, OpenDock& open) {
  open.leases.End(request.partition, request.lease, request.rows);
}
void Note(verbs::Release, const LeaseRequest& request, DockHandle& self, OpenDock& open) {
  Note(verbs::Complete(), request, self, open);
}
void Note(verbs::Drop, const LeaseRequest& request, DockHandle& self, OpenDock& open) {
  Note(verbs::Complete(), request, self, open);
}
void Note(verbs::DropPartition, const PartitionRequest& request, DockHandle&, OpenDock& open) {
  open.leases.EndAll(request.partition);
}
void Note(verbs::CreatePartition, const PartitionOptions& options, DockHandle& self, OpenDock&) {
  ColumnTypes types;
  for (const ColumnSpec& spec : options.columns) types[spec.name] = spec.type;
  self.Remember(options.name, std::move(types));
}

// A verb whose arguments are the fields of its request, by name.
template <class V>
nb::object CallVerb(DockHandle& self, const nb::kwargs& given) {
  typename V::Request request;
  if constexpr (HasFields<typename V::Request>) request = FromArguments<typename V::Request>(given);
  if (IsForNone(given, request)) return Replied(typename V::Reply());
  if constexpr (std::is_same_v<V, verbs::DropPartition>) self.Forget(request.partition);
  const std::shared_ptr<OpenDock> open = self.Open();
  const auto ask = [&](Dock& dock) { return tdock::Ask<V>(dock, request); };
  if constexpr (std::is_same_v<typename V::Reply, Nothing>) {
    Ask(self, ask);
    if constexpr (requires { Note(V(), request, self, *open); }) Note(V(), request, self, *open);
    return nb::none();
  } else {
    typename V::Reply reply = Ask(self, ask);
    if constexpr (std::is_same_v<V, verbs::Renew>) open->leases.Renew(request.partition, request.lease, reply);
    return Replied(std::move(reply));
  }
}

void BindVerbs(nb::class_<DockHandle>& dock) {
  const auto bind = [&]<class V>() {
    constexpr bool kWaits = requires(typename V::Request waits) { waits.cancel; };
    constexpr bool kHasBatch = std::is_same_v<V, verbs::ImportPartition> || std::is_same_v<V, verbs::Fill>;
    if constexpr (!kWaits && !kHasBatch) dock.def(V::kName, &CallVerb<V>);
  };
#define TDOCK_BIND(Verb, RequestOf, ReplyOf, name, number, repeatable) bind.template operator()<verbs::Verb>();
  TDOCK_VERBS(TDOCK_BIND)
#undef TDOCK_BIND
}

}  // namespace

void BindDock(nb::module_& module) {
  nb::class_<Cancel>(module, "Cancel", "Cancels the calls that it is passed to.")
      .def(nb::init<>())
      .def("request", [](Cancel& self) {
        const GilRelease release;
        RequestStop(self.source);
      });
  nb::class_<DockHandle> dock(module, "Dock");
  dock.def_static("local", &DockHandle::Local)
      .def_static("connect",
                  [](const nb::kwargs& given) { return DockHandle::Connect(FromArguments<ConnectOptions>(given)); })
      .def("close", &DockHandle::Close)
      .def("import_partition",
           [](DockHandle& self, const nb::bytes& image) {
             const absl::string_view bytes(image.c_str(), image.size());
             Ask(self, [&](Dock& one) { return one.ImportPartition(bytes); });
           })
      .def("put", &PutRows, "data"_a.none(), "rows"_a.none(), "timeout"_a.none(), "cancel"_a.none(), "fields"_a)
      .def("take", &TakeRows, "timeout"_a.none(), "cancel"_a.none(), "fields"_a)
      .def("fetch", &FetchRows, "timeout"_a.none(), "cancel"_a.none(), "fields"_a);
  BindVerbs(dock);
}

}  // namespace tdock::python
