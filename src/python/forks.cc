#include "python/forks.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "python/gil.h"
#include "python/private_views.h"
#include "python/process.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// Guarded by the GIL, under which Python forks.
std::set<std::string>& Addresses() {
  static auto* const addresses = new std::set<std::string>();  // never destroyed: connections may outlast the module
  return *addresses;
}

void BeginChild() {
  EndForkOfPrivateViewsInChild();
  CloseInheritedSockets(Addresses());
  Addresses().clear();
}

}  // namespace

void RememberAddress(const std::string& address) {
  if (address.empty()) return;
  Addresses().insert(address);
  // Sockets have numbers, where the address may have a name.
  const size_t colon = address.rfind(':');
  if (absl::StartsWith(address, "unix:") || colon == std::string::npos) return;
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[")) return;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = 0;
  {
    // A name server may take seconds.
    const GilRelease release;
    error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  }
  if (error != 0) return;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    std::array<char, NI_MAXHOST> number;
    if (getnameinfo(at->ai_addr, at->ai_addrlen, number.data(), number.size(), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    const bool is_v6 = at->ai_family == AF_INET6;
    Addresses().insert(absl::StrCat(is_v6 ? "[" : "", number.data(), is_v6 ? "]" : "", address.substr(colon)));
  }
  freeaddrinfo(found);
}

void BindForks(nb::module_& module) {
  // No view is made between the two.
  module.def("_before_fork", &BeginForkOfPrivateViews);
  module.def("_after_fork_in_parent", &EndForkOfPrivateViews);
  module.def("_after_fork_in_child", &BeginChild);
}

}  // namespace tdock::python
