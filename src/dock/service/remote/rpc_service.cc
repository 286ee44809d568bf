#include "dock/service/remote/rpc_service.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/remote/answer_gate.h"
#include "dock/service/remote/envelope.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/store/warm_memory.h"

namespace tdock::service {
namespace {

static_assert(kMaxControlBytes == Service::kMaxControlBytes);

// The limit on the bytes of one session's responses in flight.
constexpr int64_t kMaxSendingBytes = int64_t{64} << 20;
// Reading a request of this size takes long, in however many pieces it arrives.
constexpr size_t kLongRequestBytes = 16 << 10;
// Copying this many bytes takes long.
constexpr int64_t kLongBytes = 256 << 10;

int64_t SizeOf(const Answer& answer) {
  // Larger values are not sent, so that a sum of several does not overflow.
  constexpr int64_t kMost = int64_t{1} << 60;
  return static_cast<int64_t>(ByteSize(answer.reply)) + std::min(BytesInFrame(answer.rows), kMost);
}

// The messages of a call's response. The dock's bytes stay alive until the client reports that its copy is no longer
// used, so they count as held, as they do if rows are views.
absl::StatusOr<std::vector<rpc::Message>> MessagesOf(const Answer& answer, Session& session, uint64_t call,
                                                     Memory* memory, uint64_t max_bytes) {
  if (answer.rows.empty() || answer.rows.columns().empty()) {
    return ToMessages(Serialize(answer.reply), Batch());
  }
  TDOCK_ASSIGN_OR_RETURN(const Batch cells, CellsOf(answer.rows, memory, max_bytes));
  message::Reply reply = answer.reply;
  RowsIn(reply)->has_frame = true;
  RowsIn(reply)->pin = call;
  session.Pin(call, answer.rows);
  return ToMessages(Serialize(reply), cells);
}

void Send(Service& service, rpc::CallSink& sink, Session& session, uint64_t call, const Answer& answer,
          Memory* memory) {
  absl::StatusOr<std::vector<rpc::Message>> messages =
      OrNoMemory("the answer", [&] { return MessagesOf(answer, session, call, memory, service.max_frame_bytes()); });
  if (!messages.ok()) {
    const auto refusal = service.Refuse(session, call, answer, messages.status());
    messages = ToMessages(Serialize(refusal->reply), Batch());
  }
  if (!messages.ok()) return sink.Finish(messages.status());
  for (rpc::Message& message : *messages) sink.Send(std::move(message));
  sink.Finish(absl::OkStatus());
}

// Keeps a session alive, from its hello on, as long as the stream exists.
class SessionHandler final : public rpc::CallHandler {
 public:
  SessionHandler(Service& service, std::shared_ptr<rpc::CallSink> sink, std::shared_ptr<SessionStreams> streams)
      : service_(service), sink_(std::move(sink)), streams_(std::move(streams)) {
    streams_->Add(sink_);
  }

  void OnMessage(rpc::Pieces message) override {
    const absl::Status status = OrNoMemory("the message", [&] {
      std::string bytes;
      for (const auto& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return connection_ == nullptr ? OnHello(bytes) : OnTold(bytes);
    });
    if (!status.ok()) sink_->Finish(status);
  }
  void OnHalfClose() override { sink_->Finish(absl::OkStatus()); }
  void OnGone() override {
    streams_->Remove(sink_);
    connection_.reset();
  }

 private:
  absl::Status OnHello(const std::string& bytes) {
    const absl::StatusOr<message::Hello> hello = Parse<message::Hello>(bytes);
    if (!hello.ok()) return absl::InvalidArgumentError("a hello that cannot be parsed");
    TDOCK_ASSIGN_OR_RETURN(Service::Welcomed welcomed, service_.Connect(*hello));
    connection_ = std::move(welcomed.connection);
    const std::string welcome = Serialize(welcomed.welcome);
    sink_->Send({Buffer::CopyOf(std::as_bytes(std::span(welcome)))});
    return absl::OkStatus();
  }
  absl::Status OnTold(const std::string& bytes) {
    absl::StatusOr<message::Request> request = Parse<message::Request>(bytes);
    if (!request.ok() || (request->verb != message::kAcknowledge && request->verb != message::kCancel)) {
      return absl::InvalidArgumentError("a session stream carries only cancellations and acknowledgements");
    }
    service_.Call(connection_->session(), *std::move(request), Batch(), [](const auto&) {});
    return absl::OkStatus();
  }

  Service& service_;
  const std::shared_ptr<rpc::CallSink> sink_;
  const std::shared_ptr<SessionStreams> streams_;
  std::unique_ptr<Service::Connection> connection_;
};

class RequestHandler final : public rpc::CallHandler {
 public:
  RequestHandler(Service& service, std::shared_ptr<rpc::CallSink> sink, std::shared_ptr<Memory> memory,
                 std::shared_ptr<AnswerGates> gates)
      : service_(service),
        sink_(std::move(sink)),
        memory_(std::move(memory)),
        gates_(std::move(gates)),
        reader_([this](const std::string& control) { return OnControl(control); }) {}

  void OnMessage(rpc::Pieces message) override {
    if (started_) return sink_->Finish(absl::InvalidArgumentError("bytes after a complete request"));
    for (const auto& piece : message) bytes_ += piece.size();
    if (bytes_ >= kLongRequestBytes) rpc::HandWaitingOver();
    absl::Status status = OrNoMemory("the request", [&] { return reader_.Feed(message); });
    if (status.ok() && reader_.done()) status = Start();
    if (!status.ok()) sink_->Finish(status);
  }
  void OnHalfClose() override {
    if (!started_) sink_->Finish(absl::InvalidArgumentError("an incomplete request"));
  }
  // The call continues: it belongs to the session.
  void OnGone() override {
    if (gated_ != nullptr) gated_->End();
  }

 private:
  absl::StatusOr<std::unique_ptr<FrameReader>> OnControl(const std::string& control) {
    absl::StatusOr<message::Request> request = Parse<message::Request>(control);
    if (!request.ok()) return absl::InvalidArgumentError("a request that cannot be parsed");
    request_ = *std::move(request);
    session_ = service_.FindSession(request_.session);
    if (session_ == nullptr) {
      // The client treats it as not carried out.
      return absl::AbortedError("there is no such session: the server was restarted, or has ended it");
    }
    if (!HasFrame(request_)) return nullptr;
    FrameLimits limits;
    limits.max_frame_bytes = service_.max_frame_bytes();
    // If there is no such partition, the dock says so when it gets the put.
    const absl::StatusOr<std::shared_ptr<Memory>> memory = service_.MemoryFor(FirstText(request_.body));
    return std::make_unique<FrameReader>(limits, [memory = memory.ok() ? *memory : nullptr](size_t bytes) {
      return memory == nullptr ? Buffer::Allocate(bytes) : memory->Allocate(bytes);
    });
  }

  absl::Status Start() {
    started_ = true;
    TDOCK_ASSIGN_OR_RETURN(Batch batch, reader_.Finish());
    const uint64_t call = request_.call;
    gated_ = std::make_shared<AnswerGate::Call>(gates_->For(session_.get()));
    const auto send = [&service = service_, sink = sink_, session = session_, call, memory = memory_](
                          const Answer& answer) { Send(service, *sink, *session, call, answer, memory.get()); };
    service_.Call(session_, std::move(request_), std::move(batch),
                  [gated = gated_, send](const std::shared_ptr<const Answer>& answer) {
                    const int64_t bytes = SizeOf(*answer);
                    AnswerGate::Call::Answer(gated, bytes, [send, answer, bytes] {
                      if (bytes >= kLongBytes) rpc::HandWaitingOver();
                      send(*answer);
                    });
                  });
    return absl::OkStatus();
  }

  Service& service_;
  const std::shared_ptr<rpc::CallSink> sink_;
  const std::shared_ptr<Memory> memory_;
  const std::shared_ptr<AnswerGates> gates_;
  std::shared_ptr<AnswerGate::Call> gated_;
  message::Request request_;
  std::shared_ptr<Session> session_;
  EnvelopeReader reader_;
  size_t bytes_ = 0;
  bool started_ = false;
};

}  // namespace

void SessionStreams::Add(const std::shared_ptr<rpc::CallSink>& stream) {
  MutexLock lock(mu_);
  streams_.insert(stream);
}

void SessionStreams::Remove(const std::shared_ptr<rpc::CallSink>& stream) {
  MutexLock lock(mu_);
  streams_.erase(stream);
}

void SessionStreams::EndAll(const absl::Status& why) {
  absl::flat_hash_set<std::shared_ptr<rpc::CallSink>> streams;
  {
    MutexLock lock(mu_);
    streams = streams_;
  }
  for (const auto& stream : streams) stream->Finish(why);
}

rpc::HandlerFactory ServeOverRpc(Service& service, std::shared_ptr<SessionStreams> streams) {
  if (streams == nullptr) streams = std::make_shared<SessionStreams>();
  // For responses whose cells must be copied together.
  const auto memory = std::make_shared<dock::WarmMemory>();
  const auto gates = std::make_shared<AnswerGates>(kMaxSendingBytes);
  return [&service, memory, gates, streams](
             absl::string_view method,
             std::shared_ptr<rpc::CallSink> sink) -> absl::StatusOr<std::shared_ptr<rpc::CallHandler>> {
    if (method == kCallMethod) return std::make_shared<RequestHandler>(service, std::move(sink), memory, gates);
    if (method == kSessionMethod) return std::make_shared<SessionHandler>(service, std::move(sink), streams);
    return absl::UnimplementedError(
        absl::StrCat("there is no method ", Quoted(method), "; there are ", kCallMethod, " and ", kSessionMethod));
  };
}

}  // namespace tdock::service
