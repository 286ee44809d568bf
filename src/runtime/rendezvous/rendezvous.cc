#include "runtime/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Logging.h"
#include "core/base/status.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace tdock::runtime {
namespace {

using Store = c10::intrusive_ptr<c10d::TCPStore>;

bool IsLoopback(absl::string_view host) { return host == "localhost" || absl::StartsWith(host, "127."); }

// By itself the store listens on all interfaces. It closes the descriptor.
absl::StatusOr<int> ListenOnLoopback(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = listener >= 0 &&
                       ::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                       ::listen(listener, SOMAXCONN) == 0;
  if (listens) return listener;
  const int error = errno;
  if (listener >= 0) ::close(listener);
  return absl::UnavailableError(absl::StrCat("rank 0 cannot listen at port ", port,
                                             " (MASTER_PORT): ", std::generic_category().message(error),
                                             ". Give all ranks another MASTER_PORT"));
}

std::string FirstLine(absl::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(std::max<int64_t>(absl::ToInt64Milliseconds(duration), 1));
}

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(Store store, int restart_count)
      : store_(std::move(store)), prefix_(absl::StrCat("tdock/", restart_count, "/")) {}

  absl::Status Publish(absl::string_view key, absl::string_view value) override {
    try {
      store_->set(absl::StrCat(prefix_, key), std::vector<uint8_t>(value.begin(), value.end()));
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("telling the other ranks '", key, "': ", FirstLine(error.what())));
    }
  }

  absl::StatusOr<std::string> Await(absl::string_view key, absl::Duration timeout) override {
    const std::string name = absl::StrCat(prefix_, key);
    try {
      store_->wait({name}, Milliseconds(timeout));
      const std::vector<uint8_t> value = store_->get(name);
      return std::string(value.begin(), value.end());
    } catch (const std::exception& error) {
      return absl::DeadlineExceededError(absl::StrCat("rank 0 has not said '", key, "' within ",
                                                      absl::FormatDuration(timeout), ": ", FirstLine(error.what())));
    }
  }

  absl::StatusOr<c10::intrusive_ptr<c10d::Store>> NewStore() override {
    try {
      return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::PrefixStore>(prefix_, store_->clone()));
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("connecting to rank 0 once more: ", FirstLine(error.what())));
    }
  }

 private:
  const Store store_;
  const std::string prefix_;
};

// c10d's own timeout, which ends first and knows more, does not hold where something else accepts the connection and
// says nothing. What still waits then is left to wait.
absl::StatusOr<Store> Connect(const std::string& host, const c10d::TCPStoreOptions& options, absl::Duration timeout) {
  std::promise<absl::StatusOr<Store>> promise;
  std::future<absl::StatusOr<Store>> connected = promise.get_future();
  std::thread([host, options, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (const std::exception& error) {
      promise.set_value(absl::UnavailableError(FirstLine(error.what())));
    }
  }).detach();
  if (connected.wait_for(Milliseconds(timeout)) == std::future_status::ready) return connected.get();
  return absl::UnavailableError("nothing there answers as rank 0 would");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Open(const RankEnvironment& environment,
                                                             absl::Duration timeout) {
  const std::string address = absl::StrCat(environment.master_addr, ":", environment.master_port);
  const bool serves = environment.rank == 0 && !environment.uses_agent_store;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = Milliseconds(timeout - std::min(absl::Seconds(1), 0.2 * timeout));
  if (serves && IsLoopback(environment.master_addr)) {
    TDOCK_ASSIGN_OR_RETURN(options.masterListenFd, ListenOnLoopback(environment.master_port));
  }
  options.useLibUV = false;                  // what serves a few keys need not scale
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // what it logs, with its stack, it also throws
  absl::StatusOr<Store> store = Connect(environment.master_addr, options, timeout);
  if (store.ok()) return std::make_unique<TcpRendezvous>(*std::move(store), environment.restart_count);
  const absl::string_view why = store.status().message();
  if (serves && absl::StrContains(why, "failed to listen")) {
    return absl::UnavailableError(absl::StrCat("rank 0 cannot listen at port ", environment.master_port,
                                               " (MASTER_PORT): ", why, ". Give all ranks another MASTER_PORT"));
  }
  return absl::UnavailableError(
      absl::StrCat("rank ", environment.rank, " does not reach ", serves ? "itself" : "rank 0", " at ", address,
                   " (MASTER_ADDR and MASTER_PORT) within ", absl::FormatDuration(timeout), ": ", why,
                   serves ? ". MASTER_ADDR must be an address of this machine that the others reach" : ""));
}

namespace {

// Of an interface that is up and leads beyond this machine; empty: there is none.
std::string AddressOfInterface() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string address;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = all; each != nullptr && address.empty(); each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr)) {
        continue;
      }
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      char text[NI_MAXHOST] = {};
      if (::getnameinfo(each->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) address = text;
    }
  }
  ::freeifaddrs(all);
  return address;
}

}  // namespace

absl::StatusOr<std::string> AddressTowardsRank0(const RankEnvironment& environment) {
  const auto error = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("rank ", environment.rank, " has no way to ", environment.master_addr, " (MASTER_ADDR): ", why));
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(environment.master_port);
  const int lookup = ::getaddrinfo(environment.master_addr.c_str(), port.c_str(), &hints, &found);
  if (lookup != 0) return error(::gai_strerror(lookup));
  std::string address;
  int problem = 0;
  for (const addrinfo* to = found; to != nullptr && address.empty(); to = to->ai_next) {
    // Connecting sends nothing: it only looks for the way.
    const int way = ::socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST] = {};
    if (way >= 0 && ::connect(way, to->ai_addr, to->ai_addrlen) == 0 &&
        ::getsockname(way, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      address = text;
    } else {
      problem = errno;
    }
    if (way >= 0) ::close(way);
  }
  ::freeaddrinfo(found);
  if (address.empty()) return error(std::generic_category().message(problem));
  // The name of a machine often means a loopback address there.
  const bool others_here = environment.on_loopback() || environment.local_world_size == environment.world_size;
  if (others_here || (!IsLoopback(address) && address != "::1")) return address;
  address = AddressOfInterface();
  if (!address.empty()) return address;
  return error("on this machine that is a loopback address, and no interface leads beyond it, where other ranks are");
}

}  // namespace tdock::runtime
