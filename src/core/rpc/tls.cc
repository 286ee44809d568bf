#include "core/rpc/tls.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/base/status.h"

namespace tdock::rpc {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Open(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free); }

// Instead of a prompt on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Certificate> ParseCertificate(const std::string& pem, const std::string& path) {
  const Bio bio = Open(pem);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, &NoPassword, nullptr), &X509_free);
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds no certificate in PEM form (\"-----BEGIN CERTIFICATE-----\")"));
  }
  return certificate;
}

absl::Status CheckPair(const TlsTexts& texts, const TlsFiles& files) {
  TDOCK_ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate(texts.certificate, files.certificate));
  const Bio bio = Open(texts.key);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr), &EVP_PKEY_free);
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(files.key, ": holds no private key in PEM form without a password"));
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the private key in ", files.key, " does not belong to the certificate in ", files.certificate));
  }
  return absl::OkStatus();
}

absl::Status ReadInto(const std::string& path, std::string& text) {
  if (path.empty()) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(text, Env::Real().ReadFile(path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        files.key.empty() ? absl::StrCat("the certificate ", files.certificate, " was given without its private key")
                          : absl::StrCat("the private key ", files.key, " was given without its certificate"));
  }
  TlsTexts texts;
  TDOCK_RETURN_IF_ERROR(ReadInto(files.certificate, texts.certificate));
  TDOCK_RETURN_IF_ERROR(ReadInto(files.key, texts.key));
  TDOCK_RETURN_IF_ERROR(ReadInto(files.ca, texts.ca));
  if (!files.certificate.empty()) TDOCK_RETURN_IF_ERROR(CheckPair(texts, files));
  if (!files.ca.empty()) TDOCK_RETURN_IF_ERROR(ParseCertificate(texts.ca, files.ca).status());
  return texts;
}

}  // namespace tdock::rpc
