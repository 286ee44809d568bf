#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/retry.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/net/channel.h"
#include "core/net/loop.h"
#include "runtime/control/messages.h"
#include "runtime/control/parcel_connection.h"
#include "runtime/control/peer_watch.h"
#include "runtime/control/processes.h"
#include "runtime/dispatch/method_table.h"

namespace tdock::runtime {
namespace {

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? std::string(name) : std::string("an unknown host");
}

// The name of a host that has just been started may have no address yet.
bool MayComeUp(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsNotFound(status); }

absl::StatusOr<std::unique_ptr<net::Channel>> Connect(const WorkerOptions& options) {
  net::ServerAddress server{.address = options.controller, .role = net::Role::kWorkers};
  TDOCK_ASSIGN_OR_RETURN(server.credentials, net::Credentials::Load({.token = options.token}, net::Tls::Side::kClient));
  const absl::Time deadline = Clock::Real().Now() + options.connect_timeout;
  std::unique_ptr<net::Channel> channel;
  const absl::Status status =
      Retry(Clock::Real(), deadline, Backoff({}, std::random_device()()), MayComeUp, [&]() -> absl::Status {
        const absl::Duration left = deadline - Clock::Real().Now();
        TDOCK_ASSIGN_OR_RETURN(channel, net::Channel::Connect(server, "", absl::Now() + left));
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return channel;
}

class ConnectedSession;

// The connection of a session, which outlives it.
class SessionHandler final : public ParcelHandler {
 public:
  explicit SessionHandler(ConnectedSession& session) : session_(session) {}
  void OnClosed(const absl::Status& why) override;

 private:
  void OnHeard() override;
  absl::Status OnParcel(const Parcel& parcel) override;

  ConnectedSession& session_;
};

class ConnectedSession final : public WorkerSession {
 public:
  explicit ConnectedSession(const WorkerOptions& options) : options_(options) {}
  // Waits for Serve() to return.
  ~ConnectedSession() override {
    {
      const MutexLock lock(mu_);
      if (end_ == std::nullopt) end_ = absl::CancelledError("the worker leaves");
      leaving_ = true;
      changed_.NotifyAll();
      for (auto& [method, lane] : lanes_) lane.changed.NotifyAll();
    }
    {
      MutexLock lock(mu_);
      while (serving_) changed_.Wait(mu_);
    }
    // These threads send over the connection. There will be no other: calls that still come are not taken.
    if (beating_.joinable()) beating_.join();
    for (auto& [method, lane] : lanes_) {
      if (lane.thread.joinable()) lane.thread.join();
    }
    if (loop_ == nullptr) return;
    loop_->Run([this] {
      if (connection_ != nullptr) connection_->Abort();
    });
    loop_->Stop();
  }

  absl::Status Start() {
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<net::Channel> channel, Connect(options_));
    TDOCK_ASSIGN_OR_RETURN(loop_, net::Loop::Start());
    watch_.Heard();
    net::Channel::Parts parts = net::Channel::TakeApart(std::move(channel));
    connection_ =
        std::make_shared<net::Connection>(loop_, std::move(parts.stream), kMaxQueuedBytes, std::move(parts.inbox));
    absl::Status started;
    loop_->Run([&] { started = connection_->Start(std::make_unique<SessionHandler>(*this)); });
    if (!started.ok()) {
      connection_ = nullptr;
      return started;
    }
    Meta setup;
    for (const auto& [key, value] : options_.setup) setup.emplace(key, value);
    Send(MessageOf("hello", {{"protocol", kWorkersProtocol},
                             {"rank", options_.rank},
                             {"world_size", options_.world_size},
                             {"name", options_.name},
                             {"host", HostName()},
                             {"pid", int64_t{::getpid()}},
                             {"setup", std::move(setup)}}));
    beating_ = std::thread([this] { Beat(); });
    return absl::OkStatus();
  }

  absl::StatusOr<Value> AwaitWelcome(absl::Time deadline) override {
    MutexLock lock(mu_);
    while (!welcome_.has_value() && !end_.has_value()) {
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(options_.controller_name, " at ", options_.controller,
                                                        " has not begun the run in time: it waits for other ranks, or ",
                                                        "is still reading its data"));
      }
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    }
    if (!welcome_.has_value()) {
      return end_->ok() ? absl::UnavailableError("the run has ended before it began") : *end_;
    }
    return *welcome_;
  }

  absl::Status Serve(const MethodTable& methods) override {
    {
      const MutexLock lock(mu_);
      methods_ = &methods;
      serving_ = true;
      for (auto& [method, lane] : lanes_) lane.changed.NotifyAll();
    }
    Send(MessageOf("serving"));
    MutexLock lock(mu_);
    while (!end_.has_value()) changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    // Calls that are being carried out use the methods.
    for (auto& [method, lane] : lanes_) lane.calls.clear();
    while (running_ > 0) changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    methods_ = nullptr;
    serving_ = false;
    changed_.NotifyAll();
    return *end_;
  }
  absl::Status Fail(const absl::Status& why, absl::Time deadline) override {
    Parcel failed = MessageOf("failed");
    SetStatus(why, failed.facts);
    Send(failed);
    MutexLock lock(mu_);
    while (!end_.has_value()) {
      if (absl::Now() >= deadline) return absl::DeadlineExceededError("the controller does not end the run");
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    }
    return *end_;
  }
  void Notify(absl::string_view kind, absl::string_view text) override {
    Send(MessageOf("notice", {{"kind", std::string(kind)}, {"text", std::string(text)}}));
  }
  absl::Status status() const override {
    const MutexLock lock(mu_);
    if (!end_.has_value()) return absl::OkStatus();
    return end_->ok() ? absl::CancelledError("the run is over") : *end_;
  }

  // For its connection.
  void OnHeard() { watch_.Heard(); }
  absl::Status OnParcel(const Parcel& parcel) {
    const absl::Status status = Read(parcel);
    if (!status.ok()) End(Annotate(status, "what the controller sent cannot be read"));
    return status;
  }
  void OnClosed(const absl::Status& why) {
    End(absl::UnavailableError(absl::StrCat(options_.controller_name, " at ", options_.controller, " is gone",
                                            why.ok() ? "" : absl::StrCat(": ", why.message()))));
  }

 private:
  static constexpr std::chrono::milliseconds kTick{50};

  struct Call {
    int64_t id = 0;
    std::string method = {};
    Value::List arguments = {};
    absl::Time deadline = absl::InfiniteFuture();
  };
  // The calls of a method, or of all, which are carried out in order. A call wakes its thread and no other: that is
  // much of what a short one costs.
  struct Lane {
    std::deque<Call> calls;
    CondVar changed;
    std::thread thread;
  };

  void Send(const Parcel& parcel) {
    auto packed = Pack(parcel);
    if (packed.ok()) SendParcel(connection_, *std::move(packed));
  }

  void End(const absl::Status& status) {
    const MutexLock lock(mu_);
    if (end_ == std::nullopt) end_ = status;
    changed_.NotifyAll();
  }

  absl::Status Read(const Parcel& parcel) {
    const std::string what = parcel.Text(kWhat);
    if (what == "beat") return absl::OkStatus();
    if (what == "end") {
      End(StatusIn(parcel));
      connection_->Close(absl::OkStatus());
      return absl::OkStatus();
    }
    if (what == "welcome") {
      TDOCK_ASSIGN_OR_RETURN(Value welcome, ValueIn(parcel, "value"));
      const MutexLock lock(mu_);
      welcome_ = std::move(welcome);
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    if (what != "call") return absl::InvalidArgumentError(absl::StrCat("a message '", EscapeForMessage(what), "'"));
    TDOCK_ASSIGN_OR_RETURN(const Value arguments, ValueIn(parcel, "arguments"));
    TDOCK_ASSIGN_OR_RETURN(Value::List list, arguments.Get<Value::List>());
    const std::string method = parcel.Text("method");
    const MutexLock lock(mu_);
    if (leaving_) return absl::OkStatus();
    Lane& lane = lanes_[options_.in_order ? std::string() : method];
    const int64_t within_ms = parcel.Integer("within_ms");  // 0: no limit
    lane.calls.push_back({parcel.Integer("id"), method, std::move(list),
                          within_ms > 0 ? absl::Now() + absl::Milliseconds(within_ms) : absl::InfiniteFuture()});
    if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { Work(lane); });
    lane.changed.NotifyAll();
    return absl::OkStatus();
  }

  // The thread of a lane.
  void Work(Lane& lane) {
    for (;;) {
      Call call;
      const MethodTable* methods = nullptr;
      {
        MutexLock lock(mu_);
        // The first call may come before Serve().
        while (!leaving_ && (lane.calls.empty() || methods_ == nullptr || end_.has_value())) lane.changed.Wait(mu_);
        if (leaving_) return;
        call = std::move(lane.calls.front());
        lane.calls.pop_front();
        methods = methods_;
        ++running_;
      }
      Answer(call.id, methods->Call(call.method, std::move(call.arguments), call.deadline));
      const MutexLock lock(mu_);
      --running_;
      if (end_.has_value()) changed_.NotifyAll();
    }
  }

  void Answer(int64_t id, const absl::StatusOr<Value>& value) {
    Parcel result = MessageOf("result", {{"id", id}});
    SetStatus(value.status(), result.facts);
    if (value.ok()) SetValue("value", *value, result);
    auto packed = Pack(result);
    if (packed.ok()) return SendParcel(connection_, *std::move(packed));
    // Such as a value that is too large.
    result = MessageOf("result", {{"id", id}});
    SetStatus(packed.status(), result.facts);
    Send(result);
  }

  void Beat() {
    absl::Time next = absl::InfinitePast();
    for (;;) {
      {
        MutexLock lock(mu_);
        if (end_.has_value()) return;
        changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
        if (end_.has_value()) return;
      }
      if (watch_.silent() >= options_.silence) {
        return End(absl::UnavailableError(absl::StrCat(options_.controller_name, " at ", options_.controller,
                                                       " has given no sign of life for ",
                                                       absl::FormatDuration(options_.silence))));
      }
      if (absl::Now() < next) continue;
      next = absl::Now() + options_.silence / 4;
      Send(MessageOf("beat"));
    }
  }

  const WorkerOptions options_;
  std::shared_ptr<net::Loop> loop_;
  std::shared_ptr<net::Connection> connection_;
  PeerWatch watch_;
  mutable Mutex mu_;
  CondVar changed_;
  std::optional<Value> welcome_ TDOCK_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ TDOCK_GUARDED_BY(mu_);
  bool leaving_ TDOCK_GUARDED_BY(mu_) = false;
  const MethodTable* methods_ TDOCK_GUARDED_BY(mu_) = nullptr;
  bool serving_ TDOCK_GUARDED_BY(mu_) = false;
  int running_ TDOCK_GUARDED_BY(mu_) = 0;  // calls
  std::map<std::string, Lane> lanes_;      // grows under mu_
  std::thread beating_;
};

void SessionHandler::OnHeard() { session_.OnHeard(); }
absl::Status SessionHandler::OnParcel(const Parcel& parcel) { return session_.OnParcel(parcel); }
void SessionHandler::OnClosed(const absl::Status& why) { session_.OnClosed(why); }

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerSession>> JoinController(const WorkerOptions& options) {
  auto session = std::make_unique<ConnectedSession>(options);
  const absl::Status started = session->Start();
  if (!started.ok()) return Annotate(started, absl::StrCat("rank ", options.rank, " cannot join the controller"));
  return session;
}

}  // namespace tdock::runtime
