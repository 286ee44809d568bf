// What a worker serves.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "runtime/dispatch/convert.h"
#include "runtime/dispatch/method.h"
#include "runtime/dispatch/value.h"

namespace tdock::runtime {

namespace signature {

// The parameters of a function that has one signature; void for one that is overloaded or a template.
template <class F>
struct Parameters : std::type_identity<void> {};
template <class F>
  requires requires { &F::operator(); }
struct Parameters<F> : Parameters<decltype(&F::operator())> {};
template <class R, class... P>
struct Parameters<R (*)(P...)> : std::type_identity<std::tuple<std::remove_cvref_t<P>...>> {};
template <class C, class R, class... P>
struct Parameters<R (C::*)(P...)> : Parameters<R (*)(P...)> {};
template <class C, class R, class... P>
struct Parameters<R (C::*)(P...) const> : Parameters<R (*)(P...)> {};

template <class Given, class Result>
inline constexpr bool kGives = std::same_as<Given, Result> || std::same_as<Given, absl::StatusOr<Result>>;
template <class Given>
inline constexpr bool kGives<Given, void> = std::is_void_v<Given> || std::same_as<Given, absl::Status>;

template <class F, class Result, class... Args>
concept Serves = std::is_invocable_v<F&, Args...> &&
                 (std::same_as<typename Parameters<std::decay_t<F>>::type, void> ||
                  std::same_as<typename Parameters<std::decay_t<F>>::type, std::tuple<Args...>>)&&  // no conversions
                 (kGives<std::invoke_result_t<F&, Args...>, Result> ||
                  (std::same_as<Result, MetaBatch> && kGives<std::invoke_result_t<F&, Args...>, RowsRef>));

}  // namespace signature

// Functions by the name of their method. Set up by one thread; afterwards Call() is thread-safe if the functions are.
class MethodTable {
 public:
  using Handler = std::function<absl::StatusOr<Value>(std::vector<Value> arguments, absl::Time deadline)>;

  // `fetch` fetches rows of a dock that are passed where a function needs a batch.
  explicit MethodTable(RowFetcher fetch = {}) : fetch_(std::move(fetch)) {}

  // Serves the method, of a role if there are several in this process (WorkerGroup::Spawn). The function takes one
  // share of the arguments and returns its Result or StatusOr<Result> (Status for void), or RowsRef for MetaBatch.
  // AlreadyExists if the method is served.
  template <class Result, class... Args, class F>
    requires signature::Serves<F, WorkerSide<Result>, WorkerSide<Args>...>
  absl::Status Serve(const Method<Result(Args...)>& method, F function, absl::string_view role = "") {
    return ServeAny(NameOf(role, method.spec().name),
                    [fetch = fetch_, function = std::move(function)](
                        std::vector<Value> values, absl::Time deadline) mutable -> absl::StatusOr<Value> {
                      return Invoke<WorkerSide<Result>, WorkerSide<Args>...>(function, values, {fetch, deadline},
                                                                             std::index_sequence_for<Args...>());
                    });
  }
  // The same of a method whose types are known only at run time.
  absl::Status ServeAny(std::string name, Handler handler);

  // NotFound, naming the nearest, if there is no such method; InvalidArgument, naming the argument, for arguments of
  // other types, and for a result that is deeper than Value::kMaxDepth. An exception becomes Internal.
  absl::StatusOr<Value> Call(absl::string_view name, std::vector<Value> arguments, absl::Time deadline) const;

  // "generate", or "rollout/generate" of a role.
  static std::string NameOf(absl::string_view role, absl::string_view method) {
    return role.empty() ? std::string(method) : absl::StrCat(role, "/", method);
  }

 private:
  template <class Result, class... Args, class F, size_t... I>
  static absl::StatusOr<Value> Invoke(F& function, const std::vector<Value>& values, const Fetching& fetching,
                                      std::index_sequence<I...>) {
    if (values.size() != sizeof...(Args)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected ", sizeof...(Args), " arguments, given ", values.size()));
    }
    // Braces: converted from the first to the last.
    std::tuple<absl::StatusOr<Args>...> arguments{ValueOf<Args>::From(values[I], fetching)...};
    absl::Status status;
    (..., (status.ok() && !std::get<I>(arguments).ok()
               ? void(status = Annotate(std::get<I>(arguments).status(), absl::StrCat("argument ", I)))
               : void()));
    if (!status.ok()) return status;
    return ToResult<Result>(function, *std::move(std::get<I>(arguments))...);
  }

  template <class Result, class F, class... Args>
  static absl::StatusOr<Value> ToResult(F& function, Args&&... arguments) {
    using Given = std::invoke_result_t<F&, Args...>;
    if constexpr (std::is_void_v<Given>) {
      function(std::forward<Args>(arguments)...);
      return Value();
    } else if constexpr (std::same_as<Given, absl::Status>) {
      if (absl::Status status = function(std::forward<Args>(arguments)...); !status.ok()) return status;
      return Value();
    } else if constexpr (requires(Given given) { given.status(); }) {
      Given given = function(std::forward<Args>(arguments)...);
      if (!given.ok()) return given.status();
      return ValueOf<typename Given::value_type>::To(*std::move(given));
    } else {
      return ValueOf<Given>::To(function(std::forward<Args>(arguments)...));
    }
  }

  RowFetcher fetch_;
  std::map<std::string, Handler, std::less<>> handlers_;
};

}  // namespace tdock::runtime
