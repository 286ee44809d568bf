#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/utf8.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

const std::vector<std::string>& RolesOfProcesses() {
  static const auto* const roles = new std::vector<std::string>{"actor", "critic", "rollout", "ref", "reward"};
  return *roles;
}

namespace {

// What is wrong with "NAME=VALUE" items.
std::vector<std::string> CheckResources(const ResourcesSection& s) {
  std::vector<std::string> problems;
  std::set<std::string> pools;
  for (const std::string& item : s.pools) {
    const std::pair<std::string, std::string> pool = absl::StrSplit(item, absl::MaxSplits('=', 1));
    bool counts = !pool.first.empty() && !pool.second.empty();
    for (const absl::string_view count : absl::StrSplit(pool.second, '+')) {
      int processes = 0;
      counts = counts && absl::SimpleAtoi(count, &processes) && processes >= 1 && processes <= 1 << 16;
    }
    if (!counts) {
      problems.push_back(absl::StrCat("'", EscapeForMessage(item),
                                      "' is not a pool and its processes on each machine, such as train=1 ",
                                      "or rollout=2+2"));
    }
    if (!pools.insert(pool.first).second) problems.push_back(absl::StrCat("pool '", pool.first, "' is there twice"));
  }
  std::set<std::string> given;
  for (const std::string& item : s.roles) {
    const std::pair<std::string, std::string> role = absl::StrSplit(item, absl::MaxSplits('=', 1));
    const auto& known = RolesOfProcesses();
    if (std::find(known.begin(), known.end(), role.first) == known.end() || !pools.contains(role.second)) {
      problems.push_back(absl::StrCat("'", EscapeForMessage(item), "' is not a role and its pool: roles are ",
                                      absl::StrJoin(known, ", "), ", and pools ",
                                      pools.empty() ? "none" : absl::StrJoin(pools, ", ")));
    }
    if (!given.insert(role.first).second) problems.push_back(absl::StrCat("role '", role.first, "' is there twice"));
  }
  return problems;
}

}  // namespace

void BindResources(config::Spec& spec, ResourcesSection& s) {
  spec.Strings(
      "resources.pools", &s.pools,
      "Of a run of several processes: pools of them, in the order of their ranks, each with how many it has on "
      "each machine, such as [train=1, rollout=2], or rollout=2+2 on two; empty: one of all processes.");
  spec.Strings(
      "resources.roles", &s.roles,
      "The pool that carries out a role, actor, critic, rollout, ref or reward, such as [rollout=rollout]; one "
      "that is not named is of the first pool. All processes of actor train the policy together, and those of critic "
      "the critic; rank 0 must be among them.");
  spec.Float("resources.join_timeout", &s.join_timeout,
             "Seconds that the processes wait for each other, and for each other's models, before the run begins.")
      .MoreThan(0)
      .AtMost(1e6);
  spec.Float("resources.silence_timeout", &s.silence_timeout,
             "Seconds without a sign of life after which a process counts as hanging, and the run ends.")
      .AtLeast(1)
      .AtMost(1e6);
  spec.Float("resources.collective_timeout", &s.collective_timeout,
             "Seconds that processes that train together wait for each other in an operation on their tensors.")
      .AtLeast(1)
      .AtMost(1e6);
  spec.Bool("resources.log_calls", &s.log_calls,
            "Whether rank 0 writes a line as each method begins at another process, and when it has ended: of one that "
            "hangs, the last line says in what.");
  spec.Check({"resources.pools", "resources.roles"}, [&s] { return CheckResources(s); });
}

}  // namespace tdock::trainer
