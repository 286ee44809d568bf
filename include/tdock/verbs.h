// The calls of a dock as values: for docks, and for code that handles all of them alike (TDOCK_VERBS in requests.h).
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/requests.h"

namespace tdock {
namespace verbs {

#define TDOCK_VERB(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  struct Verb {                                                        \
    using Request = RequestOf;                                         \
    using Reply = ReplyOf;                                             \
    static constexpr const char* kName = #name;                        \
    static constexpr int kNumber = number;                             \
    static constexpr bool kRepeatable = repeatable;                    \
  };
TDOCK_VERBS(TDOCK_VERB)
#undef TDOCK_VERB

}  // namespace verbs

template <class V>
using ResultOf =
    std::conditional_t<std::is_same_v<typename V::Reply, Nothing>, absl::Status, absl::StatusOr<typename V::Reply>>;

// A result that the thread which makes this waits for.
template <class Result>
class Awaited {
 public:
  // The result, or what makes it: the other is null.
  void Set(Result* result, std::function<Result()>* make) {
    if (std::this_thread::get_id() == waiting_) {  // which has not begun to wait
      Keep(result, make);
      set_here_ = true;
      return;
    }
    // Notified under the lock: the waiting thread destroys this as soon as it can take the lock.
    const std::lock_guard lock(mu_);
    Keep(result, make);
    set_elsewhere_ = true;
    changed_.notify_one();
  }
  Result Take() {
    if (!set_here_) {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [&] { return set_elsewhere_; });
    }
    return result_.has_value() ? *std::move(result_) : make_();
  }

 private:
  void Keep(Result* result, std::function<Result()>* make) {
    if (result != nullptr) result_.emplace(std::move(*result));
    if (make != nullptr) make_ = std::move(*make);
  }

  const std::thread::id waiting_ = std::this_thread::get_id();
  bool set_here_ = false;
  std::optional<Result> result_;
  std::function<Result()> make_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool set_elsewhere_ = false;
};

// A call: a verb, its request, and where its result goes. A small value, which refers to the others.
class AnyCall {
 public:
  // `done(result)` is called once. Keeps the request until it returns.
  template <class V, class Done>
  static AnyCall Owned(typename V::Request request, Done done) {
    struct Held {
      const typename V::Request request;
      Done done;
    };
    auto* const held = new Held{std::move(request), std::move(done)};
    return {V::kNumber, &held->request, held, [](void* from, void* result, void* make) {
              const std::unique_ptr<Held> last(static_cast<Held*>(from));
              using Result = ResultOf<V>;
              last->done(make == nullptr ? std::move(*static_cast<Result*>(result))
                                         : (*static_cast<std::function<Result()>*>(make))());
            }};
  }
  // For a thread that waits for `answer`.
  template <class V>
  static AnyCall Of(const typename V::Request& request, Awaited<ResultOf<V>>* answer) {
    return {V::kNumber, &request, answer, [](void* to, void* result, void* make) {
              using Result = ResultOf<V>;
              static_cast<Awaited<Result>*>(to)->Set(static_cast<Result*>(result),
                                                     static_cast<std::function<Result()>*>(make));
            }};
  }

  // The verb's kNumber.
  int verb() const { return verb_; }
  // V is the call's verb. The request lives until the reply.
  template <class V>
  const typename V::Request& request() const {
    return *static_cast<const typename V::Request*>(request_);
  }
  // One of these must be called once, without a lock.
  template <class V>
  void Reply(ResultOf<V> result) const {
    reply_(to_, &result, nullptr);
  }
  // `make` makes the result: on the thread of a caller that waits, if there is one.
  template <class V>
  void ReplyBy(std::function<ResultOf<V>()> make) const {
    reply_(to_, nullptr, &make);
  }

 private:
  AnyCall(int verb, const void* request, void* to, void (*reply)(void* to, void* result, void* make))
      : verb_(verb), request_(request), to_(to), reply_(reply) {}

  int verb_;
  const void* request_;
  void* to_;
  void (*reply_)(void*, void*, void*);
};

// Starts a call of a dock and waits for its result.
template <class V, class Dock>
ResultOf<V> Ask(Dock& dock, const typename V::Request& request) {
  Awaited<ResultOf<V>> result;
  dock.Start(AnyCall::Of<V>(request, &result));
  return result.Take();
}

// Calls f.operator()<V>() of the verb with this number. False if there is none.
template <class F>
bool VisitVerb(int number, const F& f) {
  switch (number) {
#define TDOCK_VISIT(Verb, RequestOf, ReplyOf, name, verb_number, repeatable) \
  case verb_number:                                                          \
    f.template operator()<verbs::Verb>();                                    \
    return true;
    TDOCK_VERBS(TDOCK_VISIT)
#undef TDOCK_VISIT
    default:
      return false;
  }
}

}  // namespace tdock
