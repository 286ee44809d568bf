#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/net/server.h"
#include "runtime/control/connected_worker.h"
#include "runtime/control/messages.h"
#include "runtime/control/parcel_connection.h"
#include "runtime/control/processes.h"

namespace tdock::runtime {
namespace {

// The first few keys on which two sides disagree, with both values.
std::string Differences(const Setup& ours, const Setup& theirs) {
  constexpr size_t kMost = 3;
  std::vector<std::string> lines;
  const auto value = [](const Setup& setup, const std::string& key) {
    const auto found = setup.find(key);
    return found == setup.end() ? std::string("not set") : found->second;
  };
  Setup all = ours;
  all.insert(theirs.begin(), theirs.end());
  size_t more = 0;
  for (const auto& [key, ignored] : all) {
    if (value(ours, key) == value(theirs, key)) continue;
    if (lines.size() < kMost) {
      lines.push_back(absl::StrCat(key, " is ", value(ours, key), " on rank 0 and ", value(theirs, key), " there"));
    } else {
      ++more;
    }
  }
  return absl::StrCat(absl::StrJoin(lines, "; "), more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

absl::StatusOr<ConnectedWorker::Identity> IdentityIn(const Parcel& hello) {
  if (hello.Text(kWhat) != "hello" || hello.Integer("protocol") != kWorkersProtocol) {
    return absl::InvalidArgumentError(absl::StrCat("a worker must say hello first, of protocol ", kWorkersProtocol,
                                                   ": use the same release on all ranks"));
  }
  ConnectedWorker::Identity identity{.name = hello.Text("name"),
                                     .host = hello.Text("host"),
                                     .pid = hello.Integer("pid"),
                                     .world_size = hello.Integer("world_size")};
  identity.rank = static_cast<int>(std::clamp<int64_t>(hello.Integer("rank"), -1, 1 << 20));
  const auto setup = hello.facts.find("setup");
  if (const Meta* const keys = setup == hello.facts.end() ? nullptr : setup->second.As<Meta>()) {
    for (const auto& [key, value] : *keys) {
      if (const std::string* const text = value.As<std::string>()) identity.setup[key] = *text;
    }
  }
  return identity;
}

class ControllerServer;

// The connection of a worker.
class JoinHandler final : public ParcelHandler {
 public:
  // The controller outlives it.
  JoinHandler(ControllerServer& controller, std::weak_ptr<net::Connection> connection)
      : controller_(controller), connection_(std::move(connection)) {}

  void OnClosed(const absl::Status& why) override;

 private:
  void OnHeard() override;
  absl::Status OnParcel(const Parcel& parcel) override;

  ControllerServer& controller_;
  const std::weak_ptr<net::Connection> connection_;
  // Null before its hello.
  std::shared_ptr<ConnectedWorker> worker_;
};

class ControllerServer final : public Controller {
 public:
  explicit ControllerServer(const ControllerOptions& options)
      : options_(options), workers_(static_cast<size_t>(std::max(options.world_size, 1))) {}
  ~ControllerServer() override {
    End(absl::OkStatus());
    AwaitLeaving();
    server_.reset();
    {
      const MutexLock lock(mu_);
      ending_ = true;
      changed_.NotifyAll();
    }
    if (watching_.joinable()) watching_.join();
  }

  absl::Status Start() {
    TDOCK_ASSIGN_OR_RETURN(
        server_,
        net::Server::Make({.role = net::Role::kWorkers,
                           .welcome = [this](const auto& connection, absl::string_view) { return Admit(connection); },
                           .max_queued_bytes = kMaxQueuedBytes}));
    TDOCK_RETURN_IF_ERROR(server_->ListenOnTcp({.listen = options_.listen, .credentials = {.token = options_.token}}));
    address_ = server_->tcp_address();
    watching_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  absl::Status AwaitWorkers(absl::Time deadline) override {
    absl::Status status = AwaitJoined(deadline);
    if (!status.ok()) End(status);
    return status;
  }
  absl::Status Welcome(const Value& welcome) override {
    Parcel parcel = MessageOf("welcome");
    SetValue("value", welcome, parcel);
    for (const auto& worker : Workers()) worker->Send(parcel);
    return status();
  }
  absl::Status AwaitServing(absl::Time deadline) override {
    for (;;) {
      {
        const MutexLock lock(mu_);
        if (over_) return refusal_.ok() ? absl::UnavailableError("the run is over") : refusal_;
      }
      std::vector<std::string> missing;
      for (const auto& worker : Workers()) {
        TDOCK_RETURN_IF_ERROR(worker->status());
        if (worker->serving() == ConnectedWorker::Serving::kNo) return Annotate(worker->why_not(), worker->Describe());
        if (worker->serving() == ConnectedWorker::Serving::kNotYet) missing.push_back(worker->Describe());
      }
      if (missing.empty()) return absl::OkStatus();
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(absl::StrJoin(missing, ", "), " did not become ready in time"));
      }
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    }
  }

  std::shared_ptr<WorkerLink> worker(int rank) override {
    const MutexLock lock(mu_);
    TDOCK_CHECK(
        rank >= FirstRank() && std::cmp_less(rank, workers_.size()) && workers_[static_cast<size_t>(rank)] != nullptr,
        "a worker that has joined");
    return workers_[static_cast<size_t>(rank)];
  }
  std::string name(int rank) const override {
    const MutexLock lock(mu_);
    const auto& worker = workers_[static_cast<size_t>(rank)];
    return worker == nullptr ? std::string() : worker->identity().name;
  }
  absl::Status status() const override {
    for (const auto& worker : Workers()) TDOCK_RETURN_IF_ERROR(worker->status());
    return absl::OkStatus();
  }

  void End(const absl::Status& why) override {
    {
      const MutexLock lock(mu_);
      if (over_) return;
      over_ = true;
      refusal_ = why;
    }
    for (const auto& worker : Workers()) worker->End(why);
  }

  // For its connections.
  absl::StatusOr<std::shared_ptr<ConnectedWorker>> Join(const Parcel& hello,
                                                        std::shared_ptr<net::Connection> connection) {
    TDOCK_ASSIGN_OR_RETURN(ConnectedWorker::Identity identity, IdentityIn(hello));
    const int rank = identity.rank;
    auto worker = std::make_shared<ConnectedWorker>(std::move(identity), std::move(connection), options_.on_call);
    absl::Status refusal;
    {
      const MutexLock lock(mu_);
      ++joined_;
      if (!over_ && refusal_.ok()) refusal_ = WhyNot(*worker);
      refusal = refusal_.ok() && over_ ? absl::UnavailableError("the run is over") : refusal_;
      if (refusal.ok()) workers_[static_cast<size_t>(rank)] = worker;
      changed_.NotifyAll();
    }
    if (!refusal.ok()) worker->End(refusal);
    return worker;
  }
  void Changed() {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  void Left() {
    const MutexLock lock(mu_);
    --connections_;
    changed_.NotifyAll();
  }
  const ControllerOptions& options() const { return options_; }

 private:
  static constexpr std::chrono::milliseconds kTick{50};
  // How long those that have not joined are waited for once one was refused.
  static constexpr absl::Duration kRefusingTime = absl::Seconds(30);

  // How long workers may take to close their connections once they were told of the end.
  static constexpr absl::Duration kLeavingTime = absl::Seconds(1);

  absl::StatusOr<net::Welcome> Admit(const std::shared_ptr<net::Connection>& connection) {
    {
      const MutexLock lock(mu_);
      ++connections_;
    }
    return net::Welcome{.handler = std::make_unique<JoinHandler>(*this, connection)};
  }
  void AwaitLeaving() {
    const absl::Time deadline = absl::Now() + kLeavingTime;
    MutexLock lock(mu_);
    while (connections_ > 0 && absl::Now() < deadline) {
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    }
  }

  int FirstRank() const { return options_.is_rank_zero ? 1 : 0; }
  // The workers that there are.
  std::vector<std::shared_ptr<ConnectedWorker>> Workers() const {
    const MutexLock lock(mu_);
    std::vector<std::shared_ptr<ConnectedWorker>> there;
    for (const auto& worker : workers_) {
      if (worker != nullptr) there.push_back(worker);
    }
    return there;
  }

  absl::Status WhyNot(const ConnectedWorker& worker) const TDOCK_REQUIRES(mu_) {
    const ConnectedWorker::Identity& identity = worker.identity();
    const std::string who = absl::StrCat(worker.Describe(), " on ", identity.host, ", process ", identity.pid, ",");
    if (identity.world_size != options_.world_size) {
      return absl::FailedPreconditionError(absl::StrCat(who, " has WORLD_SIZE=", identity.world_size,
                                                        " and rank 0 has WORLD_SIZE=", options_.world_size,
                                                        ": all ranks need the same"));
    }
    if (identity.rank < FirstRank() || identity.rank >= options_.world_size) {
      return absl::FailedPreconditionError(absl::StrCat(who, " has a rank that is not between ", FirstRank(), " and ",
                                                        options_.world_size - 1, ", as those of workers are"));
    }
    if (identity.setup != options_.setup) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " was configured otherwise: ", Differences(options_.setup, identity.setup),
                       ". Start all ranks with the same configuration"));
    }
    const auto& other = workers_[static_cast<size_t>(identity.rank)];
    if (other == nullptr) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(who, " says to be a rank that process ", other->identity().pid, " on ",
                                                 other->identity().host, " has: each rank is one process"));
  }

  absl::Status AwaitJoined(absl::Time deadline) TDOCK_EXCLUDES(mu_) {
    for (;;) {
      std::vector<int> missing;
      {
        MutexLock lock(mu_);
        for (auto rank = static_cast<size_t>(FirstRank()); rank < workers_.size(); ++rank) {
          if (workers_[rank] == nullptr) missing.push_back(static_cast<int>(rank));
        }
        if (!refusal_.ok()) {
          // Those that are still to come are to end with the same error, unless it is known that they will not come.
          deadline = std::min(deadline, absl::Now() + kRefusingTime);
          while (!over_ && joined_ + FirstRank() < options_.world_size && absl::Now() < deadline) {
            changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
          }
          return refusal_;
        }
      }
      TDOCK_RETURN_IF_ERROR(status());
      if (missing.empty()) return absl::OkStatus();
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "of ", options_.world_size, " ranks, these have not joined in time: ", absl::StrJoin(missing, ", "),
            ". Look at their output, and whether they can reach ", address_));
      }
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
    }
  }

  // Sends signs of life, and notices workers that give none, and calls that take too long.
  void Watch() {
    const absl::Duration beat = options_.silence / 4;
    absl::Time next_beat = absl::InfinitePast();
    for (;;) {
      {
        MutexLock lock(mu_);
        if (ending_) return;
        changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
        if (ending_) return;
      }
      const absl::Time now = absl::Now();
      const bool beats = now >= next_beat;
      if (beats) next_beat = now + beat;
      for (const auto& worker : Workers()) {
        worker->Expire(now);
        if (beats) worker->Send(MessageOf("beat"));
        const absl::Duration silent = worker->watch().silent();
        if (silent < options_.silence) continue;
        worker->Lose(absl::UnavailableError(
            absl::StrCat("has given no sign of life for ", absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1))),
                         ": it was stopped, or its machine hangs or is gone (process ", worker->identity().pid, " on ",
                         worker->identity().host, ")")));
      }
    }
  }

  const ControllerOptions options_;
  std::unique_ptr<net::Server> server_;
  std::string address_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<ConnectedWorker>> workers_ TDOCK_GUARDED_BY(mu_);  // by rank; none for the controller
  absl::Status refusal_ TDOCK_GUARDED_BY(mu_);                                   // of all that join
  int joined_ TDOCK_GUARDED_BY(mu_) = 0;                                         // also those that were refused
  int connections_ TDOCK_GUARDED_BY(mu_) = 0;                                    // of all that were admitted
  bool over_ TDOCK_GUARDED_BY(mu_) = false;
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread watching_;
};

void JoinHandler::OnHeard() {
  if (worker_ != nullptr) worker_->watch().Heard();
}

absl::Status JoinHandler::OnParcel(const Parcel& parcel) {
  if (worker_ == nullptr) {
    TDOCK_ASSIGN_OR_RETURN(worker_, controller_.Join(parcel, connection_.lock()));
    return absl::OkStatus();
  }
  const absl::Status status = worker_->OnParcel(parcel, controller_.options().on_notice);
  if (!status.ok()) worker_->Lose(Annotate(status, "sent what cannot be read"));
  // Nothing here waits for results.
  if (parcel.Text(kWhat) != "result") controller_.Changed();
  return status;
}

void JoinHandler::OnClosed(const absl::Status& why) {
  // The worker has the connection, which has this.
  if (const auto worker = std::exchange(worker_, nullptr)) {
    const bool is_lost = why.ok() || absl::IsUnavailable(why);
    worker->Lose(absl::UnavailableError(
        absl::StrCat("is gone: process ", worker->identity().pid, " on ", worker->identity().host,
                     is_lost ? " has ended or was killed, or its connection was lost"
                             : absl::StrCat(" has lost its connection: ", why.message()))));
  }
  controller_.Left();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> OpenController(const ControllerOptions& options) {
  auto controller = std::make_unique<ControllerServer>(options);
  TDOCK_RETURN_IF_ERROR(controller->Start());
  return controller;
}

}  // namespace tdock::runtime
