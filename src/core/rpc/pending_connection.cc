#include "core/rpc/pending_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tdock::rpc {
namespace {

// The limit on what a client still sends after its response: twice the window that it was given.
constexpr size_t kMostDiscardedBytes = 128 << 10;

bool WouldBlock() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

PendingConnection::PendingConnection(const AdmissionRules& rules, const TlsIdentity* identity, Socket socket)
    : socket_(std::move(socket)), admission_(rules) {
  if (identity == nullptr) return;
  tls_ = TlsSession::Make(*identity, std::move(socket_));
  failed_ = tls_ == nullptr;
}

PendingConnection::Next PendingConnection::Advance(bool ended, std::span<char> scratch) {
  if (failed_) return Next::kClose;
  if (leaving_) return Discard(scratch);
  if (!ShakeHands()) return failed_ ? Next::kClose : Next::kStay;
  const absl::string_view seen = tls_ == nullptr ? LookAtPlain(scratch) : LookThroughTls(scratch);
  if (failed_) return Next::kClose;
  switch (admission_.Look(seen)) {
    case Admission::Verdict::kOpen:
      return !ended && Greet() ? Next::kStay : Next::kClose;
    case Admission::Verdict::kAdmit:
      return Next::kAdmit;
    case Admission::Verdict::kAnswered:
      return Greet() && Send(admission_.answer()) ? Leave(scratch) : Next::kClose;
    case Admission::Verdict::kRefused:
      break;
  }
  return Next::kClose;
}

Admitted PendingConnection::Take() {
  return {.socket = std::move(socket_), .tls = std::move(tls_), .received = std::move(received_)};
}

bool PendingConnection::ShakeHands() {
  if (tls_ == nullptr || shaken_hands_) return true;
  const TlsSession::Step step = tls_->Handshake();
  shaken_hands_ = step == TlsSession::Step::kDone;
  failed_ = !shaken_hands_ && step != TlsSession::Step::kBlocked;
  return shaken_hands_;
}

bool PendingConnection::Greet() {
  if (!greeted_) greeted_ = Send(Admission::Greeting());
  return greeted_;
}

absl::string_view PendingConnection::LookAtPlain(std::span<char> scratch) {
  const ssize_t got = recv(socket_.get(), scratch.data(), scratch.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) return {scratch.data(), static_cast<size_t>(got)};
  failed_ = got == 0 || !WouldBlock();
  return {};
}

absl::string_view PendingConnection::LookThroughTls(std::span<char> scratch) {
  while (!failed_ && received_.size() < Admission::kMostBytes) {
    const TlsSession::Moved read =
        tls_->Read(scratch.first(std::min(scratch.size(), Admission::kMostBytes - received_.size())));
    if (read.step == TlsSession::Step::kBlocked) break;
    // A client that has ended before its request was complete has no use for a response.
    if (read.step != TlsSession::Step::kDone) {
      failed_ = received_.empty() || read.step == TlsSession::Step::kFailed;
      break;
    }
    received_.append(scratch.data(), read.bytes);
  }
  return received_;
}

bool PendingConnection::Send(absl::string_view bytes) {
  if (tls_ == nullptr) {
    return send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  const TlsSession::Moved written = tls_->Write(bytes);
  return written.step == TlsSession::Step::kDone && written.bytes == bytes.size();
}

PendingConnection::Next PendingConnection::Leave(std::span<char> scratch) {
  if (tls_ == nullptr) {
    shutdown(socket_.get(), SHUT_WR);
  } else {
    tls_->EndSending();
  }
  leaving_ = true;
  return Discard(scratch) == Next::kStay ? Next::kLeave : Next::kClose;
}

// If unread data is left when a socket is closed, the system resets the connection, and the response may be lost.
PendingConnection::Next PendingConnection::Discard(std::span<char> scratch) {
  while (discarded_bytes_ < kMostDiscardedBytes) {
    const ssize_t got = recv(fd(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (got < 0 && WouldBlock()) return Next::kStay;
    if (got <= 0) return Next::kClose;
    discarded_bytes_ += static_cast<size_t>(got);
  }
  return Next::kClose;
}

}  // namespace tdock::rpc
