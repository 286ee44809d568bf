#include "remote/rpc_transport.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "arena/warm_memory.h"
#include "base/status.h"
#include "remote/envelope.h"

namespace tdock {
namespace {

const v1::Rows* RowsIn(const v1::Reply& reply) {
  if (reply.has_taken()) return &reply.taken().rows();
  return reply.has_rows() ? &reply.rows() : nullptr;
}

rpc::Message AsMessage(const std::string& bytes) { return {Buffer::CopyOf(std::as_bytes(std::span(bytes)))}; }

}  // namespace

RpcTransport::RpcTransport(const rpc::StreamClientOptions& options)
    : options_(options), memory_(std::make_shared<WarmMemory>()) {}

RpcTransport::~RpcTransport() = default;

absl::StatusOr<rpc::StreamClient*> RpcTransport::Client(absl::Time deadline) {
  MutexLock lock(mu_);
  if (client_ == nullptr) {
    rpc::StreamClientOptions options = options_;
    options.connect_timeout = deadline - absl::Now();
    TDOCK_ASSIGN_OR_RETURN(client_, rpc::StreamClient::Connect(options));
  }
  return client_.get();
}

absl::StatusOr<v1::Welcome> RpcTransport::Connect(const v1::Hello& hello, absl::Time deadline) {
  TDOCK_ASSIGN_OR_RETURN(rpc::StreamClient* const client, Client(deadline));
  std::shared_ptr<Stream> old;
  {
    MutexLock lock(mu_);
    old = stream_;
  }
  if (old != nullptr && !hello.session().empty()) {
    // It was only one call that broke.
    MutexLock lock(old->mu);
    if (old->welcomed && !old->over && old->welcome.session() == hello.session()) {
      v1::Welcome welcome = old->welcome;
      welcome.set_resumed(true);
      return welcome;
    }
  }
  auto fresh = std::make_shared<Stream>();
  // The stream does not outlive what it calls: it is the last member of that.
  Stream* const stream = fresh.get();
  fresh->stream = client->Open(
      kSessionMethod,
      [stream](rpc::Pieces message) {
        std::string bytes;
        for (const auto& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        MutexLock lock(stream->mu);
        if (stream->welcomed || !stream->welcome.ParseFromString(bytes)) return;
        stream->welcomed = true;
        stream->changed.NotifyAll();
      },
      [stream](const absl::Status& end) {
        MutexLock lock(stream->mu);
        stream->over = true;
        stream->end = end;
        stream->changed.NotifyAll();
      });
  fresh->stream->Send(AsMessage(hello.SerializeAsString()));
  {
    MutexLock lock(stream->mu);
    while (!stream->welcomed && !stream->over) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return absl::UnavailableError("the server did not answer the hello");
      stream->changed.WaitUntil(stream->mu, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
    }
    if (!stream->welcomed) {
      return stream->end.ok() ? absl::UnavailableError("the server ended the session") : stream->end;
    }
  }
  MutexLock lock(mu_);
  stream_ = fresh;
  MutexLock stream_lock(stream->mu);
  return stream->welcome;
}

ClientAnswer RpcTransport::Call(const v1::Request& request, const Batch& batch, absl::Time deadline) {
  ClientAnswer answer;
  absl::StatusOr<rpc::StreamClient*> client = Client(deadline);
  if (!client.ok()) {
    answer.status = client.status();
    return answer;
  }
  const absl::StatusOr<std::vector<rpc::Message>> messages = ToMessages(request.SerializeAsString(), batch);
  if (!messages.ok()) {
    answer.status = messages.status();
    return answer;
  }
  EnvelopeReader reader([&](const std::string& control) -> absl::StatusOr<std::unique_ptr<FrameReader>> {
    if (!answer.reply.ParseFromString(control)) return absl::DataLossError("the server's answer cannot be read");
    const v1::Rows* const rows = RowsIn(answer.reply);
    if (rows == nullptr || !rows->has_frame()) return nullptr;
    return std::make_unique<FrameReader>(FrameLimits{}, [this](size_t bytes) { return memory_->Allocate(bytes); });
  });
  const rpc::CallResult result = (*client)->Call(
      kCallMethod, *messages, [&](rpc::Pieces message) { return reader.Feed(message); }, deadline);
  answer.sent = result.sent;
  answer.status = result.status;
  if (absl::IsCancelled(answer.status)) {
    // Nobody here cancels a call: it is a server that shuts down.
    answer.status = absl::UnavailableError("the server has ended the call");
  }
  if (absl::IsAborted(answer.status)) {
    // The server refused to look at it.
    answer.status = absl::UnavailableError(answer.status.message());
    answer.sent = false;
  }
  if (!answer.status.ok()) return answer;
  if (!reader.done()) {
    answer.status = absl::UnavailableError("the answer ended before it was complete");
    return answer;
  }
  const v1::Rows* const rows = RowsIn(answer.reply);
  if (rows == nullptr) return answer;
  absl::StatusOr<Batch> cells = reader.Finish();
  answer.status = cells.status();
  if (!cells.ok()) return answer;
  absl::StatusOr<CellBytes> bytes = CellsIn(*rows, *cells);
  answer.status = bytes.status();
  if (bytes.ok()) answer.cells = *std::move(bytes);
  return answer;
}

bool RpcTransport::Tell(const v1::Request& request, absl::Duration) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mu_);
    stream = stream_;
  }
  return stream != nullptr && stream->stream->Send(AsMessage(request.SerializeAsString()));
}

}  // namespace tdock
