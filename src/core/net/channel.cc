#include "core/net/channel.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/net/endpoint.h"

namespace tdock::net {
namespace {

// Before the welcome.
class Newcomer final : public Recipient {
 public:
  uint32_t MaxBytes(uint8_t type) const override { return type == kWelcome || type == kGoodbye ? kMaxWelcomeBytes : 0; }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override {
    return absl::UnavailableError("the server sent data before it welcomed the client");
  }
};

absl::StatusOr<std::unique_ptr<Stream>> Open(const ServerAddress& server, const Credentials::Current& current,
                                             absl::Time deadline) {
  absl::string_view path = server.address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    TDOCK_ASSIGN_OR_RETURN(auto socket, ConnectToPath(std::string(path), deadline));
    return MakePlainStream(std::move(socket), true, true);
  }
  TDOCK_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(server.address, "the address of the server"));
  TDOCK_ASSIGN_OR_RETURN(auto socket, ConnectTo(endpoint, deadline));
  if (current.tls == nullptr) return MakePlainStream(std::move(socket), false, false);
  return MakeTlsStream(std::move(socket), *current.tls, endpoint.host);
}

// How many sockets a wide connection has besides the first.
constexpr int kJoined = 3;

}  // namespace

// Another socket of the connection, for data.
struct Channel::Joined final : Recipient {
  uint32_t MaxBytes(uint8_t) const override { return 0; }
  bool IsReadyFor(uint64_t tag) override { return recipient->IsReadyFor(tag); }
  void RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) override {
    recipient->RoomsFor(tag, offset, most, rooms);
  }
  absl::Status OnFilled(uint64_t tag, uint64_t offset, size_t bytes) override {
    return recipient->OnFilled(tag, offset, bytes);
  }
  absl::Status OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) override {
    return recipient->OnData(tag, offset, bytes);
  }

  Recipient* recipient = nullptr;
  std::unique_ptr<Stream> stream;
  Inbox in{*this};
  Outbox out;
  bool must_wait = false;  // for what comes over the first
};

Channel::Channel(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
Channel::~Channel() = default;

absl::Status Channel::Widen(const ServerAddress& server, absl::Time deadline) {
  tried_to_widen_ = true;
  const Credentials::Current current =
      server.credentials == nullptr ? Credentials::Current() : server.credentials->Get();
  std::vector<std::unique_ptr<Joined>> made;
  while (std::ssize(made) < kJoined) {
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, Open(server, current, deadline));
    Channel channel(std::move(stream));
    TDOCK_RETURN_IF_ERROR(channel.SayHello(server, current.token, id_, "", deadline));
    made.push_back(std::make_unique<Joined>());
    made.back()->stream = std::move(channel.stream_);
  }
  joined_ = std::move(made);
  return absl::OkStatus();
}

void Channel::AddData(uint64_t tag, std::vector<std::span<const std::byte>> pieces,
                      const std::shared_ptr<const void>& owner) {
  std::vector<Outbox*> streams = {&out_};
  for (const auto& joined : joined_) streams.push_back(&joined->out);
  Outbox::AddStriped(streams, tag, std::move(pieces), owner);
}

absl::StatusOr<std::unique_ptr<Channel>> Channel::Connect(const ServerAddress& server, std::string rest,
                                                          absl::Time deadline) {
  const Credentials::Current current =
      server.credentials == nullptr ? Credentials::Current() : server.credentials->Get();
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, Open(server, current, deadline));
  std::unique_ptr<Channel> channel(new Channel(std::move(stream)));
  absl::Status status =
      channel->SayHello(server, current.token, std::string(kConnectionIdBytes, '\0'), std::move(rest), deadline);
  // Whoever does not answer in time may be gone.
  if (absl::IsDeadlineExceeded(status)) status = absl::UnavailableError("the server did not answer the hello");
  if (!status.ok()) return Annotate(status, EscapeForMessage(server.address));
  return channel;
}

absl::Status Channel::SayHello(const ServerAddress& server, const std::string& token, std::string joins,
                               std::string rest, absl::Time deadline) {
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const bool done, stream_->Handshake());
    if (done) break;
    TDOCK_RETURN_IF_ERROR(Await(deadline));
  }
  // The owner of a Unix socket is known without a token.
  const Hello hello{.role = server.role,
                    .token = stream_->passes_files() ? "" : token,
                    .joins = std::move(joins),
                    .rest = std::move(rest)};
  out_.Add(MessageOf(kHello, 0, Encode(hello)));
  TDOCK_RETURN_IF_ERROR(Flush(deadline));
  Newcomer newcomer;
  in_ = std::make_unique<Inbox>(newcomer);
  const absl::StatusOr<Inbox::Message> message = Receive(newcomer, deadline);
  if (absl::IsInvalidArgument(message.status())) {
    return absl::UnavailableError("what listens there answers as no server of this release does, or expects TLS");
  }
  if (absl::IsUnavailable(message.status()) && !was_told_ && stream_->needs_checksums()) {
    return absl::UnavailableError(absl::StrCat(message.status().message(), " before it answered: it may expect TLS"));
  }
  if (!message.ok()) return message.status();
  if (message->header.type != kWelcome) return absl::UnavailableError("the server did not welcome the client");
  id_ = std::string(message->body.substr(0, kConnectionIdBytes));
  welcome_ = std::string(message->body.substr(id_.size()));
  welcome_file_ = stream_->TakeFile();
  return absl::OkStatus();
}

absl::Status Channel::Await(absl::Time deadline, bool sends) {
  std::vector<pollfd> watched = {{.fd = stream_->fd(), .events = stream_->awaits(), .revents = 0}};
  if (sends && !out_.full()) watched[0].events = 0;
  for (const auto& joined : joined_) {
    if (sends ? joined->out.full() : !joined->must_wait) {
      watched.push_back(
          {.fd = joined->stream->fd(), .events = sends ? joined->stream->awaits() : short{POLLIN}, .revents = 0});
    }
  }
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(sends ? "the server did not read in time what was sent"
                                               : "nothing arrived in time");
    }
    // Rounded up to the next millisecond.
    const int64_t timeout_ms = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
    const int count = poll(watched.data(), watched.size(), static_cast<int>(timeout_ms));
    if (count > 0) return absl::OkStatus();
    if (count < 0 && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
  }
}

absl::Status Channel::Flush(absl::Time deadline) {
  // Each socket takes a turn.
  constexpr size_t kTurnBytes = 1 << 20;
  for (;;) {
    const size_t most = joined_.empty() ? SIZE_MAX : kTurnBytes;
    TDOCK_RETURN_IF_ERROR(out_.Send(*stream_, most));
    bool empty = out_.empty(), full = out_.empty() || out_.full();
    for (const auto& joined : joined_) {
      TDOCK_RETURN_IF_ERROR(joined->out.Send(*joined->stream, most));
      empty = empty && joined->out.empty();
      full = full && (joined->out.empty() || joined->out.full());
    }
    if (empty) return absl::OkStatus();
    if (full) TDOCK_RETURN_IF_ERROR(Await(deadline, true));
  }
}

absl::Status Channel::TakeJoined(Recipient& recipient) {
  for (const auto& joined : joined_) {
    joined->recipient = &recipient;
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const std::optional<Inbox::Message> message, joined->in.Next());
      if (message.has_value()) return absl::UnavailableError("the server sent messages over a socket for data");
      TDOCK_ASSIGN_OR_RETURN(const Inbox::Arrived arrived, joined->in.Read(*joined->stream));
      joined->must_wait = arrived == Inbox::Arrived::kMustWait;
      if (joined->must_wait || arrived == Inbox::Arrived::kNothing) break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Inbox::Message>> Channel::TryReceive(Recipient& recipient) {
  in_->ReplaceRecipient(recipient);
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(std::optional<Inbox::Message> message, in_->Next());
    if (message.has_value()) {
      was_told_ = message->header.type == kGoodbye;
      if (was_told_) return ReasonIn(message->body);
      return message;
    }
    TDOCK_ASSIGN_OR_RETURN(const Inbox::Arrived arrived, in_->Read(*stream_));
    if (arrived == Inbox::Arrived::kMustWait) return absl::UnavailableError("the server sent data before its reply");
    if (arrived != Inbox::Arrived::kNothing) continue;
    TDOCK_RETURN_IF_ERROR(TakeJoined(recipient));
    return std::nullopt;
  }
}

absl::StatusOr<Inbox::Message> Channel::Receive(Recipient& recipient, absl::Time deadline) {
  const absl::Time look_until = std::min(absl::Now() + kLookForAnswer, deadline);
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<Inbox::Message> message, TryReceive(recipient));
    if (message.has_value()) return *message;
    TDOCK_RETURN_IF_ERROR(AwaitInput(look_until, deadline));
  }
}

absl::Status Channel::AwaitInput(absl::Time look_until, absl::Time deadline) {
  if (absl::Now() >= look_until) return Await(deadline);
  // Other threads that want to run may do so.
  sched_yield();
  return absl::OkStatus();
}

bool Channel::IsBroken() const {
  char byte;
  const ssize_t got = recv(stream_->fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  // Over TCP, nothing but a goodbye comes unasked.
  if (got > 0) return !stream_->passes_files();
  return got == 0 || (errno != EAGAIN && errno != EINTR);
}

}  // namespace tdock::net
