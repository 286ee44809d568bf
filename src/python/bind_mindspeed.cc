// transfer_dock._native.MindSpeedDock and MultimodalDock, which the classes of transfer_dock.compat.mindspeed wrap.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "python/arguments.h"
#include "python/batches.h"
#include "python/bindings.h"
#include "python/dock_handle.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/rows.h"
#include "python/wait.h"
#include "tdock/compat/mindspeed.h"
#include "tdock/padding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tdock::python {
namespace {

// How often a waiting call checks for signals.
constexpr absl::Duration kSlice = absl::Milliseconds(100);

using NameList = std::vector<std::string>;
// A name, what it writes, and whether rows come back to it (unset: if it writes anything).
using Consumer = std::tuple<std::string, NameList, std::optional<bool>>;

[[noreturn]] void RaiseForked() {
  Raise(absl::FailedPreconditionError("this dock belongs to the process that made it, from which this one was forked"));
}

// transfer_dock._native.MindSpeedDock. Not for processes that are forked from the one that made it.
struct PyMindSpeedDock {
  OfThisProcess<MindSpeedDock> dock;

  explicit PyMindSpeedDock(std::shared_ptr<MindSpeedDock> made) : dock(std::move(made)) {}
  PyMindSpeedDock(const PyMindSpeedDock&) = delete;
  PyMindSpeedDock& operator=(const PyMindSpeedDock&) = delete;
  // Destroying it removes its partition, which may take a call.
  ~PyMindSpeedDock() {
    const GilRelease release;
    dock.reset();
  }

  std::shared_ptr<MindSpeedDock> Get() const {
    if (!dock.here()) RaiseForked();
    return dock.get();
  }
};

std::vector<MindSpeedConsumer> ConsumersOf(const std::vector<Consumer>& given) {
  std::vector<MindSpeedConsumer> consumers;
  for (const auto& [name, writes, leased] : given) {
    MindSpeedConsumer consumer{.name = name, .writes = writes};
    if (leased.has_value()) consumer.hand_out = *leased ? HandOut::kLeased : HandOut::kDone;
    consumers.push_back(std::move(consumer));
  }
  return consumers;
}

MindSpeedOptions OptionsOf(const std::string& kind, int64_t prompts_num, int64_t n, const NameList& columns) {
  if (kind == "grpo") return GrpoDock(prompts_num, n);
  if (kind == "ppo") return PpoDock(prompts_num, n);
  if (kind == "dapo") return DapoDock(prompts_num, n);
  return TransferDock(prompts_num, n, columns);
}

void Make(PyMindSpeedDock* self, DockHandle& core, const std::string& kind, const std::string& partition,
          nb::handle prompts_num, nb::handle n, const NameList& columns, const NameList& addition_columns,
          const std::vector<Consumer>& addition_consumers, nb::handle max_age, nb::handle gbs_train, nb::handle timeout,
          nb::handle lease_seconds, nb::handle seed) {
  MindSpeedOptions options =
      OptionsOf(kind, Int<int64_t>(prompts_num, "prompts_num"), Int<int64_t>(n, "n_samples_per_prompt"), columns);
  options.partition = partition;
  options.addition_columns = addition_columns;
  options.addition_consumers = ConsumersOf(addition_consumers);
  options.max_age = Int<int64_t>(max_age, "max_age");
  options.gbs_train = Int<int64_t>(gbs_train, "GBS_train");
  options.timeout = Seconds(timeout, "timeout");
  options.lease_duration = Seconds(lease_seconds, "lease_seconds");
  options.seed = Int<uint64_t>(seed, "seed");
  const std::shared_ptr<Dock> dock = core.Get();
  absl::StatusOr<std::unique_ptr<MindSpeedDock>> made = absl::UnknownError("not made");
  {
    const GilRelease release;
    made = MakeMindSpeedDock(dock, options);
  }
  new (self) PyMindSpeedDock(ValueOrRaise(std::move(made)));
}

// One call without the GIL.
template <class Self, class Call>
auto Ask(const Self& self, Call call) {
  const auto dock = self.Get();
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

// One call that waits for cells, as long as the dock lets it. If a signal ends the wait, it continues in the
// background; then `give_back` is called with its result.
template <class T, class Self, class Call>
absl::StatusOr<T> AskAndWait(
    const Self& self, Call call,
    std::function<void(const absl::StatusOr<T>&)> give_back = [](const absl::StatusOr<T>&) {}) {
  const auto dock = self.Get();
  WaitingCall<absl::StatusOr<T>> waiting;
  waiting.give_back = std::move(give_back);
  waiting.run = [dock, call = std::move(call)](absl::Time, const std::stop_token&) { return call(*dock); };
  waiting.deadline = absl::InfiniteFuture();
  waiting.ask_first = false;
  return Wait(std::move(waiting));
}

void PutExperience(const PyMindSpeedDock& self, nb::handle data, const ExperienceIndexes& indexes, bool keep) {
  const Batch batch = ValueOrRaise(BatchOf(data, {}));
  Ask(self, [&](MindSpeedDock& dock) { return dock.PutExperience(batch, indexes, {.keep = keep}); });
  ReleaseDeferred();
}

// Waits in slices, and checks for signals between them.
std::optional<Experience> GetSampled(const PyMindSpeedDock& self, const std::string& consumer, const NameList& columns,
                                     GetOptions options, absl::Time deadline) {
  for (;;) {
    options.deadline = std::min(deadline, absl::Now() + kSlice);
    const std::shared_ptr<MindSpeedDock> dock = self.Get();
    absl::StatusOr<std::optional<Experience>> got = absl::UnknownError("not asked");
    {
      const GilRelease release;
      got = dock->GetExperience(consumer, columns, options);
    }
    if (!absl::IsDeadlineExceeded(got.status()) || absl::Now() >= deadline) return ValueOrRaise(std::move(got));
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object GetExperience(const PyMindSpeedDock& self, const std::string& consumer, const NameList& columns,
                         std::optional<int64_t> count, int64_t dp_size, const std::optional<ExperienceIndexes>& indexes,
                         bool get_n_samples, bool balance, std::optional<double> target_seq_len, nb::handle timeout,
                         bool padded) {
  const GetOptions options{.experience_count = count,
                           .dp_size = dp_size,
                           .indexes = indexes,
                           .get_n_samples = get_n_samples,
                           .use_batch_seqlen_balance = balance,
                           .target_seq_len = target_seq_len};
  std::optional<Experience> got;
  if (indexes.has_value()) {
    using Answer = absl::StatusOr<std::optional<Experience>>;
    got = ValueOrRaise(AskAndWait<std::optional<Experience>>(
        self, [=](MindSpeedDock& dock) { return dock.GetExperience(consumer, columns, options); },
        [dock = self.Get(), consumer](const Answer& answer) {
          // Without a lease they are done, or another call has them.
          if (!answer.ok() || !answer->has_value() || (*answer)->indexes.lease == kNoLease) return;
          dock->Release(consumer, (*answer)->indexes).IgnoreError();
        }));
  } else {
    got = GetSampled(self, consumer, columns, options, DeadlineAfter(timeout));
  }
  if (!got.has_value()) return nb::none();
  nb::object lengths = nb::none();
  if (padded) {
    PaddedColumns made = ValueOrRaise(PadColumns(got->batch));
    got->batch = std::move(made.columns);
    if (made.original_length.has_value()) {
      const auto values = *made.original_length->Values<int64_t>();
      lengths = ArrayOf(std::vector<int64_t>(values.begin(), values.end()));
    }
  }
  return nb::make_tuple(ToPython(RowsOf(std::move(got->batch))), nb::cast(std::move(got->indexes)), lengths);
}

nb::object ReadyData(const PyMindSpeedDock& self) {
  const auto data = Ask(self, [](MindSpeedDock& dock) { return dock.GetExperienceData(); });
  nb::dict all;
  for (const auto& [name, ready] : data) {
    Batch batch;
    RaiseIfError(batch.Add(name, ready.column));
    all[name.c_str()] = nb::make_tuple(ready.indexes, ToPython(RowsOf(std::move(batch))));
  }
  return all;
}

void BindIndexes(nb::module_& module) {
  nb::class_<ExperienceIndexes>(module, "ExperienceIndexes")
      .def(nb::init<std::vector<int64_t>>(), "indexes"_a)
      .def_ro("indexes", &ExperienceIndexes::indexes)
      .def(
          "__init__",
          [](ExperienceIndexes* self, std::vector<int64_t> indexes, std::vector<RowId> rows, LeaseId lease,
             int64_t padding_rows) {
            new (self) ExperienceIndexes(std::move(indexes));
            self->rows = std::move(rows);
            self->lease = lease;
            self->padding_rows = padding_rows;
          },
          "indexes"_a, "rows"_a, "lease"_a, "padding_rows"_a)
      .def_ro("rows", &ExperienceIndexes::rows)
      .def_ro("lease", &ExperienceIndexes::lease)
      .def_ro("padding_rows", &ExperienceIndexes::padding_rows)
      .def("slice", &ExperienceIndexes::Slice, "begin"_a, "count"_a)
      .def("__len__", [](const ExperienceIndexes& self) { return self.indexes.size(); });
}

// transfer_dock._native.MultimodalDock.
struct PyMultimodalDock {
  OfThisProcess<MultimodalDock> dock;

  PyMultimodalDock(DockHandle& core, const std::string& partition, nb::handle prompts_num, nb::handle n,
                   bool reuse_image_embeds, nb::handle timeout) {
    const auto prompts = Int<int64_t>(prompts_num, "prompts_num");
    const auto samples = Int<int64_t>(n, "n_samples_per_prompt");
    const absl::Duration patience = Seconds(timeout, "timeout");
    const std::shared_ptr<Dock> on = core.Get();
    absl::StatusOr<std::unique_ptr<MultimodalDock>> made = absl::UnknownError("not made");
    {
      const GilRelease release;
      made = MultimodalDock::Make(on, partition, prompts, samples, reuse_image_embeds, patience);
    }
    dock = OfThisProcess<MultimodalDock>(std::shared_ptr<MultimodalDock>(ValueOrRaise(std::move(made))));
  }
  PyMultimodalDock(const PyMultimodalDock&) = delete;
  PyMultimodalDock& operator=(const PyMultimodalDock&) = delete;
  ~PyMultimodalDock() {
    const GilRelease release;
    dock.reset();
  }

  std::shared_ptr<MultimodalDock> Get() const {
    if (!dock.here()) RaiseForked();
    return dock.get();
  }
};

void BindMultimodal(nb::module_& module) {
  nb::class_<PyMultimodalDock>(module, "MultimodalDock")
      .def(nb::init<DockHandle&, const std::string&, nb::handle, nb::handle, bool, nb::handle>())
      .def("put_experience",
           [](const PyMultimodalDock& self, nb::handle data, const std::vector<int64_t>& prompts) {
             const Batch batch = ValueOrRaise(BatchOf(data, {}));
             Ask(self, [&](MultimodalDock& one) { return one.PutExperience(batch, prompts); });
             ReleaseDeferred();
           })
      .def("get_experience",
           [](const PyMultimodalDock& self, const NameList& columns, const std::vector<int64_t>& indexes, bool get_n) {
             return ToPython(RowsOf(ValueOrRaise(AskAndWait<Batch>(
                 self, [=](MultimodalDock& one) { return one.GetExperience(columns, indexes, get_n); }))));
           })
      .def("get_columns",
           [](const PyMultimodalDock& self, const std::string& consumer) {
             return Ask(self, [&](MultimodalDock& one) { return one.GetColumns(consumer); });
           })
      .def("clear", [](const PyMultimodalDock& self) { Ask(self, [](MultimodalDock& one) { return one.Clear(); }); });
}

void BindStates(nb::class_<PyMindSpeedDock>& dock) {
  dock.def("all_consumed",
           [](const PyMindSpeedDock& self, const std::string& consumer) {
             return Ask(self, [&](MindSpeedDock& one) { return one.AllConsumed(consumer); });
           })
      .def("clear",
           [](const PyMindSpeedDock& self, const std::string& consumer) {
             Ask(self, [&](MindSpeedDock& one) { return one.Clear(consumer); });
           })
      .def(
          "clear_indexes",
          [](const PyMindSpeedDock& self, const std::optional<std::vector<int64_t>>& indexes) {
            Ask(self, [&](MindSpeedDock& one) { return one.ClearIndexes(indexes); });
          },
          "indexes"_a.none())
      .def("prefetch_request_index",
           [](const PyMindSpeedDock& self, int64_t count) {
             return Ask(self, [&](MindSpeedDock& one) { return one.PrefetchRequestIndex(count); });
           })
      .def("incomplete_response_num",
           [](const PyMindSpeedDock& self) {
             return Ask(self, [](MindSpeedDock& one) { return one.GetIncompleteResponseNum(); });
           })
      .def("experience_data", &ReadyData)
      .def("experience_status",
           [](const PyMindSpeedDock& self) {
             return Ask(self, [](MindSpeedDock& one) { return one.GetExperienceStatus(); });
           })
      .def("consumer_status",
           [](const PyMindSpeedDock& self) {
             return Ask(self, [](MindSpeedDock& one) { return one.GetConsumerStatus(); });
           })
      .def("experience_len", [](const PyMindSpeedDock& self) { return self.Get()->GetExperienceLen(); })
      .def("ages", [](const PyMindSpeedDock& self) { return self.Get()->GetAges(); });
}

}  // namespace

void BindMindSpeed(nb::module_& module) {
  BindIndexes(module);
  BindMultimodal(module);
  nb::class_<PyMindSpeedDock> dock(module, "MindSpeedDock");
  dock.def("__init__", &Make)
      .def("put_experience", &PutExperience, "data"_a, "indexes"_a, "keep"_a)
      .def("get_experience", &GetExperience, "consumer"_a, "columns"_a, "count"_a.none(), "dp_size"_a,
           "indexes"_a.none(), "get_n_samples"_a, "balance"_a, "target_seq_len"_a.none(), "timeout"_a.none(),
           "padded"_a)
      .def("get",
           [](const PyMindSpeedDock& self, const NameList& columns, const ExperienceIndexes& indexes) {
             return ToPython(RowsOf(
                 ValueOrRaise(AskAndWait<Batch>(self, [=](MindSpeedDock& one) { return one.Get(columns, indexes); }))));
           })
      .def("complete",
           [](const PyMindSpeedDock& self, const std::string& consumer, const ExperienceIndexes& indexes) {
             Ask(self, [&](MindSpeedDock& one) { return one.Complete(consumer, indexes); });
           })
      .def("release", [](const PyMindSpeedDock& self, const std::string& consumer, const ExperienceIndexes& indexes) {
        Ask(self, [&](MindSpeedDock& one) { return one.Release(consumer, indexes); });
      });
  BindStates(dock);
}

}  // namespace tdock::python
