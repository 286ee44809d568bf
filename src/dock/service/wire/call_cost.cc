#include "dock/service/wire/call_cost.h"

#include <algorithm>
#include <cstdint>

namespace tdock::service {
namespace {

int64_t PayloadBytes(const Batch& batch) {
  int64_t bytes = 0;
  for (const NamedColumn& column : batch.columns()) bytes += column.column.payload_bytes();
  return bytes;
}

}  // namespace

absl::string_view PartitionOf(const v1::Request& request) {
  switch (request.body_case()) {
    case v1::Request::kCreatePartition:
      return request.create_partition().name();
    case v1::Request::kDropPartition:
      return request.drop_partition().partition();
    case v1::Request::kRegisterConsumer:
      return request.register_consumer().partition();
    case v1::Request::kDropConsumer:
      return request.drop_consumer().partition();
    case v1::Request::kPut:
      return request.put().partition();
    case v1::Request::kTake:
      return request.take().partition();
    case v1::Request::kFetch:
      return request.fetch().partition();
    case v1::Request::kComplete:
      return request.complete().partition();
    case v1::Request::kRelease:
      return request.release().partition();
    case v1::Request::kRenew:
      return request.renew().partition();
    case v1::Request::kDrop:
      return request.drop().partition();
    case v1::Request::kRequeue:
      return request.requeue().partition();
    case v1::Request::kCommit:
      return request.commit().partition();
    case v1::Request::kRollback:
      return request.rollback().partition();
    case v1::Request::kPublishWeights:
      return request.publish_weights().partition();
    case v1::Request::kFindRows:
      return request.find_rows().partition();
    case v1::Request::kList:
      return request.list().partition();
    case v1::Request::kSeal:
      return request.seal().partition();
    case v1::Request::kClear:
      return request.clear().partition();
    case v1::Request::kGetStatus:
      return request.get_status().partition();
    case v1::Request::kGetConsumerStatus:
      return request.get_consumer_status().partition();
    case v1::Request::kExplain:
      return request.explain().partition();
    case v1::Request::kGetRowStatus:
      return request.get_row_status().partition();
    default:
      return "";
  }
}

const v1::LeaseRows* LeaseRowsOf(const v1::Request& request) {
  switch (request.body_case()) {
    case v1::Request::kComplete:
      return &request.complete();
    case v1::Request::kRelease:
      return &request.release();
    case v1::Request::kRenew:
      return &request.renew();
    case v1::Request::kDrop:
      return &request.drop();
    default:
      return nullptr;
  }
}

const char* NameOf(const v1::Request& request) {
  switch (request.body_case()) {
    case v1::Request::kCreatePartition:
      return "creates a partition";
    case v1::Request::kDropPartition:
      return "drops a partition";
    case v1::Request::kListPartitions:
      return "lists partitions";
    case v1::Request::kRegisterConsumer:
      return "registers a consumer";
    case v1::Request::kDropConsumer:
      return "drops a consumer";
    case v1::Request::kPut:
      return "does a put";
    case v1::Request::kTake:
      return "does a take";
    case v1::Request::kFetch:
      return "does a fetch";
    case v1::Request::kComplete:
      return "completes rows";
    case v1::Request::kRelease:
      return "releases rows";
    case v1::Request::kRenew:
      return "renews a lease";
    case v1::Request::kDrop:
      return "drops rows";
    case v1::Request::kRequeue:
      return "requeues rows";
    case v1::Request::kCommit:
      return "commits a step";
    case v1::Request::kRollback:
      return "rolls back";
    case v1::Request::kPublishWeights:
      return "publishes weights";
    case v1::Request::kFindRows:
      return "finds rows";
    case v1::Request::kList:
      return "lists rows";
    case v1::Request::kSeal:
      return "seals a partition";
    case v1::Request::kClear:
      return "clears rows";
    case v1::Request::kGetStatus:
      return "asks for the state of a partition";
    case v1::Request::kGetConsumerStatus:
      return "asks for the state of a consumer";
    case v1::Request::kExplain:
      return "explains what a consumer waits for";
    case v1::Request::kGetRowStatus:
      return "asks for the state of a row";
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
  constexpr int64_t kManyColumns = 128;
  constexpr int64_t kManyBytes = 1 << 20;
  constexpr int kManyKeys = 1024, kManyRanks = 1024;
  // It may have to wait for a long call.
  if (load.busy || load.scarce) return true;
  if (const v1::LeaseRows* const held = LeaseRowsOf(request); held != nullptr) {
    return !request.has_renew() && load.IsLong(held->rows_size() > 0 ? held->rows_size() : load.held_rows);
  }
  switch (request.body_case()) {
    case v1::Request::kPut: {
      const int64_t rows = std::max({batch.rows(), request.put().new_rows(), int64_t{request.put().rows_size()}});
      const auto columns = static_cast<int64_t>(batch.columns().size());
      return load.IsLong(rows) || columns > kManyColumns || PayloadBytes(batch) > kManyBytes;
    }
    case v1::Request::kTake:
      if (request.take().rows_size() > 0) return load.IsLong(request.take().rows_size());
      return load.IsLong(std::min(std::min(request.take().max(), load.rows) * load.group_size, load.rows));
    case v1::Request::kFetch:
      return int64_t{request.fetch().rows_size()} * (1 + request.fetch().columns_size()) >
             dock::ServedDock::Load::kManyCells;
    case v1::Request::kFindRows:
      return request.find_rows().keys_size() > kManyKeys;
    case v1::Request::kCreatePartition:
      return request.create_partition().columns_size() > kManyColumns;
    case v1::Request::kRegisterConsumer: {
      const v1::RegisterConsumer& consumer = request.register_consumer();
      const int names = consumer.reads_size() + consumer.reads_optional_size() + consumer.writes_size();
      return load.IsLong(load.rows) || names > kManyColumns || consumer.ranks() > kManyRanks;
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
