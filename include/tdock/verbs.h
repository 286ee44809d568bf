// The calls of a dock as values: for docks, and for code that handles all of them alike (TDOCK_VERBS in requests.h).
#pragma once

#include <memory>
#include <optional>
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
    return {V::kNumber, &held->request, held, /*blocks=*/false, [](void* to, void* reply) {
              const std::unique_ptr<Held> last(static_cast<Held*>(to));
              last->done(std::move(*static_cast<ResultOf<V>*>(reply)));
            }};
  }
  // Sets `result`, before Start returns.
  template <class V>
  static AnyCall Blocking(const typename V::Request& request, std::optional<ResultOf<V>>& result) {
    return {V::kNumber, &request, &result, /*blocks=*/true, [](void* to, void* reply) {
              static_cast<std::optional<ResultOf<V>>*>(to)->emplace(std::move(*static_cast<ResultOf<V>*>(reply)));
            }};
  }

  // The verb's kNumber.
  int verb() const { return verb_; }
  // Start must not return before it has replied.
  bool blocks() const { return blocks_; }
  // V is the call's verb. The request lives until the reply.
  template <class V>
  const typename V::Request& request() const {
    return *static_cast<const typename V::Request*>(request_);
  }
  // Must be called once, without a lock.
  template <class V>
  void Reply(ResultOf<V>&& result) const {
    reply_(to_, &result);
  }

 private:
  AnyCall(int verb, const void* request, void* to, bool blocks, void (*reply)(void* to, void* reply))
      : verb_(verb), blocks_(blocks), request_(request), to_(to), reply_(reply) {}

  int verb_;
  bool blocks_;
  const void* request_;
  void* to_;
  void (*reply_)(void*, void*);
};

// Makes a call of a dock and returns its result.
template <class V, class Dock>
ResultOf<V> Ask(Dock& dock, const typename V::Request& request) {
  std::optional<ResultOf<V>> result;
  dock.Start(AnyCall::Blocking<V>(request, result));
  return std::move(result).value();
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
