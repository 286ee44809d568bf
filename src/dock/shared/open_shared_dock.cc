#include "dock/local/shared_dock.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "tdock/dock_server.h"
#include "tdock/remote_dock.h"

namespace tdock::dock {
namespace {

class ServedHere final : public SharedDock {
 public:
  explicit ServedHere(std::unique_ptr<DockServer> server) : server_(std::move(server)) {}
  Dock& dock() override { return server_->dock(); }
  std::string address() const override { return server_->address(); }
  std::vector<std::string> warnings() const override { return server_->warnings(); }

 private:
  const std::unique_ptr<DockServer> server_;
};

class ServedElsewhere final : public SharedDock {
 public:
  ServedElsewhere(std::unique_ptr<Dock> dock, std::string address)
      : dock_(std::move(dock)), address_(std::move(address)) {}
  Dock& dock() override { return *dock_; }
  std::string address() const override { return address_; }
  std::vector<std::string> warnings() const override { return {}; }

 private:
  const std::unique_ptr<Dock> dock_;
  const std::string address_;
};

std::string OwnSocket() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr || *runtime == '\0') return absl::StrCat("/tmp/tdock-", geteuid(), "-", getpid(), ".sock");
  return absl::StrCat(absl::StripSuffix(runtime, "/"), "/tdock-", getpid(), ".sock");
}

// Each connection and each segment of memory needs a descriptor.
void AllowManyDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<std::unique_ptr<SharedDock>> Serve(const SharedDockOptions& options) {
  AllowManyDescriptors();
  DockServerOptions server{
      .token = options.token,
      .token_file = options.token_file,
      .tls_certificate = options.tls_cert,
      .tls_key = options.tls_key,
      .tls_ca = options.tls_ca,
      .dock = {.clock = options.clock},
      .on_stall = [](const std::string& text) { std::cerr << EscapeForTerminal(absl::StrCat("dock: ", text, "\n")); }};
  absl::string_view path = options.serve;
  if (path == "unix") {
    server.socket = OwnSocket();
  } else if (absl::ConsumePrefix(&path, "unix:")) {
    server.socket = std::string(path);
  } else {
    server.listen = options.serve;
  }
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<DockServer> started, DockServer::Start(server));
  return std::make_unique<ServedHere>(std::move(started));
}

absl::StatusOr<std::unique_ptr<SharedDock>> Connect(const SharedDockOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Dock> dock, ConnectDock({.address = options.connect,
                                                                  .token = options.token,
                                                                  .token_file = options.token_file,
                                                                  .tls_ca = options.tls_ca,
                                                                  .tls_certificate = options.tls_cert,
                                                                  .tls_key = options.tls_key,
                                                                  .answer_within = options.answer_within,
                                                                  .clock = options.clock}));
  return std::make_unique<ServedElsewhere>(std::move(dock), options.connect);
}

}  // namespace
absl::StatusOr<std::unique_ptr<SharedDock>> OpenSharedDock(const SharedDockOptions& options) {
  return options.serve.empty() ? Connect(options) : Serve(options);
}

}  // namespace tdock::dock
