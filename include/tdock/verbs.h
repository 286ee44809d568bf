// The verbs of a dock: each in one line, with its request, its reply, its name and number in messages, and whether a
// client may repeat it without knowing whether it was carried out.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/options.h"
#include "tdock/requests.h"

namespace tdock {

// The request or the reply of verbs that have none.
struct Nothing {};

#define TDOCK_VERBS(V)                                                                 \
  V(CreatePartition, PartitionOptions, Nothing, create_partition, 10, true)            \
  V(DropPartition, PartitionRequest, Nothing, drop_partition, 11, false)               \
  V(ListPartitions, Nothing, std::vector<std::string>, list_partitions, 12, true)      \
  V(RegisterConsumer, RegisterRequest, Nothing, register_consumer, 13, true)           \
  V(DropConsumer, ConsumerRequest, Nothing, drop_consumer, 14, false)                  \
  V(Put, PutRequest, PutResult, put, 15, false)                                        \
  V(Take, TakeRequest, Taken, take, 16, true)                                          \
  V(Fetch, FetchRequest, Rows, fetch, 17, true)                                        \
  V(Complete, LeaseRequest, Nothing, complete, 18, false)                              \
  V(Release, LeaseRequest, Nothing, release, 19, false)                                \
  V(Renew, LeaseRequest, absl::Time, renew, 20, true)                                  \
  V(Drop, LeaseRequest, Nothing, drop, 21, false)                                      \
  V(Requeue, RequeueRequest, Nothing, requeue, 22, false)                              \
  V(Commit, StepRequest, Nothing, commit, 23, true)                                    \
  V(Rollback, StepRequest, Nothing, rollback, 24, false)                               \
  V(PublishWeights, PublishRequest, Nothing, publish_weights, 25, true)                \
  V(FindRows, FindRequest, std::vector<RowId>, find_rows, 26, true)                    \
  V(List, ListRequest, ListResult, list, 27, true)                                     \
  V(Seal, PartitionRequest, Nothing, seal, 28, true)                                   \
  V(Clear, ClearRequest, int64_t, clear, 29, false)                                    \
  V(GetStatus, PartitionRequest, PartitionStatus, get_status, 30, true)                \
  V(GetConsumerStatus, ConsumerRequest, ConsumerStatus, get_consumer_status, 31, true) \
  V(Explain, ConsumerRequest, std::string, explain, 32, true)                          \
  V(GetRowStatus, RowRequest, RowStatus, get_row_status, 33, true)

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
  // The result is stored before Start() returns.
  template <class V>
  static AnyCall Blocking(const typename V::Request& request, std::optional<ResultOf<V>>* result) {
    return {V::kNumber, true, &request, result, [](void* to, void* given) {
              static_cast<std::optional<ResultOf<V>>*>(to)->emplace(std::move(*static_cast<ResultOf<V>*>(given)));
            }};
  }
  // `done(result)` is called once. Keeps the request until it returns.
  template <class V, class Done>
  static AnyCall Owned(typename V::Request request, Done done) {
    struct Held {
      const typename V::Request request;
      Done done;
    };
    auto* const held = new Held{std::move(request), std::move(done)};
    return {V::kNumber, false, &held->request, held, [](void* from, void* given) {
              const std::unique_ptr<Held> last(static_cast<Held*>(from));
              last->done(std::move(*static_cast<ResultOf<V>*>(given)));
            }};
  }

  // The verb's kNumber.
  int verb() const { return verb_; }
  // Start() must not return before the reply.
  bool blocks() const { return blocks_; }
  // V is the call's verb. The request lives until the reply.
  template <class V>
  const typename V::Request& request() const {
    return *static_cast<const typename V::Request*>(request_);
  }
  // Must be called once, without a lock.
  template <class V>
  void Reply(ResultOf<V> result) const {
    reply_(to_, &result);
  }

 private:
  AnyCall(int verb, bool blocks, const void* request, void* to, void (*reply)(void* to, void* result))
      : verb_(verb), blocks_(blocks), request_(request), to_(to), reply_(reply) {}

  int verb_;
  bool blocks_;
  const void* request_;
  void* to_;
  void (*reply_)(void*, void*);
};

// Starts a call of a dock and waits for it.
template <class V, class Dock>
ResultOf<V> Ask(Dock& dock, const typename V::Request& request) {
  std::optional<ResultOf<V>> result;
  dock.Start(AnyCall::Blocking<V>(request, &result));
  return *std::move(result);
}

// Calls f.operator()<V>() of the verb with this number. There must be one.
template <class F>
void VisitVerb(int number, const F& f) {
  switch (number) {
#define TDOCK_VISIT(Verb, RequestOf, ReplyOf, name, verb_number, repeatable) \
  case verb_number:                                                          \
    return f.template operator()<verbs::Verb>();
    TDOCK_VERBS(TDOCK_VISIT)
#undef TDOCK_VISIT
  }
}

}  // namespace tdock
