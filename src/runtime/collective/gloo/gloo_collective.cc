// Gloo's headers are Debian's, of another version than the Gloo in libtorch. ProcessGroupGloo.hpp needs them for its
// declarations; no type of Gloo's is made or looked into here.
#define USE_C10D_GLOO

#include "runtime/collective/gloo/gloo_collective.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/c10d_collective.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace tdock::runtime {
namespace {

// Remembers what the ranks tell each other while they connect: the addresses at which they listen are in it.
class AddressStore final : public c10d::PrefixStore {
 public:
  using c10d::PrefixStore::PrefixStore;

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    said_.emplace_back(value.begin(), value.end());
    PrefixStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    std::vector<uint8_t> value = PrefixStore::get(key);
    said_.emplace_back(value.begin(), value.end());
    return value;
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    std::vector<std::vector<uint8_t>> values = PrefixStore::multiGet(keys);
    for (const std::vector<uint8_t>& value : values) said_.emplace_back(value.begin(), value.end());
    return values;
  }

  const std::vector<std::string>& said() const { return said_; }

 private:
  std::vector<std::string> said_;
};

// The bytes of an address that say which it is: family, port, and host. Empty if it is not of the internet.
std::string AddressText(const sockaddr_storage& address) {
  const size_t bytes = address.ss_family == AF_INET    ? offsetof(sockaddr_in, sin_zero)
                       : address.ss_family == AF_INET6 ? offsetof(sockaddr_in6, sin6_scope_id)
                                                       : 0;
  return {reinterpret_cast<const char*>(&address), bytes};
}

// Whether the socket connects two ranks, one of which listens at an address in `said`. Not so the listening socket
// itself, which has no peer: Gloo ends the process if that fails.
bool ConnectsRanks(int socket, const std::vector<std::string>& said) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) {
    return false;
  }
  const std::string own_text = AddressText(own), peer_text = AddressText(peer);
  return !own_text.empty() && std::any_of(said.begin(), said.end(), [&](const std::string& what) {
    return absl::StrContains(what, own_text) || absl::StrContains(what, peer_text);
  });
}

// Ends this process's connections with the ranks that listen at the addresses in `said`. Gloo has no such call: it
// waits for operations to be over before it closes. What is looked at is a copy of a descriptor, which stays what it
// is.
void Disconnect(const std::vector<std::string>& said) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int descriptor = -1;
    struct stat status {};
    if (!absl::SimpleAtoi(entry.path().filename().string(), &descriptor) || ::fstat(descriptor, &status) != 0 ||
        !S_ISSOCK(status.st_mode)) {
      continue;
    }
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) continue;
    if (ConnectsRanks(copy, said)) ::shutdown(copy, SHUT_RDWR);
    ::close(copy);
  }
}

// Threads that are started while it lives get an error for a connection that is closed, not a signal that ends the
// process: Gloo does not ask for that.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~WithoutSigpipe() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorCollective>> OpenGlooCollective(const GlooOptions& options, absl::Time deadline) {
  TDOCK_CHECK(options.rank >= 0 && options.rank < options.size, "a group has its rank");
  TDOCK_ASSIGN_OR_RETURN(const c10::intrusive_ptr<c10d::Store> all, options.rendezvous.NewStore());
  const std::string prefix = absl::StrCat("group/", options.name, "/");
  auto group =
      std::make_unique<C10dCollective>(C10dGroup{.name = options.name,
                                                 .rank = options.rank,
                                                 .size = options.size,
                                                 .store = c10::make_intrusive<c10d::PrefixStore>(prefix, all)});
  const auto connect = [&]() -> C10dCollective::Connection {
    const WithoutSigpipe threads_of_gloo;
    const auto gloo = c10d::ProcessGroupGloo::Options::create(TimeUntil(deadline));
    gloo->threads = 1;  // one operation at a time
    gloo->devices.push_back(options.host.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                                                 : c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
    const auto store = c10::make_intrusive<AddressStore>(prefix, all);
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo);
    return {.backend = std::move(backend), .disconnect = [said = store->said()] { Disconnect(said); }};
  };
  TDOCK_RETURN_IF_ERROR(group->Connect(connect, deadline));
  return group;
}

}  // namespace tdock::runtime
