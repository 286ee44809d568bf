// A group of workers as the controller sees it: one object whose calls run on all of them.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/dispatch/call_order.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/future.h"
#include "runtime/dispatch/method.h"
#include "runtime/dispatch/row_weights.h"
#include "runtime/dispatch/value.h"
#include "runtime/mesh/mesh.h"
#include "tdock/clock.h"

namespace tdock::runtime {

// One worker as the controller sees it. Thread-safe.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;

  // For errors: "rank 3 (rollout)".
  virtual std::string Describe() const = 0;
  // Never blocks; `done` is called once, by any thread, without a lock. Calls begin in the order of Invoke().
  virtual void Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
                      std::function<void(absl::StatusOr<Value>)> done) = 0;
};

struct WorkerGroupOptions {
  // For errors.
  std::string role = {};
  // By the names that methods use (NdMesh). Each arranges all workers.
  std::map<std::string, Mesh, std::less<>> meshes = {};
  // How long a call may take, from when its arguments are there; positive and finite.
  absl::Duration timeout = absl::Hours(1);
  // For results that are rows of a dock, where the controller reads them as batches.
  RowFetcher fetch = {};
  Clock* clock = &Clock::Real();
};

namespace signature {

template <class A>
struct FutureOf : std::type_identity<void> {};
template <class T>
struct FutureOf<Future<T>> : std::type_identity<T> {};

// Whether A, or the result of a Future A, can be passed where a method has P. Numbers are not converted to others.
template <class A, class P>
inline constexpr bool kPasses =
    std::same_as<P, bool>        ? std::same_as<A, bool>
    : std::same_as<P, int64_t>   ? std::signed_integral<A>
    : std::same_as<P, double>    ? std::floating_point<A>
    : std::same_as<P, MetaBatch> ? std::same_as<A, MetaBatch> || std::same_as<A, RowsRef> || std::same_as<A, Value>
                                 : std::convertible_to<A, P>;

template <class A, class P>
concept ArgumentFor = kPasses<std::decay_t<A>, P> || (!std::is_void_v<typename FutureOf<std::decay_t<A>>::type> &&
                                                      kPasses<typename FutureOf<std::decay_t<A>>::type, P>);

}  // namespace signature

// Calls are dispatched (the arguments are divided over the ranks), executed, waited for, and collected (the results
// become one), as the method says. A call that fails on a rank ends when all ranks have answered, or at its deadline,
// with the error that came first; it names the method, the role and the worker. DeadlineExceeded names the workers
// that have not answered; what they answer later is ignored.
//
// All workers get calls in the same order, also those of several threads, and of groups that were made from one another
// (Spawn, Subgroup): the order of Start(), except that a call with a future begins when that is ready.
//
// A cheap value: copies are the same group. Thread-safe. The clock must outlive it and its futures.
class WorkerGroup {
 public:
  // Worker i is rank i. InvalidArgument without workers, for a mesh of another number of ranks, or for such a timeout.
  static absl::StatusOr<WorkerGroup> Of(std::vector<std::shared_ptr<WorkerLink>> workers, WorkerGroupOptions options);

  int64_t ranks() const { return static_cast<int64_t>(workers_->size()); }
  const std::string& role() const { return options_->role; }

  // The result of a call: waits for it. Arguments are of the types that the method has on the controller's side, or
  // futures of them; where it has a MetaBatch, RowsRef, too.
  template <class Result, class... Args, class... Given>
    requires(sizeof...(Args) == sizeof...(Given) && (signature::ArgumentFor<Given, ControllerSide<Args>> && ...))
  Outcome<ControllerSide<Result>> Call(const Method<Result(Args...)>& method, Given&&... given) const {
    return Start(method, std::forward<Given>(given)...).Get();
  }

  // Begins a call, and does not wait. With futures among its arguments, it begins when they are ready, and fails with
  // the error of one that failed.
  template <class Result, class... Args, class... Given>
    requires(sizeof...(Args) == sizeof...(Given) && (signature::ArgumentFor<Given, ControllerSide<Args>> && ...))
  Future<ControllerSide<Result>> Start(const Method<Result(Args...)>& method, Given&&... given) const {
    std::vector<Argument> arguments;
    (arguments.push_back(ToArgument<ControllerSide<Args>>(std::forward<Given>(given))), ...);
    return {StartAny(method.spec(), std::move(arguments)), options_->fetch};
  }

  // Start() of a method whose types are known only at run time. The spec's strings need not outlive the call.
  using Argument = std::variant<Value, FutureValue>;
  FutureValue StartAny(const MethodSpec& method, std::vector<Argument> arguments) const;

  // The same workers, with another time for each call. Unless it is positive and finite, calls fail: InvalidArgument.
  WorkerGroup WithTimeout(absl::Duration timeout) const;

  // Worker `ranks[i]` is rank i of the result. The meshes of this group do not apply to it. OutOfRange for a rank that
  // does not exist, InvalidArgument for one that is named twice.
  absl::StatusOr<WorkerGroup> Subgroup(std::span<const int64_t> ranks,
                                       std::map<std::string, Mesh, std::less<>> meshes = {}) const;

  // A group for each role, over the same workers: the methods of a role are those that its workers serve under its
  // name (MethodTable::Serve). InvalidArgument for a role without a name, or named twice.
  absl::StatusOr<std::map<std::string, WorkerGroup>> Spawn(std::span<const std::string> roles) const;

 private:
  class WaitingCall;
  using Workers = std::vector<std::shared_ptr<WorkerLink>>;

  WorkerGroup(std::shared_ptr<const Workers> workers, std::shared_ptr<const WorkerGroupOptions> options)
      : workers_(std::move(workers)), options_(std::move(options)), order_(std::make_shared<CallOrder>()) {}

  template <class P, class A>
  static Argument ToArgument(A&& given) {
    if constexpr (!std::is_void_v<typename signature::FutureOf<std::decay_t<A>>::type>) {
      return given.value();
    } else if constexpr (std::same_as<std::decay_t<A>, RowsRef> || std::same_as<std::decay_t<A>, Value>) {
      return Value(std::forward<A>(given));
    } else {
      return ValueOf<P>::To(static_cast<P>(std::forward<A>(given)));
    }
  }

  // Divides a call whose arguments are there, and begins it.
  void Begin(const MethodSpec& method, const std::vector<Value>& arguments, const FutureValue& result) const;

  std::shared_ptr<const Workers> workers_;
  std::shared_ptr<const WorkerGroupOptions> options_;
  std::shared_ptr<CallOrder> order_;
  std::string prefix_ = {};  // the role, of a group that was spawned
};

}  // namespace tdock::runtime
