#include "core/net/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/status.h"

namespace tdock::net {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Open(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free); }

// Instead of a prompt on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const std::string pem, Env::Real().ReadFile(path));
  std::vector<Certificate> all;
  const Bio bio = Open(pem);
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, &NoPassword, nullptr)) {
    all.emplace_back(next, &X509_free);
    // Reads its extensions. Otherwise the first thread that needs them does, by an agreement with the others that tsan
    // cannot see.
    X509_check_purpose(next, -1, 0);
  }
  ERR_clear_error();  // the end of the text is one
  if (!all.empty()) return all;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": holds no certificate in PEM form (\"-----BEGIN CERTIFICATE-----\")"));
}

absl::Status UsePair(const TlsFiles& files, SSL_CTX* context) {
  if (files.certificate.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        files.key.empty() ? absl::StrCat("the certificate ", files.certificate, " was given without its private key")
                          : absl::StrCat("the private key ", files.key, " was given without its certificate"));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadCertificates(files.certificate));
  TDOCK_ASSIGN_OR_RETURN(const std::string pem, Env::Real().ReadFile(files.key));
  const Bio bio = Open(pem);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr), &EVP_PKEY_free);
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(files.key, ": holds no private key in PEM form without a password"));
  }
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("the private key in ", files.key, " does not belong to the certificate in ", files.certificate));
  }
  bool used = SSL_CTX_use_certificate(context, chain[0].get()) == 1 && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
  for (size_t i = 1; i < chain.size(); ++i) used = used && SSL_CTX_add1_chain_cert(context, chain[i].get()) == 1;
  if (used) return absl::OkStatus();
  const char* const reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(files.certificate, " and ", files.key,
                                                 " are not accepted by OpenSSL: ", reason == nullptr ? "" : reason));
}

// Trusts peers with certificates signed by one of these, and no others.
absl::Status Demand(const std::string& authorities, SSL_CTX* context) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Certificate> all, ReadCertificates(authorities));
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const Certificate& authority : all) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 || SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      ERR_clear_error();
      return absl::InvalidArgumentError(absl::StrCat(authorities, " holds something other than CA certificates"));
    }
  }
  // A given CA is trusted, even if it is not the root of its chain.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

bool SetUp(SSL_CTX* context) {
  // No session resumption: a ticket takes work and memory for any client that asks. And the rest of a full handshake is
  // as much work for the client as for the server.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  constexpr long kMaxPeerChainBytes = 32 << 10;
  SSL_CTX_set_max_cert_list(context, kMaxPeerChainBytes);
  return SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
         SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") == 1;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tls>> Tls::Load(const TlsFiles& files, Side side) {
  if (side == Side::kServer && files.certificate.empty() && files.key.empty()) {
    return absl::InvalidArgumentError("TLS on a server needs a certificate and its private key");
  }
  // Memory of OpenSSL stays when the process exits: other threads may still use it.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(side == Side::kServer ? TLS_server_method() : TLS_client_method()),
                                         &SSL_CTX_free);
  if (context == nullptr || !SetUp(context.get())) return absl::InternalError("OpenSSL cannot be initialised");
  if (!files.certificate.empty() || !files.key.empty()) TDOCK_RETURN_IF_ERROR(UsePair(files, context.get()));
  if (!files.ca.empty()) {
    TDOCK_RETURN_IF_ERROR(Demand(files.ca, context.get()));
  } else if (side == Side::kClient) {
    SSL_CTX_set_default_verify_paths(context.get());
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  }
  return std::shared_ptr<const Tls>(new Tls(context, side));
}

}  // namespace tdock::net
