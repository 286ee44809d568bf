#include "trainer/executor/explain_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kCallersTime = absl::Seconds(2);
constexpr size_t kMostRequestBytes = 16;
constexpr size_t kMostAnswerBytes = size_t{16} << 20;

class OwnFd {
 public:
  explicit OwnFd(int fd) : fd_(fd) {}
  ~OwnFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnFd(OwnFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status ErrnoOf(int error, const std::string& what) { return absl::ErrnoToStatus(error, what); }

// The path of the run's folder may be longer than an address can be.
absl::StatusOr<OwnFd> OpenFolder(const std::string& run_dir) {
  OwnFd folder(::open(run_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) return folder;
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(absl::StrCat("there is no folder ", run_dir));
  return ErrnoOf(error, absl::StrCat("cannot open the folder ", run_dir));
}

sockaddr_un AddressIn(const OwnFd& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat("/proc/self/fd/", folder.get(), "/", kExplainSocket);
  static_assert(sizeof(address.sun_path) > sizeof("/proc/self/fd/2147483647/") + sizeof(kExplainSocket));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

OwnFd NewSocket() { return OwnFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

int MillisecondsUntil(absl::Time deadline) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0, 60'000));
}

// False once the deadline is over.
bool WaitFor(int fd, int16_t events, absl::Time deadline) {
  while (absl::Now() < deadline) {
    pollfd waited{.fd = fd, .events = events, .revents = 0};
    if (::poll(&waited, 1, MillisecondsUntil(deadline)) > 0) return true;
  }
  return false;
}

// Reads until `done`, the end of the stream, or `most` bytes and one; nothing if the deadline is over or it fails.
template <class Done>
std::optional<std::string> ReadUntil(int fd, size_t most, absl::Time deadline, Done done) {
  std::string read;
  char buffer[1 << 14];
  while (!done(read) && read.size() <= most) {
    if (!WaitFor(fd, POLLIN, deadline)) return std::nullopt;
    const ssize_t got = ::recv(fd, buffer, std::min(sizeof(buffer), most + 1 - read.size()), 0);
    if (got == 0) return read;
    if (got > 0) read.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno != EAGAIN && errno != EINTR) return std::nullopt;
  }
  return read;
}

bool Write(int fd, absl::string_view text, absl::Time deadline) {
  while (!text.empty()) {
    if (!WaitFor(fd, POLLOUT, deadline)) return false;
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

std::string RequestFor(ExplainForm form) { return form == ExplainForm::kJson ? "json\n" : "text\n"; }

void Answer(int caller, const RunExplainer::Explain& explain) {
  const auto is_line = [](const std::string& read) { return absl::StrContains(read, '\n'); };
  const std::optional<std::string> request = ReadUntil(caller, kMostRequestBytes, absl::Now() + kCallersTime, is_line);
  if (!request.has_value()) return;
  for (const ExplainForm form : {ExplainForm::kText, ExplainForm::kJson}) {
    if (*request != RequestFor(form)) continue;
    const std::string answer = explain(form);
    Write(caller, answer, absl::Now() + kCallersTime);
    return;
  }
  Write(caller, "a request is \"text\" or \"json\" and a newline\n", absl::Now() + kCallersTime);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunExplainer>> RunExplainer::Start(const std::string& run_dir, Explain explain) {
  TDOCK_ASSIGN_OR_RETURN(OwnFd folder, OpenFolder(run_dir));
  const std::string path = absl::StrCat(run_dir, "/", kExplainSocket);
  struct stat there {};
  if (::fstatat(folder.get(), kExplainSocket, &there, AT_SYMLINK_NOFOLLOW) == 0) {
    if (!S_ISSOCK(there.st_mode)) return absl::AlreadyExistsError(absl::StrCat(path, " is there, and is no socket"));
    if (::unlinkat(folder.get(), kExplainSocket, 0) != 0) return ErrnoOf(errno, absl::StrCat("cannot replace ", path));
  }
  OwnFd socket = NewSocket(), wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const sockaddr_un address = AddressIn(folder);
  // Nobody can connect before it listens, and then it has its mode.
  if (socket.get() < 0 || wake.get() < 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::fchmodat(folder.get(), kExplainSocket, S_IRUSR | S_IWUSR, 0) != 0 || ::listen(socket.get(), 4) != 0) {
    return ErrnoOf(errno, absl::StrCat("cannot make the socket ", path));
  }
  return std::unique_ptr<RunExplainer>(
      new RunExplainer(folder.Release(), socket.Release(), wake.Release(), std::move(explain)));
}

RunExplainer::RunExplainer(int folder, int socket, int wake, Explain explain)
    : folder_(folder), socket_(socket), wake_(wake), explain_(std::move(explain)), thread_([this] { Serve(); }) {}

RunExplainer::~RunExplainer() {
  const uint64_t one = 1;
  // Only a full counter could refuse it.
  while (::write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  ::unlinkat(folder_, kExplainSocket, 0);
  for (const int fd : {socket_, wake_, folder_}) ::close(fd);
}

void RunExplainer::Serve() const {
  for (;;) {
    pollfd waited[] = {{.fd = socket_, .events = POLLIN, .revents = 0}, {.fd = wake_, .events = POLLIN, .revents = 0}};
    if (::poll(waited, 2, -1) < 0) continue;
    if (waited[1].revents != 0) return;
    const OwnFd caller(::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.get() >= 0) {
      Answer(caller.get(), explain_);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      absl::SleepFor(absl::Milliseconds(100));  // no descriptor is free, for example
    }
  }
}

absl::StatusOr<std::string> AskRun(const std::string& run_dir, ExplainForm form, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  const std::string path = absl::StrCat(run_dir, "/", kExplainSocket);
  TDOCK_ASSIGN_OR_RETURN(const OwnFd folder, OpenFolder(run_dir));
  const absl::Status silent = absl::DeadlineExceededError(
      absl::StrCat("the process behind ", path, " has not answered within ", absl::FormatDuration(patience)));
  const OwnFd socket = NewSocket();
  if (socket.get() < 0) return ErrnoOf(errno, "cannot make a socket");
  const sockaddr_un address = AddressIn(folder);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (error == ENOENT) return absl::NotFoundError(absl::StrCat("there is no ", path));
    if (error == ECONNREFUSED) return absl::UnavailableError(absl::StrCat("no process listens at ", path));
    if (error != EAGAIN && error != EINTR) return ErrnoOf(error, absl::StrCat("cannot connect to ", path));
    if (absl::Now() >= deadline) return silent;
    absl::SleepFor(absl::Milliseconds(20));  // too many callers wait
  }
  if (!Write(socket.get(), RequestFor(form), deadline)) return silent;
  const std::optional<std::string> answer =
      ReadUntil(socket.get(), kMostAnswerBytes, deadline, [](const std::string&) { return false; });
  if (!answer.has_value()) return silent;
  if (answer->size() > kMostAnswerBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the answer of ", path, " is longer than ", kMostAnswerBytes, " bytes"));
  }
  if (answer->empty()) return absl::UnavailableError(absl::StrCat("the process behind ", path, " has ended"));
  return *answer;
}

}  // namespace tdock::trainer
