// Tries what another process can do with a file that it is given, for tests of what it must not be able to do.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

namespace tdock::dock {

// The changes that succeeded, a bit each.
enum FileChange {
  kMapToWrite = 1,
  kMapReopenedToWrite = 2,
  kMakeMappingWritable = 4,
  kWrite = 8,
  kShrink = 16,
  kGrow = 32,
  kPunchHole = 64,
  kTruncateReopened = 128,
};

// Tries every way to change the file, and returns those that succeeded. If none does, the file is as it was. Uses plain
// system calls only, so that the child of a fork may call it.
inline int TryChanges(int fd) {
  constexpr size_t kPage = 4096;
  const auto maps = [](int file) {
    void* const mapped = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return false;
    ::munmap(mapped, kPage);
    return true;
  };
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  int done = 0;
  if (maps(fd)) done |= kMapToWrite;
  if (const int again = ::open(path, O_RDWR | O_CLOEXEC); again >= 0) {
    if (maps(again)) done |= kMapReopenedToWrite;
    ::close(again);
  }
  void* const read_only = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd, 0);
  if (read_only != MAP_FAILED && ::mprotect(read_only, kPage, PROT_READ | PROT_WRITE) == 0)
    done |= kMakeMappingWritable;
  if (::pwrite(fd, "x", 1, 0) == 1) done |= kWrite;
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (::ftruncate(fd, size - static_cast<off_t>(kPage)) == 0) done |= kShrink;
  if (::ftruncate(fd, size + static_cast<off_t>(kPage)) == 0) done |= kGrow;
  if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage) == 0) done |= kPunchHole;
  if (const int emptied = ::open(path, O_RDWR | O_TRUNC | O_CLOEXEC); emptied >= 0) {
    done |= kTruncateReopened;
    ::close(emptied);
  }
  return done;
}

// Sends the descriptor to another process over a Unix socket, has it try every change, and returns those that
// succeeded; -1 if it could not be tried.
inline int TryChangesInAnotherProcess(int fd) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return -1;
  char byte = 'f';
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) {
    ::close(fd);
    if (::recvmsg(sockets[1], &message, 0) != 1) ::raise(SIGKILL);
    int received;
    std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(received));
    ::_exit(TryChanges(received));
  }
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  const bool sent = ::sendmsg(sockets[0], &message, 0) == 1;
  if (!sent) ::kill(child, SIGKILL);
  int status = 0;
  const bool ended = ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  ::close(sockets[0]);
  ::close(sockets[1]);
  return sent && ended ? WEXITSTATUS(status) : -1;
}

}  // namespace tdock::dock
