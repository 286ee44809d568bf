#include "dock/service/remote/rpc_transport.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "dock/service/remote/envelope.h"
#include "dock/store/warm_memory.h"

namespace tdock::service {
namespace {

rpc::Message AsMessage(const std::string& bytes) { return {Buffer::CopyOf(std::as_bytes(std::span(bytes)))}; }

}  // namespace

RpcTransport::RpcTransport(const rpc::StreamClientOptions& options, ForkGuard* fork_guard)
    : options_(options), fork_guard_(fork_guard), memory_(std::make_shared<dock::WarmMemory>()) {
  if (fork_guard_ != nullptr) ForkGuard::Connections::Of(*fork_guard_).Add(this);
}

RpcTransport::~RpcTransport() {
  if (fork_guard_ != nullptr) ForkGuard::Connections::Of(*fork_guard_).Remove(this);
}

absl::StatusOr<RpcTransport::Client> RpcTransport::GetClient(absl::Time deadline) {
  MutexLock lock(mu_);
  while (paused_) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::UnavailableError("the connection is closed for a fork");
    resumed_.WaitUntil(mu_, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
  }
  if (client_ == nullptr) {
    rpc::StreamClientOptions options = options_;
    options.connect_timeout = deadline - absl::Now();
    TDOCK_ASSIGN_OR_RETURN(client_, rpc::StreamClient::Connect(options));
  }
  return client_;
}

void RpcTransport::Pause(absl::Time deadline) {
  std::weak_ptr<rpc::StreamClient> left;
  {
    MutexLock lock(mu_);
    paused_ = true;
    left = client_;
    if (client_ != nullptr) client_->CancelAll();
    client_.reset();
    stream_.reset();
  }
  // Calls that were cancelled release it, and are repeated when possible.
  for (;;) {
    const Client client = left.lock();
    if (client == nullptr || absl::Now() >= deadline) return;
    client->CancelAll();  // including one that has only just begun
    absl::SleepFor(absl::Milliseconds(1));
  }
}

void RpcTransport::Resume(absl::Time deadline) {
  message::Hello hello;
  {
    MutexLock lock(mu_);
    if (!paused_) return;
    paused_ = false;
    resumed_.NotifyAll();
    hello = hello_;
  }
  // The server ends a session after a second, so reconnect at once, not with the next call.
  if (!hello.session.empty()) Connect(hello, deadline).IgnoreError();
}

absl::StatusOr<message::Welcome> RpcTransport::Connect(const message::Hello& hello, absl::Time deadline) {
  TDOCK_ASSIGN_OR_RETURN(const Client client, GetClient(deadline));
  std::shared_ptr<Stream> old;
  {
    MutexLock lock(mu_);
    old = stream_;
  }
  if (old != nullptr && !hello.session.empty()) {
    // Only that one call broke.
    MutexLock lock(old->mu);
    if (old->welcomed && !old->over && old->welcome.session == hello.session) {
      message::Welcome welcome = old->welcome;
      welcome.resumed = true;
      return welcome;
    }
  }
  auto fresh = std::make_shared<Stream>();
  // The stream does not outlive what it calls: it is the last member of that.
  Stream* const stream = fresh.get();
  stream->client = client;
  fresh->stream = client->Open(
      kSessionMethod,
      [stream](rpc::Pieces message) {
        std::string bytes;
        for (const auto& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        MutexLock lock(stream->mu);
        absl::StatusOr<message::Welcome> welcome = Parse<message::Welcome>(bytes);
        if (stream->welcomed || !welcome.ok()) return;
        stream->welcome = *std::move(welcome);
        stream->welcomed = true;
        stream->changed.NotifyAll();
      },
      [stream](const absl::Status& end) {
        MutexLock lock(stream->mu);
        stream->over = true;
        stream->end = end;
        stream->changed.NotifyAll();
      });
  fresh->stream->Send(AsMessage(Serialize(hello)));
  {
    MutexLock lock(stream->mu);
    while (!stream->welcomed && !stream->over) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return absl::UnavailableError("the server did not answer the hello");
      stream->changed.WaitUntil(stream->mu, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
    }
    if (!stream->welcomed) {
      // Only Pause cancels it.
      const bool ended = stream->end.ok() || absl::IsCancelled(stream->end);
      return ended ? absl::UnavailableError("the session was ended") : stream->end;
    }
  }
  MutexLock lock(mu_);
  if (client != client_) return absl::UnavailableError("the connection was closed for a fork");
  stream_ = fresh;
  hello_ = hello;
  {
    MutexLock stream_lock(stream->mu);
    hello_.session = stream->welcome.session;
  }
  MutexLock stream_lock(stream->mu);
  return stream->welcome;
}

ClientAnswer RpcTransport::Call(const message::Request& request, const Batch& batch, absl::Time deadline) {
  ClientAnswer answer;
  const absl::StatusOr<Client> client = GetClient(deadline);
  if (!client.ok()) {
    answer.status = client.status();
    return answer;
  }
  const absl::StatusOr<std::vector<rpc::Message>> messages = ToMessages(Serialize(request), batch);
  if (!messages.ok()) {
    answer.status = messages.status();
    return answer;
  }
  EnvelopeReader reader([&](const std::string& control) -> absl::StatusOr<std::unique_ptr<FrameReader>> {
    absl::StatusOr<message::Reply> reply = Parse<message::Reply>(control);
    if (!reply.ok()) return absl::DataLossError("the server's response cannot be parsed");
    answer.reply = *std::move(reply);
    const message::Rows* const rows = RowsIn(answer.reply);
    if (rows == nullptr || !rows->has_frame) return nullptr;
    return std::make_unique<FrameReader>(FrameLimits{}, [this](size_t bytes) { return memory_->Allocate(bytes); });
  });
  const rpc::CallResult result = (*client)->Call(
      kCallMethod, *messages, [&](rpc::Pieces message) { return reader.Feed(message); }, deadline);
  answer.sent = result.sent;
  answer.status = result.status;
  if (absl::IsCancelled(answer.status)) {
    // Pause cancels calls here, and a server that shuts down.
    answer.status = absl::UnavailableError("the call was cancelled, for a fork or by the server");
  }
  if (absl::IsAborted(answer.status)) {
    // The server rejected it unread.
    answer.status = absl::UnavailableError(answer.status.message());
    answer.sent = false;
  }
  if (!answer.status.ok()) return answer;
  if (!reader.done()) {
    answer.status = absl::UnavailableError("the response ended before it was complete");
    return answer;
  }
  const message::Rows* const rows = RowsIn(answer.reply);
  if (rows == nullptr) return answer;
  absl::StatusOr<Batch> cells = reader.Finish();
  answer.status = cells.status();
  if (!cells.ok()) return answer;
  absl::StatusOr<CellBytes> bytes = CellsIn(*rows, *cells);
  answer.status = bytes.status();
  if (bytes.ok()) answer.cells = *std::move(bytes);
  return answer;
}

bool RpcTransport::Tell(const message::Request& request, absl::Duration) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mu_);
    stream = stream_;
  }
  return stream != nullptr && stream->stream->Send(AsMessage(Serialize(request)));
}

}  // namespace tdock::service
