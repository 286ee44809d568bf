// A method of workers, declared once for those who call it and those who serve it.
//
//   inline constexpr Method<MetaBatch(MetaBatch)> kScore{"score", Mode::kDpComputeProto};
//   inline constexpr Method<PerRank<double>(MetaBatch)> kLoss{"loss", Mode::kDpComputeMetric};
//
//   absl::StatusOr<MetaBatch> scored = group.Call(kScore, batch);               // on the controller: worker_group.h
//   absl::StatusOr<std::vector<double>> losses = group.Call(kLoss, batch);
//
//   table.Serve(kLoss, [](MetaBatch part) -> absl::StatusOr<double> { … });     // on each worker: method_table.h
//
// A signature that does not fit the mode does not compile, nor do calls and functions of other types.
#pragma once

#include <concepts>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/dispatch/convert.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/value.h"

namespace tdock::runtime {

// In a signature: one T for each rank (or chunk). The controller passes or gets a std::vector<T>, a worker one T.
template <class T>
struct PerRank;

namespace signature {

template <class T>
struct Sides {
  using Controller = T;
  using Worker = T;
  static constexpr bool kPerRank = false;
};
template <class T>
struct Sides<PerRank<T>> {
  using Controller = std::vector<T>;
  using Worker = T;
  static constexpr bool kPerRank = true;
};

template <class T>
inline constexpr bool kIsList = std::same_as<T, Value::List>;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;

// Of which there is nothing to cut or to concatenate unless it is a batch, rows, or a Value that holds either.
template <class T>
inline constexpr bool kHasRows = std::same_as<T, MetaBatch> || std::same_as<T, RowsRef> || std::same_as<T, Value>;

template <class T>
constexpr bool ArgumentFits(ArgumentRule rule) {
  switch (rule) {
    case ArgumentRule::kReplicated:
      return !Sides<T>::kPerRank;
    case ArgumentRule::kSpread:
      return !kIsList<T>;
    case ArgumentRule::kElements:
      return Sides<T>::kPerRank;
    case ArgumentRule::kRows:
      return kHasRows<T>;
  }
  return false;
}

template <class Result>
constexpr bool ResultFits(bool concatenates) {
  if constexpr (std::is_void_v<Result>) return true;
  return concatenates ? kHasRows<Result> : Sides<Result>::kPerRank;
}

// Not constexpr: that a compiler cannot call them is the error.
inline void ArgumentDoesNotFitTheMode() {}
inline void ResultDoesNotFitTheMode() {}
inline void RankZeroNeedsOneToAllOrAllToAllAndNoPerRank() {}

template <class Result, class... Args>
consteval void Check(const Dispatch& dispatch, Execute execute) {
  if (dispatch.mode == Mode::kUser) return;
  if (execute == Execute::kRankZero) {
    const bool fits = (dispatch.mode == Mode::kOneToAll || dispatch.mode == Mode::kAllToAll) &&
                      !Sides<Result>::kPerRank && !(Sides<Args>::kPerRank || ...);
    if (!fits) RankZeroNeedsOneToAllOrAllToAllAndNoPerRank();
    return;
  }
  const ModeRules& rules = RulesOf(dispatch.mode);
  [[maybe_unused]] ArgumentRule rule = rules.first;
  [[maybe_unused]] const auto fits_next = [&]<class T>() {
    const bool fits = ArgumentFits<T>(rule);
    rule = rules.rest;
    return fits;
  };
  if (!(fits_next.template operator()<Args>() && ...)) ArgumentDoesNotFitTheMode();
  if (!ResultFits<Result>(rules.concatenates)) ResultDoesNotFitTheMode();
}

}  // namespace signature

template <class T>
using ControllerSide = typename signature::Sides<T>::Controller;
template <class T>
using WorkerSide = typename signature::Sides<T>::Worker;

template <class Signature>
class Method;

// Where MetaBatch stands, either side may pass RowsRef instead; whoever needs the batch fetches it. Result may be void.
template <class Result, class... Args>
class Method<Result(Args...)> {
  static_assert((Passable<WorkerSide<Args>> && ...), "an argument has no ValueOf (convert.h)");
  static_assert(std::is_void_v<Result> || Passable<WorkerSide<Result>>, "the result has no ValueOf (convert.h)");

 public:
  consteval Method(absl::string_view name, Dispatch dispatch, Execute execute = Execute::kAll)
      : spec_{name, dispatch, execute} {
    signature::Check<Result, Args...>(dispatch, execute);
  }

  constexpr const MethodSpec& spec() const { return spec_; }

 private:
  MethodSpec spec_;
};

}  // namespace tdock::runtime
