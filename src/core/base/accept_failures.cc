#include "core/base/accept_failures.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock {
namespace {

// Failures after such a pause are told from the first one on.
constexpr absl::Duration kCalm = absl::Minutes(1);

std::string ReasonOf(int error) {
  if (error == EMFILE) {
    rlimit limit{};
    const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return absl::StrCat(
        "the process has all ", known ? absl::StrCat(limit.rlim_cur, " ") : "",
        "file descriptors that it may have (EMFILE); raise that limit (RLIMIT_NOFILE: ulimit -n, LimitNOFILE= of "
        "systemd, --ulimit nofile= of docker), or connect fewer clients");
  }
  if (error == ENFILE) {
    return "the system has no file descriptor left (ENFILE); raise its limit (sysctl fs.file-max), or end programs "
           "that "
           "hold many";
  }
  return absl::StrCat("the system has no memory for them (", std::generic_category().message(error),
                      "); connect fewer clients");
}

}  // namespace

bool AcceptFailures::IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

void AcceptFailures::ListensOn(std::string where) {
  const MutexLock lock(mu_);
  where_ = std::move(where);
}

void AcceptFailures::Add(int error) {
  int64_t told = 0;
  std::string where;
  {
    const MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    if (!failing_ && now - last_ > kCalm) {
      recent_ = 0;
      next_said_ = 1;
    }
    last_ = now;
    failing_ = true;
    ++count_;
    if (++recent_ >= next_said_) {
      told = recent_;
      next_said_ = 2 * recent_;
      said_ = true;
      where = where_;
    }
  }
  if (told == 0 || log_ == nullptr) return;
  log_(absl::StrCat("cannot accept connections on ", where, ": ", ReasonOf(error), ". Attempts that failed: ", told));
}

void AcceptFailures::End() {
  int64_t failed = 0;
  std::string where;
  {
    const MutexLock lock(mu_);
    if (!failing_) return;
    failing_ = false;
    if (std::exchange(said_, false)) failed = recent_;
    where = where_;
  }
  if (failed == 0 || log_ == nullptr) return;
  log_(absl::StrCat("connections on ", where, " are accepted again. Attempts that failed: ", failed));
}

bool AcceptFailures::failing() const {
  const MutexLock lock(mu_);
  return failing_;
}

int64_t AcceptFailures::count() const {
  const MutexLock lock(mu_);
  return count_;
}

}  // namespace tdock
