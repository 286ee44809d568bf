#include "trainer/distributed/run_ranks.h"

#include <sys/random.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/config/spec.h"
#include "dock/local/shared_dock.h"
#include "kernels/limits.h"
#include "model/decoder/device.h"
#include "trainer/distributed/placement.h"
#include "trainer/distributed/run_worker.h"
#include "trainer/loop/inputs.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

using runtime::RankEnvironment;
using runtime::Rendezvous;
using runtime::Value;

constexpr absl::Duration kLook = absl::Seconds(1);  // how often to see whether the run has ended
constexpr char kTotalSteps[] = "total_steps";       // a text of the rendezvous

absl::Duration JoinTime(const RunConfig& config) { return absl::Seconds(config.resources.join_timeout); }
absl::Duration Silence(const RunConfig& config) { return absl::Seconds(config.resources.silence_timeout); }

std::string NewToken() {
  std::string bytes(32, '\0');
  TDOCK_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "random numbers");
  return absl::BytesToHexString(bytes);
}

// "host:port" of what listens everywhere, for those on other machines.
std::string Reached(const std::string& address, const std::string& host) {
  return absl::StrCat(host, address.substr(address.rfind(':')));
}

// What all ranks must agree on: all keys but those of this process alone.
runtime::Setup SetupOf(Recipe& recipe, const RankEnvironment& environment) {
  config::Spec spec;
  recipe.Bind(spec);
  runtime::Setup setup = config::Values(spec);
  for (const char* key : {"threads", "device", "trainer.run_dir"}) setup.erase(key);
  std::string& kernels = setup.at("model.kernels");
  if (kernels == kernels::kBestInstructions) kernels = kernels::Instructions();
  setup["LOCAL_WORLD_SIZE"] = absl::StrCat(environment.local_world_size);
  return setup;
}

std::string NameOfRank(int rank, const RanksOfRoles& roles) {
  std::vector<std::string> names;
  for (const auto& [role, ranks] : roles) {
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) names.push_back(role);
  }
  return absl::StrJoin(names, ", ");
}

// The steps of the run, which rank 0 knows once it has read the data. That takes as long as it takes, while rank 0
// shows that it is there.
absl::StatusOr<int64_t> AwaitTotalSteps(Rendezvous& rendezvous, const runtime::WorkerSession& session) {
  for (;;) {
    const absl::StatusOr<std::string> text = rendezvous.Await(kTotalSteps, kLook);
    TDOCK_RETURN_IF_ERROR(session.status());
    if (absl::IsDeadlineExceeded(text.status())) continue;
    if (!text.ok()) return Annotate(text.status(), "waiting for rank 0 to have read the data");
    int64_t steps = 0;
    if (absl::SimpleAtoi(*text, &steps)) return steps;
    return absl::InternalError(absl::StrCat("rank 0 said '", *text, "' instead of the steps of the run"));
  }
}

// One text of the rendezvous: where the controller and the dock are, and the token that both ask for.
struct MeetingPoint {
  std::string controller, dock, token;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunRanks>> RunRanks::Open(Recipe& recipe, const RankEnvironment& environment,
                                                         const RunContext& context) {
  std::unique_ptr<RunRanks> ranks(new RunRanks(recipe, environment, context));
  absl::Status status = ranks->Start();
  if (status.ok()) return ranks;
  ranks->End(status);
  return status;
}

absl::Status RunRanks::Start() {
  const RunConfig& config = recipe_.config();
  model::SetDefaultGpu(environment_.local_rank);
  TDOCK_ASSIGN_OR_RETURN(rendezvous_, Rendezvous::Open(environment_, JoinTime(config)));
  const bool here = environment_.on_loopback();
  const bool ipv6 = absl::StrContains(environment_.master_addr, ':');
  const std::string listen = here ? "127.0.0.1:0" : ipv6 ? "[::]:0" : "0.0.0.0:0", token = NewToken();
  const std::string host = ipv6 ? absl::StrCat("[", environment_.master_addr, "]") : environment_.master_addr;
  runtime::ControllerOptions options{.listen = listen,
                                     .token = token,
                                     .world_size = environment_.world_size,
                                     .setup = SetupOf(recipe_, environment_),
                                     .silence = Silence(config)};
  options.on_notice = [this](const runtime::Notice& notice) {
    if (notice.kind == "log") {
      LogOf(notice.rank, notice.text);
    } else if (stages_ != nullptr) {
      stages_->OnNotice(notice);
    }
  };
  if (config.resources.log_calls) options.on_call = [this](int rank, const std::string& line) { LogOf(rank, line); };
  TDOCK_ASSIGN_OR_RETURN(controller_, runtime::OpenController(options));
  const bool one_machine = environment_.local_world_size == environment_.world_size;
  TDOCK_ASSIGN_OR_RETURN(dock_, dock::OpenSharedDock({.serve = one_machine ? "unix" : listen,
                                                      .token = one_machine ? "" : token,
                                                      .clock = &context_.clock}));
  const absl::StatusOr<RanksOfRoles> roles = Place(recipe_.config(), environment_);
  stages_ = std::make_unique<StageGroups>(StageGroups::Options{
      .controller = *controller_,
      .dock = dock_->dock(),
      .env = context_.env,
      .roles = roles.ok() ? *roles : RanksOfRoles(),
      .patience =
          RunsTogether(config) ? absl::Seconds(config.trainer.executor.stage_timeout) : absl::InfiniteDuration(),
      .training = [this](const std::string& role) { return training_.Of(role); },
      .announce =
          [this](int64_t total_steps) { return rendezvous_->Publish(kTotalSteps, absl::StrCat(total_steps)); }});
  const auto address = [&](const std::string& at) { return here ? at : Reached(at, host); };
  TDOCK_RETURN_IF_ERROR(rendezvous_->Publish("controller", address(controller_->address())));
  TDOCK_RETURN_IF_ERROR(rendezvous_->Publish("token", token));
  TDOCK_RETURN_IF_ERROR(rendezvous_->Publish("dock", one_machine ? dock_->address() : address(dock_->address())));
  // All of them find it out for themselves, once they have agreed on the configuration.
  TDOCK_RETURN_IF_ERROR(Meet());
  TDOCK_RETURN_IF_ERROR(roles.status());
  TDOCK_ASSIGN_OR_RETURN(training_, TrainingGroups::Open(
                                        recipe_, environment_, *roles, *rendezvous_, context_.env, context_.log,
                                        [this] { return controller_->status(); }, absl::Now() + JoinTime(config)));
  return absl::OkStatus();
}

void RunRanks::LogOf(int rank, const std::string& line) const {
  const std::string name = controller_->name(rank);
  context_.log(absl::StrCat("[rank ", rank, name.empty() ? "" : " ", name, "] ", line));
}

absl::Status RunRanks::Meet() {
  context_.log(
      absl::StrCat("rank 0 of ", environment_.world_size, ": waiting for the others at ", controller_->address()));
  TDOCK_RETURN_IF_ERROR(controller_->AwaitWorkers(absl::Now() + JoinTime(recipe_.config())));
  // Nobody needs it any more, and whoever reaches the store can read it.
  TDOCK_RETURN_IF_ERROR(rendezvous_->Publish("token", ""));
  return controller_->Welcome(Value(true));
}

RunRanks::~RunRanks() { End(absl::CancelledError("rank 0 has ended without a word")); }

void RunRanks::AddTo(RunContext& context) {
  context.run_dock = &dock_->dock();
  context.remote = stages_.get();
  context.training_ranks = [this](const std::string& role) { return training_.Of(role); };
}

absl::Status RunRanks::AwaitReady() {
  TDOCK_RETURN_IF_ERROR(controller_->AwaitServing(absl::Now() + JoinTime(recipe_.config())));
  return stages_->BeginTraining();
}

void RunRanks::End(const absl::Status& status) {
  if (controller_ != nullptr) controller_->End(status);
}

absl::Status ServeRun(Recipe& recipe, const RankEnvironment& environment, const RunContext& context) {
  const RunConfig& config = recipe.config();
  model::SetDefaultGpu(environment.local_rank);
  TDOCK_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::Open(environment, JoinTime(config)));
  MeetingPoint meeting;
  TDOCK_ASSIGN_OR_RETURN(meeting.controller, rendezvous->Await("controller", JoinTime(config)));
  TDOCK_ASSIGN_OR_RETURN(meeting.token, rendezvous->Await("token", JoinTime(config)));
  TDOCK_ASSIGN_OR_RETURN(meeting.dock, rendezvous->Await("dock", JoinTime(config)));
  const absl::StatusOr<RanksOfRoles> roles = Place(config, environment);
  TDOCK_ASSIGN_OR_RETURN(
      const auto session,
      runtime::JoinController({.controller = meeting.controller,
                               .token = meeting.token,
                               .rank = environment.rank,
                               .world_size = environment.world_size,
                               .name = roles.ok() ? NameOfRank(environment.rank, *roles) : std::string(),
                               .controller_name = "rank 0, the controller,",
                               .setup = SetupOf(recipe, environment),
                               .connect_timeout = JoinTime(config),
                               .silence = Silence(config)}));
  TDOCK_RETURN_IF_ERROR(session->AwaitWelcome(absl::Now() + 2 * JoinTime(config)).status());
  TDOCK_RETURN_IF_ERROR(roles.status());
  const auto log = [&](const std::string& line) {
    context.log(line);
    session->Notify("log", line);
  };
  std::unique_ptr<dock::SharedDock> dock;
  TrainingGroups training;
  std::unique_ptr<RunWorker> worker;
  const absl::Status prepared = Guarded([&]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(training, TrainingGroups::Open(
                                         recipe, environment, *roles, *rendezvous, context.env, log,
                                         [&] { return session->status(); }, absl::Now() + JoinTime(config)));
    const bool one_machine = meeting.dock.substr(0, 5) == "unix:";
    TDOCK_ASSIGN_OR_RETURN(
        dock, dock::OpenSharedDock({.connect = meeting.dock,
                                    .token = one_machine ? "" : meeting.token,
                                    // Otherwise a call could last longer than rank 0 counts as being there.
                                    .answer_within = Silence(config),
                                    .clock = &context.clock}));
    const auto reward = roles->find("reward");
    const bool scores = reward != roles->end() && std::find(reward->second.begin(), reward->second.end(),
                                                            environment.rank) != reward->second.end();
    TDOCK_ASSIGN_OR_RETURN(
        RunInputs inputs,
        LoadRunInputs(recipe, context.env, log,
                      {.data = false, .ptx = training.Of("actor").group != nullptr, .reward = scores}));
    int64_t total_steps = 0;
    if (!training.empty()) {
      TDOCK_ASSIGN_OR_RETURN(total_steps, AwaitTotalSteps(*rendezvous, *session));
    }
    worker = std::make_unique<RunWorker>(recipe, std::move(inputs),
                                         RunWorker::Options{.env = context.env,
                                                            .dock = dock->dock(),
                                                            .session = *session,
                                                            .rank = environment.rank,
                                                            .roles = *roles,
                                                            .training = training,
                                                            .total_steps = total_steps,
                                                            .log = log});
    return worker->Prepare();
  });
  if (prepared.ok()) return worker->Serve();
  // The controller's word counts, which gives the same error to all ranks.
  const absl::Status ended = session->Fail(prepared, absl::Now() + JoinTime(config));
  return ended.ok() || absl::IsDeadlineExceeded(ended) ? prepared : ended;
}

}  // namespace tdock::trainer
