#include "dock/service/wire/server_process.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace tdock::service {

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const std::vector<std::string>& arguments) {
  std::unique_ptr<ServerProcess> server(new ServerProcess());
  std::string folder = "/tmp/tdock-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, "cannot create a folder in /tmp");
  server->folder_ = std::move(folder);
  std::vector<std::string> command = {
      FolderOfThisProgram() + "/tdock-dock", "serve", "--listen", "127.0.0.1:0", "--socket",
      server->folder_ + "/dock.sock"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  TDOCK_ASSIGN_OR_RETURN(server->process_, ChildProcess::Start(command));
  for (;;) {
    absl::StatusOr<std::string> line = server->process_->ReadLine(absl::Seconds(30));
    if (!line.ok()) return Annotate(line.status(), "the dock server did not start");
    absl::string_view rest = *line;
    if (rest == "ready") return server;
    if (absl::ConsumePrefix(&rest, "tcp ")) server->tcp_ = std::string(rest);
  }
}

ServerProcess::~ServerProcess() {
  process_.reset();
  if (folder_.empty()) return;
  unlink((folder_ + "/dock.sock").c_str());
  rmdir(folder_.c_str());
}

}  // namespace tdock::service
