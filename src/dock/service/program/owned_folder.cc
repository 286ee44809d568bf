#include "dock/service/program/owned_folder.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tdock::program {

OwnedFolder::OwnedFolder(const console::ServeOptions& options) : path_(options.owned_folder) {
  if (none()) return;
  for (const std::string& file : {options.socket, options.token_file}) {
    if (absl::StartsWith(file, absl::StrCat(path_, "/"))) files_.push_back(file);
  }
  std::array<int, 2> ends;
  // Without the other process, the folder would remain if this one is killed.
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
  cleaner_ = fork();
  if (cleaner_ == 0) AwaitEnd(ends[0]);
  close(ends[0]);
  pipe_ = ends[1];
}

OwnedFolder::~OwnedFolder() {
  if (none()) return;
  if (pipe_ >= 0) close(pipe_);
  if (cleaner_ > 0) waitpid(cleaner_, nullptr, 0);
  Remove();
}

void OwnedFolder::AwaitEnd(int pipe) const {
  // Ignores the terminal's signals and others to the group, and keeps no pipe open.
  setsid();
  if (pipe > 0) close_range(0, static_cast<unsigned>(pipe) - 1, 0);
  close_range(static_cast<unsigned>(pipe) + 1, ~0u, 0);
  char byte = 0;
  while (read(pipe, &byte, 1) < 0 && errno == EINTR) continue;
  Remove();
  _exit(0);
}

void OwnedFolder::Remove() const {
  for (const std::string& file : files_) unlink(file.c_str());
  // Other files in the folder are not the server's, and keep it.
  rmdir(path_.c_str());
}

}  // namespace tdock::program
