#include "python/forks.h"

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "python/gil.h"
#include "python/private_views.h"
#include "python/process.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// How long calls and connections may take to end before a fork.
constexpr absl::Duration kPrepareWithin = absl::Seconds(2);

// Guarded by the GIL, under which Python forks.
struct Forks {
  OfThisProcess<ForkGuard> guard;
  std::set<std::string> addresses;
  std::vector<std::weak_ptr<const void>> servers;  // over TCP, and others that cannot pause gRPC
  // The generation in which this process has connected over TCP itself.
  uint64_t rpc_generation = ~uint64_t{0};
};

Forks& TheForks() {
  static auto* const forks = new Forks();  // never destroyed: connections may outlast the module
  return *forks;
}

void Prepare() {
  // No view is made while this waits below.
  BeginForkOfPrivateViews();
  Forks& forks = TheForks();
  std::erase_if(forks.servers, [](const auto& server) { return server.expired(); });
  // A server would keep gRPC in use whatever its clients here do.
  if (!forks.guard.here() || !forks.servers.empty()) return;
  const GilRelease release;
  forks.guard->Prepare(kPrepareWithin);
}

void Resume() {
  EndForkOfPrivateViews();
  Forks& forks = TheForks();
  if (!forks.guard.here()) return;
  const GilRelease release;
  forks.guard->Resume();
}

void BeginChild() {
  EndForkOfPrivateViewsInChild();
  CloseInheritedSockets(TheForks().addresses);
  TheForks().addresses.clear();
  // Their counts are the parent's.
  new std::vector<std::weak_ptr<const void>>(std::move(TheForks().servers));
  TheForks().servers.clear();
}

}  // namespace

ForkGuard* TheForkGuard() {
  Forks& forks = TheForks();
  if (!forks.guard.here()) forks.guard = OfThisProcess<ForkGuard>(std::make_shared<ForkGuard>());
  return forks.guard.get().get();
}

void RememberAddress(const std::string& address) {
  if (!address.empty()) TheForks().addresses.insert(address);
}

void RememberServer(const std::shared_ptr<DockServer>& server) {
  RememberAddress(server->address());
  RememberAddress(server->tcp_address());
  if (!server->tcp_address().empty()) TheForks().servers.push_back(server);
}

void RememberRpc(std::weak_ptr<const void> user) { TheForks().servers.push_back(std::move(user)); }

absl::Status CheckMayConnect(const std::string& address) {
  Forks& forks = TheForks();
  if (absl::StartsWith(address, "unix:") || forks.rpc_generation == ProcessGeneration()) return absl::OkStatus();
  if (ProcessGeneration() > 0) {
    const absl::Status begun = ForkGuard::BeginChild();
    if (!begun.ok()) return Annotate(begun, absl::StrCat("cannot connect to ", EscapeUnprintable(address)));
  }
  forks.rpc_generation = ProcessGeneration();
  return absl::OkStatus();
}

void BindForks(nb::module_& module) {
  module.def("_before_fork", &Prepare);
  module.def("_after_fork_in_parent", &Resume);
  module.def("_after_fork_in_child", &BeginChild);
}

}  // namespace tdock::python
