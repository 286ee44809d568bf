#include "trainer/distributed/training_groups.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "model/decoder/device.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/collective/nccl/nccl_collective.h"

namespace tdock::trainer {
namespace {

using LogLine = std::function<void(const std::string&)>;

// How the role trains; null if it does not.
const OptimSection* OptimOf(const StepShape& policy, const std::vector<ModelRole>& models, const std::string& role) {
  if (role == "actor") return &policy.optim;
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&role](const ModelRole& model) { return model.trained && model.name == role; });
  return found == models.end() ? nullptr : found->optim;
}

// The ranks of a role, of which this process is one.
struct RankOfGroup {
  std::string role = {};
  std::vector<int> ranks = {};  // of the run
  int place = 0;                // of this one among them
  at::Device device = at::kCPU;
  std::string address = {};
};

// The same for all processes that have it, whichever they can see. Empty: none.
std::string NameOfGpu(const at::Device& device, Env& env) {
  if (!device.is_cuda()) return "";
  std::string gpu = absl::StrCat(static_cast<int>(device.index()));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::vector<std::string> seen = absl::StrSplit(visible, ',');
    if (static_cast<size_t>(device.index()) < seen.size()) gpu = seen[static_cast<size_t>(device.index())];
  }
  // Containers of a machine have names of their own, but not this.
  const std::string machine = env.ReadFile("/proc/sys/kernel/random/boot_id").value_or("");
  return absl::StrCat(absl::StripAsciiWhitespace(machine), ":", gpu);
}

constexpr absl::string_view kFailed = "failed: ", kNccl = "nccl ", kNoNccl = "without ";

// A rank without a GPU needs no NCCL, and its library is not loaded there.
std::string DescribeGpu(const at::Device& device, Env& env) {
  const absl::Status nccl = device.is_cuda() ? runtime::CheckNccl() : absl::OkStatus();
  return nccl.ok() ? absl::StrCat(kNccl, NameOfGpu(device, env)) : absl::StrCat(kNoNccl, nccl.message());
}

// Tells the other ranks of the group what this one has, or what has failed here, and returns what each has said.
absl::StatusOr<std::vector<std::string>> Exchange(const RankOfGroup& own, const std::string& said,
                                                  runtime::Rendezvous& rendezvous,
                                                  const std::function<absl::Status()>& check, absl::Time deadline) {
  const auto key = [&](int rank) { return absl::StrCat("training/", own.role, "/", rank); };
  TDOCK_RETURN_IF_ERROR(rendezvous.Publish(key(own.ranks[static_cast<size_t>(own.place)]), said));
  std::vector<std::string> all;
  for (const int rank : own.ranks) {
    absl::StatusOr<std::string> text = absl::DeadlineExceededError("");
    while (absl::IsDeadlineExceeded(text.status())) {
      TDOCK_RETURN_IF_ERROR(check());
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " has not come to it"));
      }
      text = rendezvous.Await(key(rank), std::min(left, absl::Seconds(1)));
      if (!text.ok()) absl::SleepFor(absl::Milliseconds(10));  // the store may be gone, which `check` knows soon
    }
    TDOCK_RETURN_IF_ERROR(text.status());
    if (absl::StartsWith(*text, kFailed) && *text != said) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, ": ", text->substr(kFailed.size())));
    }
    all.push_back(*std::move(text));
  }
  return all;
}

// Why NCCL cannot connect them; empty if it can.
std::string WhyNotNccl(const RankOfGroup& group, const std::vector<std::string>& said) {
  std::map<std::string, int> gpus;  // and the ranks that have them
  for (size_t i = 0; i < said.size(); ++i) {
    absl::string_view gpu = said[i];
    if (absl::ConsumePrefix(&gpu, kNoNccl)) return absl::StrCat("rank ", group.ranks[i], " has no NCCL: ", gpu);
    absl::ConsumePrefix(&gpu, kNccl);
    if (gpu.empty()) return absl::StrCat("rank ", group.ranks[i], " has no GPU");
    const auto [found, is_new] = gpus.emplace(gpu, group.ranks[i]);
    if (!is_new) return absl::StrCat("ranks ", found->second, " and ", group.ranks[i], " have the same GPU");
  }
  return "";
}

absl::StatusOr<std::unique_ptr<runtime::TensorCollective>> Connect(const RankOfGroup& own,
                                                                   const std::vector<std::string>& said,
                                                                   runtime::Rendezvous& rendezvous,
                                                                   absl::Duration timeout, const LogLine& log,
                                                                   absl::Time deadline) {
  const std::string why_not = WhyNotNccl(own, said);
  const auto size = static_cast<int>(own.ranks.size());
  if (why_not.empty()) {
    return runtime::OpenNcclCollective({.rendezvous = rendezvous,
                                        .name = own.role,
                                        .rank = own.place,
                                        .size = size,
                                        .device = own.device,
                                        .timeout = timeout},
                                       deadline);
  }
  if (own.device.is_cuda() && own.place == 0) {
    log(absl::StrCat("the ranks of ", own.role,
                     " send each other tensors through the memory of the host, not from GPU ", "to GPU: ", why_not));
  }
  return runtime::OpenGlooCollective(
      {.rendezvous = rendezvous, .name = own.role, .rank = own.place, .size = size, .host = own.address}, deadline);
}

}  // namespace

absl::StatusOr<TrainingGroups> TrainingGroups::Open(Recipe& recipe, const runtime::RankEnvironment& environment,
                                                    const RanksOfRoles& roles, runtime::Rendezvous& rendezvous,
                                                    Env& env, const LogLine& log,
                                                    const std::function<absl::Status()>& check, absl::Time deadline) {
  TrainingGroups groups;
  groups.timeout_ = absl::Seconds(recipe.config().resources.collective_timeout);
  const StepShape policy = recipe.shape();
  const std::vector<ModelRole> models = recipe.models();
  for (const char* role : {"actor", "critic"}) {
    const auto found = roles.find(role);
    const OptimSection* const optim = OptimOf(policy, models, role);
    if (found == roles.end() || found->second.size() < 2 || optim == nullptr) continue;
    std::vector<int> ranks = found->second;
    std::sort(ranks.begin(), ranks.end());
    const auto place = std::find(ranks.begin(), ranks.end(), environment.rank);
    if (place == ranks.end()) continue;
    RankOfGroup own{.role = role, .ranks = ranks, .place = static_cast<int>(place - ranks.begin())};
    const absl::StatusOr<at::Device> device = model::ParseDevice(recipe.config().device);
    const absl::StatusOr<std::string> address = runtime::AddressTowardsRank0(environment);
    const absl::Status ready = device.ok() ? address.status() : device.status();
    const std::string said = ready.ok() ? DescribeGpu(*device, env) : absl::StrCat(kFailed, ready.message());
    const auto all = Exchange(own, said, rendezvous, check, deadline);
    TDOCK_RETURN_IF_ERROR(ready);
    if (!all.ok()) return Annotate(all.status(), absl::StrCat("connecting the ranks of ", role));
    own.device = *device;
    own.address = *address;
    absl::StatusOr<std::unique_ptr<runtime::TensorCollective>> group =
        Connect(own, *all, rendezvous, groups.timeout_, log, deadline);
    if (!group.ok()) return Annotate(group.status(), absl::StrCat("connecting the ranks of ", role));
    groups.groups_[role] = *std::move(group);
    groups.zero_[role] = static_cast<Zero>(optim->zero_stage);
  }
  return groups;
}

TrainingRanks TrainingGroups::Of(const std::string& role) const {
  const auto found = groups_.find(role);
  if (found == groups_.end()) return {.timeout = timeout_};
  return {.group = found->second.get(), .zero = zero_.at(role), .timeout = timeout_};
}

}  // namespace tdock::trainer
