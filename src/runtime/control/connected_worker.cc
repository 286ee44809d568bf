#include "runtime/control/connected_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "runtime/control/messages.h"
#include "runtime/control/parcel_connection.h"

namespace tdock::runtime {
namespace {

constexpr size_t kLastLines = 20;

}  // namespace

std::string ConnectedWorker::Describe() const {
  return identity_.name.empty() ? absl::StrCat("rank ", identity_.rank)
                                : absl::StrCat("rank ", identity_.rank, " (", identity_.name, ")");
}

std::string ConnectedWorker::LastLines() const {
  return lines_.empty() ? std::string() : absl::StrCat(". Its last lines:\n  ", absl::StrJoin(lines_, "\n  "));
}

void ConnectedWorker::Send(const Parcel& parcel) const {
  auto packed = Pack(parcel);
  if (!packed.ok()) return;  // only calls carry what may be too large: see Invoke()
  SendParcel(connection_, *std::move(packed));
}

std::function<void(absl::StatusOr<Value>)> ConnectedWorker::Told(
    const std::string& method, std::function<void(absl::StatusOr<Value>)> done) const {
  on_call_(identity_.rank, absl::StrCat(method, " begins"));
  return [rank = identity_.rank, on_call = on_call_, method, done = std::move(done),
          begun = absl::Now()](absl::StatusOr<Value> value) {
    on_call(rank, absl::StrFormat("%s has %s after %.3f s", method, value.ok() ? "ended" : "failed",
                                  absl::ToDoubleSeconds(absl::Now() - begun)));
    done(std::move(value));
  };
}

void ConnectedWorker::Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
                             std::function<void(absl::StatusOr<Value>)> done) {
  if (on_call_) done = Told(method, std::move(done));
  int64_t id = 0;
  absl::Status gone;
  {
    const MutexLock lock(mu_);
    id = next_call_++;
    gone = gone_;
  }
  if (!gone.ok()) return done(Annotate(gone, method));
  const int64_t within_ms =
      deadline == absl::InfiniteFuture() ? 0 : std::max<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 1);
  Parcel call = MessageOf("call", {{"id", id}, {"method", method}, {"within_ms", within_ms}});
  SetValue("arguments", Value(std::move(arguments)), call);
  auto packed = Pack(call);
  if (!packed.ok()) return done(Annotate(packed.status(), method));
  {
    const MutexLock lock(mu_);
    gone = gone_;
    if (gone.ok()) calls_[id] = {method, deadline, std::move(done)};
  }
  if (!gone.ok()) return done(Annotate(gone, method));
  SendParcel(connection_, *std::move(packed));
}

absl::Status ConnectedWorker::OnParcel(const Parcel& parcel, const std::function<void(const Notice&)>& on_notice) {
  const std::string what = parcel.Text(kWhat);
  if (what == "beat") return absl::OkStatus();
  if (what == "notice") {
    const Notice notice{identity_.rank, parcel.Text("kind"), parcel.Text("text")};
    if (notice.kind == "log") {
      const MutexLock lock(mu_);
      lines_.push_back(notice.text);
      if (lines_.size() > kLastLines) lines_.pop_front();
    }
    on_notice(notice);
    return absl::OkStatus();
  }
  if (what == "serving" || what == "failed") {
    const MutexLock lock(mu_);
    serving_ = what == "serving" ? Serving::kYes : Serving::kNo;
    why_not_ = StatusIn(parcel);
    return absl::OkStatus();
  }
  if (what != "result")
    return absl::InvalidArgumentError(absl::StrCat("a worker sent a message '", EscapeForMessage(what), "'"));
  PendingCall call;
  {
    const MutexLock lock(mu_);
    const auto found = calls_.find(parcel.Integer("id"));
    if (found == calls_.end()) return absl::OkStatus();  // its deadline was over
    call = std::move(found->second);
    calls_.erase(found);
  }
  const absl::Status status = StatusIn(parcel);
  call.done(status.ok() ? ValueIn(parcel, "value") : absl::StatusOr<Value>(status));
  return absl::OkStatus();
}

absl::Status ConnectedWorker::status() const {
  const MutexLock lock(mu_);
  return over_ ? absl::OkStatus() : gone_;
}

ConnectedWorker::Serving ConnectedWorker::serving() const {
  const MutexLock lock(mu_);
  return serving_;
}

absl::Status ConnectedWorker::why_not() const {
  const MutexLock lock(mu_);
  return why_not_;
}

void ConnectedWorker::Lose(const absl::Status& why) {
  std::map<int64_t, PendingCall> calls;
  absl::Status gone;
  {
    const MutexLock lock(mu_);
    if (!gone_.ok()) return;
    gone = gone_ = absl::Status(why.code(), absl::StrCat(Describe(), " ", why.message(), LastLines()));
    calls.swap(calls_);
  }
  for (auto& [id, call] : calls) call.done(Annotate(gone, call.method));
}

void ConnectedWorker::End(const absl::Status& why) {
  {
    const MutexLock lock(mu_);
    if (over_) return;
    over_ = true;
  }
  Parcel end = MessageOf("end");
  SetStatus(why, end.facts);
  Send(end);
  Lose(why.ok() ? absl::CancelledError("was sent home: the run is over") : why);
}

absl::Time ConnectedWorker::Expire(absl::Time now) {
  std::vector<PendingCall> late;
  absl::Time next = absl::InfiniteFuture();
  {
    const MutexLock lock(mu_);
    for (auto at = calls_.begin(); at != calls_.end();) {
      if (at->second.deadline <= now) {
        late.push_back(std::move(at->second));
        at = calls_.erase(at);
      } else {
        next = std::min(next, at->second.deadline);
        ++at;
      }
    }
  }
  for (PendingCall& call : late) {
    call.done(absl::DeadlineExceededError(absl::StrCat(Describe(), " has not finished ", call.method, " in time")));
  }
  return next;
}

}  // namespace tdock::runtime
