// The leases that a dock has given to Python.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tdock/requests.h"

namespace tdock::python {

// The leases that still hold rows, according to the calls of one handle: others may have ended them, so they are
// forgotten when they expire. Thread-compatible.
class Leases {
 public:
  void Add(const std::string& partition, const Taken& taken);
  void Renew(const std::string& partition, LeaseId lease, absl::Time expires);
  // The lease no longer holds these rows; empty: any rows.
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
  // The number of leases at which expired ones are removed.
  size_t look_at_ = 64;
};

}  // namespace tdock::python
