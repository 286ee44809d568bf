// The folder of a server that a program started for itself.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "dock/service/console/serve_options.h"

namespace tdock::program {

// Removes ServeOptions::owned_folder, with the socket and the token file if they are in it, once this process has ended
// in any way: a helper process waits for that. Create it before any thread. Not thread-safe.
class OwnedFolder {
 public:
  explicit OwnedFolder(const console::ServeOptions& options);
  ~OwnedFolder();
  OwnedFolder(const OwnedFolder&) = delete;
  OwnedFolder& operator=(const OwnedFolder&) = delete;

  bool none() const { return path_.empty(); }

 private:
  [[noreturn]] void AwaitEnd(int pipe) const;
  void Remove() const;

  const std::string path_;
  std::vector<std::string> files_;
  int pipe_ = -1;
  pid_t cleaner_ = -1;
};

}  // namespace tdock::program
