// The file descriptors of this process, for tests of what happens when they run out.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace tdock::dock {

inline ptrdiff_t OpenFiles() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// Limits the process to this many descriptors as long as it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = most;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace tdock::dock
