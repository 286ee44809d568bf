#include "core/rpc/stream_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/rpc/client_stream.h"
#include "core/rpc/completion.h"
#include "core/rpc/endpoint.h"
#include "core/rpc/grpc_bytes.h"
#include "core/rpc/settings.h"
#include "core/rpc/stream_events.h"

namespace tdock::rpc {
namespace {

using Queue = std::unique_ptr<grpc::CompletionQueue>;

// Completion queues, which are expensive to make; each serves one call at a time, whose thread polls it. Thread-safe.
class QueuePool {
 public:
  ~QueuePool() {
    for (const Queue& queue : idle_) {
      queue->Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue->Next(&tag, &ok)) continue;
    }
  }

  Queue Take() TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (!idle_.empty()) {
        Queue queue = std::move(idle_.back());
        idle_.pop_back();
        return queue;
      }
    }
    return std::make_unique<grpc::CompletionQueue>();
  }

  void GiveBack(Queue queue) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    idle_.push_back(std::move(queue));
  }

 private:
  Mutex mu_;
  std::vector<Queue> idle_ TDOCK_GUARDED_BY(mu_);
};

// The operations of one blocking call. At most one write, one read and one finish are in progress at once.
class BlockingCall {
 public:
  BlockingCall(grpc::GenericStub& stub, grpc::ClientContext& context, const std::string& method,
               grpc::CompletionQueue& queue, std::span<const Message> messages,
               const std::function<absl::Status(Pieces)>& on_message)
      : context_(context), queue_(queue), messages_(messages), on_message_(on_message) {
    // The first message is sent together with the headers.
    context_.set_initial_metadata_corked(true);
    stream_ = stub.PrepareCall(&context_, method, &queue_);
  }

  absl::Status Run() {
    stream_->StartCall(nullptr);
    Write();
    Read();
    void* tag = nullptr;
    bool ok = false;
    while (under_way_ > 0 && AwaitEvent(queue_, &tag, &ok)) {
      --under_way_;
      if (tag == &outgoing_) {
        outgoing_.Clear();
        if (ok && next_ < messages_.size()) Write();
      } else if (tag == &incoming_) {
        OnRead(ok);
      }
    }
    return own_.ok() ? FromGrpc(status_) : own_;
  }

 private:
  void Write() {
    ++under_way_;
    if (messages_.empty()) return stream_->WritesDone(&outgoing_);
    outgoing_ = ToByteBuffer(messages_[next_++]);
    grpc::WriteOptions options;
    if (next_ == messages_.size()) options.set_last_message();
    stream_->Write(outgoing_, options, &outgoing_);
  }

  void Read() {
    ++under_way_;
    stream_->Read(&incoming_, &incoming_);
  }

  void OnRead(bool ok) {
    if (!ok) {
      ++under_way_;
      return stream_->Finish(&status_, &status_);
    }
    if (own_.ok()) {
      const ReceivedPieces received(incoming_);
      own_ = on_message_(received.pieces());
      if (!own_.ok()) context_.TryCancel();
    }
    incoming_.Clear();
    Read();
  }

  grpc::ClientContext& context_;
  grpc::CompletionQueue& queue_;
  const std::span<const Message> messages_;
  const std::function<absl::Status(Pieces)>& on_message_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  size_t next_ = 0;
  int under_way_ = 0;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  grpc::Status status_;
  absl::Status own_;
};

// The calls and streams of a client. Thread-safe.
class Running {
 public:
  using Context = std::shared_ptr<grpc::ClientContext>;

  void Add(Context context) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    contexts_.insert(std::move(context));
  }
  void Remove(const Context& context) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    contexts_.erase(context);
  }
  void CancelAll() TDOCK_EXCLUDES(mu_) {
    absl::flat_hash_set<Context> contexts;
    {
      MutexLock lock(mu_);
      contexts = contexts_;
    }
    // Callbacks may run in here.
    for (const Context& context : contexts) context->TryCancel();
  }

 private:
  Mutex mu_;
  absl::flat_hash_set<Context> contexts_ TDOCK_GUARDED_BY(mu_);
};

class StreamClientImpl final : public StreamClient {
 public:
  StreamClientImpl(const StreamClientOptions& options, std::string target, std::shared_ptr<grpc::Channel> channel)
      : options_(options), target_(std::move(target)), channel_(std::move(channel)), stub_(channel_) {
    if (options_.prompt_streams) events_->BeginPrompt();
  }
  ~StreamClientImpl() override {
    if (options_.prompt_streams) events_->EndPrompt();
  }

  absl::Status AwaitConnection() {
    const absl::Time deadline = Clock::Real().Now() + options_.connect_timeout;
    if (channel_->WaitForConnected(ToGrpc(deadline))) return absl::OkStatus();
    // A call reports what went wrong in the attempts; if one still hangs, the call ends at its deadline.
    const absl::Status why = Call(
                                 "/grpc.health.v1.Health/Check", {}, [](Pieces) { return absl::OkStatus(); },
                                 Clock::Real().Now() + absl::Milliseconds(50))
                                 .status;
    return absl::UnavailableError(absl::StrCat("no connection to ", target_, " within ",
                                               absl::FormatDuration(options_.connect_timeout),
                                               absl::IsUnavailable(why) ? absl::StrCat(": ", why.message()) : ""));
  }

  CallResult Call(absl::string_view method, std::span<const Message> messages,
                  const std::function<absl::Status(Pieces)>& on_message, absl::Time deadline) override {
    const Running::Context context = MakeContext();
    running_.Add(context);
    if (deadline != absl::InfiniteFuture()) context->set_deadline(ToGrpc(deadline));
    Queue queue = queues_.Take();
    CallResult result;
    result.status = BlockingCall(stub_, *context, std::string(method), *queue, messages, on_message).Run();
    queues_.GiveBack(std::move(queue));
    running_.Remove(context);
    // The peer is the target's name until the call has a connection, and then an address.
    result.sent = !absl::StartsWith(context->peer(), "dns:");
    result.status = Explain(result.status, method);
    return result;
  }

  void CancelAll() override { running_.CancelAll(); }

  std::unique_ptr<ClientStream> Open(absl::string_view method, std::function<void(Pieces)> on_message,
                                     std::function<void(const absl::Status&)> on_end) override {
    const Running::Context context = MakeContext();
    running_.Add(context);
    auto call = std::make_shared<StreamCall>(
        context, std::move(on_message),
        [this, context, name = std::string(method), on_end = std::move(on_end)](const grpc::Status& status) {
          running_.Remove(context);
          on_end(Explain(FromGrpc(status), name));
        });
    call->Start(stub_, std::string(method), events_->queue());
    events_->Expect();
    return std::make_unique<OpenStream>(std::move(call), *events_);
  }

 private:
  Running::Context MakeContext() const {
    auto context = std::make_shared<grpc::ClientContext>();
    if (!options_.token.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
    return context;
  }

  // gRPC's own messages do not name the server and the operation.
  absl::Status Explain(const absl::Status& status, absl::string_view method) const {
    if (absl::IsUnavailable(status)) return Annotate(status, target_);
    if (absl::IsDeadlineExceeded(status) && status.message() == "Deadline Exceeded") {
      return absl::DeadlineExceededError(absl::StrCat(target_, " did not answer ", method, " by its deadline"));
    }
    return status;
  }

  const StreamClientOptions options_;
  const std::string target_;
  QueuePool queues_;
  Running running_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const std::shared_ptr<StreamEvents> events_ = StreamEvents::Get();
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  TDOCK_ASSIGN_OR_RETURN(TlsTexts texts, ReadTlsFiles(files));
  return grpc::SslCredentials({.pem_root_certs = std::move(texts.ca),
                               .pem_private_key = std::move(texts.key),
                               .pem_cert_chain = std::move(texts.certificate)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamClient>> StreamClient::Connect(const StreamClientOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(options.target, "the address of the server"));
  TDOCK_ASSIGN_OR_RETURN(auto credentials, ClientCredentials(options.tls));
  SetUpProcess();
  const std::string target = endpoint.ToString();
  auto channel = grpc::CreateCustomChannel(absl::StrCat("dns:///", target), credentials, ClientSettings(options));
  auto client = std::make_unique<StreamClientImpl>(options, target, std::move(channel));
  TDOCK_RETURN_IF_ERROR(client->AwaitConnection());
  return std::unique_ptr<StreamClient>(std::move(client));
}

}  // namespace tdock::rpc
