// Whatever a request says, the service answers it, or waits until it is cancelled; and what a dock is asked can be said
// again with the same bytes.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <string>

#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

// Reading what is written brings back the same.
template <class T>
void CheckAgain(absl::string_view body) {
  const absl::StatusOr<T> decoded = Decode<T>(body);
  if (!decoded.ok()) return;
  const std::string again = Encode(*decoded);
  const absl::StatusOr<T> read = Decode<T>(again);
  if (!read.ok() || Encode(*read) != again) std::abort();
}

void CheckCodecs(const message::Request& request) {
  const std::string bytes = Serialize(request);
  if (ByteSize(request) != bytes.size() || Serialize(*Parse<message::Request>(bytes)) != bytes) std::abort();
  CheckAgain<PartitionOptions>(request.body);
  CheckAgain<RegisterRequest>(request.body);
  CheckAgain<PutRequest>(request.body);
  CheckAgain<FillRequest>(request.body);
  CheckAgain<TakeRequest>(request.body);
  CheckAgain<FetchRequest>(request.body);
  CheckAgain<LeaseRequest>(request.body);
  CheckAgain<RequeueRequest>(request.body);
  CheckAgain<StepRequest>(request.body);
  CheckAgain<ListRequest>(request.body);
  CheckAgain<ClearRequest>(request.body);
  CheckAgain<FindRequest>(request.body);
}

void Try(const std::string& bytes) {
  absl::StatusOr<message::Request> request = Parse<message::Request>(bytes);
  if (!request.ok()) return;
  CheckCodecs(*request);
  TestService service;
  const PartitionOptions partition{.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}, {"text", {}}}};
  if (!service.dock->CreatePartition(partition).ok()) std::abort();
  if (!service.dock->RegisterConsumer("p", {.name = "c", .reads = {"a"}}).ok()) std::abort();
  if (!service.dock->Put({.partition = "p", .new_rows = 2}).ok()) std::abort();
  const absl::StatusOr<Service::Welcomed> welcomed = service.service.Connect({});
  if (!welcomed.ok()) std::abort();
  std::promise<void> answered;
  service.service.Call(welcomed->connection->session(), *request, Batch(),
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
