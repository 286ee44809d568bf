// transfer_dock._native.Dock: the verbs, with every argument in its place. transfer_dock.Dock names them.
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

// transfer_dock._native.Cancel: ends the calls that it is given to.
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
T ChoiceOf(const std::string& text, const char* argument, std::initializer_list<std::pair<const char*, T>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    absl::StrAppend(&names, names.empty() ? "'" : "' or '", name);
  }
  Raise(absl::InvalidArgumentError(absl::StrCat("'", argument, "' is ", names, "', not '", text, "'")));
}

// Whether a list was given, and is empty: requests mean all rows by that, or any.
bool NamesNothing(nb::handle given, const std::vector<uint64_t>& numbers) {
  return !given.is_none() && numbers.empty();
}

// A list of (name, dtype, ragged, shape).
std::vector<ColumnSpec> SpecsOf(nb::handle columns) {
  std::vector<ColumnSpec> specs;
  for (nb::handle one : nb::borrow(columns)) {
    const auto [name, dtype, ragged, shape] =
        nb::cast<std::tuple<std::string, std::string, bool, std::vector<int64_t>>>(one);
    absl::StatusOr<ColumnType> type = ParseColumnType(dtype, ragged, Shape(std::span(shape)));
    if (!type.ok()) Raise(absl::InvalidArgumentError(absl::StrCat("column '", name, "': ", type.status().message())));
    specs.push_back({name, *type});
  }
  return specs;
}

void CreatePartition(DockHandle& self, const std::string& name, nb::handle columns, bool growing, int64_t group_size,
                     nb::handle retain_for, int64_t max_rows, int64_t max_bytes, int64_t row_bytes, bool refuse_nan) {
  const PartitionOptions options{.name = name,
                                 .columns = SpecsOf(columns),
                                 .growing = growing,
                                 .group_size = group_size,
                                 .retain_for = Strings(retain_for, "retain_for"),
                                 .max_rows = max_rows,
                                 .max_bytes = max_bytes,
                                 .row_bytes = row_bytes,
                                 .refuse_nan = refuse_nan};
  Ask(self, [&](Dock& dock) { return dock.CreatePartition(options); });
  ColumnTypes types;
  for (const ColumnSpec& spec : options.columns) types[spec.name] = spec.type;
  self.Remember(name, std::move(types));
}

void RegisterConsumer(DockHandle& self, const std::string& partition, const std::string& name, nb::handle reads,
                      nb::handle reads_optional, nb::handle writes, const std::string& unit, const std::string& sampler,
                      uint64_t seed, const std::string& length_column, int32_t ranks, double lease_seconds,
                      int32_t max_deliveries, std::optional<int64_t> max_version_lag, const std::string& stale,
                      bool at_most_once, bool checkpointed) {
  const ConsumerOptions options{
      .name = name,
      .reads = Strings(reads, "reads"),
      .reads_optional = Strings(reads_optional, "reads_optional"),
      .writes = Strings(writes, "writes"),
      .unit = ChoiceOf<Unit>(unit, "unit", {{"row", Unit::kRow}, {"group", Unit::kGroup}}),
      .sampler = ChoiceOf<Sampler>(sampler, "sampler",
                                   {{"first_come", Sampler::kFirstCome},
                                    {"uniform", Sampler::kUniform},
                                    {"length_balanced", Sampler::kLengthBalanced}}),
      .seed = seed,
      .length_column = length_column,
      .ranks = ranks,
      .lease_duration = absl::Seconds(lease_seconds),
      .max_deliveries = max_deliveries,
      .max_version_lag = max_version_lag.value_or(std::numeric_limits<int64_t>::max()),
      .stale = ChoiceOf<Stale>(stale, "stale", {{"send_back", Stale::kSendBack}, {"drop", Stale::kDrop}}),
      .at_most_once = at_most_once,
      .checkpointed = checkpointed};
  Ask(self, [&](Dock& dock) { return dock.RegisterConsumer(partition, options); });
}

nb::object PutRows(DockHandle& self, const std::string& partition, nb::handle data, nb::handle rows, int64_t new_rows,
                   LeaseId lease, bool keep, std::optional<int64_t> step, nb::handle groups, int64_t group_size,
                   nb::handle keys, nb::handle tags, bool partial, nb::handle epochs, bool overwrite,
                   std::optional<int64_t> weights_version, std::optional<double> timeout, const Cancel* cancel) {
  PutRequest request{.partition = partition,
                     .new_rows = new_rows,
                     .rows = Numbers(rows, "rows"),
                     .lease = lease,
                     .keep = keep,
                     .step = step.value_or(kNoStep),
                     .groups = Numbers(groups, "groups"),
                     .group_size = group_size,
                     .keys = Strings(keys, "keys"),
                     .tags = TagsOfRows(tags),
                     .partial = partial,
                     .overwrite = overwrite,
                     .weights_version = weights_version.value_or(kNoWeightsVersion),
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

nb::object TakeRows(DockHandle& self, const std::string& partition, const std::string& consumer, int64_t max,
                    int64_t min, int32_t rank, nb::handle rows, std::optional<double> timeout, const Cancel* cancel) {
  const std::shared_ptr<OpenDock> open = self.Open();
  const std::shared_ptr<Dock> dock = open->dock;
  const auto request = std::make_shared<TakeRequest>(TakeRequest{.partition = partition,
                                                                 .consumer = consumer,
                                                                 .min = min,
                                                                 .max = max,
                                                                 .rank = rank,
                                                                 .rows = Numbers(rows, "rows")});
  if (NamesNothing(rows, request->rows))
    Raise(absl::InvalidArgumentError("'rows' is empty: there is nothing to take; None means any rows"));
  WaitingCall<absl::StatusOr<Taken>> call;
  call.run = [dock, request](absl::Time until, std::stop_token token) {
    request->deadline = until;
    request->cancel = std::move(token);
    return dock->Take(*request);
  };
  call.give_back = [dock, partition](const absl::StatusOr<Taken>& taken) {
    // What could not be given back comes back when the lease is over.
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
    Raise(absl::CancelledError("the dock was closed while it handed out rows, which were given back"));
  }
  Taken taken = ValueOrRaise(std::move(answer));
  if (taken.lease != kNoLease) open->leases.Add(partition, taken);
  nb::object lease = taken.lease == kNoLease ? nb::none() : nb::object(nb::int_(taken.lease));
  return nb::make_tuple(ToPython(std::move(taken.rows)), lease, ToUnix(taken.expires));
}

nb::object FetchRows(DockHandle& self, const std::string& partition, nb::handle rows, nb::handle columns,
                     std::optional<double> timeout, const Cancel* cancel) {
  const std::shared_ptr<OpenDock> open = self.Open();
  const std::shared_ptr<Dock> dock = open->dock;
  const auto request = std::make_shared<FetchRequest>(
      FetchRequest{.partition = partition, .rows = Numbers(rows, "rows"), .columns = Strings(columns, "columns")});
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

LeaseRequest LeaseOf(const std::string& partition, LeaseId lease, nb::handle rows, std::optional<int64_t> step) {
  return {.partition = partition, .lease = lease, .rows = Numbers(rows, "rows"), .step = step.value_or(kNoStep)};
}

nb::object List(DockHandle& self, const std::string& partition, nb::handle tags, const std::string& ready_for,
                nb::handle having, RowId start, int64_t limit) {
  const ListRequest request{.partition = partition,
                            .tags = TagsOf(tags),
                            .ready_for = ready_for,
                            .having = Strings(having, "having"),
                            .from = start,
                            .limit = limit};
  const ListResult result = Ask(self, [&](Dock& dock) { return dock.List(request); });
  nb::list rows;
  for (const ListedRow& row : result.rows) rows.append(ToDict(row));
  return nb::make_tuple(rows, result.next.has_value() ? nb::object(nb::int_(*result.next)) : nb::none());
}

int64_t Clear(DockHandle& self, const std::string& partition, nb::handle rows, nb::handle groups, nb::handle tags,
              bool everything) {
  const ClearRequest request{.partition = partition,
                             .rows = Numbers(rows, "rows"),
                             .groups = Numbers(groups, "groups"),
                             .tags = TagsOf(tags),
                             .everything = everything};
  if (NamesNothing(rows, request.rows) || NamesNothing(groups, request.groups)) return 0;
  return Ask(self, [&](Dock& dock) { return dock.Clear(request); });
}

StepRequest StepOf(const std::string& partition, const std::string& consumer, int64_t step,
                   std::optional<int64_t> weights_version) {
  return {.partition = partition,
          .consumer = consumer,
          .step = step,
          .weights_version = weights_version.value_or(kNoWeightsVersion)};
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
          [](DockHandle& self, const std::string& partition, LeaseId lease, nb::handle rows,
             std::optional<int64_t> step) {
            const LeaseRequest request = LeaseOf(partition, lease, rows, step);
            if (NamesNothing(rows, request.rows)) return;
            EndLease(self, request, &Dock::Complete);
          },
          "partition"_a, "lease"_a, "rows"_a.none(), "step"_a.none())
      .def(
          "release",
          [](DockHandle& self, const std::string& partition, LeaseId lease, nb::handle rows) {
            const LeaseRequest request = LeaseOf(partition, lease, rows, std::nullopt);
            if (NamesNothing(rows, request.rows)) return;
            EndLease(self, request, &Dock::Release);
          },
          "partition"_a, "lease"_a, "rows"_a.none())
      .def("renew",
           [](DockHandle& self, const std::string& partition, LeaseId lease) {
             const std::shared_ptr<OpenDock> open = self.Open();
             const absl::Time expires = Ask(self, [&](Dock& one) { return one.Renew(partition, lease); });
             open->leases.Renew(partition, lease, expires);
             return ToUnix(expires);
           })
      .def(
          "drop",
          [](DockHandle& self, const std::string& partition, LeaseId lease, nb::handle rows) {
            const LeaseRequest request = LeaseOf(partition, lease, rows, std::nullopt);
            if (NamesNothing(rows, request.rows)) return;
            EndLease(self, request, &Dock::Drop);
          },
          "partition"_a, "lease"_a, "rows"_a.none())
      .def(
          "requeue",
          [](DockHandle& self, const std::string& partition, const std::string& consumer, nb::handle rows) {
            const RequeueRequest request{.partition = partition, .consumer = consumer, .rows = Numbers(rows, "rows")};
            if (NamesNothing(rows, request.rows)) return;
            Ask(self, [&](Dock& one) { return one.Requeue(request); });
          },
          "partition"_a, "consumer"_a, "rows"_a.none())
      .def("commit",
           [](DockHandle& self, const std::string& partition, const std::string& consumer, int64_t step) {
             const StepRequest request = StepOf(partition, consumer, step, std::nullopt);
             Ask(self, [&](Dock& one) { return one.Commit(request); });
           })
      .def(
          "rollback",
          [](DockHandle& self, const std::string& partition, const std::string& consumer, int64_t step,
             std::optional<int64_t> weights_version) {
            const StepRequest request = StepOf(partition, consumer, step, weights_version);
            Ask(self, [&](Dock& one) { return one.Rollback(request); });
          },
          "partition"_a, "consumer"_a, "step"_a, "weights_version"_a.none());
}

void BindLooking(nb::class_<DockHandle>& dock) {
  dock.def("find",
           [](DockHandle& self, const std::string& partition, nb::handle keys) {
             const std::vector<std::string> names = Strings(keys, "keys");
             return ArrayOf(Ask(self, [&](Dock& one) { return one.FindRows(partition, names); }));
           })
      .def("list", &List, "partition"_a, "tags"_a.none(), "ready_for"_a, "having"_a, "start"_a, "limit"_a)
      .def("status",
           [](DockHandle& self, const std::string& partition) {
             return ToDict(Ask(self, [&](Dock& one) { return one.GetStatus(partition); }));
           })
      .def("consumer_status",
           [](DockHandle& self, const std::string& partition, const std::string& consumer) {
             return ToDict(Ask(self, [&](Dock& one) { return one.GetConsumerStatus(partition, consumer); }));
           })
      .def("row_status",
           [](DockHandle& self, const std::string& partition, RowId row) {
             return ToDict(Ask(self, [&](Dock& one) { return one.GetRowStatus(partition, row); }));
           })
      .def("explain", [](DockHandle& self, const std::string& partition, const std::string& consumer) {
        return Ask(self, [&](Dock& one) { return one.Explain(partition, consumer); });
      });
}

void BindPartitions(nb::class_<DockHandle>& dock) {
  dock.def("create_partition", &CreatePartition)
      .def("drop_partition",
           [](DockHandle& self, const std::string& name) {
             self.Forget(name);
             const std::shared_ptr<OpenDock> open = self.Open();
             Ask(self, [&](Dock& one) { return one.DropPartition(name); });
             open->leases.EndAll(name);
           })
      .def("partitions", [](DockHandle& self) { return Ask(self, [](Dock& one) { return one.ListPartitions(); }); })
      .def("register_consumer", &RegisterConsumer)
      .def("drop_consumer",
           [](DockHandle& self, const std::string& partition, const std::string& consumer) {
             Ask(self, [&](Dock& one) { return one.DropConsumer(partition, consumer); });
           })
      .def("publish_weights",
           [](DockHandle& self, const std::string& partition, int64_t version) {
             Ask(self, [&](Dock& one) { return one.PublishWeights(partition, version); });
           })
      .def("seal", [](DockHandle& self,
                      const std::string& partition) { Ask(self, [&](Dock& one) { return one.Seal(partition); }); })
      .def("clear", &Clear, "partition"_a, "rows"_a.none(), "groups"_a.none(), "tags"_a.none(), "everything"_a);
}

}  // namespace

void BindDock(nb::module_& module) {
  nb::class_<Cancel>(module, "Cancel").def(nb::init<>()).def("request", [](Cancel& self) {
    const GilRelease release;
    self.source.request_stop();
  });
  nb::class_<DockHandle> dock(module, "Dock");
  dock.def_static("local", &DockHandle::Local)
      .def_static("connect",
                  [](const std::string& address, const std::string& token, const std::string& token_file,
                     const std::string& tls_ca, const std::string& tls_certificate, const std::string& tls_key,
                     const std::string& name, double reconnect_for, double answer_within) {
                    return DockHandle::Connect({.address = address,
                                                .token = token,
                                                .token_file = token_file,
                                                .tls_ca = tls_ca,
                                                .tls_certificate = tls_certificate,
                                                .tls_key = tls_key,
                                                .name = name,
                                                .reconnect_for = absl::Seconds(reconnect_for),
                                                .answer_within = absl::Seconds(answer_within)});
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
