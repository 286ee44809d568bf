#include "core/rpc/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::rpc {
namespace {

using OwnedCertificate = std::unique_ptr<X509, decltype(&X509_free)>;

// OpenSSL's description of the last error on this thread.
std::string LastTlsError() {
  const char* const reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown" : reason;
}

int AskForNoPassword(char*, int, int, void*) { return -1; }

// All certificates of a PEM text.
std::vector<OwnedCertificate> CertificatesIn(const std::string& pem) {
  std::vector<OwnedCertificate> all;
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                      &BIO_free);
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, &AskForNoPassword, nullptr)) {
    all.emplace_back(next, &X509_free);
  }
  ERR_clear_error();  // the end of the text is one
  return all;
}

// HTTP/2, and nothing else: gRPC's clients insist on ALPN.
int ChooseHttp2(SSL*, const unsigned char** chosen, unsigned char* chosen_size, const unsigned char* offered,
                unsigned offered_size, void*) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_size, kHttp2, sizeof kHttp2, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

bool SpeaksHttp2(const SSL* ssl) {
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl, &chosen, &size);
  return size == 2 && std::equal(chosen, chosen + size, "h2");
}

bool UseCertificate(SSL_CTX* context, const TlsTexts& texts) {
  const std::vector<OwnedCertificate> chain = CertificatesIn(texts.certificate);
  if (chain.empty() || SSL_CTX_use_certificate(context, chain[0].get()) != 1) return false;
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return false;
  }
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(texts.key.data(), static_cast<int>(texts.key.size())), &BIO_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, &AskForNoPassword, nullptr), &EVP_PKEY_free);
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 && SSL_CTX_check_private_key(context) == 1;
}

// Clients must present a certificate signed by one of these.
bool DemandCertificates(SSL_CTX* context, const std::string& authorities) {
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const OwnedCertificate& authority : CertificatesIn(authorities)) {
    if (X509_STORE_add_cert(store, authority.get()) != 1) return false;
    if (SSL_CTX_add_client_CA(context, authority.get()) != 1) return false;
  }
  // A given CA is trusted, even if it is not the root of its chain.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return true;
}

bool SetUp(SSL_CTX* context) {
  // No session resumption: a ticket takes work and memory for any client that asks. And the rest of a full handshake is
  // as much work for the client as for the server.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context, &ChooseHttp2, nullptr);
  constexpr long kMostOfAClientsChain = 32 << 10;
  SSL_CTX_set_max_cert_list(context, kMostOfAClientsChain);
  return SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
         SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") == 1;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsIdentity>> TlsIdentity::Load(const TlsFiles& files) {
  if (files.certificate.empty()) {
    return absl::InvalidArgumentError("TLS on a server needs a certificate and its private key");
  }
  TDOCK_ASSIGN_OR_RETURN(const TlsTexts texts, ReadTlsFiles(files));
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr || !SetUp(context.get())) {
    return absl::InternalError(absl::StrCat("OpenSSL cannot be initialised: ", LastTlsError()));
  }
  if (!UseCertificate(context.get(), texts)) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.certificate, " and ", files.key, " are not accepted by OpenSSL: ", LastTlsError()));
  }
  if (!files.ca.empty() && !DemandCertificates(context.get(), texts.ca)) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.ca, " holds something other than CA certificates: ", LastTlsError()));
  }
  return std::shared_ptr<const TlsIdentity>(new TlsIdentity(std::move(context)));
}

std::unique_ptr<TlsSession> TlsSession::Make(const TlsIdentity& identity, Socket socket) {
  Ssl ssl(SSL_new(identity.context()), &SSL_free);
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket.get()) != 1) return nullptr;
  SSL_set_accept_state(ssl.get());
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(socket), std::move(ssl)));
}

TlsSession::Step TlsSession::Handshake() {
  ERR_clear_error();
  const Step step = StepOf(SSL_do_handshake(ssl_.get()));
  return step == Step::kDone && !SpeaksHttp2(ssl_.get()) ? Step::kFailed : step;
}

TlsSession::Moved TlsSession::Read(std::span<char> into) {
  ERR_clear_error();
  size_t bytes = 0;
  const Step step = StepOf(SSL_read_ex(ssl_.get(), into.data(), into.size(), &bytes));
  return {step, bytes};
}

TlsSession::Moved TlsSession::Write(absl::string_view bytes) {
  ERR_clear_error();
  size_t written = 0;
  const Step step = StepOf(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written));
  return {step, written};
}

void TlsSession::EndSending() {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
  shutdown(socket_.get(), SHUT_WR);
}

TlsSession::Step TlsSession::StepOf(int result) const {
  if (result > 0) return Step::kDone;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Step::kBlocked;
    case SSL_ERROR_ZERO_RETURN:
      return Step::kEnded;
    default:
      return Step::kFailed;
  }
}

}  // namespace tdock::rpc
