#include "trainer/reward/external/http_lookup.h"

#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

constexpr size_t kMostAddresses = 8;

struct Lookup {
  Mutex mu;
  bool done TDOCK_GUARDED_BY(mu) = false;
  int error TDOCK_GUARDED_BY(mu) = 0;
  std::vector<HostAddress> found TDOCK_GUARDED_BY(mu);
  CondVar changed;
};

void LookUpNow(Lookup& lookup, const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error == EAI_NONAME) {  // an address of a family that only the loopback interface has
    hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
    error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  }
  std::vector<HostAddress> found;
  for (const addrinfo* info = list; error == 0 && info != nullptr && found.size() < kMostAddresses;
       info = info->ai_next) {
    HostAddress address{.address = {}, .size = info->ai_addrlen};
    std::memcpy(&address.address, info->ai_addr, info->ai_addrlen);
    found.push_back(address);
  }
  if (list != nullptr) freeaddrinfo(list);
  MutexLock lock(lookup.mu);
  lookup.done = true;
  lookup.error = error;
  lookup.found = std::move(found);
  lookup.changed.NotifyAll();
}

}  // namespace

absl::StatusOr<std::vector<HostAddress>> LookUpHost(const std::string& host, int port, const Patience& patience) {
  const auto lookup = std::make_shared<Lookup>();
  try {
    std::thread([lookup, host, port] { LookUpNow(*lookup, host, port); }).detach();
  } catch (const std::system_error& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot start a thread to look up '", EscapeForMessage(host), "': ", error.what()));
  }
  const std::string what = absl::StrCat("the address of '", EscapeForMessage(host), "'");
  for (;;) {
    {
      MutexLock lock(lookup->mu);
      if (!lookup->done) {
        const absl::Time look = patience.clock.Now() + absl::Milliseconds(100);
        patience.clock.Wait(lookup->changed, lookup->mu, std::min(look, patience.deadline));
      }
      if (lookup->done) {
        if (lookup->error == 0 && !lookup->found.empty()) return std::move(lookup->found);
        return absl::UnavailableError(
            absl::StrCat("there is no address of '", host, "': ", gai_strerror(lookup->error)));
      }
    }
    TDOCK_RETURN_IF_ERROR(patience.Check(what));
  }
}

}  // namespace tdock::reward
