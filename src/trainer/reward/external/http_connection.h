// A connection to an HTTP server on which nothing takes longer, or is longer, than allowed.
#pragma once

#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "httplib.h"
#include "trainer/reward/external/http_url.h"
#include "trainer/reward/external/patience.h"

namespace tdock::reward {

// What TLS connections have in common. Thread-safe once made.
using TlsContext = std::shared_ptr<SSL_CTX>;

// Certificates are checked against those of the file `ca_file`, or where it is empty against the system's; without
// `verify` they are not checked. InvalidArgument, naming the file, if it has none.
absl::StatusOr<TlsContext> MakeTlsContext(const std::string& ca_file, bool verify);

// What httplib reads from and writes to instead of a socket of its own, whose time limits begin anew with each byte.
// Once a call has failed, error() says why. Not thread-safe.
class HttpConnection final : public httplib::Stream {
 public:
  // Looks the name up, connects, and for https agrees on TLS, all within `connecting`; `patience`, which must outlive
  // the connection, is for the rest. Unavailable if there is no connection, FailedPrecondition for a certificate that
  // is not accepted, DeadlineExceeded, or the error of the stop check.
  static absl::StatusOr<std::unique_ptr<HttpConnection>> Open(const HttpUrl& url, const TlsContext& tls,
                                                              const Patience& connecting, const Patience& patience);
  ~HttpConnection() override;

  // The header fields have been read: what follows may have `bytes`, with its framing.
  void BeginBody(size_t bytes);
  const absl::Status& error() const { return error_; }

  bool is_readable() const override { return error_.ok(); }
  bool is_writable() const override { return error_.ok(); }
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  // Unused: there is no log of requests.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  explicit HttpConnection(const Patience& connecting) : patience_(&connecting) {}

  absl::Status Connect(const HttpUrl& url);
  absl::Status ConnectTo(const sockaddr* address, socklen_t size, absl::Time until);
  absl::Status BeginTls(const HttpUrl& url, SSL_CTX* context);
  absl::Status TlsError(int code, const HttpUrl* url) const;
  // Sends what TLS wants to send; if `read`, then waits for bytes from the server and gives them to TLS.
  absl::Status PumpTls(bool read);
  // Some bytes of the socket; 0 at their end.
  absl::StatusOr<size_t> Receive(char* data, size_t size);
  absl::Status Send(const char* data, size_t size);
  // The same above TLS, where there is TLS.
  absl::StatusOr<size_t> ReadSome(char* data, size_t size);
  absl::Status WriteAll(const char* data, size_t size);
  // Counts bytes of the answer against its limits.
  absl::Status Admit(const char* data, size_t size);

  const Patience* patience_;  // of what is being done
  int socket_ = -1;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_{nullptr, SSL_free};
  absl::Status error_;
  std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what has been received, and not been read
  bool in_header_ = true;
  size_t line_ = 0;     // bytes of the current line of the header
  size_t allowed_ = 0;  // bytes that may still be read
  size_t most_ = 0;     // bytes that the body may have
};

}  // namespace tdock::reward
