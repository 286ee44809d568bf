#include "dock/service/wire/call_cost.h"

#include <algorithm>
#include <cstdint>

#include "dock/service/wire/field_codec.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

int64_t PayloadBytes(const Batch& batch) {
  int64_t bytes = 0;
  for (const NamedColumn& column : batch.columns()) bytes += column.column.payload_bytes();
  return bytes;
}

}  // namespace

absl::string_view BodyOf(const v1::Request& request) {
  switch (request.body_case()) {
#define TDOCK_BODY(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case v1::Request::k##Verb:                                           \
    static_assert(v1::Request::k##Verb == number);                     \
    return request.name();
    TDOCK_VERBS(TDOCK_BODY)
#undef TDOCK_BODY
    default:
      return "";
  }
}

std::string& MutableBody(v1::Request& request, int number) {
  switch (number) {
#define TDOCK_BODY(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case number:                                                         \
    return *request.mutable_##name();
    TDOCK_VERBS(TDOCK_BODY)
#undef TDOCK_BODY
    default:
      return *request.mutable_ping();
  }
}

bool HasFrame(const v1::Request& request) {
  return request.has_put() && NumberIn(request.put(), NumberOf(&PutRequest::batch)) != 0;
}

bool IsOfLease(const v1::Request& request) {
  return request.has_complete() || request.has_release() || request.has_renew() || request.has_drop();
}

const char* NameOf(const v1::Request& request) {
  switch (request.body_case()) {
#define TDOCK_NAME(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case v1::Request::k##Verb:                                           \
    return "does a " #name;
    TDOCK_VERBS(TDOCK_NAME)
#undef TDOCK_NAME
    case v1::Request::kCancel:
      return "cancels a call";
    case v1::Request::kAcknowledge:
      return "takes an acknowledgement";
    case v1::Request::kPing:
      return "answers a ping";
    default:
      return "answers a request that it does not know";
  }
}

bool TakesLong(const v1::Request& request, const Batch& batch, const dock::ServedDock::Load& load) {
  constexpr int64_t kManyColumns = dock::ServedDock::Load::kManyColumns;
  constexpr int64_t kManyBytes = 1 << 20;
  constexpr int kManyKeys = 1024, kManyRanks = 1024;
  // It may have to wait for a long call.
  if (load.busy || load.scarce) return true;
  const absl::string_view body = BodyOf(request);
  if (IsOfLease(request)) {
    const int64_t rows = CountIn(body, &LeaseRequest::rows);
    return !request.has_renew() && load.IsLong(rows > 0 ? rows : load.held_rows);
  }
  switch (request.body_case()) {
    case v1::Request::kPut: {
      const auto new_rows = static_cast<int64_t>(NumberIn(body, NumberOf(&PutRequest::new_rows)));
      const int64_t rows = std::max({batch.rows(), new_rows, CountIn(body, &PutRequest::rows)});
      return load.IsLongPut(rows, static_cast<int64_t>(batch.columns().size())) || PayloadBytes(batch) > kManyBytes;
    }
    case v1::Request::kTake:
      return load.IsLongTake(CountIn(body, &TakeRequest::rows),
                             static_cast<int64_t>(NumberIn(body, NumberOf(&TakeRequest::max))));
    case v1::Request::kFetch:
      return load.IsLongFetch(CountIn(body, &FetchRequest::rows), CountIn(body, &FetchRequest::columns));
    case v1::Request::kFindRows:
      return CountIn(body, &FindRequest::keys) > kManyKeys;
    case v1::Request::kCreatePartition:
      return CountIn(body, &PartitionOptions::columns) > kManyColumns;
    case v1::Request::kRegisterConsumer: {
      // Its options are numbered on.
      int64_t names = 0;
      for (const auto list : {&ConsumerOptions::reads, &ConsumerOptions::reads_optional, &ConsumerOptions::writes}) {
        names += CountIn(body, NumberOf(list) + 1, /*packed=*/false);
      }
      const auto ranks = static_cast<int64_t>(NumberIn(body, NumberOf(&ConsumerOptions::ranks) + 1));
      return load.IsLong(load.rows) || names > kManyColumns || ranks > kManyRanks;
    }
    case v1::Request::kGetStatus:
    case v1::Request::kGetRowStatus:
      return load.columns + load.consumers > kManyColumns;
    case v1::Request::kPublishWeights:
    case v1::Request::kGetConsumerStatus:
      return false;
    default:
      // They access whole tables.
      return load.IsLong(load.rows) || load.columns + load.consumers > kManyColumns;
  }
}

}  // namespace tdock::service
