// transfer_dock._native.Dock: the verbs with positional arguments. transfer_dock.Dock names them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <string>
#include <tuple>
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
#include "python/put.h"
#include "python/rows.h"
#include "python/statuses.h"
#include "python/wait.h"

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

template <class T>
T ChoiceOf(nb::handle given, const char* argument, std::initializer_list<std::pair<const char*, T>> choices) {
  const std::string text = Utf8(given, argument);
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    absl::StrAppend(&names, names.empty() ? "'" : "' or '", name);
  }
  Raise(
      absl::InvalidArgumentError(absl::StrCat("'", argument, "' is ", names, "', not '", EscapeForMessage(text), "'")));
}

// Whether an empty list was given: in requests, no rows would mean all rows, or any.
bool NamesNothing(nb::handle given, const std::vector<uint64_t>& numbers) {
  return !given.is_none() && numbers.empty();
}

// A list of (name, dtype, ragged, shape).
std::vector<ColumnSpec> SpecsOf(nb::handle columns) {
  std::vector<ColumnSpec> specs;
  for (nb::handle one : nb::borrow(columns)) {
    const auto [given_name, dtype, ragged, given_shape] =
        nb::cast<std::tuple<nb::object, std::string, bool, nb::object>>(one);
    const std::string name = Utf8(given_name, "columns");
    std::vector<int64_t> shape;
    for (nb::handle size : given_shape) shape.push_back(Int<int64_t>(size, "shape"));
    absl::StatusOr<ColumnType> type = ParseColumnType(dtype, ragged, Shape(std::span(shape)));
    if (!type.ok())
      Raise(
          absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name), "': ", type.status().message())));
    specs.push_back({name, *type});
  }
  return specs;
}

void CreatePartition(DockHandle& self, nb::handle name, nb::handle columns, bool growing, nb::handle group_size,
                     nb::handle retain_for, nb::handle max_rows, nb::handle max_bytes, nb::handle row_bytes,
                     bool refuse_nan) {
  const PartitionOptions options{.name = Utf8(name, "name"),
                                 .columns = SpecsOf(columns),
                                 .growing = growing,
                                 .group_size = Int<int64_t>(group_size, "group_size"),
                                 .retain_for = Strings(retain_for, "retain_for"),
                                 .max_rows = Int<int64_t>(max_rows, "max_rows"),
                                 .max_bytes = Int<int64_t>(max_bytes, "max_bytes"),
                                 .row_bytes = Int<int64_t>(row_bytes, "row_bytes"),
                                 .refuse_nan = refuse_nan};
  Ask(self, [&](Dock& dock) { return dock.CreatePartition(options); });
  ColumnTypes types;
  for (const ColumnSpec& spec : options.columns) types[spec.name] = spec.type;
  self.Remember(options.name, std::move(types));
}

void RegisterConsumer(DockHandle& self, nb::handle given_partition, nb::handle name, nb::handle reads,
                      nb::handle reads_optional, nb::handle writes, nb::handle unit, nb::handle sampler,
                      nb::handle seed, nb::handle length_column, nb::handle ranks, nb::handle lease_seconds,
                      nb::handle max_deliveries, nb::handle max_version_lag, nb::handle stale, bool at_most_once,
                      bool checkpointed) {
  const std::string partition = Utf8(given_partition, "partition");
  const ConsumerOptions options{
      .name = Utf8(name, "name"),
      .reads = Strings(reads, "reads"),
      .reads_optional = Strings(reads_optional, "reads_optional"),
      .writes = Strings(writes, "writes"),
      .unit = ChoiceOf<Unit>(unit, "unit", {{"row", Unit::kRow}, {"group", Unit::kGroup}}),
      .sampler = ChoiceOf<Sampler>(sampler, "sampler",
                                   {{"first_come", Sampler::kFirstCome},
                                    {"uniform", Sampler::kUniform},
                                    {"length_balanced", Sampler::kLengthBalanced}}),
      .seed = Int<uint64_t>(seed, "seed"),
      .length_column = Utf8(length_column, "length_column"),
      .ranks = Int<int32_t>(ranks, "ranks"),
      .lease_duration = Seconds(lease_seconds, "lease_seconds"),
      .max_deliveries = Int<int32_t>(max_deliveries, "max_deliveries"),
      .max_version_lag = IntOr<int64_t>(std::numeric_limits<int64_t>::max(), max_version_lag, "max_version_lag"),
      .stale = ChoiceOf<Stale>(stale, "stale", {{"send_back", Stale::kSendBack}, {"drop", Stale::kDrop}}),
      .at_most_once = at_most_once,
      .checkpointed = checkpointed};
  Ask(self, [&](Dock& dock) { return dock.RegisterConsumer(partition, options); });
}

nb::object PutRows(DockHandle& self, nb::handle partition, nb::handle data, nb::handle rows, nb::handle new_rows,
                   nb::handle lease, bool keep, nb::handle step, nb::handle groups, nb::handle group_size,
                   nb::handle keys, nb::handle tags, bool partial, nb::handle epochs, bool overwrite,
                   nb::handle weights_version, nb::handle timeout, const Cancel* cancel) {
  PutRequest request{.partition = Utf8(partition, "partition"),
                     .new_rows = Int<int64_t>(new_rows, "new_rows"),
                     .rows = Numbers(rows, "rows"),
                     .lease = Int<LeaseId>(lease, "lease"),
                     .keep = keep,
                     .step = IntOr<int64_t>(kNoStep, step, "step"),
                     .groups = Numbers(groups, "groups"),
                     .group_size = Int<int64_t>(group_size, "group_size"),
                     .keys = Strings(keys, "keys"),
                     .tags = TagsOfRows(tags),
                     .partial = partial,
                     .overwrite = overwrite,
                     .weights_version = IntOr<int64_t>(kNoWeightsVersion, weights_version, "weights_version"),
                     .deadline = DeadlineAfter(timeout)};
  if (NamesNothing(rows, request.rows))
    Raise(absl::InvalidArgumentError("'rows' is empty: there is nothing to put; None means new rows"));
  for (const uint64_t epoch : Numbers(epochs, "epochs")) {
    if (epoch > std::numeric_limits<uint32_t>::max()) {
      Raise(absl::InvalidArgumentError(absl::StrCat("'epochs' holds ", epoch, "; epochs are below 2^32")));
    }
    request.epochs.push_back(static_cast<uint32_t>(epoch));
  }
  return Put(self, std::move(request), data, TokenOf(cancel));
}

nb::object TakeRows(DockHandle& self, nb::handle given_partition, nb::handle consumer, nb::handle max, nb::handle min,
                    nb::handle rank, nb::handle rows, nb::handle timeout, const Cancel* cancel) {
  const std::string partition = Utf8(given_partition, "partition");
  const auto request = std::make_shared<TakeRequest>(TakeRequest{.partition = partition,
                                                                 .consumer = Utf8(consumer, "consumer"),
                                                                 .min = Int<int64_t>(min, "min"),
                                                                 .max = Int<int64_t>(max, "max"),
                                                                 .rank = Int<int32_t>(rank, "rank"),
                                                                 .rows = Numbers(rows, "rows")});
  const std::shared_ptr<OpenDock> open = self.Open();
  const std::shared_ptr<Dock> dock = open->dock;
  if (NamesNothing(rows, request->rows))
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

nb::object FetchRows(DockHandle& self, nb::handle partition, nb::handle rows, nb::handle columns, nb::handle timeout,
                     const Cancel* cancel) {
  const auto request = std::make_shared<FetchRequest>(FetchRequest{.partition = Utf8(partition, "partition"),
                                                                   .rows = Numbers(rows, "rows"),
                                                                   .columns = Strings(columns, "columns")});
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

LeaseRequest LeaseOf(nb::handle partition, nb::handle lease, nb::handle rows, nb::handle step = nb::none()) {
  return {.partition = Utf8(partition, "partition"),
          .lease = Int<LeaseId>(lease, "lease"),
          .rows = Numbers(rows, "rows"),
          .step = IntOr<int64_t>(kNoStep, step, "step")};
}

nb::object List(DockHandle& self, nb::handle partition, nb::handle tags, nb::handle ready_for, nb::handle having,
                nb::handle start, nb::handle limit) {
  const ListRequest request{.partition = Utf8(partition, "partition"),
                            .tags = TagsOf(tags),
                            .ready_for = Utf8(ready_for, "ready_for"),
                            .having = Strings(having, "having"),
                            .from = Int<RowId>(start, "start"),
                            .limit = Int<int64_t>(limit, "limit")};
  const ListResult result = Ask(self, [&](Dock& dock) { return dock.List(request); });
  nb::list rows;
  for (const ListedRow& row : result.rows) rows.append(ToDict(row));
  return nb::make_tuple(rows, result.next.has_value() ? nb::object(nb::int_(*result.next)) : nb::none());
}

int64_t Clear(DockHandle& self, nb::handle partition, nb::handle rows, nb::handle groups, nb::handle tags,
              bool everything) {
  const ClearRequest request{.partition = Utf8(partition, "partition"),
                             .rows = Numbers(rows, "rows"),
                             .groups = Numbers(groups, "groups"),
                             .tags = TagsOf(tags),
                             .everything = everything};
  if (NamesNothing(rows, request.rows) || NamesNothing(groups, request.groups)) return 0;
  return Ask(self, [&](Dock& dock) { return dock.Clear(request); });
}

StepRequest StepOf(nb::handle partition, nb::handle consumer, nb::handle step,
                   nb::handle weights_version = nb::none()) {
  return {.partition = Utf8(partition, "partition"),
          .consumer = Utf8(consumer, "consumer"),
          .step = Int<int64_t>(step, "step"),
          .weights_version = IntOr<int64_t>(kNoWeightsVersion, weights_version, "weights_version")};
}

// One of the calls that end leases, of some rows or of all.
void EndLease(DockHandle& self, const LeaseRequest& request, absl::Status (Dock::*call)(const LeaseRequest&)) {
  const std::shared_ptr<OpenDock> open = self.Open();
  Ask(self, [&](Dock& dock) { return (dock.*call)(request); });
  open->leases.End(request.partition, request.lease, request.rows);
}

// Calls on leases. One that names no row of a list does nothing.
void BindLeases(nb::class_<DockHandle>& dock) {
  dock.def(
          "complete",
          [](DockHandle& self, nb::handle partition, nb::handle lease, nb::handle rows, nb::handle step) {
            const LeaseRequest request = LeaseOf(partition, lease, rows, step);
            if (NamesNothing(rows, request.rows)) return;
            EndLease(self, request, &Dock::Complete);
          },
          "partition"_a, "lease"_a, "rows"_a.none(), "step"_a.none())
      .def(
          "release",
          [](DockHandle& self, nb::handle partition, nb::handle lease, nb::handle rows) {
            const LeaseRequest request = LeaseOf(partition, lease, rows);
            if (NamesNothing(rows, request.rows)) return;
            EndLease(self, request, &Dock::Release);
          },
          "partition"_a, "lease"_a, "rows"_a.none())
      .def("renew",
           [](DockHandle& self, nb::handle partition, nb::handle lease) {
             const LeaseRequest request = LeaseOf(partition, lease, nb::none());
             const std::shared_ptr<OpenDock> open = self.Open();
             const absl::Time expires =
                 Ask(self, [&](Dock& one) { return one.Renew(request.partition, request.lease); });
             open->leases.Renew(request.partition, request.lease, expires);
             return ToUnix(expires);
           })
      .def(
          "drop",
          [](DockHandle& self, nb::handle partition, nb::handle lease, nb::handle rows) {
            const LeaseRequest request = LeaseOf(partition, lease, rows);
            if (NamesNothing(rows, request.rows)) return;
            EndLease(self, request, &Dock::Drop);
          },
          "partition"_a, "lease"_a, "rows"_a.none())
      .def(
          "requeue",
          [](DockHandle& self, nb::handle partition, nb::handle consumer, nb::handle rows) {
            const RequeueRequest request{.partition = Utf8(partition, "partition"),
                                         .consumer = Utf8(consumer, "consumer"),
                                         .rows = Numbers(rows, "rows")};
            if (NamesNothing(rows, request.rows)) return;
            Ask(self, [&](Dock& one) { return one.Requeue(request); });
          },
          "partition"_a, "consumer"_a, "rows"_a.none())
      .def("commit",
           [](DockHandle& self, nb::handle partition, nb::handle consumer, nb::handle step) {
             const StepRequest request = StepOf(partition, consumer, step);
             Ask(self, [&](Dock& one) { return one.Commit(request); });
           })
      .def(
          "rollback",
          [](DockHandle& self, nb::handle partition, nb::handle consumer, nb::handle step, nb::handle weights_version) {
            const StepRequest request = StepOf(partition, consumer, step, weights_version);
            Ask(self, [&](Dock& one) { return one.Rollback(request); });
          },
          "partition"_a, "consumer"_a, "step"_a, "weights_version"_a.none());
}

void BindLooking(nb::class_<DockHandle>& dock) {
  dock.def("find",
           [](DockHandle& self, nb::handle partition, nb::handle keys) {
             const std::string name = Utf8(partition, "partition");
             const std::vector<std::string> names = Strings(keys, "keys");
             return ArrayOf(Ask(self, [&](Dock& one) { return one.FindRows(name, names); }));
           })
      .def("list", &List, "partition"_a, "tags"_a.none(), "ready_for"_a, "having"_a, "start"_a, "limit"_a)
      .def("status",
           [](DockHandle& self, nb::handle partition) {
             const std::string name = Utf8(partition, "partition");
             return ToDict(Ask(self, [&](Dock& one) { return one.GetStatus(name); }));
           })
      .def("consumer_status",
           [](DockHandle& self, nb::handle partition, nb::handle consumer) {
             const std::string name = Utf8(partition, "partition"), of = Utf8(consumer, "consumer");
             return ToDict(Ask(self, [&](Dock& one) { return one.GetConsumerStatus(name, of); }));
           })
      .def("row_status",
           [](DockHandle& self, nb::handle partition, nb::handle row) {
             const std::string name = Utf8(partition, "partition");
             const RowId id = Int<RowId>(row, "row");
             return ToDict(Ask(self, [&](Dock& one) { return one.GetRowStatus(name, id); }));
           })
      .def("explain", [](DockHandle& self, nb::handle partition, nb::handle consumer) {
        const std::string name = Utf8(partition, "partition"), of = Utf8(consumer, "consumer");
        return Ask(self, [&](Dock& one) { return one.Explain(name, of); });
      });
}

void BindPartitions(nb::class_<DockHandle>& dock) {
  dock.def("create_partition", &CreatePartition)
      .def("drop_partition",
           [](DockHandle& self, nb::handle given) {
             const std::string name = Utf8(given, "name");
             self.Forget(name);
             const std::shared_ptr<OpenDock> open = self.Open();
             Ask(self, [&](Dock& one) { return one.DropPartition(name); });
             open->leases.EndAll(name);
           })
      .def("export_partition",
           [](DockHandle& self, nb::handle given) {
             const std::string name = Utf8(given, "name");
             const std::string image = Ask(self, [&](Dock& one) { return one.ExportPartition(name); });
             return nb::bytes(image.data(), image.size());
           })
      .def("import_partition",
           [](DockHandle& self, const nb::bytes& image) {
             const absl::string_view bytes(image.c_str(), image.size());
             Ask(self, [&](Dock& one) { return one.ImportPartition(bytes); });
           })
      .def("partitions", [](DockHandle& self) { return Ask(self, [](Dock& one) { return one.ListPartitions(); }); })
      .def("register_consumer", &RegisterConsumer, "partition"_a, "name"_a, "reads"_a, "reads_optional"_a, "writes"_a,
           "unit"_a, "sampler"_a, "seed"_a, "length_column"_a, "ranks"_a, "lease_seconds"_a, "max_deliveries"_a,
           "max_version_lag"_a.none(), "stale"_a, "at_most_once"_a, "checkpointed"_a)
      .def("drop_consumer",
           [](DockHandle& self, nb::handle partition, nb::handle consumer) {
             const std::string name = Utf8(partition, "partition"), of = Utf8(consumer, "name");
             Ask(self, [&](Dock& one) { return one.DropConsumer(name, of); });
           })
      .def("publish_weights",
           [](DockHandle& self, nb::handle partition, nb::handle version) {
             const std::string name = Utf8(partition, "partition");
             const auto number = Int<int64_t>(version, "version");
             Ask(self, [&](Dock& one) { return one.PublishWeights(name, number); });
           })
      .def("seal",
           [](DockHandle& self, nb::handle partition) {
             const std::string name = Utf8(partition, "partition");
             Ask(self, [&](Dock& one) { return one.Seal(name); });
           })
      .def("clear", &Clear, "partition"_a, "rows"_a.none(), "groups"_a.none(), "tags"_a.none(), "everything"_a);
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
      .def_static(
          "connect",
          [](nb::handle address, nb::handle token, nb::handle token_file, nb::handle tls_ca, nb::handle tls_certificate,
             nb::handle tls_key, nb::handle name, nb::handle reconnect_for, nb::handle answer_within) {
            return DockHandle::Connect({.address = Utf8(address, "address"),
                                        .token = Utf8(token, "token"),
                                        .token_file = Utf8(token_file, "token_file"),
                                        .tls_ca = Utf8(tls_ca, "tls_ca"),
                                        .tls_certificate = Utf8(tls_certificate, "tls_certificate"),
                                        .tls_key = Utf8(tls_key, "tls_key"),
                                        .name = Utf8(name, "name"),
                                        .reconnect_for = Seconds(reconnect_for, "reconnect_for"),
                                        .answer_within = Seconds(answer_within, "answer_within")});
          })
      .def("close", &DockHandle::Close)
      .def("put", &PutRows, "partition"_a, "data"_a.none(), "rows"_a.none(), "new_rows"_a, "lease"_a, "keep"_a,
           "step"_a.none(), "groups"_a.none(), "group_size"_a, "keys"_a.none(), "tags"_a.none(), "partial"_a,
           "epochs"_a.none(), "overwrite"_a, "weights_version"_a.none(), "timeout"_a.none(), "cancel"_a.none())
      .def("take", &TakeRows, "partition"_a, "consumer"_a, "max"_a, "min"_a, "rank"_a, "rows"_a.none(),
           "timeout"_a.none(), "cancel"_a.none())
      .def("fetch", &FetchRows, "partition"_a, "rows"_a, "columns"_a, "timeout"_a.none(), "cancel"_a.none());
  BindPartitions(dock);
  BindLeases(dock);
  BindLooking(dock);
}

}  // namespace tdock::python
