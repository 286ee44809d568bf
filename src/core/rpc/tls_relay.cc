#include "core/rpc/tls_relay.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tdock::rpc {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
// The limit on moves in each direction before other connections have their turn.
constexpr int kMostRounds = 8;

bool MustWait() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

RelayBuffer::RelayBuffer(absl::string_view first) : bytes_(std::max(kBufferBytes, first.size())), end_(first.size()) {
  std::copy(first.begin(), first.end(), bytes_.begin());
}

void RelayBuffer::RemovePrefix(size_t bytes) {
  begin_ += bytes;
  if (begin_ == end_) begin_ = end_ = 0;
}

std::span<char> RelayBuffer::Room() {
  if (end_ == bytes_.size() && begin_ > bytes_.size() / 2) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  return std::span(bytes_).subspan(end_);
}

TlsRelay::TlsRelay(std::unique_ptr<TlsSession> session, absl::string_view received, Socket pair)
    : session_(std::move(session)), pair_(std::move(pair)), up_(received), down_("") {}

void TlsRelay::OnClientEvent(bool broken) {
  can_read_client_ = can_write_client_ = true;
  broken_ |= broken;
}

void TlsRelay::OnPairEvent(bool hung_up) {
  can_read_pair_ = can_write_pair_ = true;
  if (hung_up && !ending_since_.has_value()) ending_since_ = std::chrono::steady_clock::now();
}

TlsRelay::Progress TlsRelay::Turn() {
  for (int round = 0; round < kMostRounds && !broken_; ++round) {
    bool moved = FromClient();
    moved |= ToPair();
    moved |= FromPair();
    moved |= ToClient();
    if (broken_) break;
    if (client_ended_ && up_.empty() && !std::exchange(told_pair_, true)) shutdown(pair_.get(), SHUT_WR);
    if (pair_ended_ && down_.empty()) {
      session_->EndSending();
      return Progress::kOver;
    }
    if (!moved) return Progress::kIdle;
  }
  return broken_ ? Progress::kOver : Progress::kMore;
}

bool TlsRelay::FromClient() {
  if (!can_read_client_ || client_ended_) return false;
  const std::span<char> room = up_.Room();
  if (room.empty()) return false;
  const TlsSession::Moved read = session_->Read(room);
  switch (read.step) {
    case TlsSession::Step::kDone:
      up_.Added(read.bytes);
      return true;
    case TlsSession::Step::kBlocked:
      can_read_client_ = false;
      return false;
    case TlsSession::Step::kEnded:
      client_ended_ = true;
      return true;
    case TlsSession::Step::kFailed:
      broken_ = true;
  }
  return false;
}

bool TlsRelay::ToPair() {
  if (!can_write_pair_ || up_.empty()) return false;
  const absl::string_view waiting = up_.waiting();
  const ssize_t sent = send(pair_.get(), waiting.data(), waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) {
    up_.RemovePrefix(static_cast<size_t>(sent));
    return true;
  }
  can_write_pair_ = false;
  // gRPC wants no more; it may still have sent something.
  if (!MustWait()) up_.RemovePrefix(waiting.size());
  return false;
}

bool TlsRelay::FromPair() {
  if (!can_read_pair_ || pair_ended_) return false;
  const std::span<char> room = down_.Room();
  if (room.empty()) return false;
  const ssize_t got = recv(pair_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (got > 0) {
    down_.Added(static_cast<size_t>(got));
    return true;
  }
  can_read_pair_ = false;
  if (got < 0 && MustWait()) return false;
  pair_ended_ = true;
  if (!ending_since_.has_value()) ending_since_ = std::chrono::steady_clock::now();
  return true;
}

bool TlsRelay::ToClient() {
  if (!can_write_client_ || down_.empty()) return false;
  const TlsSession::Moved written = session_->Write(down_.waiting());
  if (written.step == TlsSession::Step::kDone) {
    down_.RemovePrefix(written.bytes);
    return true;
  }
  can_write_client_ = false;
  broken_ |= written.step != TlsSession::Step::kBlocked;
  return false;
}

}  // namespace tdock::rpc
