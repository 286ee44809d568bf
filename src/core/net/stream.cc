#include "core/net/stream.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tdock::net {
namespace {

constexpr char kClosed[] = "the other side has closed the connection";

absl::Status Lost(int error) {
  return absl::UnavailableError(absl::StrCat("the connection is lost: ", std::strerror(error)));
}

class PlainStream final : public Stream {
 public:
  PlainStream(std::unique_ptr<FileDescriptor> socket, bool is_local, bool receives_files)
      : Stream(std::move(socket)), is_local_(is_local), receives_files_(receives_files) {}

  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    awaits_ = POLLIN;
    constexpr size_t kMaxFiles = 16;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFiles * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(into.data());
    message.msg_iovlen = into.size();
    if (receives_files_) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
    }
    const ssize_t got = recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return 0;
      return Lost(errno);
    }
    if (receives_files_) KeepFiles(message);
    if (got == 0) return absl::UnavailableError(kClosed);
    return static_cast<size_t>(got);
  }

  absl::StatusOr<size_t> Write(std::span<const iovec> pieces, const FileDescriptor* file) override {
    awaits_ = POLLOUT;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
    if (file != nullptr) {
      control = {};
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      const int passed = file->fd();
      std::memcpy(CMSG_DATA(rights), &passed, sizeof(passed));
    }
    const ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EINTR) return 0;
    return Lost(errno);
  }

  short awaits() const override { return awaits_; }
  void EndSending() override { shutdown(fd(), SHUT_WR); }
  std::shared_ptr<const FileDescriptor> TakeFile() override {
    if (files_.empty()) return nullptr;
    const std::shared_ptr<const FileDescriptor> file = std::move(files_.front());
    files_.pop_front();
    return file;
  }
  bool passes_files() const override { return is_local_; }
  bool needs_checksums() const override { return !is_local_; }

 private:
  void KeepFiles(msghdr& message) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int file = -1;
        std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof(file));
        files_.push_back(std::make_shared<const FileDescriptor>(file));
      }
    }
  }

  const bool is_local_, receives_files_;
  short awaits_ = POLLIN;
  std::deque<std::shared_ptr<const FileDescriptor>> files_;
};

// ---- TLS. OpenSSL reads from and writes to the socket by these functions: its own would raise SIGPIPE.

int BioWrite(BIO* bio, const char* bytes, int size) {
  const ssize_t sent =
      send(*static_cast<int*>(BIO_get_data(bio)), bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  BIO_clear_retry_flags(bio);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int BioRead(BIO* bio, char* bytes, int size) {
  const ssize_t got = recv(*static_cast<int*>(BIO_get_data(bio)), bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  BIO_clear_retry_flags(bio);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long BioControl(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tdock socket");
    BIO_meth_set_write(made, &BioWrite);
    BIO_meth_set_read(made, &BioRead);
    BIO_meth_set_ctrl(made, &BioControl);
    return made;
  }();
  return method;
}

class TlsStream final : public Stream {
 public:
  using Ssl = std::unique_ptr<SSL, decltype(&SSL_free)>;
  TlsStream(std::unique_ptr<FileDescriptor> socket, Ssl ssl)
      : Stream(std::move(socket)), number_(fd()), ssl_(std::move(ssl)) {}

  bool Open() {
    BIO* const bio = BIO_new(SocketMethod());
    if (bio == nullptr) return false;
    BIO_set_data(bio, &number_);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    return true;
  }

  absl::StatusOr<bool> Handshake() override {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return true;
    const absl::Status status = StatusOf(result);
    if (status.ok()) return false;
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified == X509_V_OK) return status;
    return absl::UnavailableError(
        absl::StrCat("the certificate of the other side is refused: ", X509_verify_cert_error_string(verified)));
  }
  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    size_t total = 0;
    for (const iovec& piece : into) {
      for (size_t filled = 0; filled < piece.iov_len;) {
        size_t bytes = 0;
        ERR_clear_error();
        const int result =
            SSL_read_ex(ssl_.get(), static_cast<char*>(piece.iov_base) + filled, piece.iov_len - filled, &bytes);
        filled += bytes;
        total += bytes;
        if (result == 1) continue;
        const absl::Status status = StatusOf(result);
        // The next call finds the end again.
        if (status.ok() || total > 0) return total;
        return status;
      }
    }
    return total;
  }
  absl::StatusOr<size_t> Write(std::span<const iovec> pieces, const FileDescriptor*) override {
    std::array<char, kRecordBytes> gathered;
    const char* bytes = static_cast<const char*>(pieces[0].iov_base);
    size_t size = std::min(pieces[0].iov_len, kRecordBytes);
    if (size < kSmallBytes && pieces.size() > 1) {
      // Small pieces go in one record.
      bytes = gathered.data();
      size = 0;
      for (const iovec& piece : pieces) {
        const size_t step = std::min(piece.iov_len, kRecordBytes - size);
        std::memcpy(gathered.data() + size, piece.iov_base, step);
        size += step;
        if (size == kRecordBytes) break;
      }
    }
    // A record that was begun keeps its size.
    if (begun_bytes_ > 0) size = std::min(size, begun_bytes_);
    ERR_clear_error();
    size_t written = 0;
    const int result = SSL_write_ex(ssl_.get(), bytes, size, &written);
    begun_bytes_ = result == 1 ? 0 : size;
    if (result == 1) return written;
    const absl::Status status = StatusOf(result);
    if (!status.ok()) return status;
    return 0;
  }
  short awaits() const override { return awaits_; }
  void EndSending() override {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
    shutdown(fd(), SHUT_WR);
  }
  bool passes_files() const override { return false; }
  bool needs_checksums() const override { return false; }

 private:
  static constexpr size_t kRecordBytes = 16 << 10;
  static constexpr size_t kSmallBytes = 4 << 10;

  // OK: it waits.
  absl::Status StatusOf(int result) {
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        awaits_ = POLLIN;
        return absl::OkStatus();
      case SSL_ERROR_WANT_WRITE:
        awaits_ = POLLOUT;
        return absl::OkStatus();
      case SSL_ERROR_ZERO_RETURN:
        return absl::UnavailableError(kClosed);
      case SSL_ERROR_SSL: {
        const char* const reason = ERR_reason_error_string(ERR_get_error());
        return absl::UnavailableError(absl::StrCat("TLS has failed: ", reason == nullptr ? "unknown" : reason));
      }
      default:
        return errno == 0 ? absl::UnavailableError(kClosed) : Lost(errno);
    }
  }

  int number_;  // of the socket, for the functions above
  const Ssl ssl_;
  short awaits_ = POLLIN;
  size_t begun_bytes_ = 0;
};

// An address is not sent as a server's name, and is compared with the addresses of the certificate.
bool ExpectName(SSL* ssl, const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  if (inet_pton(AF_INET, name.c_str(), address.data()) == 1 || inet_pton(AF_INET6, name.c_str(), address.data()) == 1) {
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) == 1;
  }
  return SSL_set1_host(ssl, name.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, name.c_str()) == 1;
}

}  // namespace

std::unique_ptr<Stream> MakePlainStream(std::unique_ptr<FileDescriptor> socket, bool is_local, bool receives_files) {
  return std::make_unique<PlainStream>(std::move(socket), is_local, receives_files);
}

absl::StatusOr<std::unique_ptr<Stream>> MakeTlsStream(std::unique_ptr<FileDescriptor> socket, const Tls& tls,
                                                      const std::string& name) {
  TlsStream::Ssl ssl(SSL_new(tls.context()), &SSL_free);
  const bool is_client = tls.side() == Tls::Side::kClient;
  if (ssl == nullptr || (is_client && !ExpectName(ssl.get(), name))) {
    return absl::ResourceExhaustedError("OpenSSL has no memory for a connection");
  }
  is_client ? SSL_set_connect_state(ssl.get()) : SSL_set_accept_state(ssl.get());
  auto stream = std::make_unique<TlsStream>(std::move(socket), std::move(ssl));
  if (!stream->Open()) return absl::ResourceExhaustedError("OpenSSL has no memory for a connection");
  return stream;
}

}  // namespace tdock::net
