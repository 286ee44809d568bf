// Whatever a request says, the service answers it, or waits until it is cancelled; and what a dock is asked can be said
// again with the same bytes.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <string>

#include "dock/service/wire/request_codec.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

// Reading what is written brings back the same.
template <class Message, class Decoded>
void CheckAgain(const Decoded& decoded) {
  Message again;
  Encode(decoded, &again);
  const auto read = Decode(again);
  Message twice;
  if constexpr (requires { read.ok(); }) {
    if (!read.ok()) std::abort();
    Encode(*read, &twice);
  } else {
    Encode(read, &twice);
  }
  if (again.SerializeAsString() != twice.SerializeAsString()) std::abort();
}

void CheckCodecs(const v1::Request& request) {
  if (request.has_create_partition()) {
    const absl::StatusOr<PartitionOptions> options = Decode(request.create_partition());
    if (options.ok()) CheckAgain<v1::PartitionOptions>(*options);
  }
  if (request.has_list()) {
    const absl::StatusOr<ListRequest> list = Decode(request.list());
    if (list.ok()) CheckAgain<v1::List>(*list);
  }
  if (request.has_clear()) {
    const absl::StatusOr<ClearRequest> clear = Decode(request.clear());
    if (clear.ok()) CheckAgain<v1::ClearRows>(*clear);
  }
  if (request.has_complete()) CheckAgain<v1::LeaseRows>(Decode(request.complete()));
  if (request.has_requeue()) CheckAgain<v1::Requeue>(Decode(request.requeue()));
  if (request.has_rollback()) CheckAgain<v1::Step>(Decode(request.rollback()));
}

void Try(const std::string& bytes) {
  v1::Request request;
  if (!request.ParseFromString(bytes)) return;
  CheckCodecs(request);
  TestService service;
  const PartitionOptions partition{.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}, {"text", {}}}};
  if (!service.dock->CreatePartition(partition).ok()) std::abort();
  if (!service.dock->RegisterConsumer("p", {.name = "c", .reads = {"a"}}).ok()) std::abort();
  if (!service.dock->Put({.partition = "p", .new_rows = 2}).ok()) std::abort();
  v1::Hello hello;
  hello.set_protocol(Service::kProtocol);
  const absl::StatusOr<Service::Welcomed> welcomed = service.service.Connect(hello);
  if (!welcomed.ok()) std::abort();
  request.set_session(welcomed->welcome.session());
  std::promise<void> answered;
  service.service.Call(welcomed->connection->session(), request, Batch(),
                       [&](const std::shared_ptr<const Answer>&) { answered.set_value(); });
  service.service.Drain();
  if (answered.get_future().wait_for(std::chrono::seconds(5)) != std::future_status::ready) std::abort();
}

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tdock::service::Try(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
