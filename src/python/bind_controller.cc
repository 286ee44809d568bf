// transfer_dock._native: controllers, groups of workers and sessions of workers, which transfer_dock.controller wraps.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/utf8.h"
#include "python/arguments.h"
#include "python/bindings.h"
#include "python/errors.h"
#include "python/forks.h"
#include "python/gil.h"
#include "python/inbox.h"
#include "python/process.h"
#include "python/values.h"
#include "python/wait.h"
#include "runtime/control/processes.h"
#include "runtime/dispatch/worker_group.h"
#include "runtime/mesh/resource_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tdock::python {
namespace {

using runtime::FutureValue;
using runtime::Value;
using runtime::WorkerGroup;

// How often a waiting thread looks for signals.
constexpr absl::Duration kLook = absl::Milliseconds(50);

using MeshSpecs = std::map<std::string, std::vector<std::pair<std::string, int64_t>>>;

// The object, unless it belongs to the process that this one was forked from.
template <class T>
std::shared_ptr<T> Here(const OfThisProcess<T>& object, const char* what) {
  if (object.here()) return object.get();
  Raise(absl::FailedPreconditionError(
      absl::StrCat("this ", what, " is closed, or belongs to the process that this one was forked from")));
}

absl::Status StatusOf(int code, const std::string& text) {
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

// Waits without the GIL; `run` must own what it uses.
void WaitFor(absl::Time deadline, std::function<absl::Status(absl::Time)> run) {
  WaitingCall<absl::StatusOr<bool>> call;
  call.run = [run = std::move(run)](absl::Time until, const std::stop_token&) -> absl::StatusOr<bool> {
    if (absl::Status status = run(until); !status.ok()) return status;
    return true;
  };
  call.deadline = deadline;
  call.ask_first = false;
  RaiseIfError(Wait(std::move(call)).status());
}

std::map<std::string, runtime::Mesh, std::less<>> MeshesOf(int64_t ranks, const MeshSpecs& specs) {
  std::map<std::string, runtime::Mesh, std::less<>> meshes;
  for (const auto& [name, sizes] : specs) {
    std::vector<runtime::MeshDimension> dimensions;
    for (const auto& [dimension, size] : sizes) dimensions.push_back({dimension, size});
    absl::StatusOr<runtime::Mesh> mesh = runtime::Mesh::Of(ranks, std::move(dimensions));
    if (!mesh.ok())
      Raise(absl::InvalidArgumentError(absl::StrCat("mesh '", EscapeForMessage(name), "': ", mesh.status().message())));
    meshes.emplace(name, *std::move(mesh));
  }
  return meshes;
}

// ---- Futures and groups.

struct PyFuture {
  explicit PyFuture(const FutureValue& future) : value(std::make_shared<const FutureValue>(future)) {}

  bool Ready() const { return Here(value, "future")->ready(); }
  // Of a call: ready by its deadline at the latest.
  nb::object Get(nb::handle timeout) const {
    const absl::Time deadline = DeadlineAfter(timeout);
    const std::shared_ptr<const FutureValue> future = Here(value, "future");
    for (;;) {
      absl::StatusOr<Value> result = absl::UnknownError("not asked");
      bool ready = false;
      {
        const GilRelease release;
        result = future->Get(std::min(deadline, absl::Now() + kLook));
        ready = future->ready();
        if (ready) result = future->Get();
      }
      if (ready || absl::Now() >= deadline) return ToPython(ValueOrRaise(std::move(result)));
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  // Of one that Python makes ready.
  void Set(nb::handle result) const { SetTo(ValueOrRaise(ValueOf(result, "the result"))); }
  void Fail(int code, const std::string& text) const { SetTo(StatusOf(code, text)); }

  OfThisProcess<const FutureValue> value;

 private:
  void SetTo(const absl::StatusOr<Value>& result) const {
    const std::shared_ptr<const FutureValue> future = Here(value, "future");
    const GilRelease release;  // a call may begin with it
    future->Set(result);
  }
};

struct PyGroup {
  explicit PyGroup(WorkerGroup made) : group(std::make_shared<const WorkerGroup>(std::move(made))) {}

  std::shared_ptr<const WorkerGroup> Get() const { return Here(group, "group of workers"); }
  static PyGroup Of(std::vector<std::shared_ptr<runtime::WorkerLink>> links, const std::string& role,
                    const MeshSpecs& meshes, nb::handle timeout) {
    runtime::WorkerGroupOptions options{.role = role,
                                        .meshes = MeshesOf(static_cast<int64_t>(links.size()), meshes),
                                        .timeout = Seconds(timeout, "timeout")};
    return PyGroup(MadeOrRaise(WorkerGroup::Of(std::move(links), std::move(options))));
  }

  PyFuture Start(const std::string& method, const std::string& mode, const std::string& mesh, bool pad, bool rank_zero,
                 nb::sequence given) const {
    const runtime::MethodSpec spec{.name = method,
                                   .dispatch = {ValueOrRaise(runtime::ModeNamed(mode)), mesh, pad},
                                   .execute = rank_zero ? runtime::Execute::kRankZero : runtime::Execute::kAll};
    std::vector<WorkerGroup::Argument> arguments;
    for (nb::handle one : given) {
      if (nb::isinstance<PyFuture>(one)) {
        arguments.emplace_back(*Here(nb::cast<const PyFuture&>(one).value, "future"));
      } else {
        const std::string what = absl::StrCat("method '", EscapeForMessage(method), "': argument ", arguments.size());
        arguments.emplace_back(ValueOrRaise(ValueOf(one, what)));
      }
    }
    const std::shared_ptr<const WorkerGroup> called = Get();
    const GilRelease release;
    return PyFuture(called->StartAny(spec, std::move(arguments)));
  }

  // Python has split the arguments, and gets a list with the result of each rank.
  PyFuture StartSplit(const std::string& method, const std::string& mode, nb::sequence by_rank) const {
    std::vector<std::vector<Value>> split;
    for (nb::handle rank : by_rank) {
      std::vector<Value>& arguments = split.emplace_back();
      for (nb::handle one : rank) {
        const std::string what = absl::StrCat("method '", EscapeForMessage(method), "': argument ", arguments.size(),
                                              " of rank ", split.size() - 1);
        arguments.push_back(ValueOrRaise(ValueOf(one, what)));
      }
    }
    auto own = std::make_shared<runtime::UserMode>();
    own->name = mode;
    own->split = [split = std::move(split)](const std::vector<Value>&, const runtime::GroupShape&) { return split; };
    own->collect = [](std::vector<Value> results, const runtime::GroupShape&) { return Value(std::move(results)); };
    const std::shared_ptr<const WorkerGroup> called = Get();
    const GilRelease release;
    const FutureValue future = called->StartAny({.name = method, .dispatch = *own}, {});
    future.OnReady([own] {});  // the call uses it until then
    return PyFuture(future);
  }

  OfThisProcess<const WorkerGroup> group;
};

// ---- Controllers.

struct PyController {
  PyController(nb::handle listen, nb::handle token, int world_size, bool is_rank_zero,
               const std::map<std::string, std::string>& setup, nb::handle silence) {
    const runtime::ControllerOptions options{.listen = Utf8(listen, "listen"),
                                             .token = Utf8(token, "token"),
                                             .world_size = world_size,
                                             .is_rank_zero = is_rank_zero,
                                             .setup = setup,
                                             .silence = Seconds(silence, "silence")};
    if (world_size < 1 || options.silence <= absl::ZeroDuration()) {
      Raise(absl::InvalidArgumentError("a controller needs a positive world_size and silence"));
    }
    absl::StatusOr<std::unique_ptr<runtime::Controller>> opened = absl::UnknownError("not opened");
    {
      const GilRelease release;
      opened = runtime::OpenController(options);
    }
    first_rank = is_rank_zero ? 1 : 0;
    ranks = world_size;
    controller =
        OfThisProcess<runtime::Controller>(std::shared_ptr<runtime::Controller>(ValueOrRaise(std::move(opened))));
    RememberAddress(controller->address());
  }
  ~PyController() { Close(); }
  PyController(const PyController&) = delete;
  PyController& operator=(const PyController&) = delete;

  std::shared_ptr<runtime::Controller> Get() const { return Here(controller, "controller"); }
  void Close() {
    OfThisProcess<runtime::Controller> last = std::exchange(controller, OfThisProcess<runtime::Controller>());
    const GilRelease release;
    if (last.here()) last->End(absl::OkStatus());
    last.reset();
  }

  void AwaitWorkers(nb::handle timeout) {
    WaitFor(DeadlineAfter(timeout), [own = Get()](absl::Time until) { return own->AwaitWorkers(until); });
    joined = true;
  }
  void Welcome(nb::handle value) const {
    const Value welcome = ValueOrRaise(ValueOf(value, "welcome"));
    RaiseIfError(Without([&](runtime::Controller& own) { return own.Welcome(welcome); }));
  }
  void AwaitServing(nb::handle timeout) const {
    WaitFor(DeadlineAfter(timeout), [own = Get()](absl::Time until) { return own->AwaitServing(until); });
  }
  PyGroup Group(const std::vector<int>& members, const std::string& role, const MeshSpecs& meshes,
                nb::handle timeout) const {
    std::vector<std::shared_ptr<runtime::WorkerLink>> links;
    if (!joined) Raise(absl::FailedPreconditionError("the workers have not joined: call await_workers first"));
    for (const int rank : members) {
      if (rank < first_rank || rank >= ranks) {
        Raise(absl::InvalidArgumentError(
            absl::StrCat("there is no worker of rank ", rank, "; they are ", first_rank, " to ", ranks - 1)));
      }
      links.push_back(Get()->worker(rank));
    }
    return PyGroup::Of(std::move(links), role, meshes, timeout);
  }
  void End(int code, const std::string& text) const {
    RaiseIfError(Without([&](runtime::Controller& own) {
      own.End(StatusOf(code, text));
      return absl::OkStatus();
    }));
  }

  // One call without the GIL.
  absl::Status Without(const std::function<absl::Status(runtime::Controller&)>& call) const {
    const std::shared_ptr<runtime::Controller> own = Get();
    const GilRelease release;
    return call(*own);
  }

  OfThisProcess<runtime::Controller> controller;
  int first_rank = 1;
  int ranks = 0;
  bool joined = false;
};

// ---- Workers.

// Where a thread of Python gets the calls of a worker.
struct PyCalls {
  // (id, method, arguments, seconds that are left), or None at the end.
  nb::object Next() const {
    const std::shared_ptr<Inbox> from = Here(inbox, "worker");
    for (;;) {
      absl::StatusOr<std::optional<Inbox::Call>> call = absl::UnknownError("not asked");
      {
        const GilRelease release;
        call = from->Next(absl::Now() + kLook);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!call.ok()) continue;
      if (!call->has_value()) return nb::none();
      nb::list arguments;
      for (const Value& one : (*call)->arguments) arguments.append(ToPython(one));
      const double left = absl::ToDoubleSeconds((*call)->deadline - absl::Now());
      return nb::make_tuple((*call)->id, (*call)->method, arguments, left);
    }
  }
  void Answer(int64_t id, nb::handle result) const { Set(id, ValueOrRaise(ValueOf(result, "the result"))); }
  void Refuse(int64_t id, int code, const std::string& text) const { Set(id, StatusOf(code, text)); }
  // Not in a thread that gets signals.
  void AwaitClose() const {
    const std::shared_ptr<Inbox> own = Here(inbox, "worker");
    const GilRelease release;
    while (!own->AwaitClosed(absl::Now() + absl::Hours(1))) {
    }
  }
  void Close(const std::string& why) const {
    if (!inbox.here()) return;
    const std::shared_ptr<Inbox> own = inbox.get();
    const GilRelease release;
    own->Close(absl::CancelledError(why));
  }

  OfThisProcess<Inbox> inbox = OfThisProcess<Inbox>(std::make_shared<Inbox>());

 private:
  void Set(int64_t id, const absl::StatusOr<Value>& answer) const {
    const std::shared_ptr<Inbox> own = Here(inbox, "worker");
    const GilRelease release;
    own->Answer(id, answer);
  }
};

PyGroup GroupOfCalls(const std::vector<const PyCalls*>& workers, const std::string& role, const MeshSpecs& meshes,
                     nb::handle timeout) {
  std::vector<std::shared_ptr<runtime::WorkerLink>> links;
  for (const PyCalls* worker : workers) {
    links.push_back(std::make_shared<InboxLink>(absl::StrCat("rank ", links.size(), " (", role, ")"),
                                                Here(worker->inbox, "worker")));
  }
  return PyGroup::Of(std::move(links), role, meshes, timeout);
}

// A session, the inbox that its calls go to, and the thread that waits for its end.
class ServedSession {
 public:
  ServedSession(std::unique_ptr<runtime::WorkerSession> session, std::shared_ptr<Inbox> inbox)
      : inbox_(std::move(inbox)), session_(std::move(session)) {}
  ~ServedSession() {
    inbox_->Close(absl::CancelledError("the worker leaves"));
    session_.reset();
    if (serving_.joinable()) serving_.join();
  }
  ServedSession(const ServedSession&) = delete;
  ServedSession& operator=(const ServedSession&) = delete;

  runtime::WorkerSession& session() { return *session_; }

  absl::Status Serve(const std::vector<std::string>& names) {
    if (serving_.joinable()) return absl::FailedPreconditionError("this worker serves already");
    for (const std::string& name : names) {
      const absl::Status served =
          table_.ServeAny(name, [inbox = inbox_, name](std::vector<Value> arguments, absl::Time deadline) {
            return inbox->Push(name, std::move(arguments), deadline).Get();
          });
      if (!served.ok()) return served;
    }
    serving_ = std::thread([this, session = session_.get()] {
      const absl::Status end = session->Serve(table_);
      {
        const std::lock_guard lock(mu_);
        end_ = end;
      }
      inbox_->Close(end.ok() ? absl::CancelledError("the run is over") : end);
    });
    return absl::OkStatus();
  }
  // How the session ended; after the inbox was closed.
  absl::Status end() {
    const std::lock_guard lock(mu_);
    return end_;
  }

 private:
  const std::shared_ptr<Inbox> inbox_;
  runtime::MethodTable table_;
  std::unique_ptr<runtime::WorkerSession> session_;
  std::mutex mu_;
  absl::Status end_;
  std::thread serving_;
};

struct PySession {
  PySession(nb::handle address, nb::handle token, int rank, int world_size, nb::handle name,
            const std::map<std::string, std::string>& setup, nb::handle connect_timeout, nb::handle silence) {
    const runtime::WorkerOptions options{.controller = Utf8(address, "address"),
                                         .token = Utf8(token, "token"),
                                         .rank = rank,
                                         .world_size = world_size,
                                         .name = Utf8(name, "name"),
                                         .setup = setup,
                                         .connect_timeout = Seconds(connect_timeout, "connect_timeout"),
                                         .silence = Seconds(silence, "silence"),
                                         .in_order = true};
    absl::StatusOr<std::unique_ptr<runtime::WorkerSession>> joined = absl::UnknownError("not joined");
    {
      const GilRelease release;
      joined = runtime::JoinController(options);
    }
    session = OfThisProcess<ServedSession>(
        std::make_shared<ServedSession>(ValueOrRaise(std::move(joined)), calls.inbox.get()));
    RememberAddress(options.controller);
  }
  ~PySession() { Close(); }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  std::shared_ptr<ServedSession> Get() const { return Here(session, "session"); }
  void Close() {
    OfThisProcess<ServedSession> last = std::exchange(session, OfThisProcess<ServedSession>());
    const GilRelease release;
    last.reset();
  }
  nb::object AwaitWelcome(nb::handle timeout) const {
    const auto welcome = std::make_shared<Value>();
    WaitFor(DeadlineAfter(timeout), [own = Get(), welcome](absl::Time until) {
      absl::StatusOr<Value> given = own->session().AwaitWelcome(until);
      if (given.ok()) *welcome = *given;
      return given.status();
    });
    return ToPython(*welcome);
  }
  void Serve(const std::vector<std::string>& names) const {
    const std::shared_ptr<ServedSession> own = Get();
    absl::Status served;
    {
      const GilRelease release;
      served = own->Serve(names);
    }
    RaiseIfError(served);
  }
  void Fail(int code, const std::string& text, nb::handle timeout) const {
    WaitFor(DeadlineAfter(timeout),
            [own = Get(), why = StatusOf(code, text)](absl::Time until) { return own->session().Fail(why, until); });
  }
  void Notify(const std::string& kind, const std::string& text) const {
    const std::shared_ptr<ServedSession> own = Get();
    const GilRelease release;
    own->session().Notify(kind, text);
  }

  PyCalls calls;
  OfThisProcess<ServedSession> session;
};

// ---- Pools.

using Places = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

// By pool: (global rank, node, local rank) of each of its ranks.
std::map<std::string, Places> PlacePools(const std::vector<int64_t>& nodes,
                                         const std::vector<std::pair<std::string, std::vector<int64_t>>>& given,
                                         const std::map<std::string, std::string>& pool_of_role) {
  std::vector<runtime::ResourcePool> pools;
  for (const auto& [name, processes] : given) pools.push_back({name, processes});
  const runtime::ResourcePools placed = MadeOrRaise(runtime::ResourcePools::Of(nodes, pools, pool_of_role));
  std::map<std::string, Places> places;
  for (const runtime::ResourcePool& pool : pools) {
    for (const int64_t rank : ValueOrRaise(placed.RanksOfPool(pool.name))) {
      const runtime::ProcessPlace place = ValueOrRaise(placed.PlaceOf(rank));
      places[pool.name].emplace_back(rank, place.node, place.local_rank);
    }
  }
  return places;
}

// Ends this process with the process `parent`, or, more precisely, with the thread of it that started this one.
void DieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) raise(SIGKILL);  // it was gone before
}

void BindWorkers(nb::module_& module) {
  nb::class_<PyCalls>(module, "Calls")
      .def(nb::init<>())
      .def("next", &PyCalls::Next)
      .def("answer", &PyCalls::Answer, "call"_a, "result"_a.none())
      .def("refuse", &PyCalls::Refuse)
      .def("await_close", &PyCalls::AwaitClose)
      .def("close", &PyCalls::Close)
      .def_static("group", &GroupOfCalls);
  nb::class_<PySession>(module, "Session")
      .def(nb::init<nb::handle, nb::handle, int, int, nb::handle, const std::map<std::string, std::string>&, nb::handle,
                    nb::handle>())
      .def_prop_ro("calls", [](const PySession& self) { return self.calls; })
      .def("await_welcome", &PySession::AwaitWelcome, "timeout"_a.none())
      .def("serve", &PySession::Serve)
      .def("fail", &PySession::Fail, "code"_a, "text"_a, "timeout"_a)
      .def("notify", &PySession::Notify)
      .def("check_end", [](const PySession& self) { RaiseIfError(self.Get()->end()); })
      .def("close", &PySession::Close);
}

}  // namespace

void BindController(nb::module_& module) {
  nb::class_<PyFuture>(module, "Future")
      .def("__init__", [](PyFuture* self) { new (self) PyFuture(FutureValue(Clock::Real())); })
      .def("ready", &PyFuture::Ready)
      .def("get", &PyFuture::Get, "timeout"_a.none())
      .def("set", &PyFuture::Set, "result"_a.none())
      .def("fail", &PyFuture::Fail);
  nb::class_<PyGroup>(module, "WorkerGroup")
      .def_prop_ro("ranks", [](const PyGroup& self) { return self.Get()->ranks(); })
      .def_prop_ro("role", [](const PyGroup& self) { return self.Get()->role(); })
      .def("start", &PyGroup::Start)
      .def("start_split", &PyGroup::StartSplit)
      .def("with_timeout",
           [](const PyGroup& self, nb::handle timeout) {
             return PyGroup(self.Get()->WithTimeout(Seconds(timeout, "timeout")));
           })
      .def("subgroup",
           [](const PyGroup& self, const std::vector<int64_t>& ranks, const MeshSpecs& meshes) {
             const auto size = static_cast<int64_t>(ranks.size());
             return PyGroup(MadeOrRaise(self.Get()->Subgroup(ranks, MeshesOf(size, meshes))));
           })
      .def("spawn", [](const PyGroup& self, const std::vector<std::string>& roles) {
        std::map<std::string, PyGroup> groups;
        for (auto& [role, group] : MadeOrRaise(self.Get()->Spawn(roles))) groups.emplace(role, PyGroup(group));
        return groups;
      });
  nb::class_<PyController>(module, "Controller")
      .def(nb::init<nb::handle, nb::handle, int, bool, const std::map<std::string, std::string>&, nb::handle>())
      .def_prop_ro("address", [](const PyController& self) { return self.Get()->address(); })
      .def("await_workers", &PyController::AwaitWorkers, "timeout"_a.none())
      .def("welcome", &PyController::Welcome, "value"_a.none())
      .def("await_serving", &PyController::AwaitServing, "timeout"_a.none())
      .def("name", [](const PyController& self, int rank) { return self.Get()->name(rank); })
      .def("group", &PyController::Group)
      .def("end", &PyController::End)
      .def("close", &PyController::Close);
  BindWorkers(module);
  module.def("place_pools", &PlacePools);
  module.def("die_with", &DieWith);
}

}  // namespace tdock::python
