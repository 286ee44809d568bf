// transfer_dock._native.DockServer and ServerProcess.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>

#include "python/arguments.h"
#include "python/bindings.h"
#include "python/dock_handle.h"
#include "python/errors.h"
#include "python/forks.h"
#include "python/gil.h"
#include "python/process.h"
#include "python/server_process.h"
#include "tdock/dock_server.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tdock::python {
namespace {

// A server inside this process.
class ServerHandle {
 public:
  explicit ServerHandle(const DockServerOptions& options) {
    absl::StatusOr<std::unique_ptr<DockServer>> server = absl::UnknownError("not started");
    {
      const GilRelease release;
      server = DockServer::Start(options);
    }
    server_ = OfThisProcess<DockServer>(std::shared_ptr<DockServer>(ValueOrRaise(std::move(server))));
    address_ = server_->address();
    tcp_address_ = server_->tcp_address();
    RememberAddress(server_->address());
    RememberAddress(server_->tcp_address());
    connect_ = {.address = address_, .token = options.token, .token_file = options.token_file};
    // Its certificate can be verified with its own CA only if that has signed it: otherwise users must connect
    // themselves.
    connect_.tls_ca = options.tls_ca;
    connect_.tls_certificate = options.tls_certificate;
    connect_.tls_key = options.tls_key;
  }
  ~ServerHandle() {
    OfThisProcess<DockServer> last = std::exchange(server_, OfThisProcess<DockServer>());
    const GilRelease release;
    last.reset();
  }
  ServerHandle(const ServerHandle&) = delete;
  ServerHandle& operator=(const ServerHandle&) = delete;

  const std::string& address() const { return address_; }
  const std::string& tcp_address() const { return tcp_address_; }
  std::vector<std::string> warnings() { return Server()->warnings(); }

  // Lives until the server is closed.
  std::unique_ptr<DockHandle> MakeDock() {
    const std::shared_ptr<DockServer> server = Server();
    return std::make_unique<DockHandle>(std::shared_ptr<Dock>(server, &server->dock()), connect_);
  }

  void Close(nb::handle drain) {
    const absl::Duration patience = Seconds(drain, "drain");
    if (!server_.here()) return;
    const std::shared_ptr<DockServer> server = server_.get();
    const GilRelease release;
    server->Shutdown(patience);
  }

 private:
  std::shared_ptr<DockServer> Server() {
    if (!server_.here()) {
      Raise(absl::FailedPreconditionError("this server belongs to the process that this one was forked from"));
    }
    return server_.get();
  }

  OfThisProcess<DockServer> server_;
  std::string address_;
  std::string tcp_address_;
  ConnectOptions connect_;
};

// A server in a process of its own.
class ProcessHandle {
 public:
  explicit ProcessHandle(const std::vector<std::string>& command) {
    absl::StatusOr<ServerProcess> started = absl::UnknownError("not started");
    {
      const GilRelease release;
      started = ServerProcess::Start(command);
    }
    process_ = ValueOrRaise(std::move(started));
  }
  // Ends it, which may take seconds.
  ~ProcessHandle() {
    const GilRelease release;
    process_.reset();
  }
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;

  pid_t pid() const { return process_->pid(); }
  const std::vector<std::string>& lines() const { return process_->lines(); }
  int Close(nb::handle drain) {
    const absl::Duration patience = Seconds(drain, "drain");
    const GilRelease release;
    return process_->Close(patience);
  }

 private:
  std::optional<ServerProcess> process_;
};

}  // namespace

void BindServers(nb::module_& module) {
  nb::class_<ServerHandle>(module, "DockServer")
      .def("__init__",
           [](ServerHandle* self, const nb::kwargs& given) {
             new (self) ServerHandle(FromArguments<DockServerOptions>(given));
           })
      .def_prop_ro("address", &ServerHandle::address)
      .def_prop_ro("tcp_address", &ServerHandle::tcp_address)
      .def("warnings", &ServerHandle::warnings)
      .def("dock", &ServerHandle::MakeDock)
      .def("close", &ServerHandle::Close, "drain"_a);
  nb::class_<ProcessHandle>(module, "ServerProcess")
      .def(nb::init<const std::vector<std::string>&>())
      .def_prop_ro("pid", &ProcessHandle::pid)
      .def_prop_ro("lines", &ProcessHandle::lines)
      .def("close", &ProcessHandle::Close, "drain"_a);
}

}  // namespace tdock::python
