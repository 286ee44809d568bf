#include "rpc/health.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "health.pb.h"

namespace tdock::rpc {
namespace {

using Response = grpc::health::v1::HealthCheckResponse;

Message Says(Response::ServingStatus status) {
  Response response;
  response.set_status(status);
  const std::string bytes = response.SerializeAsString();
  return {Buffer::CopyOf(std::as_bytes(std::span(bytes)))};
}

}  // namespace

class Health::Question final : public CallHandler {
 public:
  Question(Health& health, std::shared_ptr<CallSink> sink, bool watch)
      : health_(health), sink_(std::move(sink)), watch_(watch) {}

  void OnMessage(Pieces message) override {
    std::string bytes;
    for (const auto& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    grpc::health::v1::HealthCheckRequest request;
    if (std::exchange(asked_, true) || !request.ParseFromString(bytes)) {
      return sink_->Finish(absl::InvalidArgumentError("a health check is one HealthCheckRequest"));
    }
    if (request.service().empty()) return health_.Answer(sink_, watch_);
    // Who watches a service that is not there waits until it is.
    if (watch_) return sink_->Send(Says(Response::SERVICE_UNKNOWN));
    sink_->Finish(absl::NotFoundError("there is no such service; the empty name stands for the server as a whole"));
  }
  void OnHalfClose() override {
    if (!asked_) sink_->Finish(absl::InvalidArgumentError("a health check without a HealthCheckRequest"));
  }
  void OnGone() override { health_.Remove(sink_); }

 private:
  Health& health_;
  const std::shared_ptr<CallSink> sink_;
  const bool watch_;
  bool asked_ = false;
};

std::shared_ptr<CallHandler> Health::Handle(absl::string_view method, const std::shared_ptr<CallSink>& sink) {
  const bool watch = method == "/grpc.health.v1.Health/Watch";
  if (!watch && method != "/grpc.health.v1.Health/Check") return nullptr;
  return std::make_shared<Question>(*this, sink, watch);
}

void Health::Answer(const std::shared_ptr<CallSink>& sink, bool watch) {
  {
    MutexLock lock(mu_);
    if (watch) watches_.insert(sink);
    sink->Send(Says(serving_ ? Response::SERVING : Response::NOT_SERVING));
  }
  if (!watch) sink->Finish(absl::OkStatus());
}

void Health::StopServing() {
  MutexLock lock(mu_);
  if (!std::exchange(serving_, false)) return;
  for (const auto& watch : watches_) watch->Send(Says(Response::NOT_SERVING));
}

void Health::EndWatches() {
  absl::flat_hash_set<std::shared_ptr<CallSink>> watches;
  {
    MutexLock lock(mu_);
    watches = watches_;
  }
  for (const auto& watch : watches) watch->Finish(absl::UnavailableError("the server is shutting down"));
}

void Health::Remove(const std::shared_ptr<CallSink>& watch) {
  MutexLock lock(mu_);
  watches_.erase(watch);
}

}  // namespace tdock::rpc
