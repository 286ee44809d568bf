#include "dock/service/wire/client_session.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/retry.h"
#include "core/base/status.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/service.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

// The longest wait is well below the second for which a server keeps a session.
constexpr BackoffPolicy kReconnect{.initial = absl::Milliseconds(10), .max = absl::Milliseconds(100)};
// The session's id and number of a call, and what it acknowledges, are added to a request.
constexpr size_t kMaxAddedToRequest = size_t{64} << 10;
// If every connection waits for a response, another one is made for the message.
constexpr absl::Duration kTellWithin = absl::Seconds(1);

bool IsLost(const absl::Status& status) { return absl::IsUnavailable(status); }

// How long the call may wait on the server, if it says so.
void SetTimeout(absl::Duration left, message::Request& request) {
  VisitVerb(request.verb, [&]<class V>() {
    if constexpr (requires { &V::Request::deadline; }) {
      AppendNumber(request.body, NumberOf(&V::Request::deadline), static_cast<uint64_t>(ToWire(left)));
    }
  });
}

// The name of a verb that waits or brings cells.
absl::string_view KindOf(const message::Request& request) {
  absl::string_view kind = "call";
  VisitVerb(request.verb, [&]<class V>() {
    if constexpr (requires { &V::Request::deadline; } || std::is_same_v<V, verbs::Fill>) kind = V::kName;
  });
  return kind;
}

// For one call that is lost again and again, as by a server that refuses it while shutting down: it gets some time, and
// then fails as if there were no server.
class Losses {
 public:
  explicit Losses(absl::Duration patience) : patience_(patience) {}

  void BeginAttempt() { begin_ = absl::Now(); }
  // False if it is time to give up. The first retry after a long success is made at once.
  bool PauseAfterLoss() {
    const absl::Time now = absl::Now();
    if (!since_.has_value() || now - begin_ > patience_) {
      since_ = now;
      backoff_.emplace(kReconnect, std::random_device()());
      return true;
    }
    const absl::Duration pause = backoff_->Next();
    if (now + pause - *since_ > patience_) return false;
    absl::SleepFor(pause);
    return true;
  }

 private:
  const absl::Duration patience_;
  absl::Time begin_;
  std::optional<absl::Time> since_;
  // Created after the first loss: getting randomness takes longer than many calls do.
  std::optional<Backoff> backoff_;
};

}  // namespace

absl::StatusOr<message::Welcome> ClientSession::Hello(const std::string& session) {
  const message::Hello hello{.session = session, .client = options_.client};
  const absl::Time until = Clock::Real().Now() + options_.reconnect_for;
  message::Welcome welcome;
  const absl::Status status =
      Retry(Clock::Real(), until, Backoff(kReconnect, std::random_device()()), IsLost, [&]() -> absl::Status {
        absl::StatusOr<message::Welcome> answer =
            transport_->Connect(hello, absl::Now() + (until - Clock::Real().Now()));
        if (!answer.ok()) return answer.status();
        welcome = *std::move(answer);
        return absl::OkStatus();
      });
  if (IsLost(status)) {
    return absl::UnavailableError(absl::StrCat("no dock server answers at ", options_.address, " for ",
                                               absl::FormatDuration(options_.reconnect_for), ": ", status.message()));
  }
  if (!status.ok()) return status;
  return welcome;
}

absl::Status ClientSession::Reconnect(std::optional<uint64_t> broken) {
  std::string session;
  {
    MutexLock lock(mu_);
    // The current connection is tried before waiting for a newer one: otherwise, if none is made, this call would take
    // it for new afterwards, and look for the server all over again.
    if (broken.has_value() && connection_ != *broken) return absl::OkStatus();
    const uint64_t failures_before = failures_;
    while (connecting_) changed_.Wait(mu_);
    if (failures_ != failures_before) return failure_;
    if (broken.has_value() && connection_ != *broken) return absl::OkStatus();
    connecting_ = true;
    session = session_;
  }
  const absl::StatusOr<message::Welcome> welcome = Hello(session);
  MutexLock lock(mu_);
  connecting_ = false;
  changed_.NotifyAll();
  if (!welcome.ok()) {
    ++failures_;
    failure_ = welcome.status();
    return failure_;
  }
  ++connection_;
  session_ = welcome->session;
  return absl::OkStatus();
}

absl::StatusOr<ClientAnswer> ClientSession::Call(message::Request request, const Batch& batch, const Wait& wait) {
  if (ProcessGeneration() != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("this dock is connected to ", options_.address,
                     " by the process that this one was forked from: connect again here"));
  }
  if (const size_t bytes = ByteSize(request); bytes > Service::kMaxControlBytes - kMaxAddedToRequest) {
    return absl::InvalidArgumentError(absl::StrCat("a request of ", bytes, " bytes, not counting cells; the limit is ",
                                                   Service::kMaxControlBytes - kMaxAddedToRequest,
                                                   ": ask for less in one call"));
  }
  const absl::Time wait_until = absl::Now() + std::max(wait.wait, absl::ZeroDuration());
  const absl::Time deadline = wait_until + options_.answer_within;
  uint64_t call = 0, connection = 0;
  std::string session;
  {
    MutexLock lock(mu_);
    call = next_call_++;
    outstanding_.insert(call);
    connection = connection_;
    session = session_;
    Acknowledge(request);
    answered_.clear();
    request.released.swap(unpinned_);
  }
  request.call = call;
  const std::stop_callback cancelled(wait.cancel, [this, call] {
    transport_->Tell({.verb = message::kCancel, .body = Serialize(message::Cancel{call})}, kTellWithin);
  });
  Losses losses(options_.reconnect_for);
  for (bool sent = false;;) {
    losses.BeginAttempt();
    ClientAnswer answer = transport_->Call(session, request, batch, deadline);
    sent |= answer.sent;
    if (!IsLost(answer.status)) {
      End(call);
      if (absl::IsDeadlineExceeded(answer.status)) {
        return absl::DeadlineExceededError(
            absl::StrCat("the dock server at ", options_.address, " does not answer: a ", KindOf(request),
                         " that may wait for ", absl::FormatDuration(std::max(wait.wait, absl::ZeroDuration())),
                         " had no answer ", absl::FormatDuration(options_.answer_within),
                         " later. The server hangs, is stopped or is unreachable, or so much data takes longer: "
                         "then raise answer_within (",
                         answer.status.message(), ")"));
      }
      if (!answer.status.ok()) return answer.status;
      if (absl::Status status = StatusOf(answer.reply); !status.ok()) return status;
      return answer;
    }
    absl::Status found = Reconnect(connection);
    if (found.ok() && !losses.PauseAfterLoss()) found = answer.status;
    MutexLock lock(mu_);
    const bool same = found.ok() && session_ == session;
    if (!found.ok() || (!same && sent && !wait.repeatable)) {
      outstanding_.erase(call);
      if (!sent) return found;
      return absl::UnavailableError(
          absl::StrCat("the connection to the dock server at ", options_.address, " was lost during the call",
                       wait.repeatable ? "" : ", which may or may not have been carried out",
                       found.ok() ? "; it was restarted or has ended the session and its leases" : "; ",
                       found.ok() ? "" : found.message()));
    }
    connection = connection_;
    session = session_;
    request.answered_below = *outstanding_.begin();
    SetTimeout(wait_until - absl::Now(), request);
  }
}

void ClientSession::End(uint64_t call) {
  MutexLock lock(mu_);
  outstanding_.erase(call);
  if (!outstanding_.empty() && *outstanding_.begin() < call) answered_.push_back(call);
}

void ClientSession::Acknowledge(message::Request& request) {
  request.answered_below = outstanding_.empty() ? next_call_ : *outstanding_.begin();
  request.answered = answered_;
}

void ClientSession::Unpin(uint64_t call) {
  if (ProcessGeneration() != generation_) return;  // the parent's view
  message::Request request{.verb = message::kAcknowledge, .body = Serialize(message::Release{{call}})};
  {
    MutexLock lock(mu_);
    unpinned_.push_back(call);
    Acknowledge(request);
  }
  transport_->Tell(request, kTellWithin);
}

}  // namespace tdock::service
