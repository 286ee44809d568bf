#include "core/rpc/health.h"

#include <string>
#include <utility>

#include "core/base/status.h"
#include "health.pb.h"

namespace tdock::rpc {
namespace {

using Response = grpc::health::v1::HealthCheckResponse;

std::string Serialized(Response::ServingStatus status) {
  Response response;
  response.set_status(status);
  return response.SerializeAsString();
}

Message MessageOf(const std::string& bytes) { return {Buffer::CopyOf(std::as_bytes(std::span(bytes)))}; }

absl::StatusOr<grpc::health::v1::HealthCheckRequest> ParseQuestion(absl::string_view bytes) {
  grpc::health::v1::HealthCheckRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("a health check is one HealthCheckRequest");
  }
  return request;
}

}  // namespace

class Health::Question final : public CallHandler {
 public:
  Question(Health& health, std::shared_ptr<CallSink> sink, bool watch)
      : health_(health), sink_(std::move(sink)), watch_(watch) {}

  void OnMessage(Pieces message) override {
    std::string bytes;
    for (const auto& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    if (std::exchange(asked_, true)) {
      return sink_->Finish(absl::InvalidArgumentError("a health check is one HealthCheckRequest"));
    }
    const absl::Status status = watch_ ? BeginWatch(bytes) : AnswerOnce(bytes);
    if (!watch_ || !status.ok()) sink_->Finish(status);
  }
  void OnHalfClose() override {
    if (!asked_) sink_->Finish(absl::InvalidArgumentError("a health check without a HealthCheckRequest"));
  }
  void OnGone() override { health_.Remove(sink_); }

 private:
  absl::Status AnswerOnce(absl::string_view bytes) {
    TDOCK_ASSIGN_OR_RETURN(const std::string answer, health_.Check(bytes));
    sink_->Send(MessageOf(answer));
    return absl::OkStatus();
  }
  absl::Status BeginWatch(absl::string_view bytes) {
    TDOCK_ASSIGN_OR_RETURN(const auto request, ParseQuestion(bytes));
    if (request.service().empty()) {
      health_.Watch(sink_);
    } else {
      // A watcher of an unknown service waits until it exists.
      sink_->Send(MessageOf(Serialized(Response::SERVICE_UNKNOWN)));
    }
    return absl::OkStatus();
  }

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

absl::StatusOr<std::string> Health::Check(absl::string_view request) const {
  TDOCK_ASSIGN_OR_RETURN(const auto question, ParseQuestion(request));
  if (!question.service().empty()) {
    return absl::NotFoundError("there is no such service; the empty name means the whole server");
  }
  return Serialized(IsServing() ? Response::SERVING : Response::NOT_SERVING);
}

void Health::Watch(const std::shared_ptr<CallSink>& sink) {
  {
    MutexLock lock(mu_);
    watches_.insert(sink);
  }
  // Sent without the lock, so what StopServing() sends may come first: then it is sent again.
  bool said_serving = false;
  do {
    said_serving = IsServing();
    sink->Send(MessageOf(Serialized(said_serving ? Response::SERVING : Response::NOT_SERVING)));
  } while (said_serving && !IsServing());
}

bool Health::IsServing() const {
  MutexLock lock(mu_);
  return serving_;
}

void Health::StopServing() {
  absl::flat_hash_set<std::shared_ptr<CallSink>> watches;
  {
    MutexLock lock(mu_);
    if (!std::exchange(serving_, false)) return;
    watches = watches_;
  }
  for (const auto& watch : watches) watch->Send(MessageOf(Serialized(Response::NOT_SERVING)));
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
