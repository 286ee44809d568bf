// The leases that a dock gave to Python.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tdock/requests.h"

namespace tdock::python {

// Leases that still hold rows, as far as the calls of one handle tell: somebody else may have ended them, and then they
// are forgotten when their time is over. Thread-compatible.
class Leases {
 public:
  void Add(const std::string& partition, const Taken& taken);
  void Renew(const std::string& partition, LeaseId lease, absl::Time expires);
  // The lease holds these rows no more; empty: any.
  void End(const std::string& partition, LeaseId lease, const std::vector<RowId>& rows);
  void EndAll(const std::string& partition);

  // One for each of them.
  std::vector<LeaseRequest> Requests() const;

 private:
  struct Held {
    size_t rows = 0;
    absl::Time expires = absl::InfiniteFuture();
  };

  std::map<std::pair<std::string, LeaseId>, Held> held_;
  // At how many it is looked for those whose time is over.
  size_t look_at_ = 64;
};

}  // namespace tdock::python
