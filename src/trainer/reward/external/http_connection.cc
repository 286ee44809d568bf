#include "trainer/reward/external/http_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/reward/external/http_lookup.h"

namespace tdock::reward {
namespace {

constexpr size_t kMostHeaderBytes = 16384;
constexpr size_t kLongestHeaderLine = 4096;

std::string LastOpenSslError() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  if (code == 0) return "no reason is known";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

bool IsAddress(const std::string& host) {
  return host.find_first_not_of("0123456789.") == std::string::npos || host.find(':') != std::string::npos;
}

}  // namespace

absl::StatusOr<TlsContext> MakeTlsContext(const std::string& ca_file, bool verify) {
  ERR_clear_error();
  TlsContext context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1) {
    return absl::InternalError(absl::StrCat("cannot set up TLS: ", LastOpenSslError()));
  }
  SSL_CTX_set_verify(context.get(), verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  if (!verify) return context;
  const int loaded = ca_file.empty() ? SSL_CTX_set_default_verify_paths(context.get())
                                     : SSL_CTX_load_verify_locations(context.get(), ca_file.c_str(), nullptr);
  if (loaded == 1) return context;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read certificates (PEM) from ",
                   ca_file.empty() ? "the system's folder" : absl::StrCat("'", EscapeUnprintable(ca_file), "'"), ": ",
                   LastOpenSslError()));
}

absl::StatusOr<std::unique_ptr<HttpConnection>> HttpConnection::Open(const HttpUrl& url, const TlsContext& tls,
                                                                     const Patience& connecting,
                                                                     const Patience& patience) {
  std::unique_ptr<HttpConnection> connection(new HttpConnection(connecting));
  TDOCK_RETURN_IF_ERROR(connection->Connect(url));
  if (url.tls) TDOCK_RETURN_IF_ERROR(connection->BeginTls(url, tls.get()));
  connection->patience_ = &patience;
  connection->allowed_ = kMostHeaderBytes;
  return connection;
}

HttpConnection::~HttpConnection() {
  if (socket_ >= 0) close(socket_);
}

absl::Status HttpConnection::Connect(const HttpUrl& url) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<HostAddress> addresses, LookUpHost(url.host, url.port, *patience_));
  absl::Status status;
  for (size_t i = 0; i < addresses.size(); ++i) {
    // One that does not answer leaves time for the others.
    const absl::Time now = patience_->clock.Now();
    const absl::Duration share = (patience_->deadline - now) / static_cast<double>(addresses.size() - i);
    status = ConnectTo(reinterpret_cast<const sockaddr*>(&addresses[i].address), addresses[i].size, now + share);
    if (status.ok() || !patience_->Check("a connection").ok()) return status;
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  return status;
}

absl::Status HttpConnection::ConnectTo(const sockaddr* address, socklen_t size, absl::Time until) {
  socket_ = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return absl::UnavailableError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(socket_, address, size) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return absl::UnavailableError(absl::StrCat("cannot connect: ", std::strerror(errno)));
  const Patience share{.clock = patience_->clock, .deadline = until, .check_stop = patience_->check_stop};
  TDOCK_RETURN_IF_ERROR(share.Await(socket_, POLLOUT, "a connection"));
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot connect: ", std::strerror(error)));
}

absl::Status HttpConnection::BeginTls(const HttpUrl& url, SSL_CTX* context) {
  ERR_clear_error();
  ssl_.reset(SSL_new(context));
  if (ssl_ == nullptr) return absl::InternalError(absl::StrCat("cannot set up TLS: ", LastOpenSslError()));
  // TLS gets its bytes from us, not from the socket: so all waiting is in one place, and there is no SIGPIPE.
  SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_connect_state(ssl_.get());
  const bool named = IsAddress(url.host)
                         ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), url.host.c_str()) == 1
                         : SSL_set1_host(ssl_.get(), url.host.c_str()) == 1 &&
                               SSL_set_tlsext_host_name(ssl_.get(), url.host.c_str()) == 1;
  if (!named) return absl::InvalidArgumentError(absl::StrCat("'", EscapeForMessage(url.host), "' is no name for TLS"));
  for (;;) {
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl_.get());
    const int code = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), done);
    if (code != SSL_ERROR_NONE && code != SSL_ERROR_WANT_READ) {
      const absl::Status status = TlsError(code, &url);
      (void)PumpTls(/*read=*/false);  // the alert that tells the server why
      return status;
    }
    TDOCK_RETURN_IF_ERROR(PumpTls(/*read=*/done != 1));
    if (done == 1) return absl::OkStatus();
  }
}

absl::Status HttpConnection::TlsError(int code, const HttpUrl* url) const {
  const long verified = SSL_get_verify_result(ssl_.get());
  if (url != nullptr && verified != X509_V_OK && SSL_get_verify_mode(ssl_.get()) != SSL_VERIFY_NONE) {
    return absl::FailedPreconditionError(
        absl::StrCat("the certificate of ", url->host, " is not accepted: ", X509_verify_cert_error_string(verified)));
  }
  return absl::UnavailableError(absl::StrCat("TLS failed (", code, "): ", LastOpenSslError()));
}

absl::Status HttpConnection::PumpTls(bool read) {
  std::array<char, 16384> bytes;
  while (BIO_pending(SSL_get_wbio(ssl_.get())) > 0) {
    const int taken = BIO_read(SSL_get_wbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
    if (taken <= 0) break;
    TDOCK_RETURN_IF_ERROR(Send(bytes.data(), static_cast<size_t>(taken)));
  }
  if (!read) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const size_t got, Receive(bytes.data(), bytes.size()));
  if (got == 0) return absl::UnavailableError("the server closed the connection");
  if (BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(got)) != static_cast<int>(got)) {
    return absl::ResourceExhaustedError("no memory for TLS");
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> HttpConnection::Receive(char* data, size_t size) {
  for (;;) {
    TDOCK_RETURN_IF_ERROR(patience_->Await(socket_, POLLIN, "the answer"));
    const ssize_t got = recv(socket_, data, size, 0);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EAGAIN || errno == EINTR) continue;
    return absl::UnavailableError(absl::StrCat("cannot read the answer: ", std::strerror(errno)));
  }
}

absl::Status HttpConnection::Send(const char* data, size_t size) {
  while (size > 0) {
    TDOCK_RETURN_IF_ERROR(patience_->Await(socket_, POLLOUT, "the server to take the request"));
    const ssize_t sent = send(socket_, data, size, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent < 0) return absl::UnavailableError(absl::StrCat("cannot send the request: ", std::strerror(errno)));
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> HttpConnection::ReadSome(char* data, size_t size) {
  if (ssl_ == nullptr) return Receive(data, size);
  for (;;) {
    ERR_clear_error();
    const int got = SSL_read(ssl_.get(), data, static_cast<int>(size));
    if (got > 0) return static_cast<size_t>(got);
    const int code = SSL_get_error(ssl_.get(), got);
    if (code == SSL_ERROR_ZERO_RETURN) return size_t{0};
    if (code != SSL_ERROR_WANT_READ) return TlsError(code, nullptr);
    TDOCK_RETURN_IF_ERROR(PumpTls(/*read=*/true));
  }
}

absl::Status HttpConnection::WriteAll(const char* data, size_t size) {
  if (ssl_ == nullptr) return Send(data, size);
  while (size > 0) {
    ERR_clear_error();
    const int sent = SSL_write(ssl_.get(), data, static_cast<int>(std::min<size_t>(size, 16384)));
    const int code = sent > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), sent);
    if (code != SSL_ERROR_NONE && code != SSL_ERROR_WANT_READ) return TlsError(code, nullptr);
    TDOCK_RETURN_IF_ERROR(PumpTls(/*read=*/code == SSL_ERROR_WANT_READ));
    if (sent <= 0) continue;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

void HttpConnection::BeginBody(size_t bytes) {
  in_header_ = false;
  allowed_ = most_ = bytes;
}

absl::Status HttpConnection::Admit(const char* data, size_t size) {
  if (size > allowed_) {
    return absl::ResourceExhaustedError(
        in_header_ ? absl::StrCat("the header of the answer has more than ", kMostHeaderBytes, " bytes")
                   : absl::StrCat("the answer is longer than ", most_ >> 20, " MiB"));
  }
  allowed_ -= size;
  if (!in_header_) return absl::OkStatus();
  for (size_t i = 0; i < size; ++i) {
    line_ = data[i] == '\n' ? 0 : line_ + 1;
    if (line_ <= kLongestHeaderLine) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("a line in the header of the answer has more than ", kLongestHeaderLine, " bytes"));
  }
  return absl::OkStatus();
}

ssize_t HttpConnection::read(char* data, size_t size) {
  if (!error_.ok()) return -1;
  if (begin_ == end_) {
    const absl::StatusOr<size_t> got = ReadSome(buffer_.data(), buffer_.size());
    if (!got.ok()) {
      error_ = got.status();
      return -1;
    }
    if (*got == 0) return 0;
    begin_ = 0, end_ = *got;
  }
  const size_t taken = std::min(size, end_ - begin_);
  error_ = Admit(&buffer_[begin_], taken);
  if (!error_.ok()) return -1;
  std::memcpy(data, &buffer_[begin_], taken);
  begin_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t HttpConnection::write(const char* data, size_t size) {
  if (error_.ok()) error_ = WriteAll(data, size);
  return error_.ok() ? static_cast<ssize_t>(size) : -1;
}

}  // namespace tdock::reward
